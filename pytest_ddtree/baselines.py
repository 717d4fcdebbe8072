"""What the non-speculative server of a session says: its answers and its noise against itself, asked once, or recorded before."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_ddtree import recording
from pytest_ddtree.errors import Infrastructure, NotVerified
from pytest_ddtree.exactness.baseline import BaselineAnswers, measure_floor
from pytest_ddtree.exactness.floor import NoiseFloor
from pytest_ddtree.exactness.prompts import Prompt
from pytest_ddtree.exactness.scores import Scores
from pytest_ddtree.exactness_prompts import every_prompt
from pytest_ddtree.grid import BASELINE, verify_width
from pytest_ddtree.liveness import check_serving

if TYPE_CHECKING:
    from pytest_ddtree.run import Run


@dataclass(frozen=True, slots=True)
class Baseline:
    """What the non-speculative server said: answers with logprobs at every position, and its noise against itself."""

    answers: BaselineAnswers
    floor: NoiseFloor
    float32: bool
    """Whether it computes in float32, where a gap of 1e-3 nats is no rounding any more."""


@dataclass(frozen=True, slots=True)
class _Asked:
    prompts: list[Prompt]
    float32: bool
    coming: Future[tuple[BaselineAnswers, NoiseFloor]]


class BaselineOnce:
    """Asks the baseline when its answers are first wanted; what goes wrong is remembered too."""

    def __init__(self, run: Run, scores: Scores) -> None:
        """What the baseline says as a judge is kept in `scores`."""
        self._run = run
        self._scores = scores
        self._asked: _Asked | None = None
        self._known: Baseline | Infrastructure | None = None

    def begin(self) -> bool:
        """Start the server and begin to ask it, while the caller does something else; whether that is so now.

        Nothing begins where answers may have been recorded. What goes wrong shows in `get`.
        """
        if self._known is None and self._asked is None and self._run.settings.records is None:
            try:
                self._asked = self._ask(every_prompt(self._run))
            except Infrastructure as error:
                self._known = error
        return self._known is None and self._asked is not None

    def get(self) -> Baseline:
        """Answers and noise floor. Raises Infrastructure, the same every time."""
        if self._known is None:
            try:
                self._known = self._get()
            except Infrastructure as error:
                self._known = error
        if isinstance(self._known, Infrastructure):
            raise self._known
        return self._known

    def _get(self) -> Baseline:
        run = self._run
        asked = self._asked
        if asked is None:
            prompts = every_prompt(run)
            stored = recording.load(run, prompts)
            if stored is not None:
                return Baseline(stored.answers, stored.floor, stored.float32)
            asked = self._ask(prompts)
        try:
            answers, floor = run.wait(asked.coming)
        except Infrastructure:
            # A dead server explains more than a broken connection does.
            check_serving(run, BASELINE)
            raise
        try:
            recording.save(run, asked.prompts, answers, floor, float32=asked.float32)
        except OSError as error:
            raise Infrastructure(
                f"{run.settings.records}: the baseline's answers cannot be recorded there ({error.strerror or error}): make that place "
                "writable, or run without --ddtree-records"
            ) from None
        return Baseline(answers, floor, asked.float32)

    def _ask(self, prompts: list[Prompt]) -> _Asked:
        run, settings = self._run, self._run.settings
        if not run.has_baseline:
            raise NotVerified(
                "there is no non-speculative server to compare with: give its address with --ddtree-baseline-url URL"
                + ("" if settings.records is None else f"; {settings.records} holds no records")
            )
        server = run.get(BASELINE)
        # Kernels choose their arithmetic by rows: the run's concurrency, and the rows of its widest verify step.
        concurrency = run.verifier.concurrency
        rows = concurrency * self._widest()
        float32 = server.info.get("dtype") == "float32"
        # In float32 that moves a logit by 1e-6: nothing that a further condition would show.
        widest = concurrency if float32 else min(settings.exactness_prompts, 64, rows)
        conditions = sorted({1, concurrency, widest})
        widths = ", ".join(map(str, conditions))
        run.progress(f"baseline: answers and noise floor of {len(prompts)} prompts at concurrency {widths}")
        measuring = measure_floor(
            run.async_client(server),
            prompts,
            output=settings.exactness_output,
            concurrencies=conditions,
            record_top=recording.TOP,
            ignore_eos=True,
            known=self._scores,
        )
        return _Asked(prompts, float32, run.begin(measuring))

    def _widest(self) -> int:
        size = self._run.facts.block_size or 16
        return max((verify_width(config, size) for config in self._run.configs), default=1)
