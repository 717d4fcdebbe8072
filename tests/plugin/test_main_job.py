"""The main job on the embedded server: what it prints, what it refuses to print, and what it leaves behind."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
from suite import ROOT, SMALL, command, environment, run, servers_of

PLANT = ("--ddtree-budget", "16", "--ddtree-spec-args", "--plant mask_block_size")


def test_the_main_job_passes_and_leaves_nothing_behind(tmp_path: Path) -> None:
    carrier = tmp_path / "benchmark.json"
    report = tmp_path / "report.json"
    files = (f"--benchmark-json={carrier}", "--json-report", f"--json-report-file={report}")
    outcome = run("-m", "bench", "--ddtree-budget", "8", *SMALL, *files, results=tmp_path)
    assert outcome.code == 0, outcome.output
    assert outcome.tests == {
        "test_throughput[baseline-ctx60-c2]": "passed",
        "test_effective_config[b8-k4-wnone]": "passed",
        "test_contract[b8-k4-wnone-serial]": "passed",
        "test_contract[b8-k4-wnone-concurrent-8]": "passed",
        "test_contract[b8-k4-wnone-drafts-are-used]": "passed",
        "test_contract[b8-k4-wnone-second-turn]": "passed",
        # No answer ends by itself within the few tokens of the smallest matrix.
        "test_contract[b8-k4-wnone-eos-in-run]": "skipped",
        "test_exact_against_baseline[b8-k4-wnone]": "passed",
        "test_throughput[b8-k4-wnone-ctx60-c2]": "passed",
    }
    assert "summary (speedup over the baseline's cell of this session)" in outcome.output
    assert "server starts: 2 in" in outcome.output
    carried = {bench["name"]: bench["extra_info"] for bench in json.loads(carrier.read_text())["benchmarks"]}
    figures = carried["test_throughput[b8-k4-wnone-ctx60-c2]"]
    assert figures["tok_s"]["value"] > 0
    assert figures["tokens"] == 64
    assert 1.0 <= figures["accept_length"] <= 8.0
    told = json.loads(report.read_text())
    said = {
        test["nodeid"].rpartition("::")[2]: test.get("metadata", {}).get("ddtree") for test in told["tests"]
    }
    assert said["test_throughput[b8-k4-wnone-ctx60-c2]"]["figures"]["tok_s"] == figures["tok_s"]
    assert said["test_effective_config[b8-k4-wnone]"] is None
    assert told["ddtree"]["cells"]
    assert servers_of(tmp_path) == []
    (stored,) = tmp_path.glob("*/results.jsonl")
    kinds = [json.loads(line)["kind"] for line in stored.read_text().splitlines()]
    assert kinds[0] == "run"
    assert (kinds.count("start"), kinds.count("verdict"), kinds.count("round")) == (2, 1, 4)


@pytest.mark.slow
def test_the_speed_of_a_corrupt_server_is_skipped_beside_its_verdict(tmp_path: Path) -> None:
    outcome = run("-m", "bench", *PLANT, *SMALL, results=tmp_path)
    assert outcome.code == 1, outcome.output
    name = "test_throughput[b16-k4-wnone-ctx60-c2]"
    assert outcome.tests[name] == "skipped", outcome.output
    assert "corrupt" in outcome.messages[name]
    assert outcome.tests["test_throughput[baseline-ctx60-c2]"] == "passed"
    assert outcome.tests["test_exact_against_baseline[b16-k4-wnone]"] == "failure"
    assert "the judge's best" in outcome.messages["test_exact_against_baseline[b16-k4-wnone]"]
    assert "CORRUPT" in outcome.output


def test_no_selection_turns_a_corrupt_server_green(tmp_path: Path) -> None:
    """Speed tests alone, and beside a user's test that carries the marker `exactness` and judges nothing: failures, no skips."""
    mine = tmp_path / "mine" / "test_mine.py"
    mine.parent.mkdir()
    mine.write_text(
        "import pytest\n"
        "from pytest_ddtree.grid import CellKey\n\n"
        "@pytest.mark.exactness\n@pytest.mark.ddtree_speculative\n"
        "def test_url(ddtree_server):\n    assert ddtree_server.url\n\n"
        "@pytest.mark.bench\n@pytest.mark.ddtree_speculative\n"
        "def test_speed(ddtree_server, ddtree_measure):\n    assert ddtree_measure(CellKey(60, 2)).tokens\n"
    )
    outcome = run(str(mine), "bench/test_throughput.py", *PLANT, *SMALL, results=tmp_path)
    assert outcome.code == 1, outcome.output
    assert outcome.tests == {
        "test_throughput[baseline-ctx60-c2]": "passed",
        "test_url[b16-k4-wnone]": "passed",
        "test_speed[b16-k4-wnone]": "failure",
        "test_throughput[b16-k4-wnone-ctx60-c2]": "failure",
    }
    assert "corrupt" in outcome.messages["test_throughput[b16-k4-wnone-ctx60-c2]"]
    assert "CORRUPT" in outcome.output


