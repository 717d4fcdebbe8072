from __future__ import annotations

import pytest

from pytest_ddtree.cli import COMMANDS, main


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in COMMANDS)


@pytest.mark.parametrize("argv", [[], ["no-such-thing"]], ids=["nothing", "unknown"])
def test_a_wrong_call_is_said_on_stderr(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    caught = capsys.readouterr()
    assert "usage:" in caught.err
    assert caught.out == ""


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_of_its_own(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main([name, "--help"])
    except SystemExit as end:
        code = end.code  # type: ignore[assignment]
    assert code == 0
    assert len(capsys.readouterr().out) > 50
