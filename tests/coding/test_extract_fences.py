"""The fence scanner against markdown-it-py where text is well-formed, and where the two must differ."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from pytest_ddtree.coding.extract.budget import Work
from pytest_ddtree.coding.extract.fences import Fenced, FenceScanner
from pytest_ddtree.coding.extract.languages import read_info
from pytest_ddtree.coding.extract.lines import Lines
from pytest_ddtree.coding.extract.source import Parser


def scan(text: str) -> list[Fenced]:
    work = Work()
    work.set_limits(len(text), text.count("`"))
    return list(FenceScanner(Lines(text), Parser(work), work).scan(0, len(text)))


WORD_LINES = st.lists(
    st.sampled_from(["alpha", "beta = 1", "    gamma", "", "- item", "# note", "`x` and `y`"]), max_size=4
)
TAGS = st.sampled_from(["python", "text", "json", "", "py", "bash", "Python", "python title=x"])


@st.composite
def document(draw: st.DrawFn) -> str:
    lines: list[str] = []
    for _ in range(draw(st.integers(0, 5))):
        lines += ["", draw(st.sampled_from(["Some prose.", "More of it, at length.", "## Title"])), ""]
        if draw(st.booleans()):
            mark = draw(st.sampled_from("`~")) * draw(st.integers(3, 6))
            indent = " " * draw(st.integers(0, 3))
            lines.append(f"{indent}{mark}{draw(TAGS)}")
            lines += [f"{indent}{line}" if line else line for line in draw(WORD_LINES)]
            lines.append(
                f"{' ' * draw(st.integers(0, 3))}{mark}{mark[0] * draw(st.integers(0, 2))}{' ' * draw(st.integers(0, 2))}"
            )
    return "\n".join(lines) + "\n"


@given(document())
def test_well_formed_fences_are_read_as_markdown_it_reads_them(text: str) -> None:
    expected = [
        (token.info.strip(), token.content)
        for token in MarkdownIt("commonmark").parse(text)
        if token.type == "fence"
    ]
    blocks = [block for block in scan(text) if not block.inline]
    assert [block.text(text) for block in blocks] == [content for _, content in expected]
    assert [block.info.language for block in blocks] == [info.split(" ")[0].lower() for info, _ in expected]
    assert all(block.closed for block in blocks)


def test_a_fence_in_a_list_is_outdented_as_markdown_it_does() -> None:
    text = "1. one\n\n   ```python\n   a = 1\n     b = 2\n   ```\n"
    (token,) = [token for token in MarkdownIt("commonmark").parse(text) if token.type == "fence"]
    (block,) = scan(text)
    assert block.text(text) == token.content == "a = 1\n  b = 2\n"


def test_a_fence_in_a_block_quote_is_outdented_as_markdown_it_does() -> None:
    text = "> ```python\n> a = 1\n>   b = 2\n> ```\n"
    (token,) = [token for token in MarkdownIt("commonmark").parse(text) if token.type == "fence"]
    (block,) = scan(text)
    assert block.text(text) == token.content == "a = 1\n  b = 2\n"


def test_a_fence_inside_a_string_does_not_close_where_markdown_it_closes() -> None:
    text = '```python\nx = """\n```\n"""\n```\n'
    (block,) = scan(text)
    assert block.text(text) == 'x = """\n```\n"""\n'
    first = next(token for token in MarkdownIt("commonmark").parse(text) if token.type == "fence")
    assert first.content == 'x = """\n'


def test_scanning_can_start_inside_a_line() -> None:
    text = "gone ```\nthinking</think>```python\na = 1\n```\n"
    work = Work()
    scanner = FenceScanner(Lines(text), Parser(work), work)
    (block,) = scanner.scan(text.index("</think>") + 8, len(text))
    assert block.text(text) == "a = 1\n"
    assert text[block.start :].startswith("```python")


@pytest.mark.parametrize(
    ("info", "language", "kind", "known"),
    [
        ("python", "python", "python", True),
        ("Python3.12", "python3.12", "python", True),
        ("{.python .numberLines}", "python", "python", True),
        ("py title='a.py'", "py", "python", True),
        ("python:src/a.py", "python", "python", True),
        ("solution.py", "solution.py", "python", True),
        ("language-python", "language-python", "python", True),
        ("", "", "plain", False),
        ("answer", "answer", "plain", False),
        ("c++", "c++", "other", True),
        ("text", "text", "other", True),
        ("Markdown", "markdown", "markdown", True),
        ("text that goes on as prose", "text", "other", False),
        ("go ahead and try", "go", "other", False),
    ],
)
def test_info_strings(info: str, language: str, kind: str, known: bool) -> None:
    read = read_info(info)
    assert (read.language, read.kind, read.known, read.code_at) == (language, kind, known, None)


@pytest.mark.parametrize(
    ("info", "code"),
    [
        ("def f(x):", "def f(x):"),
        ("python def f(x):", "def f(x):"),
        ("python import os", "import os"),
        ("python f = abs", "f = abs"),
        ("py for i in x: print(i)", "for i in x: print(i)"),
        ("from a import b", "from a import b"),
        ("\u200bpython def f(x):", "def f(x):"),
    ],
)
def test_code_on_the_fence_line(info: str, code: str) -> None:
    read = read_info(info)
    assert read.code_at is not None
    assert info[read.code_at :] == code
