"""Two runs, or two builds of one session, beside each other: ratios with intervals, and which cells changed beyond noise. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from pytest_ddtree.grid import CellKey
from pytest_ddtree.results.change import Change, Comparison
from pytest_ddtree.results.fingerprint import Difference
from pytest_ddtree.results.gates import POOLED_TOLERANCE
from pytest_ddtree.results.looping import Looping
from pytest_ddtree.results.metrics import METRICS, TOK_S, Metric, Values, round_values
from pytest_ddtree.results.model import Results, is_baseline
from pytest_ddtree.results.paired import Loss, agree, paired_loss, pooled_loss, trimmed_loss
from pytest_ddtree.results.runs import StoredRun
from pytest_ddtree.results.start_times import StartTimes
from pytest_ddtree.results.tolerance import (
    UNKNOWN,
    StartSpread,
    Tolerance,
    across_sessions,
    of_all,
    within_session,
)

RESTLESS = 0.03
"""Stays that are less far apart bias their mean by no more than the tolerance and the interval absorb (an even drift cancels anyway)."""

SEVERAL = 3
"""Of so many stays the deviation says something; two may agree by luck."""

Spread = Callable[[str, CellKey, Metric], StartSpread]
"""What a restart does to a metric of a cell of a config."""

_SETTING = ("gpu.", "model.", "draft.", "workload.")
"""What must agree before figures of two sessions may be compared."""


def compare(
    before: Results,
    now: Results,
    *,
    names: tuple[str, str],
    same_session: bool,
    starts: tuple[int, int] = (1, 1),
    alpha: float = 0.001,
    spread: Spread | None = None,
    block_rounds: int | None = None,
    headline: Collection[tuple[str, CellKey]] = (),
    looks: int = 1,
) -> Comparison:
    """Every metric of every cell that both sides have, and tok/s of all together.

    `same_session`: builds that took turns on one machine; else the tolerance is that between sessions. `starts` is how many starts
    stand behind each side; `spread` says what a restart does to a metric of a cell, None: nobody knows. `alpha` is divided
    among `looks`, how often the comparison is made while rounds are added, and of each look half goes to the pooled test and half
    is divided among the cells and metrics, so that unchanged builds show a change in one of 1/alpha comparisons. With a single cell
    the pooled test is that cell's own: its tok/s gets that half too. The pooled change and those of `headline` cells are judged:
    fine or undecided where they are neither worse nor better. `block_rounds` is how many rounds one stay of a build measured: where
    the stays disagree beyond the noise of their rounds, each counts as a single observation, because what moved the machine moved
    all rounds of a stay together; from ten on, the highest and the lowest fifth of them are left out.
    """
    there = [
        cell for cell in before.cells if before.figures(*cell) is not None and now.figures(*cell) is not None
    ]
    # Prompts that were chosen for their answers may be others in another session.
    shared = [cell for cell in there if _prompts(before, cell) == _prompts(now, cell)]
    unlike = {cell: " (other prompts)" for cell in there if cell not in shared}
    pairs: list[tuple[str, CellKey, Metric, Values, Values]] = []
    for config, key in shared:
        for metric in METRICS.values():
            one, other = (_values(side, config, key, metric) for side in (before, now))
            if one.keys() & other.keys():
                pairs.append((config, key, metric, one, other))
    half = alpha / looks / 2
    share = half / max(1, len(pairs))
    alone = sum(metric is TOK_S for _, _, metric, _, _ in pairs) == 1

    def tolerance(own: float, known: StartSpread) -> Tolerance:
        return within_session(own, starts, known) if same_session else across_sessions(own, known)

    spreads = [
        UNKNOWN if spread is None else spread(config, key, metric) for config, key, metric, *_ in pairs
    ]

    unrest = None if block_rounds is None else _unrest(pairs, block_rounds)
    changes: list[Change] = []
    losses: list[Loss] = []
    for (config, key, metric, one, other), known in zip(pairs, spreads, strict=True):
        loss = paired_loss(one, other, higher_is_better=metric.higher_is_better)
        assert loss is not None
        stays = None
        if block_rounds is not None:
            by_stay = [stay.mean for stay in _block_losses(one, other, metric, block_rounds).values()]
            if unrest is not None:
                loss = trimmed_loss(by_stay)
            elif len(by_stay) >= SEVERAL:
                stays = trimmed_loss(by_stay)
        if metric is TOK_S:
            losses.append(loss)
        numbers = one.keys() & other.keys()
        changes.append(
            Change(
                config=config,
                key=key,
                metric=metric,
                before=_geometric([one[number] for number in numbers]),
                now=_geometric([other[number] for number in numbers]),
                loss=loss,
                tolerance=tolerance(metric.tolerance, known),
                stays=stays,
                alpha=share + half if alone and metric is TOK_S else share,
                judged=(config, key) in headline or (alone and metric is TOK_S),
            )
        )
    of_stays = None if block_rounds is None else _of_stays(pairs, block_rounds)
    together = pooled_loss(losses) if unrest is None else of_stays
    if together is None and losses:
        # A round each has no interval, which is no reason to say nothing of them together.
        together = Loss(math.fsum(loss.mean for loss in losses) / len(losses), math.inf, 1, len(losses))
    if together is not None and len(losses) > 1:
        pooled = Change(
            config="all",
            key=None,
            metric=TOK_S,
            before=1.0,
            now=math.nan,
            loss=together,
            tolerance=tolerance(
                POOLED_TOLERANCE,
                of_all(known for pair, known in zip(pairs, spreads, strict=True) if pair[2] is TOK_S),
            ),
            stays=of_stays if unrest is None and of_stays is not None and of_stays.n >= SEVERAL else None,
            alpha=half,
            judged=True,
        )
        # The figure that its ratio gives, be it by rounds or by stays: there is no other.
        changes.insert(0, replace(pooled, now=pooled.ratio[0]))

    def alone_on(side: Results) -> tuple[str, ...]:
        other, name = (now, names[1]) if side is before else (before, names[0])
        return tuple(
            f"{config} {key.id}{_why_alone(side, other, name, config) or unlike.get((config, key), '')}"
            for config, key in side.cells
            if (config, key) not in shared
        )

    return Comparison(
        *names,
        tuple(changes),
        alone_on(before),
        alone_on(now),
        unrest,
        looping=Looping.of(before, now, shared),
        starts=StartTimes.of(before, now, {config for config, _ in shared if not is_baseline(config)}),
    )


def setting_differences(before: StoredRun, now: StoredRun) -> tuple[Difference, ...]:
    """What must agree before two runs may be compared, and does not: hardware, models, workload.

    A run without a fingerprint says nothing of these, which is a difference too.
    """
    unknown = tuple(
        Difference("fingerprint", *(run.id if run.session.values else "absent" for run in (before, now)))
        for run in (before, now)
        if not run.session.values
    )
    if unknown:
        return unknown[:1]
    return tuple(
        one
        for one in before.session.differences(now.session)
        # An axis that only one of them has gives cells that only one of them has.
        if one.name.startswith(_SETTING)
        or (one.name.startswith("axis.") and "absent" not in (one.before, one.now))
    )


def _block_losses(one: Values, other: Values, metric: Metric, rounds: int) -> dict[int, Loss]:
    """The loss in each block of that many rounds."""
    numbers = one.keys() & other.keys()
    found: dict[int, Loss] = {}
    for block in sorted({number // rounds for number in numbers}):
        inside = {number: one[number] for number in numbers if number // rounds == block}
        loss = paired_loss(inside, other, higher_is_better=metric.higher_is_better)
        if loss is not None:
            found[block] = loss
    return found


def _unrest(pairs: Sequence[tuple[str, CellKey, Metric, Values, Values]], rounds: int) -> float | None:
    """How far apart the blocks' losses of tok/s are, as a share, when the rounds' own noise does not explain it; else None."""
    cells: dict[int, list[Loss]] = {}
    for _, _, metric, one, other in pairs:
        if metric is TOK_S:
            for block, loss in _block_losses(one, other, metric, rounds).items():
                cells.setdefault(block, []).append(loss)
    together = [pooled for losses in cells.values() if (pooled := pooled_loss(losses)) is not None]
    means = [loss.mean for loss in together]
    apart = math.expm1(max(means) - min(means)) if means else 0.0
    return apart if apart > RESTLESS and not agree(together) else None


def _of_stays(pairs: Sequence[tuple[str, CellKey, Metric, Values, Values]], rounds: int) -> Loss | None:
    """tok/s of all cells together, each block a single observation: the cells of a stay share its luck."""
    blocks: dict[int, list[float]] = {}
    for _, _, metric, one, other in pairs:
        if metric is TOK_S:
            for block, loss in _block_losses(one, other, metric, rounds).items():
                blocks.setdefault(block, []).append(loss.mean)
    means = [math.fsum(cells) / len(cells) for cells in blocks.values()]
    return trimmed_loss(means) if means else None


def _why_alone(side: Results, other: Results, name: str, config: str) -> str:
    """What is said of a cell whose config was not found right, on this side or on the other one, of that name."""
    for verdict, where in ((side.verdict(config), ""), (other.verdict(config), f" in {name}")):
        if verdict is not None and not verdict.passed:
            return f" ({verdict.kind}{where})"
    return ""


def _prompts(side: Results, cell: tuple[str, CellKey]) -> str:
    return side.cells[cell].rounds[0].prompts


def _values(side: Results, config: str, key: CellKey, metric: Metric) -> Values:
    figures = side.figures(config, key)
    return {} if figures is None else round_values(metric, figures, side.base(config, key))


def _geometric(values: Sequence[float]) -> float:
    return math.exp(math.fsum(math.log(value) for value in values) / len(values))
