"""Whatever stands around it, the planted final answer comes back, and a planted draft never does."""

from __future__ import annotations

import ast
import warnings

from hypothesis import example, given
from hypothesis import strategies as st

from pytest_ddtree.coding import STATUSES, extract

FINAL = "def target(n):\n    marker = 'final'\n    return marker, n\n"
FINALS = st.sampled_from(
    [
        FINAL,
        'def target(n):\n    """Drop all up to </think>.\n\n    </think>\n    """\n    return "</think>", \'final\'\n',
        "# text before </think> is dropped\ndef target(n):\n    return n.split('</think>')[-1], 'final'\n",
        "OPEN = '<think>'\n\n\ndef target(n):\n    return OPEN, 'final'\n",
        'def target(n):\n    """Example:\n\n    ```python\n    target(1)\n    ```\n    """\n    return \'final\'\n',
        "import math\n\n\nclass Helper:\n    pass\n\n\n@staticmethod\ndef target(n):\n    return math.pi, 'final'\n",
        "target = lambda n: ('final', n)\n",
        "async def target(n):\n    return 'final'\n",
        "class target:\n    kind = 'final'\n\n    def run(self):\n        pass\n",
        "if True:\n    def target(n):\n        return 'final'\n",
        "def target(n):\n\treturn '<|im_end|>', '&lt;', 'final'\n",
        "def target(n):\n    return 'final'\n\n\nif __name__ == '__main__':\n    print(target(int(input())))\n",
    ]
)
DRAFT = "def target(n):\n    marker = 'draft'\n    return marker, n\n"

WORDS = [
    "so",
    "then",
    "we",
    "may",
    "add",
    "the",
    "value",
    "of",
    "each",
    "item",
    "and",
    "return",
    "it",
    "but",
    "not",
    "before",
]
SENTENCES = st.lists(st.sampled_from(WORDS), min_size=1, max_size=12).map(
    lambda w: " ".join(w).capitalize() + "."
)
SPEECH = st.sampled_from(
    [
        "I will close with `</think>` later.",
        'Perhaps s.split("</think>") helps.',
        "The tag '</think>' is only quoted.",
        "* a list item\n* another one",
        "It's what we'd do; don't worry.",
        "| a | b |\n|---|---|",
        "# Heading",
        "Use `target(3)` for that.",
        "",
    ]
)
PROSE = st.lists(st.one_of(SENTENCES, SPEECH), min_size=0, max_size=5).map("\n".join)


@st.composite
def fenced(draw: st.DrawFn, code: str, closed: bool = True) -> str:
    mark = draw(st.sampled_from(["```", "````", "~~~", "``````"]))
    tag = draw(st.sampled_from(["python", "py", "Python3", "", "python title='x'", " python"]))
    indent = draw(st.sampled_from(["", "", "  ", "    "]))
    body = "".join(f"{indent}{line}\n" if line else "\n" for line in code.splitlines())
    end = f"{indent}{mark}\n" if closed else ""
    return f"{indent}{mark}{tag}\n{body}{end}"


@st.composite
def other_block(draw: st.DrawFn) -> str:
    return draw(
        st.sampled_from(
            [
                "```bash\npip install x\n```\n",
                "```text\n('final', 3)\n```\n",
                "```\n('final', 3)\n```\n",
                '```json\n{"target": 1}\n```\n',
                "```python\nprint(target(3))\n```\n",
                "```python\nfrom answer import target\nassert target(3)\n```\n",
                "```pycon\n>>> target(3)\n```\n",
                "```diff\n-def target(n):\n+def target(n, m):\n```\n",
                "```python\ndef test_target():\n    assert target(1)\n```\n",
                "```python\ndef helper(n):\n    return n\n```\n",
            ]
        )
    )


DRAFT_OPEN = st.sampled_from(
    [f"```python\n{DRAFT}", f"```\n{DRAFT}hm\n", "```python\ndef target(n):\n    marker = ('draft'\n"]
)
THOUGHTS = st.lists(
    st.one_of(PROSE, fenced(DRAFT), fenced(DRAFT), other_block(), st.just(DRAFT)), min_size=0, max_size=5
).map("\n".join)
WRAPPERS = st.sampled_from(
    [
        ("<think>\n", "\n</think>\n"),
        ("", "\n</think>\n\n"),
        ("<thinking>", "</thinking>\n"),
        ("[THINK]", "[/THINK]\n"),
        ("◁think▷", "◁/think▷\n"),
        ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>\n"),
        ("<|im_start|>assistant\n<think>\n", "\n</think>\n"),
    ]
)


@st.composite
def thinking(draw: st.DrawFn) -> str:
    opening, closing = draw(WRAPPERS)
    return f"{opening}{draw(THOUGHTS)}\n{draw(st.one_of(st.just(''), DRAFT_OPEN))}{closing}"


