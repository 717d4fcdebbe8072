"""Each thing that the doctor can find missing is named, with what to do about it."""

from __future__ import annotations

import importlib.util
import json
from importlib.machinery import ModuleSpec
from typing import Any

import pytest

from pytest_ddtree.coding import sandbox
from pytest_ddtree.coding.sandbox import SandboxCapabilities
from pytest_ddtree.servers import doctor, gpu

from . import support


def report(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit code, and the first finding of each topic."""
    code = doctor.run([*argv, "--json"])
    topics: dict[str, dict[str, Any]] = {}
    for finding in json.loads(capsys.readouterr().out):
        topics.setdefault(finding["topic"], finding)
    return code, topics


def without(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    real = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name in names else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)


def test_nothing_missing_is_exit_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    code, topics = report(capsys)
    assert code == 0
    assert topics["embedded server"]["state"] == "ok"
    assert {"interpreter", "embedded server", "SGLang", "dialects", "GPU", "port", "sandbox"} <= set(topics)


def test_libraries(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "starlette", "tokenizers", "hypothesis")
    code, topics = report(capsys)
    assert code == 1
    assert topics["embedded server"]["state"] == "missing"
    assert topics["embedded server"]["text"] == "not installed: starlette, tokenizers"
    assert "pytest-ddtree[reference]" in topics["embedded server"]["fix"]
    assert topics["suites"]["text"] == "not installed: hypothesis"
    assert "pytest-ddtree[suites]" in topics["suites"]["fix"]


def test_a_driver_where_sglang_was_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "load", lambda: None)
    assert report(capsys)[1]["GPU"]["state"] == "note", "the embedded server needs none"
    code, topics = report(capsys, "--sglang-src", str(support.FAKE))
    assert code == 1
    assert topics["SGLang"]["state"] == "ok"
    assert topics["GPU"]["state"] == "missing"
    assert "nvidia-smi" in topics["GPU"]["fix"]


def test_a_system_without_sandbox(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    none = SandboxCapabilities(usable=False, mode="strict", reasons=("the kernel has no seccomp",))
    monkeypatch.setattr(sandbox, "probe", lambda: none)
    code, topics = report(capsys)
    assert code == 0, "speed and exactness can be measured"
    assert topics["sandbox"]["state"] == "note"
    assert "the kernel has no seccomp" in topics["sandbox"]["text"]
    assert "docs/sandbox.md" in topics["sandbox"]["fix"]


def test_a_dialect_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    code, topics = report(capsys, "--sglang-src", str(support.FAKE), "--dialect", "Q")
    assert code == 1
    assert topics["SGLang"]["state"] == "missing"
    assert "'Q'" in topics["SGLang"]["text"]


@pytest.mark.parametrize("place", ["this", "asked"])
def test_a_port_is_free(capsys: pytest.CaptureFixture[str], place: str) -> None:
    found = report(capsys)[1]["port"]
    assert found["state"] == "ok"
    if place == "asked":
        number = found["text"].split("(")[1].rstrip(")")
        assert report(capsys, "--port", number)[1]["port"]["text"] == f"{number} is free"


@pytest.mark.parametrize("port", ["0", "65536", "99999", "-3", "x"])
def test_what_is_no_port_is_a_usage_error(capsys: pytest.CaptureFixture[str], port: str) -> None:
    with pytest.raises(SystemExit) as caught:
        report(capsys, f"--port={port}")
    assert caught.value.code == 2
    assert "from 1 to 65535" in capsys.readouterr().err
