"""What is broken or not there is a usage error before a server starts; it names the place, and the file stays as it is."""

from __future__ import annotations

import pytest

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
            "build typo: the embedded server does not take *",
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
        *("server arguments", "launcher", "build's arguments", "a url's tokenizer", "unit"),
    ],
)
def test_it_is_a_usage_error(
    project: pytest.Pytester, files: dict[str, str], flags: list[str], said: str
) -> None:
    for name, text in files.items():
        path = project.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    result = project.runpytest_inprocess(*flags)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *{said}*"])
    result.stdout.no_fnmatch_line("*Error*")
    assert {name: (project.path / name).read_text() for name in files} == files
