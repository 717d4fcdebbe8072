"""The coding suite on the embedded server, healthy, under planted faults and under rounding noise."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from running import DRAFT, MODEL, Running
from running import TREE as RUNNING_TREE
from suite import run

FEW = (
    *("-m", "coding", "--ddtree-context", "60", "--ddtree-concurrency", "2"),
    *("--ddtree-exactness-prompts", "8", "--ddtree-exactness-output", "32"),
)
TREE = "b8-k4-wnone"


def test_a_stop_leak_fails_naming_corrupt_though_every_code_passes(tmp_path: Path) -> None:
    """The leaked tokens are what the model itself would go on with: their gaps are 0, and the codes are right."""
    plant = ("--ddtree-spec-args", "--plant stop_leaks", "--ddtree-problem", "banded_fee,bar_rows")
    outcome = run(*FEW, *plant, f"--ddtree-write-samples={tmp_path}/written", results=tmp_path)
    assert outcome.code == 1, outcome.output
    assert outcome.tests == {
        f"test_problem[{TREE}-banded_fee]": "failure",
        f"test_problem[{TREE}-bar_rows]": "failure",
        f"test_no_net_loss[{TREE}]": "passed",
        f"test_no_more_truncation_missing_code_or_timeouts[{TREE}]": "passed",
        f"test_answers_keep_their_limit[{TREE}]": "passed",
        f"test_chat_endpoint_counts_the_same_prompt[{TREE}]": "passed",
        f"test_answers_at_level_full[{TREE}]": "failure",
    }
    said = outcome.messages[f"test_problem[{TREE}-banded_fee]"]
    assert "corrupt" in said
    assert "tokens stand behind the stop token" in said
    assert "--- baseline: pass" in said
    assert "--- this config: pass" in said
    assert said.count("def banded_fee") >= 2
    assert "CORRUPT" in outcome.output
    for name in ("baseline", TREE):
        lines = (tmp_path / "written" / f"{name}.jsonl").read_text().splitlines()
        assert [json.loads(line)["task_id"] for line in lines] == ["banded_fee", "bar_rows"]


@pytest.mark.slow
def test_a_wrong_mask_fails_naming_corrupt(tmp_path: Path) -> None:
    plant = ("--ddtree-budget", "16", "--ddtree-spec-args", "--plant mask_block_size")
    outcome = run(*FEW, *plant, "--ddtree-problem-limit", "6", results=tmp_path)
    assert outcome.code == 1, outcome.output
    problems = {name: said for name, said in outcome.tests.items() if name.startswith("test_problem")}
    assert set(problems.values()) == {"failure"}
    assert all("corrupt" in outcome.messages[name] for name in problems)
    assert outcome.tests["test_answers_at_level_full[b16-k4-wnone]"] == "failure"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "failing", "said"),
    [
        (
            "chunk_repeated",
            {f"test_problem[{TREE}-banded_fee]", f"test_answers_at_level_full[{TREE}]"},
            "the server counted",
        ),
        # No answer to a problem runs into its limit, so nothing else shows it.
        ("max_tokens_overshoot", {f"test_answers_keep_their_limit[{TREE}]"}, "tokens came although"),
    ],
)
def test_what_the_server_itself_counts_otherwise_is_a_failure(
    tmp_path: Path, plant: str, failing: set[str], said: str
) -> None:
    outcome = run(
        *FEW, f"--ddtree-spec-args=--plant {plant}", "--ddtree-problem=banded_fee", results=tmp_path
    )
    assert outcome.code == 1, outcome.output
    assert {name for name, how in outcome.tests.items() if how == "failure"} == failing, outcome.output
    assert "error" not in outcome.tests.values()
    for name in failing:
        assert "corrupt" in outcome.messages[name]
        assert said in outcome.messages[name]
        assert "def test_" not in outcome.messages[name]


@pytest.mark.slow
def test_rounding_noise_fails_nothing(tmp_path: Path) -> None:
    noise = ("--ddtree-server-args", "--numerics bf16", "--ddtree-problem-limit", "30")
    outcome = run(*FEW, *noise, results=tmp_path)
    assert outcome.code == 0, outcome.output
    skipped = [name for name, how in outcome.tests.items() if how == "skipped"]
    assert set(outcome.tests.values()) <= {"passed", "skipped"}
    assert all("both answers ran into the token limit" in outcome.messages[name] for name in skipped)
    row = next(line for line in outcome.output.splitlines() if line.startswith(f"{TREE} ") and "/30" in line)
    # config, solved, baseline, identical, lost to rounding, corrupt
    assert int(row.split()[3]) < 30, "no answer diverged: this noise shows nothing"
    assert row.split()[5] == "0"


@pytest.mark.slow
def test_a_server_asked_by_chat_is_judged_by_text_and_says_so(tmp_path: Path) -> None:
    outcome = run(*FEW, "--ddtree-problem-limit", "4", "--ddtree-coding-api", "chat", results=tmp_path)
    assert outcome.code == 0, outcome.output
    assert outcome.tests[f"test_answers_at_level_full[{TREE}]"] == "skipped"
    assert outcome.tests[f"test_chat_endpoint_counts_the_same_prompt[{TREE}]"] == "skipped"
    assert "judged by text: the server sends no token ids" in outcome.output
    assert "noise floor" not in outcome.output


@pytest.mark.slow
def test_samples_are_reported_as_pass_at_k(tmp_path: Path) -> None:
    several = ("--ddtree-coding-samples", "3", "--ddtree-coding-temperature", "0.8")
    outcome = run(*FEW, *several, "--ddtree-problem-limit", "5", results=tmp_path)
    assert outcome.code == 0, outcome.output
    assert "pass@1 " in outcome.output
    assert "pass@3 " in outcome.output
    assert "temperature 0.8" in outcome.output


@pytest.mark.slow
def test_an_answer_cut_on_both_sides_is_no_pass(tmp_path: Path) -> None:
    """Nothing is solved within so few tokens: skipped problem by problem, and an error over all of them."""
    outcome = run(*FEW, "--ddtree-problem-limit", "3", "--ddtree-coding-output", "40", results=tmp_path)
    assert outcome.code == 1, outcome.output
    problems = {said for name, said in outcome.tests.items() if name.startswith("test_problem")}
    assert problems == {"skipped"}
    assert outcome.tests[f"test_no_net_loss[{TREE}]"] == "error"
    assert "solves none of 3 problems" in outcome.messages[f"test_no_net_loss[{TREE}]"]


UNFAIR = {
    "task_id": "unfair", "prompt": "Write f.", "entry_point": "f", "base_input": [[1]], "canonical_solution": "def f(x): return 1 / 0\n",
}  # fmt: skip


@pytest.mark.slow
def test_where_no_problem_can_be_judged_nothing_passes(tmp_path: Path) -> None:
    (tmp_path / "unfair.jsonl").write_text(json.dumps(UNFAIR))
    outcome = run(
        *FEW, f"--ddtree-problems={tmp_path}/unfair.jsonl", "-k", "problem or net or more", results=tmp_path
    )
    assert outcome.code == 1, outcome.output
    assert outcome.tests == {
        f"test_problem[{TREE}-unfair]": "error",
        f"test_no_net_loss[{TREE}]": "error",
        f"test_no_more_truncation_missing_code_or_timeouts[{TREE}]": "error",
    }
    assert all("its reference solution fails on input 1" in said for said in outcome.messages.values())


@pytest.mark.slow
def test_samples_of_a_problem_have_the_same_seeds_on_both_servers_whatever_becomes_of_others(
    tmp_path: Path,
) -> None:
    good = [
        {"task_id": name, "prompt": "Add.", "entry_point": "add", "cases": [{"args": [1, 2], "expect": 3}]}
        for name in "ab"
    ]
    (tmp_path / "mixed.jsonl").write_text("".join(json.dumps(one) + "\n" for one in [UNFAIR, *good]))
    several = (
        "--ddtree-coding-samples",
        "2",
        "--ddtree-coding-temperature",
        "0.8",
        "--ddtree-coding-output",
        "24",
    )
    outcome = run(
        *FEW, *several, f"--ddtree-problems={tmp_path}/mixed.jsonl", "-k", "test_problem", results=tmp_path
    )
    assert outcome.tests[f"test_problem[{TREE}-unfair]"] == "error", outcome.output
    (book,) = tmp_path.rglob("answers.jsonl")
    asked: dict[str, set[tuple[str, int, str]]] = {}
    for line in map(json.loads, book.read_text().splitlines()):
        if line["kind"] == "answer":
            asked.setdefault(line["config"], set()).add((line["tag"], line["number"], line["asked"]))
    assert len(asked[TREE]) == 4
    assert asked[TREE] < asked["baseline"]


OWN = """
import pytest

