"""What is broken or not there is a usage error before a server starts; it names the place, and the file stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ddtree.results.store import Store

FAKE = Path(__file__).parents[1] / "servers" / "fake"
ROUND = '{"schema":2,"kind":"run","started":"now","settings":{}}\n{"schema":2,"kind":"round"\n{"schema":2,"kind":"warning","text":"x"}\n'
EXPECTED = '{"schema": 1,\n "entries": [\n}\n'


@pytest.mark.parametrize(
    ("files", "flags", "said"),
    [
        (
            {"r/20260101T000000Z-1/results.jsonl": ROUND},
            ["--ddtree-results=r", "--ddtree-resume=last"],
            "results.jsonl, line 2: no JSON",
        ),
        (
            {"figures.json": EXPECTED},
            ["--ddtree-expected=figures.json"],
            "figures.json: cannot be read: *line 3*",
        ),
        (
            {"test_builds.py": "def test_builds(ddtree_config, ddtree_ab):\n    pass\n"},
            ["--ddtree-sglang-src=.", "--ddtree-build=base=git:no-such", "--ddtree-build=head=args:"],
            "--ddtree-build: base=git:no-such: * in the checkout .",
        ),
        (
            {"test_cells.py": "def test_cells(ddtree_server, ddtree_cell):\n    pass\n"},
            ["--ddtree-temperature=model"],
            "--ddtree-temperature model: the checkpoint of the embedded server *; give a number",
        ),
        (
            {
                "test_axis.py": "import pytest\n\n@pytest.mark.exactness\ndef test_axis(ddtree_server):\n    pass\n"
            },
            ["--ddtree-axis=page-size=banana"],
            "--ddtree-axis page-size=banana: the embedded server does not take it: *invalid int value*",
        ),
        ({}, ["--ddtree-html=."], "--ddtree-html .: is a directory; it takes a file"),
        ({}, ["--ddtree-results=/proc/here"], "--ddtree-results /proc/here: /proc is no directory *"),
        ({}, ["--ddtree-spec-args=--plant typo"], "the embedded server does not take * for b8-k4-wnone"),
        ({}, ["--ddtree-server=reference", "--ddtree-launch-prefix=kubectl run"], "begins with 'kubectl'*"),
        (
            {"test_builds.py": "def test_builds(ddtree_config, ddtree_ab):\n    pass\n"},
            ["--ddtree-build=base=args:", "--ddtree-build=typo=args:--plant typo"],
            "build typo: the embedded server does not take *\n*what to do: mend --ddtree-build='typo=args:--plant typo'",
        ),
        (
            {"test_builds.py": "def test_builds(ddtree_config, ddtree_ab):\n    pass\n"},
            [
                "--ddtree-spec-args=--nonsense",
                "--ddtree-build=a=args:--page-size 1",
                "--ddtree-build=b=args:--page-size 2",
            ],
            "build a: the embedded server does not take *\n*what to do: mend --ddtree-server-args, --ddtree-spec-args,*",
        ),
        (
            {"test_builds.py": "def test_builds(ddtree_config, ddtree_ab):\n    pass\n"},
            ["--ddtree-build=here=args:", "--ddtree-build=ls=/bin/ls"],
            "build ls: /bin/ls does not run *\n*what to do: * with --ddtree-build=ls=PATH, or leave that option out",
        ),
        (
            {"test_builds.py": "def test_builds(ddtree_config, ddtree_ab):\n    pass\n"},
            [
                "--ddtree-server=sglang",
                "--ddtree-model=m",
                "--ddtree-draft-model=d",
                "--ddtree-sglang-src=FAKE",
                "--ddtree-build=here=args:",
                "--ddtree-build=empty=.",
            ],
            "build empty: --ddtree-build=empty=.: there is no package `sglang` in it*",
        ),
        (
            {"test_cells.py": "def test_cells(ddtree_server, ddtree_cell):\n    pass\n"},
            ["--ddtree-url=http://127.0.0.1:9", "--ddtree-model=/no/such"],
            "--ddtree-model /no/such: there is no such directory on this host, where prompts are made: give one *",
        ),
        ({}, ["--ddtree-unit=no-such-unit"], "unit no-such-unit.service cannot be read on this host"),
    ],
    ids=[
        *("stored run", "expected figures", "revision", "model's temperature", "axis", "report", "results"),
        *(
            "server arguments",
            "launcher",
            "build's arguments",
            "every build's arguments",
            "build's interpreter",
        ),
        *("build's checkout", "a url's tokenizer", "unit"),
    ],
)
def test_it_is_a_usage_error(
    project: pytest.Pytester, files: dict[str, str], flags: list[str], said: str
) -> None:
    for name, text in files.items():
        path = project.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    result = project.runpytest_inprocess(*(flag.replace("FAKE", str(FAKE)) for flag in flags))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    first, *more = said.split("\n")
    result.stderr.fnmatch_lines([f"ERROR: *{first}*", *more])
    result.stdout.no_fnmatch_line("*Error*")
    assert {name: (project.path / name).read_text() for name in files} == files


def test_a_run_that_another_session_writes_is_not_resumed(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = session\n")
    pytester.makepyfile("def test_a(ddtree_run):\n    pass\n")
    path = pytester.path / "r" / "20260101T000000Z-1" / "results.jsonl"
    flags = ("-p", "no:cacheprovider", "--ddtree-results=r", "--ddtree-resume=last")
    with Store(path) as store:
        store.append("run", plugin="x", started="now", settings={})
        before = path.read_bytes()
        refused = pytester.runpytest_subprocess(*flags)
        planned = pytester.runpytest_subprocess(*flags, "--ddtree-plan")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    refused.stderr.fnmatch_lines(
        "ERROR: --ddtree-resume last: *results.jsonl: another process is writing it*"
    )
    assert "Traceback" not in refused.stderr.str() + refused.stdout.str()
    assert planned.ret != pytest.ExitCode.USAGE_ERROR
    assert path.read_bytes() == before
