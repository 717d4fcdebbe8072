"""One cell in a terminal."""

from __future__ import annotations

from pytest_ddtree.workload.url_cell import UrlCell


def summary(cell: UrlCell) -> str:
    """The figures of a cell for people."""
    result = cell.result
    spec, rounds = result.spec, result.rounds
    interval = result.decision.interval
    rate = f"{rounds[0].output_tok_s:.1f}"
    if interval is not None:
        rate = f"{interval.centre:.1f} [{interval.low:.1f}, {interval.high:.1f}]"
    lines = [
        f"context {spec.context}, concurrency {spec.concurrency}, output {spec.output}, temperature {spec.temperature:g}",
        f"output tok/s       {rate}  ({result.decision})",
    ]
    decode = [one.decode_tok_s for one in rounds if one.decode_tok_s is not None]
    if decode:
        lines.append(f"decode-only tok/s  {sum(decode) / len(decode):.1f}")
    for title, name, unit, factor in (
        ("TTFT", "ttft", "ms", 1e3),
        ("time per token", "time_per_token", "ms", 1e3),
        ("latency", "latency", "s", 1.0),
        ("chunk gap", "chunk_gap", "ms", 1e3),
    ):
        parts = [part for one in rounds if (part := getattr(one, name)) is not None]
        if parts:
            middle = [
                sum(getattr(part, key) for part in parts) / len(parts) * factor
                for key in ("p50", "p90", "p99")
            ]
            lines.append(
                f"{title:<18} p50 {middle[0]:.2f}  p90 {middle[1]:.2f}  p99 {middle[2]:.2f} {unit}"
                f"  (means over rounds of n = {parts[0].n})"
            )
    steps = [one.verify_steps for one in rounds if one.verify_steps]
    accept = sum(one.output_tokens for one in rounds) / sum(steps) if len(steps) == len(rounds) else None
    lines.append(
        f"accept length      {'not told: no verify steps in the answers' if accept is None else f'{accept:.3f}'}"
    )
    cached = [one.cached_tokens for one in rounds if one.cached_tokens is not None]
    lines.append(f"cached tokens      {sum(cached) if len(cached) == len(rounds) else 'not told'}")
    lines.append(f"natural ends       {_natural(cell)}")
    return "\n".join(lines)


def _natural(cell: UrlCell) -> str:
    answers = sum(one.answers for one in cell.endings)
    if not answers:
        return "not checked: the endpoint sends no token ids"
    tokens, after = (
        sum(one.tokens for one in cell.endings),
        sum(one.tokens_after_end for one in cell.endings),
    )
    distinct = sum(one.distinct_mean * one.answers for one in cell.endings) / answers
    ends = (
        f"{after / tokens:.1%} of tokens after the end" if cell.eos else "the model's files name no end token"
    )
    chosen = "" if cell.indices is None else f"; {len(cell.indices)} prompts chosen for their answers"
    return f"{ends}, distinct 4-grams {distinct:.3f} (least {min(one.distinct_least for one in cell.endings):.3f}){chosen}"
