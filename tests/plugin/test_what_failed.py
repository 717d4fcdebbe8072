"""A session in which tests fail or cannot be judged is called fine by no report."""

from __future__ import annotations

import json

import pytest

from pytest_ddtree.results.runs import find_runs, read_run

SUITE = """
import os
import pytest
from pytest_ddtree.errors import NotVerified
from pytest_ddtree.results.model import StartInfo

SECOND = "SECOND" in os.environ

def test_starts(ddtree_run):
    ddtree_run.store("start", config="baseline", reason=None, seconds=1.0, ok=True)
    ddtree_run.results.starts.append(StartInfo("baseline", None, 1.0))

@pytest.mark.parametrize("number", [1, 2])
def test_cannot_judge(ddtree_run, number):
    raise NotVerified("no sandbox with s3cret-token")

def test_fails(ddtree_run):
    if not SECOND:
        pytest.fail("budget is not what was asked", pytrace=False)

def test_of_others():
    assert SECOND
"""


def test_reports_say_what_failed_and_a_resumed_run_what_failed_last(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    monkeypatch.setenv("HF_TOKEN", "s3cret-token")
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = session\n")
    pytester.makepyfile(SUITE)
    options = ("-p", "no:cacheprovider", "--json-report", "--json-report-file=report.json")
    found = pytester.runpytest_subprocess(*options, "--ddtree-html=report.html")
    assert found.ret == pytest.ExitCode.TESTS_FAILED
    output, summary = found.stdout.str(), (pytester.path / "summary.md").read_text()
    assert summary.startswith("## ddtree: 1 other failure, 1 error\n")
    assert summary.index("budget is not what was asked") < summary.index("no sandbox")
    assert "test\\_cannot\\_judge\\[1\\] error, 1 more alike" in summary
    assert "test_of_others" not in summary
    assert "::error title=ddtree%3A test_fails failed::budget is not what was asked" in output
    assert "::error title=ddtree%3A test_cannot_judge[1] error%2C 1 more alike::" in output
    findings = json.loads((pytester.path / "report.json").read_text())["ddtree"]["findings"]
    assert [one["weight"] for one in findings] == ["failure", "error"]
    page = (pytester.path / "report.html").read_text()
    assert "No regression" not in page
    assert "budget is not what was asked" in page
    (stored,) = find_runs(pytester.path / ".ddtree")
    assert len(read_run(stored).results.failing) == 3
    assert "s3cret-token" not in stored.read_text() + summary + page

    monkeypatch.setenv("SECOND", "1")
    pytester.runpytest_subprocess(*options, "--ddtree-resume=last", "-k", "starts or fails or others")
    failing = read_run(stored).results.failing
    assert [(one.nodeid.rpartition("::")[2], one.outcome) for one in failing.values()] == [
        ("test_cannot_judge[1]", "error"),
        ("test_cannot_judge[2]", "error"),
    ]