BEFORE = st.lists(st.one_of(PROSE, other_block()), max_size=3).map("\n".join)
AFTER = st.lists(st.one_of(PROSE, other_block()), max_size=3).map("\n".join)
NEWLINES = st.sampled_from(["\n", "\n", "\r\n", "\r"])
TAILS = st.sampled_from(["", "<|im_end|>", "\n<|endoftext|>", "<|im_en", "\n\n"])


@given(thinking(), BEFORE, FINALS.flatmap(fenced), AFTER, TAILS, NEWLINES)
def test_the_planted_answer_comes_back(
    thought: str, before: str, answer: str, after: str, tail: str, newline: str
) -> None:
    response = f"{thought}\n{before}\n\n{answer}\n{after}{tail}".replace("\n", newline)
    found = extract(response, entry_point="target")
    assert found.status == "ok"
    assert found.code is not None
    assert "'final'" in found.code
    assert "'draft'" not in found.code
    assert found.span is not None
    assert "'final'" in response[slice(*found.span)]


@given(BEFORE, fenced(DRAFT), PROSE, FINALS.flatmap(fenced), AFTER)
def test_a_corrected_draft_outside_of_thinking_is_not_the_answer(
    before: str, draft: str, prose: str, answer: str, after: str
) -> None:
    found = extract(f"{before}\n\n{draft}\n{prose}\n\n{answer}\n{after}", entry_point="target")
    assert found.status == "ok"
    assert found.code is not None
    assert "'draft'" not in found.code


@given(thinking(), BEFORE, AFTER)
def test_a_draft_is_never_the_answer_of_a_response_without_one(thought: str, before: str, after: str) -> None:
    found = extract(f"{thought}\n{before}\n{after}", entry_point="target")
    assert found.code is None or "'draft'" not in found.code


@given(THOUGHTS, st.one_of(st.just(""), DRAFT_OPEN), st.sampled_from([None, "stop", "length"]))
def test_unclosed_thinking_is_never_an_answer(thought: str, rest: str, finish_reason: str | None) -> None:
    found = extract(f"<think>\n{thought}\n{rest}", entry_point="target", finish_reason=finish_reason)
    assert found.status == ("truncated" if finish_reason == "length" else "unclosed_thinking")


@given(st.data())
def test_no_prefix_of_a_response_is_graded_by_less_than_its_whole_answer(data: st.DataObject) -> None:
    thought = data.draw(THOUGHTS)
    final = data.draw(FINALS)
    response = f"<think>\n{thought}\n</think>\n{data.draw(PROSE)}\n\n{data.draw(fenced(final))}\nDone."
    cut = data.draw(st.integers(0, len(response)))
    found = extract(response[:cut], entry_point="target", finish_reason="length")
    if found.code is None:
        assert found.status == "truncated"
    else:
        assert found.code == final


@given(st.data())
def test_no_prefix_without_a_finish_reason_returns_a_draft(data: st.DataObject) -> None:
    thought = data.draw(THOUGHTS)
    response = f"{thought}\n</think>\n{data.draw(PROSE)}\n\n{data.draw(FINALS.flatmap(fenced))}\nDone."
    cut = data.draw(st.integers(0, len(response)))
    found = extract(response[:cut], entry_point="target", thinking_open=True)
    assert found.code is None or "'draft'" not in found.code


NASTY = st.lists(
    st.one_of(
        st.sampled_from(
            ["```", "````", "~~~", "```python\n", "\n```\n", "</think>", "<think>", "\n", "\r", '"""', "'''", "\\", "`",
             '"', "'", "def target(n):\n", "    return n\n", "> ", "- ", "    ", "<|im_end|>", "<|channel|>final", "<code>",
             "</code>", "&lt;", "\0", "\ud800", "\u200b", "#", "(", "[THINK]", "[/THINK]", "analysis", "assistantfinal"]
        ),
        st.text(max_size=5),
    ),
    max_size=60,
).map("".join)  # fmt: skip


@given(NASTY, st.booleans(), st.sampled_from([None, "stop", "length"]), st.one_of(st.none(), NASTY))
@example("```\n```python\n", False, None, None)
def test_any_text_gives_a_status_and_only_valid_code(
    text: str, stdin: bool, finish_reason: str | None, reasoning: str | None
) -> None:
    found = extract(text, entry_point="target", stdin=stdin, finish_reason=finish_reason, reasoning=reasoning)
    assert found.status in STATUSES
    assert (found.code is not None) == (found.status == "ok")
    if found.code is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(found.code)
    spans = [block.span for block in found.blocks]
    assert spans == sorted(spans)
    for start, end in [*spans, *([found.span] if found.span else [])]:
        assert 0 <= start <= end <= len(text)


def test_a_name_of_a_thousand_parts_raises_nothing() -> None:
    deep = "```python\nclass A(a" + ".b" * 2500 + "): pass\n```"
    assert extract(deep).status == "ok"
    assert extract(
        "```python\nclass A(unittest.TestCase): x = 1\n```\n```python\ndef f(): return 1\n```"
    ).span == (58, 76)


@given(NASTY)
def test_extraction_is_a_function_of_its_input(text: str) -> None:
    assert extract(text, entry_point="target") == extract(text, entry_point="target")
