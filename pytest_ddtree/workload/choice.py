"""From an item of the workload axis to what prompts are made of."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pytest_ddtree.axes import WorkloadChoice
from pytest_ddtree.options import BY_FIELD, OptionError
from pytest_ddtree.workload.datasets import load_questions
from pytest_ddtree.workload.prompts import PromptMaker
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


def least_tokens(choices: Iterable[WorkloadChoice], model: Path, thinking: bool | None) -> int:
    """The fewest tokens that a prompt of any of these workloads has. Raises OptionError for a file that cannot be read."""
    return min(PromptMaker(model, workload=workload_of(one), thinking=thinking).minimum for one in choices)
