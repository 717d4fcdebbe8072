"""Where an answer of a user's own test ended: what teacher forcing cannot see."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddtree.client.records import Chunk, Record, Request, Sampling
from pytest_ddtree.judging import ending_of

EOS = frozenset({2})
STOP: dict[str, Any] = {"type": "stop", "matched": 2}
LENGTH: dict[str, Any] = {"type": "length", "length": 4}


def record(ids: tuple[int, ...], reason: dict[str, Any], **sampling: Any) -> Record:
    request = Request(sampling=Sampling(**{"max_new_tokens": 4, **sampling}), input_ids=(1,))
    return Record(
        request=request,
        outcome="ok",
        sent_ns=0,
        end_ns=1,
        output_ids=ids,
        chunks=(Chunk(1, len(ids)),),
        finish_reason=reason,
    )


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (record((5, 6, 2), STOP), None),
        (record((5, 6, 7, 8), LENGTH), None),
        (record((5, 6), STOP), None),
        (record((5, 2, 7, 8), LENGTH, ignore_eos=True), None),
        (record((5, 6), {"type": "stop", "matched": "ab"}, stop=("ab",)), None),
        (record((5, 9), {"type": "stop", "matched": 9}, stop_token_ids=(9,)), None),
        (record((5, 2, 7), STOP), "1 tokens stand behind the stop token"),
        (record((5, 2, 7, 8), LENGTH), "2 tokens stand behind the stop token"),
        (record((5, 9, 7), {"type": "stop", "matched": 9}, stop_token_ids=(9,)), "1 tokens stand behind"),
        (record((5, 2, 6, 7), {"type": "stop", "matched": "ab"}, stop=("ab",)), "2 tokens stand behind"),
        (record((5, 6, 7, 8, 9), LENGTH), "5 tokens, where 4 were allowed"),
    ],
)
def test_endings_that_teacher_forcing_cannot_see(answer: Record, said: str | None) -> None:
    found = ending_of(answer, EOS)
    assert (found is None) == (said is None), found
    assert said is None or said in str(found)
