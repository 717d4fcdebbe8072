"""Whoever asks pytest to end is heard, once: also where the first signal is lost, and where one comes while pytest ends already."""

from __future__ import annotations

import signal

import pytest

PATIENT = """
import pytest_ddtree.ending
pytest_ddtree.ending.SAME_WISH_S = {seconds}

def pytest_terminal_summary(terminalreporter):
    terminalreporter.line("the tables of somebody")
"""
AT_THE_END = """
import os, pathlib, signal

def pytest_sessionfinish():
    os.kill(os.getpid(), signal.SIGTERM)
    pathlib.Path("finished").touch()
"""
LOST = {
    "finalizer": """
        class Dying:
            def __del__(self):
                os.kill(os.getpid(), signal.SIGTERM)

        Dying()
    """,
    "callback": """
        ctypes.CFUNCTYPE(None)(lambda: os.kill(os.getpid(), signal.SIGTERM))()
    """,
    "caught": """
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except BaseException:
            pass
    """,
    "kept": """
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except BaseException as error:
            kept.append(error)
    """,
}
"""Ways to lose what a signal handler raises."""


def ran(
    pytester: pytest.Pytester, body: str, *arguments: str, wish_s: float = 0.0, more: str = ""
) -> pytest.RunResult:
    """One test with this body, run by a pytest of its own."""
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = session\n")
    pytester.makeconftest(PATIENT.format(seconds=wish_s) + more)
    (pytester.path / "test_it.py").write_text(
        "import ctypes, os, signal\nfrom pathlib import Path\nimport pytest\n"
        "kept = []\ndef again(number=signal.SIGTERM):\n    os.kill(os.getpid(), number)\n\n" + body
    )
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", *arguments, timeout=300)


WAYS = [pytest.param(lost, marks=[] if lost == "finalizer" else [pytest.mark.slow]) for lost in LOST]
"""Every way in which a signal is lost; a session of pytest each, so that the first alone is fast."""


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("lost", WAYS)
def test_a_signal_after_one_that_was_lost_ends_the_test(
    pytester: pytest.Pytester, lost: str, times: int
) -> None:
    body = (
        f"@pytest.mark.parametrize('number', [1, 2])\ndef test_it(ddtree_run, number):\n    for _ in range({times}):"
        f"{LOST[lost].rstrip()}\n"
        "    Path('lost').touch()\n    again()\n    Path('went-on').touch()\n"
    )
    result = ran(pytester, body)
    assert result.ret == 143, result.stdout.str()
    assert (pytester.path / "lost").exists(), result.stdout.str()
    assert not (pytester.path / "went-on").exists()
    assert "the tables of somebody" in result.stdout.str()


def test_a_signal_that_comes_twice_is_one(pytester: pytest.Pytester) -> None:
    """The second comes while the first is on its way up, which a `finally` that it meets must not notice."""
    body = (
        "def test_it(ddtree_run):\n    try:\n        again()\n    finally:\n        again()\n"
        "        Path('torn-down').touch()\n"
    )
    result = ran(pytester, body, wish_s=600.0)
    assert result.ret == 143, result.stdout.str()
    assert (pytester.path / "torn-down").exists()
    assert "the tables of somebody" in result.stdout.str()


@pytest.mark.parametrize("first", ["SIGTERM", "SIGINT"])
def test_no_signal_cuts_the_teardown_short(pytester: pytest.Pytester, first: str) -> None:
    body = (
        "@pytest.fixture(scope='session')\ndef mine():\n    yield\n    again()\n    again()\n    Path('torn-down').touch()\n\n"
        f"def test_it(ddtree_run, mine):\n    again(signal.{first})\n"
    )
    result = ran(pytester, body)
    assert result.ret == 143, result.stdout.str()
    assert (pytester.path / "torn-down").exists()
    assert "the tables of somebody" in result.stdout.str()


def test_a_first_signal_during_the_teardown_ends_it(pytester: pytest.Pytester) -> None:
    body = (
        "@pytest.fixture(scope='session')\ndef mine():\n    yield\n    again()\n    Path('went-on').touch()\n\n"
        "def test_it(ddtree_run, mine):\n    pass\n"
    )
    result = ran(pytester, body)
    assert result.ret == 143, result.stdout.str()
    assert not (pytester.path / "went-on").exists()


@pytest.mark.parametrize("lost", WAYS)
def test_a_signal_after_the_last_test_costs_no_tables_where_the_first_was_lost(
    pytester: pytest.Pytester, lost: str
) -> None:
    result = ran(pytester, f"def test_it(ddtree_run):\n    if True:{LOST[lost].rstrip()}\n", more=AT_THE_END)
    assert result.ret == 143, result.stdout.str()
    assert (pytester.path / "finished").exists()
    assert "the tables of somebody" in result.stdout.str()


@pytest.mark.parametrize(
    ("first", "code"), [("SIGTERM", 143), ("SIGINT", pytest.ExitCode.INTERRUPTED), (None, -signal.SIGTERM)]
)
def test_the_servers_of_a_session_that_was_interrupted_are_closed_whatever_comes(
    pytester: pytest.Pytester, first: str | None, code: int
) -> None:
    """A session that nobody interrupted has nothing left to lose then: there SIGTERM does what it does to any process."""
    interrupt = "pass" if first is None else f"again(signal.{first})"
    body = (
        "def test_it(ddtree_run):\n"
        "    close = ddtree_run.servers.close\n"
        "    def close_in_spite_of_it():\n        again()\n        close()\n        Path('closed').touch()\n"
        f"    ddtree_run.servers.close = close_in_spite_of_it\n    {interrupt}\n"
    )
    result = ran(pytester, body)
    assert result.ret == code, result.stdout.str()
    assert (pytester.path / "closed").exists() == (first is not None)
    assert "the tables of somebody" in result.stdout.str()


@pytest.mark.parametrize(("number", "code"), [("SIGTERM", 143), ("SIGINT", pytest.ExitCode.INTERRUPTED)])
def test_everybody_who_has_servers_hears_of_it(pytester: pytest.Pytester, number: str, code: int) -> None:
    body = (
        "from pytest_ddtree.session import ab_of, run_of\n\n"
        "def test_it(pytestconfig):\n"
        "    for name, owner in (('run', run_of(pytestconfig).servers), ('ab', ab_of(pytestconfig)._builds)):\n"
        "        owner.alarm = Path(name).touch\n"
        f"    again(signal.{number})\n"
    )
    builds = ("--ddtree-build=base=args:--log-level info", "--ddtree-build=patched=args:--log-level error")
    result = ran(pytester, body, *builds)
    assert result.ret == code, result.stdout.str()
    assert [name for name in ("run", "ab") if (pytester.path / name).exists()] == ["run", "ab"]
