"""The doctor says what is missing and how to fix it."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from pytest_ddtree.servers import doctor, gpu
from pytest_ddtree.servers.gpu import Gpu
from pytest_ddtree.servers.lock import HostLocks

from . import support


def report(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    code = doctor.run([*argv, "--json"])
    topics: dict[str, list[dict[str, Any]]] = {}
    for finding in json.loads(capsys.readouterr().out):
        topics.setdefault(finding["topic"], []).append(finding)
    return code, topics


def test_this_machine(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # The interpreter that runs the tests may well have SGLang.
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "sglang" else find(name))
    _, topics = report(capsys)
    assert topics["interpreter"][0]["state"] == "ok"
    assert topics["SGLang"][0]["state"] == "note"
    assert "--python" in topics["SGLang"][0]["fix"]
    assert topics["port"][0]["state"] == "ok"
    assert "left behind" in topics
    assert topics["dialects"][0]["text"] == (
        "tested: reference, dflash, B, D; untested: A, C, E, F, G; or a TOML file of your own"
    )


def test_a_fork(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_SGLANG", json.dumps({"flags": ["--speculative-dflash-tree-width"]}))
    _, topics = report(capsys, "--sglang-src", str(support.FAKE))
    assert topics["dialect"][0]["text"].startswith("G: fork with --speculative-dflash-tree-width")
    assert "untested" in topics["dialect"][0]["text"]
    assert str(support.FAKE) in topics["SGLang"][0]["text"]


def test_upstream_has_no_tree(capsys: pytest.CaptureFixture[str]) -> None:
    _, topics = report(capsys, "--sglang-src", str(support.FAKE))
    assert [finding["state"] for finding in topics["dialect"]] == ["ok", "note"]
    assert "chain only" in topics["dialect"][1]["text"]


def test_no_sglang_where_it_was_said_to_be(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, topics = report(capsys, "--python", str(tmp_path / "python"))
    assert code == 1
    assert topics["SGLang"][0]["state"] == "missing"


def test_a_folder_without_the_package_is_not_passed_over(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The installed engine would be reported in its place."""
    monkeypatch.setenv("PYTHONPATH", str(support.FAKE))
    for folder in (tmp_path, tmp_path / "none"):
        code, topics = report(capsys, "--sglang-src", str(folder))
        assert code == 1
        assert topics["SGLang"][0]["state"] == "missing"
        assert str(folder) in topics["SGLang"][0]["text"]


def test_words_that_cannot_be_split(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        doctor.run(["--launch-prefix", "docker run 'image"])
    assert "--launch-prefix: cannot be split into arguments: No closing quotation" in capsys.readouterr().err


def test_port_held(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        code, topics = report(capsys, "--port", str(other.getsockname()[1]))
    assert code == 1
    assert f"is held by {os.getpid()} (" in topics["port"][0]["text"]


def test_gpus_and_who_uses_them(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Card:
        def devices(self) -> list[Gpu]:
            return [Gpu(0, "GPU-1", "H100", 80 << 30, 40 << 30), Gpu(1, "GPU-2", "GB10", None, None)]

        def holders(self) -> set[int]:
            return set()

    monkeypatch.setattr(gpu, "load", Card)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    locks = HostLocks(["gpu-GPU-1"], timeout_s=1.0, progress=print)
    capsys.readouterr()
    _, topics = report(capsys)
    locks.release()
    first, second, limit = topics["GPU"]
    assert first["text"].startswith("0: H100, 40960 of 81920 MiB free, GPU-1; in use by process ")
    assert (second["state"], second["text"]) == ("ok", "1: GB10, GPU-2")
    assert "CUDA_VISIBLE_DEVICES=1" in limit["text"]


def test_text_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    doctor.run([])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ok       interpreter")
    assert any(line.lstrip().startswith("-> ") for line in lines)
