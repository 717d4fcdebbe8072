"""What test-by-test reports say at the end of a session, when rounds were added to cells after their own tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
from test_reports import a_verdict

from pytest_ddtree.grid import CellKey
from pytest_ddtree.report import jsonreport
from pytest_ddtree.report.lastfigures import WITHDRAWN, last_properties, update_tests
from pytest_ddtree.results.model import CellFigures, Results, Round

KEY = CellKey(60, 4)


def a_cell(rates: Sequence[float], config: str = "b8-k4-wnone") -> CellFigures:
    rounds = tuple(
        Round(
            config=config, key=KEY, number=number, requests=1, tokens=256, wall_s=256 / rate, ttft_s=(0.01,), time_per_token_s=(0.002,),
            latency_s=(0.2,), verify_steps=64, cached_tokens=0, decode_tok_s=None,
        )
        for number, rate in enumerate(rates)
    )  # fmt: skip
    return CellFigures(config=config, key=KEY, rounds=rounds)


EARLY = a_cell([500.0, 510.0], config="baseline")
LATE = a_cell([500.0, 510.0, 700.0, 720.0], config="baseline")
GATES = [{"metric": "tok_s", "outcome": "recorded"}]


def test_properties_are_those_of_all_rounds() -> None:
    results = Results(cells={("baseline", KEY): LATE})
    found = last_properties(jsonreport.properties(EARLY, GATES), results)
    assert found == jsonreport.properties(LATE, GATES)
    assert dict(found)["ddtree.rounds"] == "4"


def test_the_baseline_of_another_group_is_told_by_its_first_rounds() -> None:
    other = a_cell([300.0, 310.0, 320.0], config="baseline@group1")
    results = Results(cells={("baseline", KEY): LATE, ("baseline@group1", KEY): other})
    said = jsonreport.properties(a_cell([300.0, 310.0], config="baseline"))
    found = dict(last_properties(said, results))
    assert found["ddtree.tok_s"] == f"{other.tok_s.value:.6g}"
    assert found["ddtree.config"] == "baseline"


def test_what_is_nobodys_cell_stays_as_it_is() -> None:
    results = Results(cells={("baseline", KEY): LATE})
    for given in ([("mine", "1")], jsonreport.properties(a_cell([1.0, 2.0])), [("ddtree.rounds", "many")]):
        assert last_properties(given, results) == given


def test_the_speed_of_a_config_that_turned_out_corrupt_is_withdrawn() -> None:
    cell = a_cell([500.0, 510.0])
    results = Results(
        cells={(cell.config, KEY): cell}, verdicts={cell.config: [a_verdict(cell.config, "corrupt")]}
    )
    found = dict(last_properties(jsonreport.properties(cell), results))
    assert found == {"ddtree.config": cell.config, "ddtree.cell": KEY.id, WITHDRAWN: "corrupt"}
    tests = [{"metadata": jsonreport.cell_metadata(cell)}]
    update_tests({"tests": tests}, results)
    assert tests[0]["metadata"]["ddtree"]["figures"] is None


def test_the_json_report_is_brought_up_to_date() -> None:
    test = {
        "user_properties": [{name: value} for name, value in jsonreport.properties(EARLY, GATES)],
        "metadata": {**jsonreport.cell_metadata(EARLY, GATES), "mine": 1},
    }
    update_tests({"tests": [test, {"nodeid": "other"}]}, Results(cells={("baseline", KEY): LATE}))
    assert test["metadata"] == {**jsonreport.cell_metadata(LATE, GATES), "mine": 1}
    assert test["user_properties"] == [{name: value} for name, value in jsonreport.properties(LATE, GATES)]


def test_junit_says_what_the_session_knows_at_its_end(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = session\n")
    pytester.makepyfile(
        """
        from pytest_ddtree.report import jsonreport
        from test_last_figures import KEY, a_cell

        def test_measures(ddtree_run, request):
            early = a_cell([500.0, 510.0])
            ddtree_run.results.cells[early.config, KEY] = early
            request.node.user_properties.extend(jsonreport.properties(early))

        def test_adds_rounds(ddtree_run):
            late = a_cell([500.0, 510.0, 700.0, 720.0])
            ddtree_run.results.cells[late.config, KEY] = late
        """
    )
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--junitxml=junit.xml")
    assert result.ret == 0
    tree = ElementTree.parse(pytester.path / "junit.xml")
    found = {one.attrib["name"]: one.attrib["value"] for one in tree.iter("property")}
    late = a_cell([500.0, 510.0, 700.0, 720.0])
    assert found == dict(jsonreport.properties(late))
