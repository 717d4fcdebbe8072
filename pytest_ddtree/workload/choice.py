"""From an item of the workload axis to what prompts are made of."""

from __future__ import annotations

from pathlib import Path

from pytest_ddtree.axes import WorkloadChoice
from pytest_ddtree.options import BY_FIELD, OptionError, Settings
from pytest_ddtree.workload.datasets import load_questions
from pytest_ddtree.workload.prompts import PromptMaker, Tokenizer, load_tokenizer
from pytest_ddtree.workload.texts import Workload, shipped


def workload_of(choice: WorkloadChoice) -> Workload:
    """The texts and questions of a choice.

    Raises:
        OptionError: the user's file cannot be read; every entry that is no prompt is named (at most ten).
    """
    texts = shipped(choice.documents)
    if choice.file is None:
        return texts
    try:
        return Workload(choice.name, texts.texts, load_questions(choice.file))
    except (ValueError, OSError) as error:
        raise OptionError(f"{BY_FIELD['workload'].flag} {choice}: {error}") from None


class Makers:
    """The prompt makers of one session. Each is made once: a large model's tokenizer and a user's file take seconds to read."""

    def __init__(self, settings: Settings, model: Path) -> None:
        """`model` is the directory of the target model."""
        self._settings = settings
        self._model = model
        self._choices = {choice.name: choice for choice in settings.workload}
        self._tokenizer: Tokenizer | None = None
        self._made: dict[tuple[str, bool | None], PromptMaker] = {}

    def of(self, workload: str, thinking: bool | None = None) -> PromptMaker:
        """The maker of one workload; `thinking` in place of what the options say of it.

        Raises:
            OptionError: the user's file cannot be read.
            ValueError: the model has no tokenizer.json.
        """
        asked = self._settings.enable_thinking if thinking is None else thinking
        if (workload, asked) not in self._made:
            if self._tokenizer is None:
                self._tokenizer = load_tokenizer(self._model)
            self._made[workload, asked] = PromptMaker(
                self._model,
                workload=workload_of(self._choices[workload]) if workload in self._choices else workload,
                seed=self._settings.seed,
                thinking=asked,
                tokenizer=self._tokenizer,
            )
        return self._made[workload, asked]

    def check_contexts(self) -> None:
        """Refuse prompt lengths that the chat template and the shortest question alone exceed, in every workload of the axis.

        Raises:
            OptionError: naming the option, the length, and the least one; or the user's file cannot be read.
        """
        makers = [self.of(name) for name in self._choices]
        for context in self._settings.context:
            if not any(maker.fits(context) for maker in makers):
                least = min(maker.minimum for maker in makers)
                raise OptionError(
                    f"{BY_FIELD['context'].flag} {context}: a prompt has at least {least} tokens (chat template and shortest question)"
                )