def test_a_server_that_does_not_start_is_an_error_with_its_own_words(tmp_path: Path) -> None:
    plant = ("--ddtree-budget=16", "--ddtree-spec-args=--plant crash_beyond_block")
    outcome = run("-m", "bench", *SMALL, *plant, results=tmp_path)
    assert outcome.code == 1
    speculative = {name: said for name, said in outcome.tests.items() if "b16" in name}
    assert set(speculative.values()) == {"error"}, outcome.output
    assert all("the tree is larger than the block" in outcome.messages[name] for name in speculative)
    assert outcome.output.count("server b16-k4-wnone: starting") == 1


def test_what_is_missing_of_the_baseline_is_an_error_of_every_test_that_needs_it(tmp_path: Path) -> None:
    # An address that is nobody's: RFC 5737 keeps it for documents.
    outcome = run("-m", "bench", *SMALL, "--ddtree-baseline-args=--host 203.0.113.7", results=tmp_path)
    assert set(outcome.tests.values()) == {"error"}, outcome.output


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 143),
        (signal.SIGINT, 2),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow),
    ],
    ids=["SIGTERM", "Ctrl-C", "SIGHUP"],
)
def test_a_signal_ends_the_session_and_its_servers(tmp_path: Path, number: int, code: int) -> None:
    process = subprocess.Popen(
        command("-m", "bench", "--ddtree-rounds", "200", "--ddtree-context", "512", results=tmp_path),
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        deadline = time.monotonic() + 300
        while '"kind":"start"' not in "".join(file.read_text() for file in tmp_path.rglob("results.jsonl")):
            assert time.monotonic() < deadline
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.2)
        assert servers_of(tmp_path)
        process.send_signal(number)
        output, _ = process.communicate(timeout=300)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == code, output
    assert "server starts: 1" in output
    assert servers_of(tmp_path) == []


@pytest.mark.parametrize(
    ("first", "code"), [("SIGTERM", 143), ("SIGINT", 143)], ids=["SIGTERM twice", "Ctrl-C, then SIGTERM"]
)
def test_a_signal_while_pytest_deals_with_one_costs_no_tables(
    pytester: pytest.Pytester, first: str, code: int
) -> None:
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = session\n")
    pytester.makeconftest(
        """
        import os, signal

        def pytest_keyboard_interrupt(excinfo):
            os.kill(os.getpid(), signal.SIGTERM)

        def pytest_terminal_summary(terminalreporter):
            os.kill(os.getpid(), signal.SIGTERM)
            terminalreporter.line("the tables of somebody")
        """
    )
    pytester.makepyfile(
        f"""
        import os, signal

        def test_that_a_signal_ends(ddtree_run):
            os.kill(os.getpid(), signal.{first})
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", timeout=300)
    assert result.ret == code, result.stdout.str()
    assert "the tables of somebody" in result.stdout.str()
    assert "Traceback" not in result.stdout.str() + result.stderr.str()


def test_a_fault_of_the_bench_inside_a_test_is_an_error_not_a_failure(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = session\n")
    pytester.makepyfile(
        """
        from pytest_ddtree.errors import Infrastructure

        def test_bench_broke():
            raise Infrastructure("the cable is out")

        def test_engine_is_wrong():
            assert 1 == 2
        """
    )
    result = pytester.runpytest_inprocess("--junitxml=junit.xml")
    result.assert_outcomes(errors=1, failed=1, passed=0)
    junit = (pytester.path / "junit.xml").read_text()
    assert 'errors="1"' in junit
    assert 'failures="1"' in junit
    assert "the cable is out" in junit


def test_a_server_that_dies_in_a_test_is_an_error_that_says_so(tmp_path: Path) -> None:
    plant = ("--ddtree-spec-args", "--plant crash_after:6")
    outcome = run("-m", "bench", "-k", "serial or exact_against", *SMALL, *plant, results=tmp_path)
    assert set(outcome.tests.values()) == {"error"}, outcome.output
    assert all("ended while it was in use" in message for message in outcome.messages.values()), (
        outcome.output
    )
    assert servers_of(tmp_path) == []


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        pytest.param(
            "accept_over_reported", "accept length", marks=pytest.mark.slow, id="accept length over-reported"
        ),
        pytest.param("silent_fallback", "no verify steps", id="no speculation at all"),
    ],
)
def test_what_a_server_says_of_its_speculation_is_checked(tmp_path: Path, plant: str, words: str) -> None:
    outcome = run(
        "-m", "bench", "-k", "throughput", *SMALL, "--ddtree-spec-args", f"--plant {plant}", results=tmp_path
    )
    name = "test_throughput[b8-k4-wnone-ctx60-c2]"
    assert outcome.tests[name] == "failure", outcome.output
    assert words in outcome.messages[name]


@pytest.mark.slow
def test_a_server_that_hangs_is_waited_for_once_and_is_an_error(tmp_path: Path) -> None:
    """Each of many requests would wait its own deadline otherwise; the server is started once more, then its config ends."""
    arguments = ("--ddtree-spec-args", "--plant hang_mid_stream:6", "--ddtree-request-timeout", "8")
    outcome = run("-m", "bench", "-k", "serial or exact_against", *SMALL, *arguments, results=tmp_path)
    assert set(outcome.tests.values()) == {"error"}, outcome.output
    assert "no longer answers" in outcome.messages["test_contract[b8-k4-wnone-serial]"]
    assert servers_of(tmp_path) == []
