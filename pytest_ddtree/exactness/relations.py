"""Relations between accept lengths: a lossless verify hides a faulty drafter from every comparison of tokens.

Wrong hidden states or a misaligned window leave the answers right and make drafts worse. What must hold on
the same prompts: a tree accepts at least as much as the chain, a larger budget at least as much as a smaller
one, topk 1 with budget block - 1 as much as the chain.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from pytest_ddtree import tails
from pytest_ddtree.client.records import Record
from pytest_ddtree.grid import Config

MIN_PROMPTS = 6
RelationKind = Literal["holds", "broken", "unknown"]


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Tokens and verify steps of a config by prompt: tag -> (tokens after prefill's first, verify steps)."""

    config: Config
    counts: Mapping[str, tuple[int, int]]

    @property
    def accept_length(self) -> float:
        """Tokens per verify step over all prompts, the bonus included."""
        steps = sum(steps for _, steps in self.counts.values())
        return sum(tokens for tokens, _ in self.counts.values()) / steps if steps else 0.0


def acceptance(config: Config, records: Mapping[str, Record]) -> Acceptance:
    """Counts of the records that say how many verify steps they took; the first token is prefill's."""
    return Acceptance(
        config,
        {
            tag: (record.completion_tokens - 1, record.verify_steps)
            for tag, record in records.items()
            if record.ok and record.verify_steps is not None and record.completion_tokens > 1
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """What must hold between two configs, the ratio seen with its interval, and whether it holds."""

    name: str
    left: str
    right: str
    ratio: float
    """Accept length of `left` over that of `right`."""
    low: float
    high: float
    prompts: int
    kind: RelationKind
    reason: str = ""

    def summary(self) -> str:
        """One line for people."""
        interval = f"{self.ratio:.3f} ({self.low:.3f} to {self.high:.3f}, {self.prompts} prompts)"
        return f"{self.name}: {self.left} / {self.right} = {interval}: {self.kind} {self.reason}".rstrip()


def relations(
    found: Sequence[Acceptance], *, block_size: int | None = None, alpha: float = 0.001, margin: float = 0.02
) -> tuple[Relation, ...]:
    """Every relation between these configs, in the order given.

    A relation is broken when the whole interval lies beyond it by more than `margin` (relative). Intervals
    are at level 1 - alpha / number of relations. `block_size` is the drafter's own, for configs that have
    none.
    """
    pairs = _pairs(found, block_size)
    wide = [
        (tree, chain)
        for name, tree, chain, _ in pairs
        if name == TREE_AND_CHAIN and _is_wide(tree.config, block_size)
    ]
    part = alpha / max(1, len(pairs) + len(wide))
    related = [
        _relate(name, left, right, equal=equal, alpha=part, margin=margin)
        for name, left, right, equal in pairs
    ]
    branches = [
        _branches(tree, chain, size=tree.config.block_size or block_size or 0, alpha=part)
        for tree, chain in wide
    ]
    return (*related, *branches)


TREE_AND_CHAIN = "a tree accepts at least as much as the chain"


def _is_wide(config: Config, block_size: int | None) -> bool:
    """Whether a tree has many more nodes than the chain, so that its branches must count for something."""
    depth = (config.block_size or block_size or 0) - 1
    return depth > 0 and (config.budget or 0) >= 2 * depth and (config.topk or 0) >= 2


def _branches(
    tree: Acceptance, chain: Acceptance, *, size: int, alpha: float, least: float = 1.02
) -> Relation:
    """Whether a wide tree does better than the chain at all; else its branches are dead.

    Broken when the gain is surely below 2 %, holds when there surely is one. Says nothing between the two, where the chain leaves
    little room, or where few prompts are in common.
    """
    seen = log_ratio_interval(tree.counts, chain.counts, alpha=alpha)
    kind: RelationKind = "holds"
    reason = ""
    if seen.prompts < MIN_PROMPTS:
        kind, reason = "unknown", f"(only {seen.prompts} prompts in common, {MIN_PROMPTS} are needed)"
    elif seen.high < least:
        kind, reason = "broken", "(no gain)"
        if chain.accept_length > 0.6 * size:
            kind, reason = "unknown", "(no room above the chain)"
    elif seen.low <= 1.0:
        kind, reason = "unknown", "(too few tokens to see a gain: more with --ddtree-exactness-prompts)"
    return _found(
        "the branches of a wide tree accept what the chain does not", tree, chain, seen, kind, reason
    )


def _found(
    name: str, left: Acceptance, right: Acceptance, seen: Ratio, kind: RelationKind, reason: str = ""
) -> Relation:
    return Relation(
        name=name,
        left=left.config.id,
        right=right.config.id,
        ratio=seen.ratio,
        low=seen.low,
        high=seen.high,
        prompts=seen.prompts,
        kind=kind,
        reason=reason,
    )


def _pairs(
    found: Sequence[Acceptance], block_size: int | None
) -> list[tuple[str, Acceptance, Acceptance, bool]]:
    pairs: list[tuple[str, Acceptance, Acceptance, bool]] = []
    by_config = {acceptance.config: acceptance for acceptance in found}
    for acceptance in found:
        config = acceptance.config
        if config.kind != "tree" or config.budget is None:
            continue
        chain = by_config.get(Config("chain", window=config.window, block_size=config.block_size))
        depth = (config.block_size or block_size or 0) - 1
        if chain is not None and config.topk == 1 and config.budget == depth:
            pairs.append(("topk 1 with budget block - 1 equals the chain", acceptance, chain, True))
        elif chain is not None and depth > 0 and config.budget >= depth:
            pairs.append((TREE_AND_CHAIN, acceptance, chain, False))
        smaller = [
            other
            for other in found
            if other.config.kind == "tree"
            and other.config.budget is not None
            and other.config.budget < config.budget
            and replace(other.config, budget=config.budget) == config
        ]
        if smaller:
            nearest = max(smaller, key=lambda other: other.config.budget or 0)
            pairs.append(("accept length does not fall with the budget", acceptance, nearest, False))
    return pairs


def _relate(
    name: str, left: Acceptance, right: Acceptance, *, equal: bool, alpha: float, margin: float
) -> Relation:
    seen = log_ratio_interval(left.counts, right.counts, alpha=alpha)
    kind: RelationKind = "holds"
    reason = ""
    if seen.prompts < MIN_PROMPTS:
        kind, reason = "unknown", f"(only {seen.prompts} prompts in common, {MIN_PROMPTS} are needed)"
    elif seen.high < 1.0 - margin:
        kind, reason = "broken", "(too low)"
    elif equal and seen.low > 1.0 + margin:
        kind, reason = "broken", "(too high)"
    return _found(name, left, right, seen, kind, reason)


class Ratio(NamedTuple):
    """The ratio of two accept lengths with its interval, and on how many prompts."""

    ratio: float
    low: float
    high: float
    prompts: int


def log_ratio_interval(
    left: Mapping[str, tuple[int, int]], right: Mapping[str, tuple[int, int]], *, alpha: float
) -> Ratio:
    """The ratio of two accept lengths on the prompts in common.

    The ratio is that of the totals; its interval is a t-interval of its logarithm with the linearised (delta
    method) contributions of the prompts, which are paired: a prompt that is easy is easy for both.
    """
    tags = [tag for tag in left if tag in right and left[tag][1] > 0 and right[tag][1] > 0]
    if len(tags) < 2:
        return Ratio(1.0, 0.0, float("inf"), len(tags))
    table = np.asarray([(*left[tag], *right[tag]) for tag in tags], dtype=np.float64)
    totals = table.sum(axis=0)
    if np.any(totals <= 0):
        return Ratio(1.0, 0.0, float("inf"), len(tags))
    ratio = (totals[0] / totals[1]) / (totals[2] / totals[3])
    parts = table / totals
    influence = len(tags) * (parts[:, 0] - parts[:, 1] - parts[:, 2] + parts[:, 3])
    error = float(influence.std(ddof=1)) / np.sqrt(len(tags))
    reach = tails.t_quantile(1.0 - alpha / 2.0, len(tags) - 1) * error
    return Ratio(float(ratio), float(ratio * np.exp(-reach)), float(ratio * np.exp(reach)), len(tags))


def window_relations(
    windowed: Acceptance, full: Acceptance, lengths: Mapping[str, int], *, output: int, alpha: float = 0.01
) -> tuple[Relation, ...]:
    """What a draft window must and must not change, on the same prompts with and without it.

    `lengths` holds the prompts' tokens by tag, `output` is what was asked for. A window that the whole
    context fits in changes nothing; one that is much shorter than every context (a quarter) changes some
    answer's count of verify steps, or it is not in force.
    """
    window = windowed.config.window
    if window is None:
        raise ValueError(f"{windowed.config.id} has no window")
    fits = {tag for tag, length in lengths.items() if length + output <= window}
    far = {tag for tag, length in lengths.items() if length >= 4 * window}
    found = []
    seen = log_ratio_interval(_only(windowed, fits), full.counts, alpha=alpha)
    if seen.prompts >= MIN_PROMPTS:
        same = seen.low <= 1.0 <= seen.high or abs(seen.ratio - 1.0) < 0.05
        name = "a window that holds the whole context changes nothing"
        found.append(_found(name, windowed, full, seen, "holds" if same else "broken"))
    seen = log_ratio_interval(_only(windowed, far), full.counts, alpha=alpha)
    if seen.prompts >= MIN_PROMPTS:
        counted = _only(windowed, far & full.counts.keys())
        changed = any(counts != full.counts[tag] for tag, counts in counted.items())
        name = "a window far shorter than the context changes the drafts"
        found.append(_found(name, windowed, full, seen, "holds" if changed else "broken"))
    return tuple(found)


def _only(acceptance: Acceptance, tags: Container[str]) -> dict[str, tuple[int, int]]:
    return {tag: counts for tag, counts in acceptance.counts.items() if tag in tags}
