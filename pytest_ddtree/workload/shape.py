"""The shape of a load: how many requests, how long their answers, and whether it fits the server at all."""

from __future__ import annotations

import random

TURNOVERS = 4
"""How often every one of the concurrent streams is replaced by a new request, at least."""
JITTER = 0.25
"""Output lengths are spread evenly over this share below and above the one asked for."""


def request_count(concurrency: int, turnovers: int = TURNOVERS) -> int:
    """Requests of one round."""
    return concurrency * turnovers


def output_lengths(count: int, output: int, *, seed: int, jitter: float = JITTER) -> tuple[int, ...]:
    """Output lengths of one round: spread evenly over output +- jitter, in an order drawn from `seed`.

    Shared by all configs, they keep requests from marching in lockstep. Their sum is the same for every seed
    (that of equal lengths up to rounding), so that rounds are comparable.
    """
    if not 0 <= jitter < 1:
        raise ValueError(f"jitter must be at least 0 and below 1, got {jitter}")
    spread = [2 * (index + 0.5) / count - 1 for index in range(count)]
    lengths = [max(1, round(output * (1 + jitter * share))) for share in spread]
    random.Random(f"lengths/{seed}/{count}/{output}").shuffle(lengths)
    return tuple(lengths)


def longest_output(output: int, jitter: float = JITTER) -> int:
    """The longest of `output_lengths`, for whatever count."""
    return round(output * (1 + jitter))


def infeasible(
    *,
    concurrency: int,
    context: int,
    output: int,
    max_total_tokens: int | None,
    max_request_tokens: int | None = None,
    max_running: int | None = None,
) -> str | None:
    """Why a cell cannot be held by the server; None where it can, or where the server does not say.

    Tokens of the KV cache: concurrency x (context + output) against `max_total_num_tokens`; tokens of one request
    against the longest one that the server takes; requests under way against `max_running_requests`, beyond which they queue.
    """
    if max_running is not None and concurrency > max_running:
        return f"the server runs at most {max_running} requests at once (max_running_requests), so the others would queue"
    each = context + output
    if max_request_tokens is not None and each > max_request_tokens:
        return f"a request of {context} + {output} tokens exceeds the server's limit of {max_request_tokens} for one"
    if max_total_tokens is not None and concurrency * each > max_total_tokens:
        return (
            f"{concurrency} x ({context} + {output}) = {concurrency * each} tokens do not fit into the server's "
            f"KV cache of {max_total_tokens} (max_total_num_tokens)"
        )
    return None
