"""Detokenisation, stop strings, thinking sections, chat templates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddtree.reference.chat import ChatError, ChatTemplate
from pytest_ddtree.reference.reasoning import ReasoningSplitter
from pytest_ddtree.reference.sampling import SamplingParams
from pytest_ddtree.reference.stops import StopChecker, visible_text
from pytest_ddtree.reference.testing import CHAT_TEMPLATE
from pytest_ddtree.reference.tokenizer import Detokenizer, Tokenizer


@pytest.fixture(scope="module")
def tokenizer(trained):
    return Tokenizer(trained[0])


@given(text=st.text(max_size=60), data=st.data())
def test_incremental_text_adds_up(tokenizer, text, data):
    ids = tokenizer.encode(text)
    detokenizer, position, shown = Detokenizer(tokenizer), 0, ""
    while position < len(ids):
        step = data.draw(st.integers(1, 5))
        shown += detokenizer.push(ids[position : position + step])
        assert text.startswith(shown), "a half character was shown"
        position += step
    shown += detokenizer.finish()
    assert shown == tokenizer.decode(ids) == detokenizer.text


def test_incomplete_character_appears_at_the_end(tokenizer):
    ids = list(tokenizer.encode("ü☃"))
    detokenizer = Detokenizer(tokenizer)
    assert not detokenizer.push(ids[:-1]).endswith("\ufffd")
    assert detokenizer.finish().endswith("\ufffd")


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.text("abc", max_size=3), max_size=8),
)
def test_shown_text_never_has_to_be_taken_back(strings, parts):
    full, shown = "", ""
    for number, part in enumerate(parts):
        full += part
        hit = any(string in full for string in strings)
        last = hit or number == len(parts) - 1
        now = visible_text(full, strings, finished=last, trim=True)
        assert now.startswith(shown)
        shown = now
        if hit:
            break
    cut = min((full.find(string) for string in strings if string in full), default=len(full))
    assert shown == (full[:cut] if parts else "")


def test_stop_string_may_be_kept():
    assert visible_text("abXYcd", ["XY"], finished=True, trim=False) == "abXY"
    assert visible_text("abX", ["XY"], finished=False, trim=True) == "ab"
    assert visible_text("abX", ["XY"], finished=True, trim=True) == "abX"


def test_stop_checker_finds_strings_across_tokens(tokenizer):
    params = SamplingParams(max_new_tokens=50, stop=("return None",))
    checker = StopChecker(params, (), tokenizer)
    ids = tokenizer.encode("    if x:\n        return None\n    y = 1\n")
    ends = [index for index, token in enumerate(ids) if checker.push(token)]
    assert tokenizer.decode(ids[: ends[0] + 1]).rstrip("\n").endswith("return None")


TAGGED = "<think>\nfirst try\n</think>\n\nanswer"


@pytest.mark.parametrize(
    ("parser", "off", "text", "reasoning", "content"),
    [
        ("qwen3", False, TAGGED, "\nfirst try\n", "\n\nanswer"),
        ("qwen3", False, "plain answer", "", "plain answer"),
        ("qwen3", False, "<think>never closed", "never closed", ""),
        ("qwen3", True, "plain answer", "", "plain answer"),
        ("deepseek-r1", False, "thoughts</think>answer", "thoughts", "answer"),
        ("deepseek-r1", False, TAGGED, "<think>\nfirst try\n", "\n\nanswer"),
        ("qwen3", False, "<think>a</think>b</think>c", "a", "b</think>c"),
    ],
)
@given(data=st.data())
def test_thinking_is_split_however_the_text_is_cut(parser, off, text, reasoning, content, data):
    splitter, found = ReasoningSplitter(parser, thinking_off=off), ["", ""]
    position = 0
    while position < len(text):
        step = data.draw(st.integers(1, 9))
        piece = splitter.push(text[position : position + step], last=position + step >= len(text))
        found[0] += piece.reasoning
        found[1] += piece.content
        position += step
    assert found == [reasoning, content]


def test_chat_template_renders_and_refuses():
    template = ChatTemplate(CHAT_TEMPLATE)
    messages = [{"role": "user", "content": "hi"}]
    assert template.render(messages, {}) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert template.render(messages, {"enable_thinking": False}).endswith("<think>\n\n</think>\n\n")
    with pytest.raises(ChatError, match="no such role"):
        ChatTemplate("{{ raise_exception('no such role') }}").render(messages, {})


def test_trained_template_has_both_modes(tokenizer):
    template = ChatTemplate(tokenizer.chat_template)
    messages = [{"role": "user", "content": "hi"}]
    assert template.render(messages, {}).endswith("<|im_start|>assistant\n")
    assert "</think>" in template.render(messages, {"enable_thinking": False})
