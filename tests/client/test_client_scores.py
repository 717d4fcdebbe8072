"""Scores of given and of emitted tokens."""

from __future__ import annotations

from typing import Any

import pytest
from scripted_server import Asked, Script, as_json

from pytest_ddtree.client.errors import RefusesLogprobs, ScoreError
from pytest_ddtree.client.scores import input_scores

TOP = {token: [[-0.1, token, None], [-2.5, token + 1, None]] for token in range(100)}


def scored(asked: Asked, **changes: Any) -> Script:
    """Answers as SGLang does: an entry from `logprob_start_len` on, the first of them without a logprob."""
    ids = asked.json["input_ids"]
    start = asked.json["logprob_start_len"]
    entries = [[None, ids[start], None]] + [[-0.1, token, None] for token in ids[start + 1 :]]
    tops = [None] + [TOP[token] for token in ids[start + 1 :]]
    meta = {
        "finish_reason": {"type": "length", "length": 1},
        "prompt_tokens": len(ids),
        "completion_tokens": 1,
        "input_token_logprobs": entries,
        "input_top_logprobs": tops,
    }
    return as_json({"text": "", "output_ids": [9], "meta_info": meta | changes})


def test_every_position_asked_for_is_scored(dial: Any) -> None:
    server, client = dial(scored)
    scores = client.score([5, 6, 7, 8], 2, top=2)
    assert [(one.position, one.token_id) for one in scores] == [(2, 7), (3, 8)]
    assert scores[0].top == ((7, -0.1), (8, -2.5))
    assert (scores[0].gap, scores[0].is_argmax) == (0.0, True)
    asked = server.asked[0].json
    assert (asked["logprob_start_len"], asked["top_logprobs_num"], asked["return_logprob"]) == (1, 2, True)
    assert asked["sampling_params"]["max_new_tokens"] == 1


@pytest.mark.parametrize(("start", "top"), [(0, 5), (-1, 5), (4, 5), (2, 0)])
def test_positions_that_have_no_score_are_refused(dial: Any, start: int, top: int) -> None:
    server, client = dial(scored)
    with pytest.raises(ValueError, match=r"start|top"):
        client.score([5, 6, 7, 8], start, top=top)
    assert server.asked == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        pytest.param({"input_token_logprobs": [[None, 6, None]]}, "asked for", id="too-few"),
        pytest.param({"input_token_logprobs": None}, "return_logprob", id="none"),
        pytest.param(
            {"input_token_logprobs": [[None, 6, None], [-0.1, 7, None], [-0.1, 9, None]]},
            "holds token 8",
            id="other-token",
        ),
        pytest.param(
            {"input_token_logprobs": [[None, 6, None], [-0.1, 7, None], [None, 8, None]]},
            "no logprob for position 3",
            id="hole",
        ),
    ],
)
def test_other_scores_than_asked_for_are_an_error(dial: Any, changes: dict[str, Any], says: str) -> None:
    _, client = dial(lambda asked: scored(asked, **changes))
    with pytest.raises(ScoreError, match=says):
        client.score([5, 6, 7, 8], 2, top=2)


def test_a_server_that_refuses_logprobs_is_told_from_other_errors(dial: Any) -> None:
    said = "DFLASH speculative decoding does not support return_logprob yet."
    _, client = dial(as_json({"error": {"message": said}}, status=400))
    with pytest.raises(RefusesLogprobs, match="return_logprob") as caught:
        client.score([5, 6, 7, 8], 2)
    assert (caught.value.status, caught.value.body) == (400, said)


def test_another_error_is_no_refusal(dial: Any) -> None:
    _, client = dial(as_json({"error": {"message": "too long"}}, status=400))
    with pytest.raises(ScoreError, match="too long") as caught:
        client.score([5, 6, 7, 8], 2)
    assert not isinstance(caught.value, RefusesLogprobs)


def test_a_server_that_is_gone_is_an_error_with_its_outcome(dial: Any) -> None:
    _, client = dial(Script([], "close"))
    with pytest.raises(ScoreError, match="reset"):
        client.score([5, 6, 7, 8], 2)


def test_emitted_tokens_come_with_their_alternatives(dial: Any, ask: Any) -> None:
    meta = {
        "finish_reason": {"type": "length", "length": 2},
        "prompt_tokens": 4,
        "completion_tokens": 2,
        "output_token_logprobs": [[-0.1, 5, None], [-2.5, 7, None]],
        "output_top_logprobs": [TOP[5], TOP[6]],
    }
    _, client = dial(as_json({"text": "x", "output_ids": [5, 7], "meta_info": meta}))
    record, scores = client.baseline_with_logprobs(ask(2), 2)
    assert record.ok
    assert [(one.position, one.token_id, round(one.gap, 6)) for one in scores] == [(4, 5, 0.0), (5, 7, 2.4)]


def test_an_answer_that_failed_has_no_scores(dial: Any, ask: Any) -> None:
    meta = {"finish_reason": {"type": "stop"}, "prompt_tokens": 4, "completion_tokens": 0}
    _, client = dial(as_json({"text": "", "output_ids": [], "meta_info": meta}))
    record, scores = client.baseline_with_logprobs(ask(2), 2)
    assert (record.outcome, scores) == ("empty", ())


def test_the_most_probable_come_first_whatever_the_server_sorts_by() -> None:
    meta = {
        "input_token_logprobs": [[-2.0, 7, None]],
        "input_top_logprobs": [[[-2.0, 7, None], [-0.5, 3, None]]],
    }
    (score,) = input_scores(meta, [5, 7], 1)
    assert score.top == ((3, -0.5), (7, -2.0))
    assert (score.gap, score.is_argmax) == (1.5, False)


@pytest.mark.parametrize(
    ("tokens", "tops"),
    [
        ([[-1.0, 5, None]], [[[None, 5, None]]]),
        ([[-1.0, 5, None]], [[5]]),
        ([[-1.0, 5, None]], [[]]),
        ([[-1.0, 5, None]], [7]),
        ([[]], [[[-1.0, 5, None]]]),
        ([5], [[[-1.0, 5, None]]]),
        ([[None, 5, None]], [[[-1.0, 5, None]]]),
        ([["x", 5, None]], [[[-1.0, 5, None]]]),
        (7, [[[-1.0, 5, None]]]),
        ([[-1.0, 5, None]], {"0": 1}),
    ],
)
def test_logprobs_that_are_none_are_an_error_of_scoring(tokens: Any, tops: Any) -> None:
    """JSON has no infinity: some servers send null for it, also among the most probable ones."""
    with pytest.raises(ScoreError, match="the server sent"):
        input_scores({"input_token_logprobs": tokens, "input_top_logprobs": tops}, [1, 5], 1)
