"""Whether the draft window acts, by what the server does: an argument that is echoed and a log line are only claims.

Copy tasks: a text, and again the beginning of a passage of it. Near tasks fit into the window with their answer, so a windowed
drafter must draft exactly as one with the full context. On far tasks the passage is out of its sight, so it must need other numbers
of verify steps, or less time a step. Where neither differs the window is not in force; where near tasks need more steps with the
window than without, it hides what it should show.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_ddtree.client.client import AsyncClient

OUTPUT = 32
"""Most tokens of an answer; a quarter of a small window."""
TASKS = 48
"""Tasks of each kind where arithmetic is rounded: some change by chance, and what the window changes has to stand out."""
EXACT_TASKS = 16
"""Tasks of each kind in float32, where nothing changes by chance (on the embedded server a window of 64 to 256 changes 46 to 75 %)."""
WIDTH = 8
"""Tasks in flight on the embedded server, whose CPU is shared, so that time says nothing there."""
_TEXTS = 4
"""Tasks share so many texts: what the prefix cache holds need not be computed again."""
_AGAIN = 8
_SMALLEST = 8
_FAR = 6
"""A far text is so many windows long where the server has room for it."""
_LEAST_FAR = 1.5
ALPHA = 0.05
"""Level at which a window counts as acting: an error of this kind misses a fault of one window in twenty that do nothing."""
HIDDEN_ALPHA = 1e-4
"""Level at which a window counts as hiding what it should show: this one fails a test, so it has to be sure."""
HIDDEN = 1.03
FASTER = 1.03
"""Steps and time per step count as different from this ratio on, if the test agrees."""


@dataclass(frozen=True, slots=True)
class Tasks:
    """Prompts of token ids and the tokens to ask for. Near ones fit into the window; the passage of a far one is out of it."""

    near: tuple[tuple[int, ...], ...]
    far: tuple[tuple[int, ...], ...]
    output: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What one task cost: tokens, verify steps, seconds per step after the first tokens (None: too few to say)."""

    tokens: int
    steps: int
    step_s: float | None
    pattern: tuple[int, ...] = ()
    """Tokens so far after each step; empty where the server sent several steps at once."""

    def differs(self, other: Answer) -> bool:
        """Whether drafts differed: other tokens per step, as far as both say, else another number of steps."""
        if self.pattern and other.pattern:
            return self.pattern != other.pattern
        return self.steps != other.steps


@dataclass(frozen=True, slots=True)
class Reading:
    """The answers of one server to the near and the far tasks, in the tasks' order; `exact`: it computes in float32."""

    near: tuple[Answer, ...]
    far: tuple[Answer, ...]
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Evidence:
    """Whether the window acts, whether it hides what it should show, and on what that rests."""

    acts: bool
    hides: bool
    text: str

    def summary(self) -> str:
        """One line for reports."""
        effect = "acts" if self.acts else "shows no effect"
        hidden = ", but the drafter does not see what the window holds" if self.hides else ""
        return f"the window {effect}{hidden}: {self.text}"


class ProbeFailed(Exception):
    """A task was not answered, or without verify steps; the text says how."""


class NoRoom(ValueError):
    """No copy task can be made for this window; the text says why."""


