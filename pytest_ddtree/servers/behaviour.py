"""Whether the draft window acts, by what the server does: an argument that is echoed and a log line are only claims.

Copy tasks: a passage, other text, and the beginning of the passage again. With the passage nearer than the window a windowed
drafter drafts exactly as one with the full context; with the passage farther away it cannot see it, so it must need other numbers
of verify steps, or, at a context far beyond the window, less time a step. Where neither differs the window is not in force.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_ddtree.client.client import AsyncClient

OUTPUT = 32
"""Tokens of an answer."""
TASKS = 24
"""Tasks of each kind: with none changed near by, five changed far away are then no chance."""
_PASSAGE = 48
_AGAIN = 8
_SMALLEST = 12
_FAR = 6
"""The far source is this many windows away."""
ALPHA = 0.05
FASTER = 1.03
"""Time per step counts as different from this ratio on, if the test agrees."""


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt of token ids whose continuation is a passage `distance` tokens back."""

    ids: tuple[int, ...]
    distance: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What one task cost: tokens, verify steps, seconds per step after the first tokens (None: too few to say)."""

    tokens: int
    steps: int
    step_s: float | None


@dataclass(frozen=True, slots=True)
class Reading:
    """The answers of one server to the near and the far tasks, in the tasks' order."""

    near: tuple[Answer, ...]
    far: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Whether the window acts, and on what that rests; probabilities are those of chance alone."""

    acts: bool
    changed_near: int
    changed_far: int
    tasks: int
    steps_p: float
    speedup: float | None
    speedup_p: float | None

    def summary(self) -> str:
        """One line for reports."""
        said = (
            f"steps differ on {self.changed_far} of {self.tasks} far and {self.changed_near} of {self.tasks} near tasks "
            f"(p = {self.steps_p:.2g})"
        )
        if self.speedup is not None and self.speedup_p is not None:
            said += f", a step is {self.speedup:.2f} times as fast far away (p = {self.speedup_p:.2g})"
        return f"the window {'acts' if self.acts else 'shows no effect'}: {said}"


class ProbeFailed(Exception):
    """A task was not answered, or without verify steps; the text says how."""


def tasks(
    text: Sequence[int], window: int, count: int, *, output: int = OUTPUT, seed: int = 0
) -> tuple[list[Task], list[Task]]:
    """Near and far copy tasks, cut from the token ids of a real text.

    Near means that prompt and answer together fit into the window. Raises ValueError where the window has no room for that, or the
    text is too short for the far ones.
    """
    room = window - output - _AGAIN
    if room < _SMALLEST:
        raise ValueError(
            f"a window of {window} tokens has no room for a copy task with {output} tokens of answer"
        )
    passage = min(_PASSAGE, room * 2 // 3)
    gaps = (min(room - passage, passage), _FAR * window)
    if len(text) < gaps[1] + passage:
        raise ValueError(f"{len(text)} tokens of text are too few for a source {gaps[1]} tokens away")
    dice = random.Random(seed)

    def cut(length: int) -> Sequence[int]:
        start = dice.randint(0, len(text) - length)
        return text[start : start + length]

    def task(gap: int) -> Task:
        source = cut(passage)
        return Task((*source, *cut(gap), *source[:_AGAIN]), gap + passage)

    near, far = ([task(gap) for _ in range(count)] for gap in gaps)
    return near, far


async def read(
    client: AsyncClient, near: Sequence[Task], far: Sequence[Task], *, output: int = 32
) -> Reading:
    """Answer every task alone and greedily, near and far in turn, so that a busy machine slows both. Raises ProbeFailed."""
    close, distant = [], []
    for left, right in zip(near, far, strict=True):
        close.append(await _answer(client, left, output))
        distant.append(await _answer(client, right, output))
    return Reading(tuple(close), tuple(distant))


def compare(windowed: Reading, full: Reading) -> Evidence:
    """Evidence from the same tasks on a server with the window and on one with the full context.

    Steps: Fisher's exact test that far tasks change more often than near ones. Time: a one-sided Welch test that a step of the
    windowed server is faster by more on far tasks than on near ones, where the window cannot matter: near tasks carry whatever
    else differs between two starts on a shared machine.
    """
    import numpy as np
    from scipy import stats

    pairs_near = list(zip(windowed.near, full.near, strict=True))
    pairs_far = list(zip(windowed.far, full.far, strict=True))
    changed_near = sum(left.steps != right.steps for left, right in pairs_near)
    changed_far = sum(left.steps != right.steps for left, right in pairs_far)
    table = np.array(
        [[changed_far, len(pairs_far) - changed_far], [changed_near, len(pairs_near) - changed_near]]
    )
    steps_p = float(stats.fisher_exact(table, alternative="greater").pvalue)
    speedup, speedup_p = _faster(pairs_near, pairs_far)
    faster = speedup is not None and speedup_p is not None and speedup > FASTER and speedup_p < ALPHA
    return Evidence(
        steps_p < ALPHA or faster, changed_near, changed_far, len(pairs_far), steps_p, speedup, speedup_p
    )


def _faster(
    near: Sequence[tuple[Answer, Answer]], far: Sequence[tuple[Answer, Answer]]
) -> tuple[float | None, float | None]:
    import numpy as np
    from scipy import stats

    def logs(pairs: Sequence[tuple[Answer, Answer]]) -> list[float]:
        return [
            float(np.log(full.step_s / windowed.step_s))
            for windowed, full in pairs
            if windowed.step_s and full.step_s
        ]

    here, there = logs(near), logs(far)
    if min(len(here), len(there)) < 3:
        return None, None
    gain = float(np.exp(np.mean(there) - np.mean(here)))
    if np.std(here) == np.std(there) == 0.0:
        return gain, 0.0 if gain > 1.0 else 1.0
    return gain, float(stats.ttest_ind(there, here, equal_var=False, alternative="greater").pvalue)


async def _answer(client: AsyncClient, task: Task, output: int) -> Answer:
    from pytest_ddtree.client.records import Request, Sampling

    record = await client.generate(
        Request(input_ids=task.ids, sampling=Sampling(max_new_tokens=output, ignore_eos=True))
    )
    if not record.ok:
        raise ProbeFailed(f"a copy task of {len(task.ids)} tokens ended {record.outcome}: {record.error}")
    steps = record.verify_steps
    if steps is None:
        raise ProbeFailed("the server does not say how many verify steps an answer took")
    later = steps - 1
    seconds = record.latency_s - (record.ttft_s or 0.0)
    return Answer(record.completion_tokens, steps, seconds / later if later > 2 and seconds > 0 else None)
