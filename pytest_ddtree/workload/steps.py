"""Whether the verify steps that a server tells can be true."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_ddtree.client.records import Record


def uncounted_steps(records: Iterable[Record]) -> str | None:
    """Why an answer took more steps than its server claims, in words; None where none did.

    One message a step at most, and one for the token of the prefill: more messages mean steps that were not counted.
    """
    for record in records:
        steps = record.verify_steps
        if steps is not None and len(record.chunks) > steps + 1:
            return (
                f"{record.request.tag}: the server claims {steps} verify steps and sent {len(record.chunks)} messages: "
                f"its accept length of {record.accept_length:.2f} is not true"
            )
    return None


def steps_disagree(told: int | None, counted: int | None) -> bool:
    """Whether the answers' verify steps and the server's counter differ by more than a counter that lags a little may."""
    return bool(told and counted) and abs((told or 0) - (counted or 0)) > max(2, 0.02 * (told or 0))
