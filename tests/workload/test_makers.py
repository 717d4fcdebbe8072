"""The prompt makers of a session: each made once, and no further than needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ddtree.model_files import REFERENCE_WEIGHTS
from pytest_ddtree.options import OptionError, Settings, make_settings
from pytest_ddtree.workload.choice import Makers
from pytest_ddtree.workload.prompts import PromptMaker

MODEL = REFERENCE_WEIGHTS / "target"


def given(**texts: str) -> Settings:
    return make_settings({name: (text, "command line") for name, text in texts.items()})


def test_each_maker_is_made_once() -> None:
    makers = Makers(given(workload="code,chat", seed="7", enable_thinking="on"), MODEL)
    makers.check_contexts()
    assert makers.of("code") is makers.of("code")
    assert makers.of("code", True) is makers.of("code")
    assert makers.of("code", False) is not makers.of("code")
    alone = PromptMaker(MODEL, workload="chat", seed=7, thinking=True)
    assert makers.of("chat").make(300, 1) == alone.make(300, 1)


def test_a_context_that_no_question_fits_is_refused_with_the_least_one() -> None:
    least = min(PromptMaker(MODEL, workload=name).minimum for name in ("code", "chat"))
    Makers(given(workload="code,chat", context=f"{least},500"), MODEL).check_contexts()
    with pytest.raises(
        OptionError, match=rf"--ddtree-context {least - 1}: a prompt has at least {least} tokens"
    ):
        Makers(given(workload="code,chat", context=f"500,{least - 1}"), MODEL).check_contexts()


def test_a_file_of_many_questions_is_not_tokenised_to_learn_that_one_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "many.txt"
    file.write_text("\n\n".join(f"question number {number}?" for number in range(2000)))
    makers = Makers(given(workload=str(file), context="500"), MODEL)
    framed: list[str] = []
    frame = PromptMaker._frame
    monkeypatch.setattr(
        PromptMaker, "_frame", lambda self, question: framed.append(question) or frame(self, question)
    )
    makers.check_contexts()
    makers.of("many").make(500, 3)
    assert len(set(framed)) == 2


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text("no json\n")
    with pytest.raises(OptionError, match=r"(?s)--ddtree-workload .*bad\.jsonl.*line 1"):
        Makers(given(workload=str(file)), MODEL).check_contexts()
