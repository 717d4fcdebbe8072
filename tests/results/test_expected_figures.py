from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ddtree.results.expected import (
    Expected,
    Key,
    Sample,
    Setting,
    accept_drift,
    missing_text,
    recorded_lines,
)
from pytest_ddtree.results.expected_files import (
    ExpectedBroken,
    add_expected,
    read_expected,
    render,
    write_expected,
)

SETTING = Setting("NVIDIA H200", "target abc", "draft def", "w1")
KEY = Key(SETTING, "b8-k4-wnone", "ctx60-c4")


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


def test_a_new_sample_is_two_lines_in_a_diff_and_the_first_says_what_changed(tmp_path: Path) -> None:
    expected = filled(tmp_path / "e.json", 100.0)
    expected.add(replace(KEY, cell="ctx512-c1"), sample(50.0))
    before = render(expected.entries).splitlines()
    expected.add(KEY, sample(102.0, date="2026-02-02"))
    after = render(expected.entries).splitlines()
    assert len(after) == len(before) + 2
    # The line before gets the comma that JSON wants.
    new = [line for line in after if line not in before and "2026-02-02" in line]
    assert '"tok_s": 102.2' in new[0]
    assert len(new[0]) < 110
    json.loads("\n".join(after))


def test_a_round_without_a_figure_costs_none_of_the_others(tmp_path: Path) -> None:
    expected = Expected(tmp_path / "e.json")
    expected.add(
        KEY, Sample("d", "b", {"tok_s": {0: 1.0, 1: 2.0, 2: 3.0}, "ms_per_token_p90": {1: 2.0, 2: 4.0}})
    )
    write_expected(expected)
    assert read_expected(expected.path).entries == expected.entries
    assert "[null, 2.0, 4.0]" in expected.path.read_text()


def test_files_of_the_first_schema_are_read_and_become_new_ones(tmp_path: Path) -> None:
    file = tmp_path / "e.json"
    entry = {"gpu": "g", "model": "m", "draft": "d", "workload": "w", "config": "c", "cell": "ctx60-c1"}
    entry["history"] = [{"date": "d", "build": "b", "tok_s": [1.0, 4.0]}]  # type: ignore[assignment]
    file.write_text(json.dumps({"schema": 1, "entries": [entry]}))
    expected = read_expected(file)
    assert list(expected.entries.values()) == [(Sample("d", "b", {"tok_s": {0: 1.0, 1: 4.0}}),)]
    write_expected(expected)
    assert '"schema": 2' in file.read_text()
    assert read_expected(file).entries == expected.entries


def test_nothing_there_yet_is_empty(tmp_path: Path) -> None:
    assert read_expected(tmp_path / "none").entries == {}


def damaged(change: Callable[[dict[str, Any]], object]) -> str:
    """The text of a good file after a change to its data."""
    expected = filled(Path("unused.json"), 100.0)
    data = json.loads(render(expected.entries))
    change(data)
    return json.dumps(data)


def first(name: str, value: Any) -> Callable[[dict[str, Any]], object]:
    return lambda data: data["entries"][0]["history"][0].update({name: value})


def rounds(value: Any) -> Callable[[dict[str, Any]], object]:
    return lambda data: data["entries"][0]["history"][0]["rounds"].update(tok_s=value)


