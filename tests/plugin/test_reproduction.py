"""The commands that the report of a corruption prints do reproduce it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from running import DRAFT, MODEL, TREE, Running
from suite import ROOT, SMALL, environment, run

from pytest_ddtree.client.sync import Client

NAME = "test_exact_against_baseline[b8-k4-wnone]"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Running]]:
    folder = tmp_path_factory.mktemp("servers")
    with ExitStack() as stack:
        baseline = Running(folder / "baseline.log")
        stack.callback(baseline.stop)
        tree = Running(folder / "tree.log", *TREE, *DRAFT, "--plant", "positions_by_order")
        stack.callback(tree.stop)
        yield baseline, tree


def found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match is not None, text
    return match[1]


@pytest.mark.slow
def test_the_printed_commands_reproduce_the_corruption(
    servers: tuple[Running, Running], tmp_path: Path
) -> None:
    baseline, tree = servers
    urls = (f"--ddtree-url={tree.url}", f"--ddtree-baseline-url={baseline.url}", f"--ddtree-model={MODEL}")
    records = f"--ddtree-records={tmp_path / 'records'}"
    outcome = run("-m", "bench", "-k", "exact_against", *urls, records, *SMALL, results=tmp_path)
    assert outcome.tests == {NAME: "failure"}, outcome.output
    said = outcome.messages[NAME]
    assert "at concurrency 1 it repeats" in said
    position = int(found(r"position (\d+) of the answer, verify step \d+, token \d of \d \(", said))
    length = int(found(r"still seen with an output of (\d+) tokens", said))
    assert 0 <= position < 32
    assert length <= 32

    curl = shlex.split(found(r"\s(curl -s .*)", said))
    answer = subprocess.run(curl, capture_output=True, text=True, timeout=60, check=True)
    prompt = json.loads(curl[-1])["input_ids"]
    ids = json.loads(answer.stdout)["output_ids"]
    assert len(ids) == length
    scores = worst_gap(baseline.url, prompt, ids)
    assert scores > 0.01

    words = shlex.split(found(r"\s(pytest .* --ddtree-trace=.*)", said))
    judged = subprocess.run(
        [sys.executable, "-m", *words, "-p", "no:cacheprovider"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert judged.returncode == 1, judged.stdout + judged.stderr
    assert re.search(r"1 failed, \d+ deselected", judged.stdout), judged.stdout
    assert "tokens beyond a gap of" in judged.stdout


def worst_gap(url: str, prompt: list[int], ids: list[int]) -> float:
    """The largest gap of an answer under a baseline, nats."""
    with Client(url) as client:
        return max(score.gap for score in client.score([*prompt, *ids], len(prompt)))


@pytest.mark.slow
def test_a_search_finds_a_fault_of_schedules_and_its_command_finds_it_again(tmp_path: Path) -> None:
    plant = ("--ddtree-spec-args", "--plant cancel_corrupts_neighbour")
    # Twenty schedules miss the fault one time in five; the search ends with the first that finds it.
    outcome = run(
        "-m", "exactness", "-k", "test_search", "--ddtree-fuzz", "300", *plant, *SMALL, results=tmp_path
    )
    name = "test_search[b8-k4-wnone]"
    assert outcome.tests == {name: "failure"}, outcome.output
    said = outcome.messages[name]
    assert re.search(r"failed again in \d+ of 10 runs", said), said
    saved = Path(found(r"saved as (\S+\.json)", said))
    actions = [step["action"] for step in json.loads(saved.read_text())["steps"]]
    assert "cancel" in actions
    again = found(r"again: (pytest .*)", said)
    assert f"--ddtree-trace={saved}" in shlex.split(again)


@pytest.mark.slow
def test_a_healthy_server_survives_a_search(tmp_path: Path) -> None:
    selection = ("-m", "exactness", "-k", "test_search", "--ddtree-fuzz", "10")
    outcome = run(*selection, *SMALL, results=tmp_path)
    assert outcome.tests == {"test_search[b8-k4-wnone]": "passed"}, outcome.output
    assert "none of 10 schedules failed" in outcome.output


@pytest.mark.slow
def test_a_server_that_dies_under_a_schedule_is_an_error_with_the_schedule(tmp_path: Path) -> None:
    plant = ("--ddtree-spec-args", "--plant crash_after:9")
    selection = ("-m", "exactness", "-k", "test_search", "--ddtree-fuzz", "10")
    outcome = run(*selection, *plant, *SMALL, results=tmp_path)
    name = "test_search[b8-k4-wnone]"
    assert outcome.tests == {name: "error"}, outcome.output
    assert "ended while it was in use" in outcome.messages[name]
    assert Path(found(r"--ddtree-trace=(\S+\.json)", outcome.messages[name])).exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file"),
        ("{", "JSON|delimiter|property name"),
        ("{}", "this is no saved trace"),
        ('{"steps": []}', "submits no request"),
    ],
    ids=["missing", "half-written", "something else", "empty"],
)
def test_a_trace_that_cannot_be_read_is_refused_before_a_server_starts(
    tmp_path: Path, content: str | None, said: str
) -> None:
    trace = tmp_path / "t.json"
    if content is not None:
        trace.write_text(content)
    outcome = run("-m", "exactness", f"--ddtree-trace={trace}", results=tmp_path)
    assert outcome.code == 4, outcome.output
    assert "server starts" not in outcome.output
    assert re.search(rf"--ddtree-trace={re.escape(str(trace))}: .*({said})", outcome.output), outcome.output
