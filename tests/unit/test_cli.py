from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_ddtree.cli import COMMANDS, main
from pytest_ddtree.results.store import Store


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


COMMAND = (sys.executable, "-c", "from pytest_ddtree.cli import main; raise SystemExit(main())")
CALLS: tuple[tuple[str, ...], ...] = (
    ("--help",),
    ("--version",),
    ("measure", "--help"),
    ("show", "run"),
    ("compare", "run", "run"),
    ("compare", "run", "run", "--json"),
    ("export", "run"),
    ("export", "run", "--format", "html"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that has more to say than a buffer holds."""
    path = tmp_path_factory.mktemp("stored")
    with Store(path / "run" / "results.jsonl") as store:
        store.append("fingerprint", scope="session", fingerprint={"gpu.name": "none"})
        for number in range(4):
            one = {**ROUND, "number": number, "wall_s": 1.0 + number / 100}
            store.append("round", round=one)
        for number in range(300):
            store.append("warning", text=f"{number} {'word ' * 20}")
    return path


ROUND = {
    "config": "baseline", "context_tokens": 60, "concurrency": 1, "workload": "code", "temperature": 0.0, "requests": 1, "tokens": 48,
    "ttft_s": [0.1], "time_per_token_s": [0.1], "latency_s": [1.0], "verify_steps": None, "cached_tokens": None, "decode_tok_s": None,
}  # fmt: skip


def call(folder: Path, redirected: str, words: tuple[str, ...], **more: str) -> tuple[int, list[str]]:
    """Exit code and the lines on standard error of a command whose standard output is redirected by a shell."""
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {redirected}', "sh", *COMMAND, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": "", **more},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr.splitlines()


@pytest.mark.parametrize("words", CALLS, ids=" ".join)
def test_a_full_disk_behind_standard_output_is_no_finding(folder: Path, words: tuple[str, ...]) -> None:
    code, (line,) = call(folder, ">/dev/full", words)
    assert code == 2
    name = f" {words[0]}" if words[0] in COMMANDS else ""
    assert line == f"pytest-ddtree{name}: standard output cannot be written: No space left on device"


@pytest.mark.parametrize("words", [("show", "run"), ("show", "nothing")], ids=" ".join)
@pytest.mark.parametrize("buffer", ["", "1"], ids=["buffered", "unbuffered"])
def test_nor_is_one_behind_both(folder: Path, words: tuple[str, ...], buffer: str) -> None:
    assert call(folder, ">/dev/full 2>/dev/full", words, PYTHONUNBUFFERED=buffer) == (2, [])
    if "run" not in words:
        assert call(folder, "2>/dev/full", words, PYTHONUNBUFFERED=buffer)[0] == 2


@pytest.mark.parametrize("words", [("show", "run"), ("export", "run")], ids=" ".join)
def test_without_a_buffer_it_is_the_same(folder: Path, words: tuple[str, ...]) -> None:
    code, (line,) = call(folder, ">/dev/full", words, PYTHONUNBUFFERED="1")
    assert code == 2
    assert line.endswith("standard output cannot be written: No space left on device")


@pytest.mark.parametrize("words", [("--version",), ("reap",), ("show", "run")], ids=" ".join)
def test_a_closed_standard_output_is_no_finding(folder: Path, words: tuple[str, ...]) -> None:
    code, (line,) = call(folder, ">&-", words)
    assert code == 2
    assert line.endswith(": standard output is closed")
    assert call(folder, ">&- 2>&-", words) == (2, [])


@pytest.mark.parametrize("words", [("show", "run"), ("export", "run"), ("export", "run", "--format", "html")])
def test_a_reader_that_left_long_text_is_no_error(folder: Path, words: tuple[str, ...]) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        done = subprocess.run(
            [*COMMAND, *words], cwd=folder, stdout=pipe, stderr=subprocess.PIPE, check=False
        )
    assert (done.returncode, done.stderr) == (141, b"")