GOOD = damaged(lambda data: None)
CONFLICT = f"<<<<<<< ours\n{GOOD}\n=======\n{GOOD}\n>>>>>>> theirs\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cannot be read"),
        ("{", "cannot be read"),
        (GOOD[:-30], "cannot be read"),
        (CONFLICT, "line 1 is the mark of a merge conflict"),
        ("[" * 100_000, "nested"),
        ("[]", "no `schema`"),
        ("null", "no `schema`"),
        (damaged(lambda data: data.update(schema=99)), "upgrade"),
        (damaged(lambda data: data.update(schema=0)), "no `schema`"),
        (damaged(lambda data: data.update(schema=True)), "no `schema`"),
        (damaged(lambda data: data.update(schema="1")), "no `schema`"),
        (damaged(lambda data: data.pop("entries")), "no list `entries`"),
        (damaged(lambda data: data.update(entries=None)), "no list `entries`"),
        (damaged(lambda data: data.update(entries={"a": 1})), "no list `entries`"),
        (damaged(lambda data: data["entries"].append(5)), "entry 2: 5 where an object"),
        (damaged(lambda data: data["entries"][0].pop("gpu")), "entry 1: `gpu` must be a text"),
        (damaged(lambda data: data["entries"][0].update(gpu=None)), "entry 1: `gpu` must be a text"),
        (damaged(lambda data: data["entries"][0].update(note="x")), "'note' is not known"),
        (damaged(lambda data: data["entries"][0].update(history=None)), "at least one sample"),
        (damaged(lambda data: data["entries"][0].update(history=[])), "at least one sample"),
        (damaged(lambda data: data["entries"].append(data["entries"][0])), "is there twice"),
        (damaged(first("toks", 5)), "'toks' is not known"),
        (damaged(first("date", 5)), "`date` must be a text"),
        (damaged(first("origin", 5)), "`origin` must be a text"),
        (damaged(first("rounds", None)), "null where an object"),
        (damaged(first("rounds", {})), "none of the figures"),
        (damaged(first("tok_s", 300.0)), "figures are not edited by hand"),
        (damaged(first("tok_s", None)), "figures are not edited by hand"),
        (damaged(first("speedup", 1.4)), "speedup must be there twice"),
        *[
            (damaged(rounds(value)), r"\(b8-k4-wnone ctx60-c4\): sample 1: tok_s must be a list")
            for value in (5, None, [-1], [0], ["1"], [True], [[1]], [10**400])
        ],
        (damaged(rounds([])), "no round with a number"),
        (damaged(rounds([None])), "no round with a number"),
        (damaged(rounds([1.0])).replace("[1.0]", "[NaN]"), "must be a list"),
        (damaged(rounds([1.0])).replace("[1.0]", "[1e999]"), "must be a list"),
    ],
)
def test_a_broken_file_is_named_with_its_fault_and_left_alone(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "e.json"
    file.write_text(text)
    with pytest.raises(ExpectedBroken, match=words) as caught:
        read_expected(file)
    assert str(file) in str(caught.value)
    assert file.read_text() == text


@pytest.mark.parametrize("how", ["\ufeff{}", "{}\r\n"], ids=["byte order mark", "line ends of Windows"])
def test_what_an_editor_adds_to_a_good_file_does_no_harm(tmp_path: Path, how: str) -> None:
    file = tmp_path / "e.json"
    file.write_text(how.replace("{}", GOOD))
    assert len(read_expected(file).entries) == 1


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


def test_what_another_session_recorded_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "expected"
    write_expected(filled(path, 100.0))
    other = replace(KEY, cell="ctx512-c1")
    add_expected(path, {other: sample(50.0)})
    add_expected(path, {KEY: sample(101.0), replace(KEY, config="chain-wnone"): sample(1.0)})
    entries = read_expected(path).entries
    assert {key: len(history) for key, history in entries.items()} == {
        KEY: 2,
        other: 1,
        replace(KEY, config="chain-wnone"): 1,
    }


def test_a_file_that_was_damaged_meanwhile_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "e.json"
    path.write_text("<<<<<<< ours\n")
    with pytest.raises(ExpectedBroken):
        add_expected(path, {KEY: sample(1.0)})
    assert path.read_text() == "<<<<<<< ours\n"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_there_decides_whether_a_place_is_a_file(tmp_path: Path) -> None:
    figures = tmp_path / "figures"
    figures.write_text(GOOD)
    (tmp_path / "folder.json").mkdir()
    for path, rest in ((figures, 2), (tmp_path / "folder.json", 1), (tmp_path / "new", 1)):
        add_expected(path, {KEY: sample(1.0)})
        assert len(read_expected(path).entries[KEY]) == rest
    assert figures.is_file()
    assert [file.suffix for file in (tmp_path / "folder.json").iterdir()] == [".json"]


def test_a_link_to_a_file_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "repository").mkdir()
    real, link = tmp_path / "repository" / "e.json", tmp_path / "e.json"
    real.write_text(GOOD)
    real.chmod(0o600)
    link.symlink_to(real)
    add_expected(link, {KEY: sample(1.0)})
    assert link.is_symlink()
    assert len(read_expected(real).entries[KEY]) == 2
    assert real.stat().st_mode & 0o777 == 0o600


def test_what_was_recorded_is_said_with_its_change(tmp_path: Path) -> None:
    expected = filled(tmp_path / "e.json", 100.0, 98.0)
    new = replace(KEY, cell="ctx512-c1")
    expected.add(new, sample(50.0))
    lines = recorded_lines(expected, {KEY: expected.entries[KEY][-1], new: expected.entries[new][-1]})
    assert lines[0].endswith("e.json: 2 cells")
    assert "b8-k4-wnone ctx60-c4, against 2026-01-01: tok_s 98.2 (-2.0%)" in lines[1]
    assert "ctx512-c1, new: tok_s 50.2, ttft_p90_ms" in lines[2]
