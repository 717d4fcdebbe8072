"""What a config made of the problems, beside the baseline: one row and its lines for every report. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from pytest_ddtree.coding.counters import count
from pytest_ddtree.coding.pairs import Pair, Solved, compare_pairs, telling
from pytest_ddtree.coding.sampled import SampledPair, compare_samples
from pytest_ddtree.coding.stats import Gate


@dataclass(frozen=True, slots=True, kw_only=True)
class CodingSummary:
    """Counts over the problems (over all samples where there are several a problem), and sentences for people."""

    config: str
    problems: int
    baseline_passed: int
    passed: int
    identical: int
    lost_to_rounding: int
    corrupt: int
    states: tuple[tuple[str, int, int], ...]
    """(state, how often on the baseline, how often here), most frequent first."""
    comparison: str
    notes: tuple[str, ...] = ()
    """Conditions, counters compared pairwise, what came of asking again, what was left out."""
    answers: int = 0
    """Answers of each server; as many as problems unless they were sampled."""

    def as_json(self) -> dict[str, Any]:
        """Plain values for stored results."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


def summary_from_json(value: Mapping[str, Any]) -> CodingSummary:
    """The inverse of `CodingSummary.as_json`. Raises KeyError for a value that is none."""
    known = {name: value[name] for name in _REQUIRED}
    known["states"] = tuple((str(state), int(base), int(here)) for state, base, here in known["states"])
    notes = tuple(map(str, value.get("notes", ())))
    return CodingSummary(**known, notes=notes, answers=int(value.get("answers", known["problems"])))


_REQUIRED = tuple(one.name for one in fields(CodingSummary) if one.name not in ("notes", "answers"))


def summarise(config: str, pairs: Sequence[Pair], gate: Gate, *, conditions: str = "") -> CodingSummary:
    """Count what became of the problems. Raises ValueError without any."""
    told = telling(pairs)
    compared = str(compare_pairs(pairs, gate)) if told else "every answer was cut at its token limit"
    kinds = {kind: _count(pair.judgement == kind for pair in pairs) for kind in ("unexplained", "unjudged")}
    notes = [
        *([conditions] if conditions else []),
        _counters([(pair.baseline, pair.other) for pair in pairs], gate),
        *_flips(pairs),
        *_left_out(len(pairs) - len(told)),
    ]
    if kinds["unexplained"]:
        notes.append(
            f"judged by text alone: {kinds['unexplained']} lost problems may be rounding or a fault, which texts do not tell"
        )
    if kinds["unjudged"]:
        notes.append(f"{kinds['unjudged']} answers could not be judged")
    return CodingSummary(
        config=config,
        problems=len(pairs),
        answers=len(pairs),
        baseline_passed=_count(pair.baseline.passed for pair in pairs),
        passed=_count(pair.other.passed for pair in pairs),
        identical=_count(pair.identical for pair in pairs),
        lost_to_rounding=_count(pair.judgement == "rounding" for pair in pairs),
        corrupt=_count(pair.judgement in ("corrupt", "garbled") for pair in pairs),
        states=_states([pair.baseline for pair in pairs], [pair.other for pair in pairs]),
        comparison=compared,
        notes=tuple(notes),
    )


def summarise_samples(
    config: str, pairs: Sequence[SampledPair], gate: Gate, *, conditions: str = ""
) -> CodingSummary:
    """Count what became of all samples. Raises ValueError without any problem."""
    base = [one for pair in pairs for one in pair.baseline]
    other = [one for pair in pairs for one in pair.other]
    cut = _count(pair.judgement == "cut" for pair in pairs)
    compared = (
        str(compare_samples(pairs, gate)) if cut < len(pairs) else "every sample was cut at its token limit"
    )
    return CodingSummary(
        config=config,
        problems=len(pairs),
        answers=len(other),
        baseline_passed=_count(one.passed for one in base),
        passed=_count(one.passed for one in other),
        identical=sum(pair.identical for pair in pairs),
        lost_to_rounding=0,
        corrupt=_count(pair.judgement == "corrupt" for pair in pairs),
        states=_states(base, other),
        comparison=compared,
        notes=(
            *([conditions] if conditions else []),
            (
                "sampled answers are compared by what they solve, not by their tokens; whether sampling follows the target is what "
                "-m exactness judges"
            ),
            *_left_out(cut),
        ),
    )


def _counters(pairs: Sequence[tuple[Solved, Solved]], gate: Gate) -> str:
    return "baseline -> here: " + "; ".join(map(str, count(pairs, gate)))


def _flips(pairs: Sequence[Pair]) -> list[str]:
    again = [pair for pair in pairs if pair.reruns()]
    if not again:
        return []
    times = max(len(pair.other_again) for pair in again)
    stay = _count(pair.baseline_passes != pair.other_passes for pair in again)
    head = f"{len(again)} flipped problems asked {times} more times, losses and gains alike: {stay} confirmed by the majority"
    only_here = [pair for pair in again if not pair.baseline_again]
    if only_here:
        head += " (the baseline is not up any more: its recorded answer counts)"
    return [head, *(pair.reruns() for pair in again)]


def _left_out(cut: int) -> list[str]:
    if not cut:
        return []
    return [f"{cut} problems ran into the token limit on both sides, which proves nothing: left out"]


def _states(base: Sequence[Solved], other: Sequence[Solved]) -> tuple[tuple[str, int, int], ...]:
    names = sorted({one.state for one in (*base, *other)})

    def of(side: Sequence[Solved], name: str) -> int:
        return _count(one.state == name for one in side)

    rows = [(name, of(base, name), of(other, name)) for name in names]
    return tuple(sorted(rows, key=lambda row: -row[1] - row[2]))


def _count(flags: Iterable[bool]) -> int:
    return sum(1 for flag in flags if flag)
