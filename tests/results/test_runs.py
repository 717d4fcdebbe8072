from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from made import KEY, a_round

from pytest_ddtree.client.records import TokenScore
from pytest_ddtree.coding.summary import CodingSummary, summary_from_json
from pytest_ddtree.exactness.judged import WorstToken
from pytest_ddtree.exactness.verdict import Verdict
from pytest_ddtree.grid import CellKey
from pytest_ddtree.report.terminal import lines
from pytest_ddtree.results.model import key_json
from pytest_ddtree.results.runs import (
    NoSuchRun,
    find_runs,
    pick_run,
    read_run,
    verdict_from_json,
)
from pytest_ddtree.results.store import Store, StoreCorrupt

VERDICT = Verdict(
    kind="corrupt",
    level="full",
    config="b8-k4-wnone",
    prompts=4,
    identical=3,
    tokens=100,
    off=2,
    largest=3.5,
    gap_limit=1.0,
    floor_largest=0.2,
    floor_share=0.001,
    floor_tokens=900,
    p_share=0.4,
    criteria=("gap",),
    reasons=("a gap of 3.5 nats",),
    worst=(WorstToken(tag="p1", position=7, score=TokenScore(position=7, token_id=3, logprob=-4.0, top=((5, -0.5), (3, -4.0)))),),
)  # fmt: skip


def test_a_verdict_and_a_coding_summary_come_back_as_they_were() -> None:
    assert verdict_from_json(orjson.loads(orjson.dumps(VERDICT.as_json()))) == VERDICT
    summary = CodingSummary(
        config="x", problems=3, baseline_passed=2, passed=1, identical=1, lost_to_rounding=1, corrupt=0,
        states=(("passed", 2, 1),), comparison="text",
    )  # fmt: skip
    assert summary_from_json(orjson.loads(orjson.dumps(summary.as_json()))) == summary


def test_the_figures_of_a_run_come_back(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    rounds = [a_round(number, 400.0 + number, start_no=2, at=1e9) for number in range(3)]
    with Store(path) as store:
        store.append("run", plugin="x", started="2026", settings={"seed": 1})
        store.append("start", config="baseline", reason=None, seconds=1.5, ok=True)
        store.append("start", config="b8-k4-wnone", reason=None, seconds=9.0, ok=False)
        store.append("effective", config="b8-k4-wnone", effective={"knobs": {}})
        store.append("verdict", verdict=VERDICT.as_json())
        for one in rounds:
            store.append("round", round=one.as_json())
        store.append("round", round=a_round(0, 1.0, again=1).as_json())
        store.append("something of a later version", value=1)
    run = read_run(path)
    assert run.results.cells[("b8-k4-wnone", KEY)].rounds == tuple(rounds)
    assert run.results.verdicts == {"b8-k4-wnone": [VERDICT]}
    assert [start.config for start in run.results.starts] == ["baseline"]
    assert run.settings == {"seed": 1}
    assert len(run.rounds) == 4


def test_the_first_measurement_of_a_round_counts(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with Store(path) as store:
        store.append("round", round=a_round(0, 100.0).as_json())
        store.append("round", round=a_round(0, 200.0).as_json())
    assert read_run(path).results.cells[("b8-k4-wnone", KEY)].tok_s_rounds == (100.0,)


def test_a_reader_learns_why_a_cell_has_no_more_rounds(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    cell = {"config": "b8-k4-wnone", **key_json(KEY), "cache": KEY.cache}
    with Store(path) as store:
        store.append("round", round=a_round(0, 100.0).as_json())
        store.append("cell", **cell, stopped="max_seconds")
        store.append("round", round=a_round(1, 120.0).as_json())
        store.append("cell", **cell, stopped="max_rounds")
    results = read_run(path).results
    assert results.cells[("b8-k4-wnone", KEY)].stopped == "max_rounds"
    assert any(line.startswith("stopped at the cap of rounds") for line in lines(results))


def test_rounds_with_prompts_that_were_given_up_are_none_of_the_cell(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with Store(path) as store:
        store.append("round", round=a_round(0, 100.0).as_json())
        store.append("round", round=a_round(0, 50.0, key=CellKey(512, 4)).as_json())
        store.append("prompts", workload="code", context_tokens=60, indices=[3, 5])
        store.append("round", round=a_round(0, 200.0).as_json())
    run = read_run(path)
    assert run.prompts == {("code", 60): (3, 5)}
    assert [one.tok_s for one in run.rounds] == [50.0, 200.0]


def test_records_of_schema_1_are_still_read(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    of_2 = ("build", "start_no", "at", "prompts", "again")
    old = {name: value for name, value in a_round(0).as_json().items() if name not in of_2}
    records = [{"schema": 1, "kind": "run", "plugin": "0.1.0", "started": "2026", "settings": {}}]
    records += [{"schema": 1, "kind": "round", "round": old}]
    path.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))
    run = read_run(path)
    assert run.rounds == [a_round(0)]
    assert run.session.values == {}


def test_two_builds_are_kept_apart(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with Store(path) as store:
        for build, rate in (("base", 100.0), ("patched", 90.0)):
            store.append("fingerprint", scope="session", build=build, fingerprint={"engine.revision": build})
            store.append("verdict", build=build, verdict=VERDICT.as_json())
            store.append("round", round=a_round(0, rate, build=build).as_json())
    run = read_run(path)
    assert not run.results.cells
    assert {build: of.cells[("b8-k4-wnone", KEY)].tok_s_rounds[0] for build, of in run.builds.items()} == {
        "base": 100.0,
        "patched": 90.0,
    }
    assert run.fingerprints["patched:session"].get("engine.revision") == "patched"


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "round", "round": {"config": "x"}},
        {"kind": "verdict", "verdict": {"kind": "exact"}},
        {"kind": "start", "config": "x", "reason": None, "seconds": "soon"},
        {"kind": "fingerprint", "scope": "session", "fingerprint": None},
    ],
    ids=lambda record: str(record["kind"]),
)
def test_a_damaged_record_is_named_by_file_and_line_and_left_alone(
    tmp_path: Path, record: dict[str, object]
) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(
        orjson.dumps({"schema": 2, "kind": "run"}) + b"\n" + orjson.dumps({"schema": 2, **record}) + b"\n"
    )
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt, match=r"results\.jsonl, line 2"):
        read_run(path)
    assert path.read_bytes() == before


def test_runs_are_found_by_name_by_place_and_by_path(tmp_path: Path) -> None:
    for name in ("20260101T000000Z-1", "20260102T000000Z-1", "20260102T000000Z-2"):
        Store(tmp_path / name / "results.jsonl").close()
    (tmp_path / "logs").mkdir()
    assert [path.parent.name for path in find_runs(tmp_path)] == [
        "20260101T000000Z-1", "20260102T000000Z-1", "20260102T000000Z-2",
    ]  # fmt: skip
    assert pick_run(tmp_path, "last").parent.name == "20260102T000000Z-2"
    assert pick_run(tmp_path, "last-2").parent.name == "20260101T000000Z-1"
    assert pick_run(tmp_path, "20260101").parent.name == "20260101T000000Z-1"
    folder = tmp_path / "20260101T000000Z-1"
    assert pick_run(Path("/nowhere"), str(folder)) == folder / "results.jsonl"
    for name, words in (
        ("20260102", "more than one"),
        ("2025", "no such run"),
        ("last-3", "there are 3 runs"),
    ):
        with pytest.raises(NoSuchRun, match=words):
            pick_run(tmp_path, name)
