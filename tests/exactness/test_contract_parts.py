"""The pure parts of the contract: what they call a fault, and what they must not."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.client.records import Chunk, Outcome, Record, Request, Sampling, TokenScore
from pytest_ddtree.exactness.contract.batches import accept_decay, accept_fallen, border_lengths, drafts_worse
from pytest_ddtree.exactness.contract.catalogue import CONTRACT
from pytest_ddtree.exactness.contract.evidence import Evidence, Gathering, Subject, of_length, taken
from pytest_ddtree.exactness.contract.parameters import (
    beginning_problem,
    begun_alike,
    by_parameter,
    ignored,
    json_problem,
    refused,
    repeats,
    sampled,
)
from pytest_ddtree.exactness.contract.reporting import looping, same_text, usage_problems
from pytest_ddtree.exactness.contract.stops import choose_stops, stop_id_problems, stop_string_problems
from pytest_ddtree.exactness.judged import WorstToken
from pytest_ddtree.exactness.prompts import Prompt
from pytest_ddtree.exactness.verdict import Verdict

LETTERS = "abcdefghijklmnopqrstuvwxyz ,."
PROMPT = Prompt("p", (1, 2, 3))


def spell(ids: Any) -> str:
    return "".join(LETTERS[token] * (1 if token < 20 else 2) for token in ids)


def subject(**changes: Any) -> Subject:
    values: dict[str, Any] = {
        "client": AsyncClient("http://127.0.0.1:9"),
        "prompts": (PROMPT,),
        "decode": spell,
    }
    return Subject(**(values | {"block_size": 8} | changes))


def record(
    ids: tuple[int, ...],
    *,
    text: str | None = None,
    finish: dict[str, Any] | None = None,
    outcome: Outcome = "ok",
    ends: tuple[int, ...] | None = None,
    asked: int | None = None,
    **meta: Any,
) -> Record:
    ends = tuple(range(1, len(ids) + 1)) if ends is None else ends
    return Record(
        request=Request(sampling=Sampling(max_new_tokens=asked or len(ids)), input_ids=PROMPT.ids, tag="p"),
        outcome=outcome,
        sent_ns=0,
        end_ns=1,
        output_ids=ids,
        text=spell(ids) if text is None else text,
        chunks=tuple(Chunk(index, end) for index, end in enumerate(ends)),
        finish_reason=finish or {"type": "length", "length": len(ids)},
        meta={"completion_tokens": len(ids), "prompt_tokens": 3, "cached_tokens": 2} | meta,
    )


HONEST = record((1, 2, 3, 4, 5, 6), ends=(1, 4, 6), spec_verify_ct=2, spec_accept_length=3.0)


def test_an_honest_answer_has_no_usage_problems() -> None:
    assert usage_problems(subject(), PROMPT, HONEST, stream=True) == []
    stopped = record((1, 2), asked=9, finish={"type": "stop", "matched": 2})
    assert usage_problems(subject(), PROMPT, stopped, stream=True) == []


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (record((1, 2, 3), completion_tokens=4), "completion_tokens 4, but 3 token ids came"),
        (record((1, 2, 3), prompt_tokens=4), "prompt_tokens 4, but 3 ids were sent"),
        (record((1, 2, 3), cached_tokens=3), "cached_tokens 3 of a prompt of 3"),
        (record((1, 2, 3), asked=5), "finish reason length after 3 of 5 tokens"),
        (record((1, 2, 3), finish={"type": "abort"}), "finish reason"),
        (
            record((1,) * 6, ends=(1, 4, 6), spec_verify_ct=2, spec_accept_length=4.5),
            "spec_accept_length 4.500",
        ),
        (record((1,) * 30, ends=(1, 16, 30), spec_verify_ct=2), "a block of 8 gives at most that many"),
        (record((1,) * 6, ends=(1, 2, 4, 6), spec_verify_ct=2), "4 chunks came, but only 2 verify steps"),
        (record((1,) * 13, ends=(1, 12, 13), spec_verify_ct=2), "one verify step gave 11 tokens"),
    ],
)
def test_what_meta_data_do_not_bear_out_is_a_problem(answer: Record, problem: str) -> None:
    assert any(problem in found for found in usage_problems(subject(), PROMPT, answer, stream=True))


def stopped_at(ids: tuple[int, ...], stop: str, **changes: Any) -> Record:
    text = spell(ids)
    cut = text[: text.index(stop)] if stop in text else text
    return record(ids, **({"text": cut, "finish": {"type": "stop", "matched": stop}, "asked": 20} | changes))


def test_an_answer_that_ends_before_its_stop_string_is_right() -> None:
    answer = stopped_at((7, 4, 11, 11, 14), "llo")
    assert stop_string_problems(subject(), PROMPT, answer, "llo", "w") == []
    never = record((7, 4, 11), asked=3)
    assert stop_string_problems(subject(), PROMPT, never, "zz", "w") == []


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (stopped_at((7, 4, 11, 11, 14, 15), "llo"), "tokens came after the one that completed"),
        (stopped_at((7, 4, 11, 11, 14), "llo", text="hello"), "holds the stop string and 0 characters after"),
        (stopped_at((7, 4, 11, 11, 14), "llo", text="h"), "not what the tokens spell"),
        (stopped_at((7, 4, 11), "llo"), "do not spell the stop string"),
        (stopped_at((7, 4, 11, 11, 14), "llo", finish={"type": "stop", "matched": 14}), "matched 14"),
        (stopped_at((7, 4, 11, 11, 14), "llo", finish={"type": "length"}), "went on to its length limit"),
    ],
)
def test_a_leaking_stop_string_is_a_problem(answer: Record, problem: str) -> None:
    (found,) = stop_string_problems(subject(), PROMPT, answer, "llo", "w")
    assert problem in found


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (record((5, 6, 7), asked=9, finish={"type": "stop", "matched": 7}), None),
        (record((5, 6), asked=2), None),
        (record((5, 7, 6), asked=9), "1 tokens came after the stop id"),
        (record((5, 6, 7)), None),  # the last token that was asked for
        (record((5, 6, 7), asked=9), "but its finish reason is length"),
        (record((5, 6), asked=9, finish={"type": "stop", "matched": "x"}), "does not hold the stop id"),
        (record((5, 2), asked=9, finish={"type": "stop", "matched": 2}), None),  # its natural end
    ],
)
def test_a_leaking_stop_id_is_a_problem(answer: Record, problem: str | None) -> None:
    found = stop_id_problems(PROMPT, answer, 7, "w", eos=(2,))
    assert (found == []) if problem is None else problem in found[0]


@given(st.text(alphabet=LETTERS + "\ufffd", max_size=80), st.integers(0, 99))
def test_chosen_stops_are_inside_the_text(text: str, seed: int) -> None:
    for stop in choose_stops(text, random.Random(seed), 3):
        assert stop in text
        assert 2 <= len(stop) <= 9
        assert "\ufffd" not in stop
        assert stop.strip()


def streams(first: int, last: int, count: int = 4, spread: int = 1) -> list[Record]:
    """Answers whose steps have `first` tokens at the start and `last` at the end, a little uneven."""
    generator = random.Random(5)
    answers = []
    for _ in range(count):
        sizes = [
            max(1, round(first + (last - first) * index / 79) + generator.randint(-spread, spread))
            for index in range(80)
        ]
        ends = [1]
        for size in sizes:
            ends.append(ends[-1] + size)
        answers.append(record((1,) * ends[-1], ends=tuple(ends), spec_verify_ct=80))
    return answers


def test_a_decaying_accept_length_is_named() -> None:
    assert "fall by" in (accept_decay(streams(5, 2)) or "")
    assert accept_decay(streams(4, 4)) is None
    assert accept_decay(streams(2, 5)) is None
    assert accept_decay(streams(5, 2, count=2)) is None
    assert accept_decay([record((1, 2, 3))]) is None


def test_drafts_that_are_worse_upon_generated_context_are_named() -> None:
    same = [(2, 2), (1, 1), (5, 5)] * 40
    both_ways = same + [(1, 2), (2, 1)] * 20
    for float32 in (True, False):
        assert drafts_worse(same, float32=float32) is None
        assert drafts_worse([], float32=float32) is None
        assert drafts_worse([*same, (1, 2)], float32=float32) is None
        worse = drafts_worse([*same, *[(1, 3)] * 14, (3, 1)], float32=float32)
        assert "14 give fewer and 1 more" in (worse or "")
    assert drafts_worse(both_ways, float32=False) is None
    assert drafts_worse(both_ways, float32=True) is not None


def test_borders_are_one_short_at_and_one_past() -> None:
    known = subject(page_size=16, window=128, chunked_prefill=512, context_length=520)
    lengths = border_lengths(known, 4200)
    assert lengths == [7, 8, 9, 15, 16, 17, 119, 120, 121, 127, 128, 129]
    assert border_lengths(subject(chunked_prefill=512), 4200)[-3:] == [511, 512, 513]
    assert border_lengths(subject(chunked_prefill=512), 100) == [7, 8, 9]
    assert border_lengths(subject(block_size=None, page_size=1), 100) == []


def test_prompts_are_made_to_length_and_repeated_under_other_names() -> None:
    prompts = [Prompt("a", (1, 2)), Prompt("b", (3,))]
    assert of_length(prompts, 7).ids == (1, 2, 3, 1, 2, 3, 1)
    assert of_length(prompts, 3, start=1).ids == (3, 1, 2)
    assert [prompt.tag for prompt in taken(prompts, 5)] == ["a", "b", "a/1", "b/1", "a/2"]


def test_evidence_numbers_answers_of_one_name_and_keeps_failures() -> None:
    found = Gathering()
    assert found.add(PROMPT, HONEST, "x")
    assert found.add(PROMPT, HONEST, "x")
    assert not found.add(PROMPT, record((), outcome="timeout"), "y")
    evidence = found.evidence()
    assert list(evidence.records) == ["p, x", "p, x #2"]
    assert [prompt.ids for prompt in evidence.prompts] == [PROMPT.ids] * 2
    assert evidence.problems == ("p (y): timeout: None",)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"name": "ada", "count": 3}', None),
        ('{"name": "ada", "count": 3} and', "no JSON"),
        ('{"name": "ada"}', "exactly the members"),
        ('{"name": 1, "count": 3}', "no name"),
        ('{"name": "ada", "count": true}', "no whole count"),
        ('{"name": "ada", "count": 100}', "no whole count"),
    ],
)
def test_json_is_checked_by_its_schema(text: str, problem: str | None) -> None:
    found = json_problem(text)
    assert (found is None) if problem is None else problem in (found or "")


@pytest.mark.parametrize("text", ["", " \n", "{", '{ "na', '{"count": 3, "na', '{\n  "name": "a{'])
def test_json_that_was_cut_may_still_become_what_its_schema_asks_for(text: str) -> None:
    assert beginning_problem(text) is None


@pytest.mark.parametrize("text", ["def f():", "[", '"name"', "{}", '{"other"', "{'name'", '{"name_'])
def test_json_that_was_cut_cannot_become_it(text: str) -> None:
    assert beginning_problem(text) == "does not begin as such an object"


def test_only_answers_that_begin_alike_are_compared() -> None:
    """A walk that ignores the temperature still gets other first tokens from prefill."""
    ignored = [[(1, 5, 6), (2, 7, 8), (1, 5, 6), (1, 5, 6)], [(3, 4, 4), (3, 4, 4)]]
    assert begun_alike(ignored) == (3, 0)
    assert begun_alike([*ignored, [(9, 1), (9, 2)]]) == (3, 1)
    assert begun_alike([[(1, 2)], [(1, 2)]]) == (0, 0), "other prompts are not compared"


def test_small_things() -> None:
    assert repeats((1, 1, 2, 1)) == 2
    assert looping((1, 2, 3, 4) * 10) == pytest.approx(1 - 4 / 37)
    assert looping((1, 2, 3)) == 0.0
    assert same_text("ab", "ab")
    assert same_text("ab", "ab\ufffd")
    assert not same_text("ab", "abc")
    assert not same_text("abc", "ab")
    rejected = Record(request=HONEST.request, outcome="rejected", sent_ns=0, end_ns=0, http_status=400)
    assert refused(rejected)
    assert not refused(HONEST)


def test_an_ignored_parameter_is_named() -> None:
    verdict = Verdict(
        kind="corrupt",
        level="full",
        config="b8-k8-wnone",
        prompts=9,
        identical=0,
        tokens=576,
        off=51,
        largest=12.7,
        gap_limit=2.0,
        floor_largest=0.5,
        floor_share=0.01,
        floor_tokens=14_000,
        p_share=1.0,
        reasons=("21 of 576 tokens beyond a gap of 2 nats (largest 12.7)",),
        worst=tuple(
            WorstToken(
                tag=f"a, {name}",
                position=3,
                score=TokenScore(position=9, token_id=1, logprob=-gap, top=((0, 0.0),)),
            )
            for name, gap in (("min_p 1", 12.7), ("min_p 1", 5.0), ("top_k 1", 0.3))
        ),
    )
    assert ignored(verdict) == (
        "min_p 1 is not honoured, answers should be greedy: 21 of 576 tokens beyond a gap of 2 nats (largest 12.7)"
    )


def alone(off: int, tokens: int = 64, floor: float = 0.0085) -> Verdict:
    return Verdict(
        kind="tie",
        level="self",
        config="chain-wnone",
        prompts=1,
        identical=0,
        tokens=tokens,
        off=off,
        largest=0.0,
        gap_limit=1.8,
        floor_largest=0.4,
        floor_share=floor,
        floor_tokens=7_000,
        p_share=0.01,
    )


def test_samples_are_told_from_greedy_answers_without_gaps() -> None:
    """As on a real server that ignores min_p, judged by its own prefill: 58 of 576 tokens off, all of them in these three answers."""
    said = sampled("min_p 1", [alone(19), alone(26), alone(13)])
    assert said.startswith("min_p 1 is not honoured, answers should be greedy: 58 of 192 tokens")
    assert sampled("top_k 1", [alone(1), alone(0), alone(2)]) == ""
    assert sampled("top_k 1", [alone(30), alone(1), alone(2)]) == "", "one answer may loop over a near-tie"
    assert sampled("top_k 1", [alone(9, floor=0.05)] * 3) == "", "an 8-bit cache"
    assert sampled("top_k 1", [alone(1, tokens=4)] * 3) == ""
    assert sampled("top_k 1", []) == ""


def test_the_answers_of_each_parameter_stand_alone() -> None:
    found = Gathering()
    for name in ("min_p 1", "top_k 1"):
        for tag in ("a", "b"):
            found.add(Prompt(tag, (1, 2)), HONEST, name)
    parts = by_parameter(found.evidence())
    assert {name: [one.prompts[0].tag for one in each] for name, each in parts.items()} == {
        "min_p 1": ["a, min_p 1", "b, min_p 1"],
        "top_k 1": ["a, top_k 1", "b, top_k 1"],
    }


def test_an_abort_with_a_client_status_is_a_refusal() -> None:
    """So a real server's scheduler refuses a schema, after the stream has begun with status 200; a broken one says 500, or nothing."""
    reason = {"type": "abort", "message": "grammar is not supported", "status_code": 400}
    aborted = Record(
        request=HONEST.request, outcome="aborted", sent_ns=0, end_ns=0, http_status=200, finish_reason=reason
    )
    assert refused(aborted)
    assert not refused(replace(aborted, finish_reason={**reason, "status_code": 500}))
    assert not refused(replace(aborted, finish_reason={"type": "abort"}))


def test_every_clause_says_what_it_guards() -> None:
    assert len(CONTRACT) >= 25
    for name, clause in CONTRACT.items():
        assert clause.name == name
        assert len(clause.guards) > 30
    assert {name for name, clause in CONTRACT.items() if clause.short} == {
        "serial",
        "concurrent-8",
        "drafts-are-used",
        "second-turn",
        "eos-in-run",
    }
    assert list(CONTRACT)[-1] == "idle-and-whole"
    assert Evidence().prompts == []


@pytest.mark.parametrize(
    ("late", "problem"),
    [
        ([(60, 24)] * 2, None),
        ([(60, 30)] * 2, "fell by 20% within 3 rounds: 2.50, 2.00, 2.00"),
        ([None, (60, 24)], "no answer of round 2 says how many verify steps it took"),
        ([(60, 24), None], "no answer of round 3 says how many verify steps it took"),
    ],
)
def test_an_accept_length_that_falls_or_is_told_no_more_is_a_problem(
    late: list[tuple[int, int] | None], problem: str | None
) -> None:
    counts = [{} if of is None else {f"p{number}": of for number in range(8)} for of in ((60, 24), *late)]
    found = accept_fallen(counts, 0.97)
    assert found is None if problem is None else problem in str(found)
