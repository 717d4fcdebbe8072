"""Prompts have exactly as many tokens as asked for, differ from each other, and come out the same every time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from pytest_ddtree.workload.prompts import PromptMaker
from pytest_ddtree.workload.template import load_template
from pytest_ddtree.workload.texts import WORKLOADS, Text, Workload, questions, shipped, split_text

TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message.role }}\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}"
    "<think></think>{% endif %}{% endif %}"
)


def save_tokenizer(path: Path, *, bos: bool = False) -> Tokenizer:
    """A tokenizer of single bytes with chat markers, small enough to be written here."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: number for number, letter in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|start|>", "<|end|>", "<s>"])
    if bos:
        ids = [("<s>", tokenizer.token_to_id("<s>"))]
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=ids)
    tokenizer.save(str(path / "tokenizer.json"))
    return tokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_tokenizer(path)
    (path / "chat_template.jinja").write_text(TEMPLATE)
    return path


@pytest.fixture(scope="module")
def makers(model: Path) -> dict[str, PromptMaker]:
    return {name: PromptMaker(model, workload=name) for name in WORKLOADS}


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("tokens", [200, 1024, 5000])
def test_a_prompt_has_exactly_the_length_asked_for(
    makers: dict[str, PromptMaker], workload: str, tokens: int
) -> None:
    prompts = makers[workload].make_many(tokens, 12)
    assert {len(prompt.ids) for prompt in prompts} == {tokens}
    assert len({prompt.ids for prompt in prompts}) == len(prompts)


def test_two_prompts_share_no_more_than_the_template(makers: dict[str, PromptMaker], model: Path) -> None:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    head = tokenizer.encode("<|start|>user\n# ", add_special_tokens=False).ids
    prompts = [prompt.ids for prompt in makers["code"].make_many(600, 20)]
    for index, one in enumerate(prompts):
        for other in prompts[:index]:
            shared = next(
                at for at, (left, right) in enumerate(zip(one, other, strict=True)) if left != right
            )
            # Hexadecimal digits of two draws may begin alike.
            assert shared <= len(head) + 4


def test_the_same_seed_gives_the_same_prompts_and_another_one_does_not(model: Path) -> None:
    first, again, other = (PromptMaker(model, seed=seed).make_many(500, 3) for seed in (1, 1, 2))
    assert first == again
    assert not {prompt.ids for prompt in first} & {prompt.ids for prompt in other}


def test_warm_up_prompts_are_not_those_that_are_measured(makers: dict[str, PromptMaker]) -> None:
    maker = makers["code"]
    assert maker.make(500, 0).ids != maker.make(500, 0, purpose="warm-up").ids


def test_a_prompt_is_template_document_and_question(makers: dict[str, PromptMaker], model: Path) -> None:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    text = tokenizer.decode(list(makers["code"].make(900, 1).ids), skip_special_tokens=False)
    assert text.startswith("<|start|>user\n# ")
    assert text.endswith(f"\n\n{shipped('code').questions[1]}<|end|>\n<|start|>assistant\n")
    units = [unit for source in shipped("code").texts for unit in source.units]
    assert any(unit[:30] in text for unit in units)


def test_thinking_is_handed_to_the_template(model: Path) -> None:
    assert load_template(model, thinking=False).frame("why?").tail.endswith("assistant\n<think></think>")
    assert load_template(model).frame("why?").tail.endswith("assistant\n")


def test_the_shortest_prompt_is_told_and_possible(makers: dict[str, PromptMaker]) -> None:
    maker = makers["chat"]
    assert len(maker.make(maker.minimum, 0).ids) == maker.minimum
    assert maker.fits(maker.minimum)
    assert not maker.fits(maker.minimum - 1)
    with pytest.raises(ValueError, match=str(maker.minimum)):
        maker.make(maker.minimum - 1, 0)


def test_a_long_question_gives_way_where_it_does_not_fit(model: Path) -> None:
    maker = PromptMaker(model, questions=["x" * 300, "short?"])
    assert len(maker.make(200, 0).ids) == 200
    assert len(maker.make(2000, 0).ids) == 2000


def test_more_text_than_there_is_repeats_and_says_so(model: Path) -> None:
    small = Workload("small", (Text("a", ("one two three",)),), ("why?",))
    maker = PromptMaker(model, workload=small)
    assert maker.make(2000, 0).repeats
    assert not PromptMaker(model).make(2000, 0).repeats


@given(st.integers(100, 3000), st.integers(0, 10_000), st.integers(0, 5))
def test_any_length_number_and_seed_will_do(model: Path, tokens: int, index: int, seed: int) -> None:
    small = Workload("small", shipped("chat").texts, ("why?", "how?"))
    assert len(PromptMaker(model, workload=small, seed=seed).make(tokens, index).ids) == tokens


def test_without_a_template_the_prompt_is_plain_text_after_the_tokenizers_own_start(tmp_path: Path) -> None:
    tokenizer = save_tokenizer(tmp_path, bos=True)
    ids = PromptMaker(tmp_path).make(600, 0).ids
    assert ids[0] == tokenizer.token_to_id("<s>")
    assert tokenizer.decode(list(ids[1:])).endswith(shipped("code").questions[0] + "\n")


def test_a_template_in_the_configuration_is_found_too(tmp_path: Path) -> None:
    named = [{"name": "tool", "template": "x"}, {"name": "default", "template": TEMPLATE}]
    for source in (TEMPLATE, named):
        config = {"chat_template": source, "bos_token": {"content": "<s>"}}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        assert load_template(tmp_path).frame("why?").head == "<|start|>user\n"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{{ raise_exception('no users') }}", "no users"),
        ("{% for %}", "cannot be rendered"),
        ("{{ 'fixed' }}", "does not show the user's message"),
    ],
)
def test_a_template_that_cannot_be_used_is_told(tmp_path: Path, source: str, says: str) -> None:
    (tmp_path / "chat_template.jinja").write_text(source)
    with pytest.raises(ValueError, match=says):
        load_template(tmp_path).frame("why?")


def test_a_model_without_a_tokenizer_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        PromptMaker(tmp_path)


def test_texts_are_split_into_functions_and_paragraphs() -> None:
    text = split_text("x", "import a\n\n\ndef f():\n    x = 1\n\n    return x\n\n\nclass C:\n    pass\n")
    assert text.units == ("import a", "def f():\n    x = 1\n\n    return x", "class C:\n    pass")


def test_a_workload_needs_a_text_and_a_question() -> None:
    asked = questions("why?\n\nhow?\n")
    assert Workload("own", (split_text("a", "one\n\ntwo\n"),), asked).questions == ("why?", "how?")
    for texts, questioned in (((split_text("a", "one"),), ()), ((split_text("a", "\n\n"),), asked)):
        with pytest.raises(ValueError, match="needs a text that is not empty and a question"):
            Workload("own", texts, questioned)


def test_another_workload_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="code, chat, longdoc, edit"):
        shipped("poetry")
