"""Detokenisation, stop strings, thinking sections, chat templates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddtree.reference.chat import ChatError, ChatTemplate
from pytest_ddtree.reference.reasoning import ReasoningSplitter
from pytest_ddtree.reference.sampling import SamplingParams
from pytest_ddtree.reference.stops import Finish, StopChecker, visible_text
from pytest_ddtree.reference.testing import CHAT_TEMPLATE
from pytest_ddtree.reference.tokenizer import Detokenizer, Tokenizer

LENGTH = Finish("length")


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
        hit = next((string for string in strings if string in full), None)
        finish = LENGTH if number == len(parts) - 1 else None
        if hit is not None:
            finish = Finish("stop", hit)
        now = visible_text(full, strings, finish, trim=True)
        assert now.startswith(shown)
        shown = now
        if hit is not None:
            assert shown == full[: full.find(hit)]
            return
    assert shown == full


def test_stop_string_may_be_kept():
    stopped = Finish("stop", "XY")
    assert visible_text("abXYcd", ["XY"], stopped, trim=False) == "abXY"
    assert visible_text("abXYcd", ["XY"], stopped, trim=True) == "ab"
    assert visible_text("abX", ["XY"], None, trim=True) == "ab"
    assert visible_text("abX", ["XY"], LENGTH, trim=True) == "abX"


def test_what_ended_at_its_length_is_whole():
    """Its last token may complete a stop string, which then ended nothing."""
    assert visible_text("abXY", ["XY"], LENGTH, trim=True) == "abXY"


def test_a_stop_string_ends_an_answer_before_its_least_length_too(tokenizer):
    """As in SGLang, where `min_new_tokens` bars ids alone: what is shown and what is counted end together."""
    params = SamplingParams(max_new_tokens=50, min_new_tokens=40, stop=("return",))
    checker = StopChecker(params, (), tokenizer)
    ids = tokenizer.encode("    if x:\n        return None\n    y = 1\n")
    ends = [finish for token in ids if (finish := checker.push(token)) is not None]
    assert ends[0] == Finish("stop", "return")


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
    with pytest.raises(ChatError, match="gets add_generation_prompt, messages from the server"):
        template.render(messages, {"messages": [], "add_generation_prompt": False})
    with pytest.raises(ChatError, match="refuses the messages"):
        ChatTemplate("{{ 'depth ' + depth }}").render(messages, {"depth": 3})


def test_trained_template_has_both_modes(tokenizer):
    template = ChatTemplate(tokenizer.chat_template)
    messages = [{"role": "user", "content": "hi"}]
    assert template.render(messages, {}).endswith("<|im_start|>assistant\n")
    assert "</think>" in template.render(messages, {"enable_thinking": False})
