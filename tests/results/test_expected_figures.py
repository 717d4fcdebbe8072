from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddtree.results.expected import (
    Expected,
    ExpectedBroken,
    Key,
    Sample,
    Setting,
    accept_drift,
    missing_text,
    read_expected,
    render,
    write_expected,
)

SETTING = Setting("NVIDIA H200", "target abc", "draft def", "w1")
KEY = Key(SETTING, "b8-k4-wnone", "ctx60-c4")


NEGATIVE = """{"schema": 1, "entries": [{"gpu": "g", "model": "m", "draft": "d", "workload": "w", "config": "c", "cell": "x",
"history": [{"date": "d", "build": "b", "tok_s": [-1]}]}]}"""


def sample(rate: float, *, date: str = "2026-01-01", build: str = "rev1") -> Sample:
    return Sample(date, build, {"tok_s": {0: rate, 1: rate + 0.5}, "ttft_p90_ms": {0: 20.0, 1: 21.0}})


def filled(path: Path, *rates: float) -> Expected:
    expected = Expected(path)
    for number, rate in enumerate(rates):
        expected.add(KEY, sample(rate, date=f"2026-01-{number + 1:02}"))
    return expected


@pytest.mark.parametrize("name", ["expected.json", "expected"])
def test_figures_come_back_from_a_file_and_from_a_directory(tmp_path: Path, name: str) -> None:
    expected = filled(tmp_path / name, 100.0, 102.0)
    other = Key(replace(SETTING, gpu="NVIDIA B300"), "b8-k4-wnone", "ctx60-c4")
    expected.add(other, sample(300.0))
    write_expected(expected)
    assert read_expected(tmp_path / name).entries == expected.entries
    files = [tmp_path / name] if name.endswith(".json") else sorted((tmp_path / name).iterdir())
    assert [file.name for file in files] == (
        ["expected.json"]
        if name.endswith(".json")
        else ["nvidia-b300--target-abc.json", "nvidia-h200--target-abc.json"]
    )


def test_a_new_sample_is_one_line_in_a_diff(tmp_path: Path) -> None:
    expected = filled(tmp_path / "e.json", 100.0)
    expected.add(replace(KEY, cell="ctx512-c1"), sample(50.0))
    before = render(expected.entries).splitlines()
    expected.add(KEY, sample(101.0, date="2026-02-02"))
    after = render(expected.entries).splitlines()
    assert len(after) == len(before) + 1
    # The line before gets the comma that JSON wants.
    assert len(set(after) - set(before)) == 2
    json.loads("\n".join(after))


def test_nothing_there_yet_is_empty(tmp_path: Path) -> None:
    assert read_expected(tmp_path / "none").entries == {}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"schema": 99, "entries": []}',
        '{"schema": 1, "entries": [{"gpu": "x"}]}',
        NEGATIVE,
        NEGATIVE.replace("-1", "null"),
    ],
    ids=["half", "list", "newer", "no key", "negative", "null"],
)
def test_a_broken_file_is_named_and_left_alone(tmp_path: Path, text: str) -> None:
    file = tmp_path / "e.json"
    file.write_text(text)
    with pytest.raises(ExpectedBroken, match=r"e\.json"):
        read_expected(file)
    assert file.read_text() == text


def test_the_same_cell_in_two_files_is_refused(tmp_path: Path) -> None:
    write_expected(filled(tmp_path / "a.json", 1.0))
    write_expected(filled(tmp_path / "b.json", 1.0))
    with pytest.raises(ExpectedBroken, match="another file"):
        read_expected(tmp_path)


def test_the_failure_of_a_missing_entry_prints_the_command_and_what_is_not_compared(tmp_path: Path) -> None:
    expected = Expected(tmp_path / "e.json")
    expected.add(Key(replace(SETTING, gpu="NVIDIA B300"), KEY.config, KEY.cell), sample(1.0))
    text = missing_text(
        expected, KEY, ["-m", "bench", "--ddtree-spec-args", "--a 1", "--ddtree-expected=e.json"]
    )
    assert "pytest -m bench --ddtree-spec-args '--a 1' --ddtree-expected=e.json --ddtree-update-new" in text
    assert "gpu NVIDIA B300 instead of NVIDIA H200" in text


def test_drift_is_seen_against_the_best_until_it_is_accepted(tmp_path: Path) -> None:
    expected = filled(tmp_path / "e.json", 100.0, 104.0, 98.0, 96.0)
    best = expected.best(KEY, "tok_s")
    assert best is not None
    assert best.date == "2026-01-02"
    lowest = expected.best(KEY, "ttft_p90_ms")
    assert lowest is not None
    expected.add(KEY, accept_drift(sample(95.0, date="2026-02-01"), "a new tokenizer costs this"))
    assert expected.best(KEY, "tok_s") is None
    expected.add(KEY, sample(94.0, date="2026-02-02"))
    best = expected.best(KEY, "tok_s")
    assert best is not None
    assert best.date == "2026-02-01"
    write_expected(expected)
    assert read_expected(expected.path).entries == expected.entries


def test_the_history_is_bounded_and_old_bests_are_forgotten(tmp_path: Path) -> None:
    expected = filled(tmp_path / "e.json", 500.0, *[100.0] * 24)
    assert len(expected.entries[KEY]) == 20
    best = expected.best(KEY, "tok_s")
    assert best is not None
    assert best.mean("tok_s") == pytest.approx(100.0, rel=0.01)


def test_entries_of_tests_that_are_gone_are_listed_for_this_setting_only(tmp_path: Path) -> None:
    expected = filled(tmp_path / "e.json", 1.0)
    gone = replace(KEY, config="b64-k4-wnone")
    expected.add(gone, sample(1.0))
    expected.add(replace(gone, setting=replace(SETTING, gpu="other")), sample(1.0))
    assert expected.orphans(SETTING, [(KEY.config, KEY.cell)]) == [gone]