from pytest_ddtree.coding.problems import Case, Problem


@pytest.mark.ddtree_speculative
def test_mine(ddtree_server, ddtree_solve):
    for name in ("one", "two", "one"):
        cases = (Case(args=(2,), expect=4),)
        mine = Problem(
            task_id=name, mode="function", entry_point="double", prompt="", question=f"Write double(x), {name}.", cases=cases
        )
        assert ddtree_solve(mine).problem == name
"""


@pytest.mark.slow
def test_problems_of_a_users_own_test_are_asked_alone_and_compared_with_no_other(tmp_path: Path) -> None:
    own = tmp_path / "own" / "test_own.py"
    own.parent.mkdir()
    own.write_text(OWN)
    few = (
        "evals/coding",
        "--ddtree-problem=banded_fee",
        "--ddtree-coding-output=300",
        "-k",
        "mine or test_problem",
    )
    outcome = run(*FEW[2:], str(own), *few, results=tmp_path)
    assert outcome.tests == {f"test_mine[{TREE}]": "passed", f"test_problem[{TREE}-banded_fee]": "passed"}, (
        outcome.output
    )
    row = next(line for line in outcome.output.splitlines() if line.startswith(f"{TREE} "))
    assert row.split()[1].endswith("/1"), "one problem of the suite was solved"


def test_bad_problem_files_are_listed_before_a_server_starts(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"task_id": "a", "prompt": "p", "cases": []}\nnot json\n{"task_id": "b"}\n')
    outcome = run("-m", "coding", f"--ddtree-problems={bad}", results=tmp_path)
    assert outcome.code == 4, outcome.output
    for line in (1, 2, 3):
        assert f"{bad}:{line}: " in outcome.output
    assert "starting" not in outcome.output


def test_several_greedy_samples_are_refused(tmp_path: Path) -> None:
    outcome = run("-m", "coding", "--ddtree-coding-samples", "3", results=tmp_path)
    assert outcome.code == 4, outcome.output
    assert "--ddtree-coding-temperature above 0" in outcome.output


class WithoutGenerate:
    """A real proxy in front of a server, for which /generate does not exist: its path is another one on the way."""

    def __init__(self, url: str) -> None:
        self._target = ("127.0.0.1", int(url.rsplit(":", 1)[1]))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets = [self._listener]
        self._threads: list[threading.Thread] = []
        self._begin(self._accept)

    def _begin(self, work: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                self._begin(self._pump, client, server, True)
                self._begin(self._pump, server, client, False)

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket, spoil: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data.replace(b"POST /generate HTTP", b"POST /degenera HTTP") if spoil else data)
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(10)


@pytest.mark.slow
def test_servers_without_generate_are_asked_by_chat_of_themselves(tmp_path: Path) -> None:
    baseline, tree = Running(tmp_path / "baseline.log"), Running(tmp_path / "tree.log", *RUNNING_TREE, *DRAFT)
    proxies = WithoutGenerate(baseline.url), WithoutGenerate(tree.url)
    try:
        urls = (f"--ddtree-baseline-url={proxies[0].url}", f"--ddtree-url={proxies[1].url}")
        outcome = run(*FEW, *urls, f"--ddtree-model={MODEL}", "--ddtree-problem-limit", "3", "--ddtree-coding-output", "640",
                      results=tmp_path / "results")  # fmt: skip
    finally:
        for one in proxies:
            one.close()
        tree.stop()
        baseline.stop()
    assert outcome.code == 0, outcome.output
    assert (
        "has no /generate (HTTP 404): coding answers are asked by chat and judged by text" in outcome.output
    )
    assert {said for name, said in outcome.tests.items() if name.startswith("test_problem")} == {"passed"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "value", "code"),
    [
        ("--ddtree-server-args", "--numerics bf16", 0),
        ("--ddtree-spec-args", "--plant siblings_visible", 1),
    ],
    ids=["rounding noise", "wrong mask"],
)
def test_where_one_server_fits_the_baseline_comes_back_for_level_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, value: str, code: int
) -> None:
    """The embedded server runs two at once; a GPU that holds one is what this setting stands for."""
    (tmp_path / "one_at_a_time.py").write_text(
        "from pytest_ddtree.servers.settings import ServerSettings\nServerSettings.servers_at_once = property(lambda self: 1)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    outcome = run(
        *FEW,
        "-p",
        "one_at_a_time",
        option,
        value,
        "--ddtree-problem-limit",
        "6",
        results=tmp_path / "results",
    )
    assert outcome.code == code, outcome.output
    judged = outcome.tests[f"test_answers_at_level_full[{TREE}]"]
    assert judged == ("passed" if code == 0 else "failure")
    if code == 0:
        assert "baseline (rescore)" in outcome.output
    else:
        assert "corrupt" in outcome.messages[f"test_answers_at_level_full[{TREE}]"]
