"""Reading logs: tails, phases, root causes; on the captured ones and on lines of known failures."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddtree.servers import logs

DATA = Path(__file__).parents[1] / "data" / "sglang-ddtree-fork"


def capture(name: str = "tree8w") -> list[str]:
    return (DATA / f"{name}.server.log").read_text().splitlines()


def test_phases_of_a_real_start_in_their_order() -> None:
    lines = capture()
    seen: list[str] = []
    for end in range(1, len(lines)):
        phase = logs.phase("\n".join(lines[:end]))
        if phase is not None and (not seen or seen[-1] != phase):
            seen.append(phase)
    names = list(dict.fromkeys(phase.rstrip(" %0123456789") for phase in seen))
    assert names == [
        "starting processes",
        "loading weights",
        "allocating the KV cache",
        "capturing CUDA graphs",
        "drafter ready",
        "warming up",
        "ready",
    ]
    assert "loading weights 100 %" in seen
    assert any(phase.startswith("capturing CUDA graphs ") and phase.endswith("%") for phase in seen)


@pytest.mark.parametrize("name", ["base", "chain", "tree8w"])
def test_a_healthy_log_has_no_known_cause(name: str) -> None:
    text = "\n".join(capture(name))
    assert logs.classify(text[: text.index("SIGTERM received")]) is None


def test_tail_keeps_the_last_state_of_a_progress_bar() -> None:
    text = (
        "begin\n" + "\n".join(f"Capturing: {i}%|##| {i}/100 [00:01]" for i in range(0, 101, 10)) + "\n\nend\n"
    )
    assert logs.tail(text, 5).splitlines() == ["begin", "Capturing: 100%|##| 100/100 [00:01]", "end"]
    assert logs.tail("a\rb\rc\n", 5) == "c"
    assert logs.tail("") == ""


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("torch.cuda.OutOfMemoryError: CUDA out of memory.", "out of memory"),
        ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "out of memory"),
        ("OSError: [Errno 98] Address already in use", "port in use"),
        (
            "rpc_port at 30004 is not available in 30 seconds. rpc_port is used by a process already",
            "port in use",
        ),
        ("launch_server.py: error: argument --page-size: invalid int value: 'x'", "unknown flag"),
        ("error: unrecognized arguments: --speculative-ddtree-budget 8", "unknown flag"),
        ("RuntimeError: NCCL Error 2: unhandled system error", "NCCL"),
        ("Exception: Capture cuda graph failed: CUDA out of memory", "graph capture"),
        (
            "ValueError: DFLASH speculative decoding requires setting --speculative-draft-model-path.",
            "missing draft model",
        ),
        (
            "huggingface_hub.errors.RepositoryNotFoundError: Repository Not Found for url: https://x/draft-model",
            "missing draft model",
        ),
        ("OSError: x/y is not a local folder and is not a valid model identifier", "missing model"),
        ("ValueError: DDTREE currently supports only page_size == 1. Got page_size=16", "refused config"),
        ("RuntimeError: No CUDA GPUs are available", "no GPU"),
        ("ImportError: libcudart.so.13: cannot open shared object file", "missing library"),
        ("ImportError: x.so: undefined symbol: _ZN3c104cuda9SetDeviceEi", "missing library"),
        ("ImportError: cannot import name 'x' from 'y'", "missing package"),
    ],
)
def test_classes(text: str, name: str) -> None:
    whole = (
        "[2026-11-29 16:46:02] Load weight end. elapsed=0.13 s\nTraceback (most recent call last):\n"
        + text
        + "\nlast words"
    )
    cause = logs.classify(whole)
    assert cause is not None
    assert cause.name == name
    assert cause.hint
    assert logs.root_cause(whole) == text


def test_the_cause_and_not_its_consequences() -> None:
    text = "\n".join(
        [
            *capture()[:20],
            "[t] Scheduler hit an exception: Traceback (most recent call last):",
            '  File "x.py", line 3, in f',
            "KeyError: 'layers.0.mlp.experts'",
            "[t] SIGQUIT received. It usually means one child failed.",
            "RuntimeError: Rank 0 scheduler died during initialization (exit code: 1).",
            "EOFError",
        ]
    )
    assert logs.root_cause(text) == "KeyError: 'layers.0.mlp.experts'"
    assert logs.classify(text) is None


def test_a_survived_error_is_no_cause() -> None:
    """The captured log holds the traceback of an optional part that the build goes without."""
    text = "\n".join([*capture(), "[t] AssertionError: boom"])
    assert logs.root_cause(text) == "[t] AssertionError: boom"


def test_one_rank_failed_while_another_went_on() -> None:
    text = "\n".join(
        [
            "[t TP1] torch.OutOfMemoryError: CUDA out of memory.",
            "[t TP0] Load weight end. elapsed=3 s",
            "RuntimeError: Rank 1 scheduler died during initialization (exit code: 1).",
        ]
    )
    assert logs.root_cause(text) == "[t TP1] torch.OutOfMemoryError: CUDA out of memory."


def test_without_any_exception_the_last_line() -> None:
    assert logs.root_cause("one\ntwo\n\n") == "two"
    assert logs.root_cause("") is None
    served = '[t] Decode batch, #running-req: 1\n[t] INFO:     127.0.0.1:1 - "GET /metrics HTTP/1.1" 404 Not Found\n'
    assert logs.root_cause(served) is None, "what was killed while it served names no cause"
    assert logs.root_cause(served + "terminate called\n") == "terminate called"


@given(st.text())
def test_any_text(text: str) -> None:
    logs.phase(text)
    assert len(logs.root_cause(text) or "") <= 400
    assert logs.tail(text, 3).count("\n") <= 2


def test_huge_logs_keep_both_ends(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("first\n" + "x" * 5000 + "\nlast\n")
    text = logs.read(path, 1000)
    assert text.startswith("first")
    assert text.endswith("last\n")
    assert len(text) <= 1001
    assert logs.read(tmp_path / "none") == ""
    assert logs.read(None) == ""


REAL = Path(__file__).parents[1] / "data"


@pytest.mark.parametrize(
    ("log", "name", "cause"),
    [
        ("sglang-0.5.16/crash.server.log", "CUDA error", "device-side assert triggered"),
        (
            "sglang-0.0.0.dev0/crash.server.log",
            "CUDA error",
            "torch.AcceleratorError: CUDA error: device-side assert triggered",
        ),
        (
            "sglang-0.0.0.dev0/port.server.log",
            "port out of range",
            "SGLANG_GRPC_PORT (69309) must be between 1 and 65535",
        ),
    ],
)
def test_crashes_of_real_servers(log: str, name: str, cause: str) -> None:
    text = (REAL / log).read_text()
    found = logs.classify(text)
    assert found is not None
    assert found.name == name
    assert cause in (logs.root_cause(text) or "")


@pytest.mark.parametrize(
    "path",
    sorted(REAL.glob("sglang-*/[bc]*-*.server.log")),
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_real_logs_without_a_fault(path: Path) -> None:
    assert logs.classify(path.read_text()) is None
    assert logs.phase(path.read_text()) == "ready"


def test_what_a_log_holds_does_not_steer_a_terminal(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(b"\x1b[31mValueError: red\x1b[0m\n\x1b]0;title\x07\x00\x08 bell\n")
    text = logs.read(log)
    assert text.startswith("ValueError: red\n"), "patterns of the dialects see words, not colours"
    assert logs.root_cause(text) == "ValueError: red"
    for quoted in (logs.tail(text), str(logs.root_cause(text + "Exception: a\x1bc"))):
        assert not {letter for letter in quoted if letter < " " and letter != "\n"}
