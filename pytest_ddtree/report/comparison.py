"""A comparison of two runs or builds as plain lines of text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_ddtree.exactness.verdict import Verdict
from pytest_ddtree.report.text import table
from pytest_ddtree.results.change import Change, Comparison
from pytest_ddtree.results.gaps import Gap
from pytest_ddtree.results.metrics import ACCEPT, METRICS, PER_TOKEN_P90, SPEEDUP, TOK_S, TTFT_P90
from pytest_ddtree.results.scale import accepted_text, found_text

SHOWN = (TOK_S, TTFT_P90, PER_TOKEN_P90, ACCEPT, SPEEDUP)


def lines(comparison: Comparison, gaps: Sequence[Gap] | None = None) -> list[str]:
    """What changed beyond noise and what could not be decided, then the ratios of every cell, now / before.

    `gaps` is what the comparison of two runs leaves out; None for builds, whose records say more of that.
    """
    text = [f"{comparison.now} / {comparison.before}", *(str(gap) for gap in gaps or () if gap.code)]
    text.extend(_found(change, confirmed=comparison.confirmed) for change in comparison.beyond_noise)
    text.extend(undecided_lines(comparison))
    if comparison.unchanged:
        lacking = bool(comparison.only_before) if gaps is None else any(gap.lacking for gap in gaps)
        text.append(
            "of what was compared nothing changed beyond noise; not all was"
            if lacking
            else "nothing changed beyond noise"
        )
        text += [line for line in (apart_line(comparison),) if line is not None]
    elif not comparison.changes:
        text.append("nothing to compare: no round of a cell is on both sides")
    text += [line for line in (unrest_line(comparison),) if line is not None]
    text += comparison.notes
    text.extend(
        f"tok/s of all cells together: {ratio(change)}, {change.outcome}, {_visible(change)}"
        for change in comparison.changes
        if change.key is None
    )
    cells = [change for change in comparison.changes if change.key is not None]
    places = list(dict.fromkeys(change.where for change in cells))
    by_name = {(change.where, change.metric.name): change for change in cells}
    metrics = [metric for metric in SHOWN if any(change.metric is metric for change in cells)]
    if places:
        rows = [
            [place, *(_cell(by_name.get((place, metric.name))) for metric in metrics)] for place in places
        ]
        text += ["", *table(["cell", *(metric.name for metric in metrics)], rows)]
    if gaps is not None:
        return [*text, *(str(gap) for gap in gaps if not gap.code)]
    for name, missing in ((comparison.before, comparison.only_before), (comparison.now, comparison.only_now)):
        if missing:
            text.append(f"not compared of {name}: {', '.join(missing)}")
    return text


def fault_line(build: str, config: str, text: str) -> str:
    """What is wrong with the server of a build, whatever it answers."""
    return f"{config}: build {build}: {text}"


def apart_line(comparison: Comparison) -> str | None:
    """Why intervals may leave out 1 where nothing is called a change; None where none does."""
    apart, alpha = comparison.apart, min((change.alpha for change in comparison.changes), default=1.0)
    if not apart:
        return None
    return (
        f"the intervals below are 95 % each, and {len(apart)} of {len(comparison.changes)} leave out 1 (chance explains one in twenty): "
        f"a change needs more than its tolerance at the level {alpha:.1g}, or passes that agree"
    )


def unrest_line(comparison: Comparison) -> str | None:
    """That the machine was not quiet, and how far apart that set the passes; None where it was."""
    if comparison.unrest is None:
        return None
    remedy = (
        "add passes, or measure when nothing else runs"
        if comparison.at_once
        else "add passes, have the builds up at once (--ddtree-ab-at-once), or measure when nothing else runs"
    )
    return (
        f"the machine was not quiet: passes over the builds disagree by {comparison.unrest:.1%}, more than their rounds explain, "
        f"so each pass counts as one observation; {remedy}"
    )


def undecided_lines(comparison: Comparison) -> list[str]:
    """A sentence for each change that may be a loss beyond the tolerance, with the loss that would have been found."""
    return [f"{_sentence(change)}; {_visible(change)}" for change in comparison.undecided]


def verdict_lines(judged: Sequence[tuple[str, str, Verdict]]) -> list[str]:
    """Exactness of each build: (build, whose non-speculative answers it was judged against, verdict)."""
    if not judged:
        return []
    rows = [
        [build, verdict.config, against, verdict.kind if verdict.passed else verdict.kind.upper()]
        for build, against, verdict in judged
    ]
    blamed = [
        f"{build} {'is to blame' if verdict.kind == 'corrupt' else 'could not be judged'}: "
        f"{verdict.config} against the answers of {against}: {'; '.join(verdict.reasons)}"
        for build, against, verdict in judged
        if not verdict.passed
    ]
    return [*table(["build", "config", "judged against", "verdict"], rows), *blamed]


def ratio(change: Change) -> str:
    """`0.970 (0.961 to 0.979)`."""
    value, low, high = change.ratio
    return f"{value:.3f}" + ("" if math.isnan(low) else f" ({low:.3f} to {high:.3f})")


def _cell(change: Change | None) -> str:
    if change is None:
        return "-"
    return ratio(change) + (
        f" {change.outcome}" if change.outcome in ("worse", "better", "undecided") else ""
    )


def _found(change: Change, *, confirmed: bool) -> str:
    sentence = _sentence(change)
    return sentence if confirmed else f"{sentence}; not confirmed by further passes"


def _sentence(change: Change) -> str:
    digits, tolerance = METRICS[change.metric.name].digits, change.tolerance
    figures = (
        ""
        if change.key is None
        else f": {change.before:.{digits}f} -> {change.now:.{digits}f} {change.metric.unit}"
    )
    return (
        f"{change.outcome}: {change.where}: {change.metric.name}{figures}, ratio {ratio(change)}, n={change.shown.n}, "
        f"tolerance {accepted_text(tolerance.share, tolerance.why, higher_is_better=change.metric.higher_is_better)}"
    )


def _visible(change: Change) -> str:
    return found_text(change.visible, higher_is_better=change.metric.higher_is_better)
