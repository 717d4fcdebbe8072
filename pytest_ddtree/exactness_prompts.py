"""The prompts that prove the exactness of a session's configs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_ddtree.exactness.prompts import Prompt
from pytest_ddtree.grid import Config

if TYPE_CHECKING:
    from pytest_ddtree.run import Run
    from pytest_ddtree.workload.prompts import PromptMaker

LONGEST = 1024
"""Tokens of the longest prompt but one."""


def prompts_of(run: Run, config: Config | None = None) -> list[Prompt]:
    """Prompts of ragged lengths, half of them short: equal lengths hide a mix-up of rows.

    Of a config whose axis is the chat template's thinking they are rendered as it says. Raises NotVerified without a tokenizer.
    """
    thinking = None if config is None or config.axis is None else config.axis.thinking
    if thinking is None:
        return _made(run, run.maker("code"))
    made = _made(run, run.maker("code", thinking))
    return [replace(prompt, tag=f"{prompt.tag}, thinking {'on' if thinking else 'off'}") for prompt in made]


def every_prompt(run: Run) -> list[Prompt]:
    """The prompts of all configs, each once: what the baseline is asked."""
    axes = {config.axis: config for config in run.configs if config.axis is not None}
    others = [prompts_of(run, config) for axis, config in axes.items() if axis.thinking is not None]
    return [prompt for prompts in (prompts_of(run), *others) for prompt in prompts]


def _made(run: Run, maker: PromptMaker) -> list[Prompt]:
    count, furthest = run.settings.exactness_prompts, max(run.settings.context)
    longest = min(LONGEST, furthest)
    shortest = min(longest, maker.minimum + 8)
    prompts = []
    for index in range(count):
        length = round(shortest * (longest / shortest) ** (index / max(1, count - 1))) + index % 3
        made = maker.make(length, index, purpose="exactness")
        prompts.append(Prompt(tag=made.tag, ids=made.ids))
    if furthest > longest:
        # Faults of long contexts (a pad, a window, a chunk border) show nowhere else; one prompt keeps that affordable.
        made = maker.make(furthest, count, purpose="exactness")
        prompts[-1] = Prompt(tag=made.tag, ids=made.ids)
    return prompts
