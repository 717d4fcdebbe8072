"""Whether the verify steps that a server tells can be true."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddtree.client.records import Record


def wrong_steps(records: Sequence[Record]) -> str | None:
    """Why the verify steps that a round's answers tell cannot be true, in words; None where they can.

    One message a step at most, and one for the token of the prefill: more messages mean steps that were not counted. Every step emits
    a token: more steps than tokens mean that the counter counts something else, so that an accept length below 1 is none.
    """
    for record in records:
        steps, malformed = record.verify_steps, record.malformed_steps
        if malformed is not None:
            return f"{record.request.tag}: spec_verify_ct is {malformed}, which is no number of verify steps"
        if steps is not None and len(record.chunks) > steps + 1:
            return (
                f"{record.request.tag}: the server claims {steps} verify steps and sent {len(record.chunks)} messages: "
                f"its accept length of {record.accept_length:.2f} is not true"
            )
    counted = [record for record in records if record.ok and record.verify_steps is not None]
    steps = sum(record.verify_steps or 0 for record in counted)
    tokens = sum(record.completion_tokens for record in counted)
    if steps > tokens:
        return (
            f"the server claims {steps} verify steps for {tokens} tokens: every step emits a token, so spec_verify_ct counts something "
            f"else, and an accept length of {tokens / steps:.2f} is impossible"
        )
    return None


def steps_disagree(told: int | None, counted: int | None) -> bool:
    """Whether the answers' verify steps and the server's counter differ by more than a counter that lags a little may."""
    return bool(told and counted) and abs((told or 0) - (counted or 0)) > max(2, 0.02 * (told or 0))
