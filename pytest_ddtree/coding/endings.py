"""Where an answer ended: what teacher forcing cannot see, because every token of it may be the model's own. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def ending_fault(
    ids: Sequence[int],
    baseline: Sequence[int] | None,
    *,
    finish: str | None,
    eos: Collection[int],
    limit: int,
) -> str | None:
    """Why an answer cannot have ended like this, in words; None where nothing speaks against it.

    `ids` are all emitted tokens, the stop token included; `baseline` the other server's to the same prompt. An accepted run that is
    not cut at its stop token leaks tokens that the model itself would go on with, so their gaps are 0. Of two answers of which one
    is the beginning of the other no token differs, so rounding does not explain it: one of them ended where it should not have.
    """
    behind = next((len(ids) - 1 - at for at, token in enumerate(ids) if token in eos), 0)
    if behind:
        return f"{behind} tokens stand behind the stop token"
    if len(ids) > limit:
        return f"{len(ids)} tokens, where {limit} were allowed"
    if finish == "stop" and eos and ids and ids[-1] not in eos:
        return "it ended with 'stop', and its last token is no stop token"
    if baseline is None or len(ids) == len(baseline):
        return None
    shared = min(len(ids), len(baseline))
    rest = (ids if len(ids) > shared else baseline)[shared:]
    if len(rest) == 1 and rest[0] in eos:
        return None  # one server hands the stop token out and the other keeps it
    if tuple(ids[:shared]) == tuple(baseline[:shared]):
        return f"it is the baseline's answer token for token, but ended after {len(ids)} instead of {len(baseline)} tokens"
    return None
