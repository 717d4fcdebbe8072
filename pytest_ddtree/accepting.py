"""Relations between the accept lengths of a session's configs, on the answers that verified them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_ddtree.exactness.depths import depth_acceptance
from pytest_ddtree.exactness.relations import (
    Acceptance,
    Relation,
    acceptance,
    relations,
    window_relations,
)
from pytest_ddtree.grid import Config

if TYPE_CHECKING:
    from pytest_ddtree.run import Run


def related(run: Run) -> tuple[Relation, ...]:
    """Every relation between the configs of the grid; empty where no two of them are related.

    Answers that verification asked side by side are used; a config that was not verified in this session is, here.

    Raises:
        Infrastructure: a config did not answer.
    """
    found = [_acceptance(run, config) for config in run.configs if config.axis is None]
    for one in found:
        deep = depth_acceptance(list(run.verifier.side_by_side(one.config).values()))
        if deep is not None:
            run.progress(f"{one.config.id}: {deep.summary()}")
    alpha = run.settings.alpha
    made = [*relations(found, block_size=run.facts.block_size, alpha=alpha), *_windows(run, found, alpha)]
    for relation in made:
        run.progress(relation.summary())
        run.store(
            "relation",
            name=relation.name,
            left=relation.left,
            right=relation.right,
            ratio=[relation.low, relation.ratio, relation.high],
            prompts=relation.prompts,
            outcome=relation.kind,
        )
    return tuple(made)


def _acceptance(run: Run, config: Config) -> Acceptance:
    return acceptance(config, run.verifier.side_by_side(config))


def _windows(run: Run, found: list[Acceptance], alpha: float) -> list[Relation]:
    by_config = {one.config: one for one in found}
    lengths = {prompt.tag: len(prompt.ids) for prompt in run.verifier.prompts()}
    pairs = [
        (one, full)
        for one in found
        if one.config.window is not None
        and (full := by_config.get(replace(one.config, window=None))) is not None
    ]
    made: list[Relation] = []
    for one, full in pairs:
        made += window_relations(
            one, full, lengths, output=run.settings.exactness_output, alpha=alpha / len(pairs)
        )
    return made