def tasks(text: Sequence[int], window: int, *, longest: int, count: int = TASKS, seed: int = 0) -> Tasks:
    """Near and far copy tasks, cut from the token ids of a real text.

    `longest` is the most tokens that the server takes, prompt and answer. Raises NoRoom where the window is too small, or no context
    of the run is longer than it.
    """
    output = max(8, min(OUTPUT, window // 4))
    near = window - output - _AGAIN
    far = min(_FAR * window, longest - output - _AGAIN)
    if near < _SMALLEST:
        raise NoRoom(f"a window of {window} tokens has no room for a copy task")
    if far < _LEAST_FAR * window + output:
        raise NoRoom(
            f"a window of {window} tokens is not reached: the server takes {longest} tokens, prompt and answer"
        )
    if len(text) <= far:
        raise NoRoom(f"{len(text)} tokens of text are too few for a source {far} tokens long")
    dice = random.Random(seed)

    def cut(length: int, sources: int) -> list[tuple[int, ...]]:
        made: list[tuple[int, ...]] = []
        for group in range(_TEXTS):
            start = dice.randint(0, len(text) - length)
            source = tuple(text[start : start + length])
            for _ in range(len(range(group, count, _TEXTS))):
                at = dice.randint(0, sources - 1)
                made.append(source + source[at : at + _AGAIN])
        return made

    return Tasks(
        tuple(cut(near, max(1, near - _AGAIN))),
        # The passage and what follows it in the answer are out of the window.
        tuple(cut(far, max(1, far - window - output))),
        output,
    )


async def read(client: AsyncClient, asked: Tasks, *, exact: bool = False, width: int = 1) -> Reading:
    """Answer every task greedily, near and far in turn, so that a busy machine slows both; time per step needs a `width` of 1.

    Raises ProbeFailed.
    """
    turn = asyncio.Semaphore(width)

    async def one(ids: tuple[int, ...]) -> Answer:
        async with turn:
            return await _answer(client, ids, asked.output)

    in_turn = [ids for pair in zip(asked.near, asked.far, strict=True) for ids in pair]
    answers = await asyncio.gather(*map(one, in_turn))
    return Reading(tuple(answers[0::2]), tuple(answers[1::2]), exact)


def compare(windowed: Reading, full: Reading) -> Evidence:
    """Evidence from the same tasks on a server with the window and on one with the full context.

    Acts, by steps: in float32 one far task that changes is proof, and nothing else is; else Fisher's exact test that far tasks change
    more often than near ones. Acts, by time: a one-sided Welch test that a step of the windowed server is faster by more on
    far tasks than on near ones, where the window cannot matter: near tasks carry whatever else differs between two starts on a
    shared machine. Hides: Wilcoxon's signed-rank test that near tasks take more steps with the window.
    """
    import numpy as np
    from scipy import stats

    changed_near = sum(left.differs(right) for left, right in zip(windowed.near, full.near, strict=True))
    changed_far = sum(left.differs(right) for left, right in zip(windowed.far, full.far, strict=True))
    near, far = len(windowed.near), len(windowed.far)
    counts = np.array([[changed_far, far - changed_far], [changed_near, near - changed_near]])
    steps_p = float(stats.fisher_exact(counts, alternative="greater").pvalue)
    speedup, speedup_p = _faster(windowed, full)
    faster = speedup is not None and speedup_p is not None and speedup > FASTER and speedup_p < ALPHA
    left, right = (np.array([answer.steps for answer in reading.near]) for reading in (windowed, full))
    more = float(left.sum() / max(1, right.sum()))
    hidden_p = 1.0
    if (left != right).any():
        hidden_p = float(stats.wilcoxon(left - right, alternative="greater", method="approx").pvalue)
    said = f"drafts differ on {changed_far} of {far} far and {changed_near} of {near} near tasks (p = {steps_p:.2g})"
    said += f", near tasks take {more:.2f} times as many (p = {hidden_p:.2g})"
    if speedup is not None and speedup_p is not None:
        said += f", a step is {speedup:.2f} times as fast far away (p = {speedup_p:.2g})"
    acts = changed_far > 0 if windowed.exact and full.exact else steps_p < ALPHA or faster
    # In float32 no window may change a near task at all.
    sure = hidden_p < HIDDEN_ALPHA or (windowed.exact and full.exact and 2 * changed_near >= near)
    return Evidence(acts, more > HIDDEN and sure, said)


def alone(windowed: Reading) -> Evidence:
    """Evidence from one server: a source out of sight needs more verify steps than one in sight (Mann-Whitney).

    Weaker than `compare`: a drafter may copy worse from far away with the full context too, and one that never copies shows nothing.
    """
    from scipy import stats

    near = [answer.steps for answer in windowed.near]
    far = [answer.steps for answer in windowed.far]
    p = float(stats.mannwhitneyu(far, near, alternative="greater").pvalue)
    more = sum(far) / max(1, sum(near))
    said = f"on this server alone, sources out of sight take {more:.2f} times as many steps as those in sight (p = {p:.2g})"
    return Evidence(p < ALPHA, False, said)


def _faster(windowed: Reading, full: Reading) -> tuple[float | None, float | None]:
    import numpy as np
    from scipy import stats

    def logs(left: Sequence[Answer], right: Sequence[Answer]) -> list[float]:
        pairs = zip(left, right, strict=True)
        return [float(np.log(b.step_s / a.step_s)) for a, b in pairs if a.step_s and b.step_s]

    here, there = logs(windowed.near, full.near), logs(windowed.far, full.far)
    if min(len(here), len(there)) < 3:
        return None, None
    gain = float(np.exp(np.mean(there) - np.mean(here)))
    if np.std(here) == np.std(there) == 0.0:
        return gain, 0.0 if gain > 1.0 else 1.0
    return gain, float(stats.ttest_ind(there, here, equal_var=False, alternative="greater").pvalue)


async def _answer(client: AsyncClient, ids: tuple[int, ...], output: int) -> Answer:
    from pytest_ddtree.client.records import Request, Sampling

    record = await client.generate(
        Request(input_ids=ids, sampling=Sampling(max_new_tokens=output, ignore_eos=True))
    )
    if not record.ok:
        raise ProbeFailed(f"a copy task of {len(ids)} tokens ended {record.outcome}: {record.error}")
    steps = record.verify_steps
    if steps is None:
        raise ProbeFailed("the server does not say how many verify steps an answer took")
    later = steps - 1
    seconds = record.latency_s - (record.ttft_s or 0.0)
    step_s = seconds / later if later > 2 and seconds > 0 else None
    # The first token comes from prefill on its own.
    whole = len(record.chunks) in (steps, steps + 1)
    pattern = tuple(chunk.tokens for chunk in record.chunks) if whole else ()
    return Answer(record.completion_tokens, steps, step_s, pattern)
