"""Dialects that users describe in TOML."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ddtree.dialects import registry
from pytest_ddtree.dialects.base import DialectError, LaunchRequest
from pytest_ddtree.dialects.custom import load
from pytest_ddtree.dialects.effective import compare
from pytest_ddtree.grid import BASELINE, Config

TEXT = r"""
name = "mine"
tree = "--speculative-algorithm MYTREE --my-nodes {verify_width} --my-topk {topk} --label 'a b'"
window = "--my-window {window}"
block_size = "--my-block {block_size}"
baseline = "--disable-overlap-schedule"
topk = [2, 4]

[env]
MY_BUDGET = "{budget}"

[read]
tree = { field = "my_tree" }
budget = { field = "my_nodes", add = -1 }

[log]
topk = "tree ready, topk (\\d+)"
"""
REQUEST = LaunchRequest(model="m", draft_model="/d", max_concurrency=8)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "mine.toml"
    file.write_text(TEXT)
    return file


def test_templates(path: Path) -> None:
    dialect = registry.by_name(str(path))
    launch = dialect.arguments(Config("tree", 8, 4, 128, 16), REQUEST)
    assert launch.args[-12:] == (
        *("--speculative-algorithm", "MYTREE", "--my-nodes", "9", "--my-topk", "4", "--label", "a b"),
        *("--my-block", "16", "--my-window", "128"),
    )
    assert launch.env["MY_BUDGET"] == "8"
    assert "--my-window" not in dialect.arguments(Config("tree", 8, 4), REQUEST).args
    assert "--disable-overlap-schedule" in dialect.arguments(BASELINE, REQUEST).args
    best = LaunchRequest(model="m", baseline="best", max_concurrency=8)
    assert "--disable-overlap-schedule" not in dialect.arguments(BASELINE, best).args


def test_read_back(path: Path) -> None:
    dialect = load(path)
    info = {
        "speculative_algorithm": "MYTREE",
        "my_tree": True,
        "my_nodes": 9,
        "speculative_draft_window_size": 128,
    }
    info |= {"max_running_requests": 8, "disable_overlap_schedule": True}
    seen = dialect.effective(info, "tree ready, topk 4\n")
    assert (seen.algorithm, seen.budget, seen.topk, seen.window) == ("DDTREE", 8, 4, 128)
    assert seen.source("topk") == "log"
    assert compare(dialect.asked(Config("tree", 8, 4, 128), REQUEST), seen, required=["budget", "topk"]) == []


def test_refuses_what_it_has_no_word_for(path: Path) -> None:
    dialect = load(path)
    assert dialect.unsupported(Config("chain"), REQUEST) == "dialect mine has no `chain`"
    assert dialect.unsupported(Config("tree", 8, 8), REQUEST) == "dialect mine takes topk 2, 4, not 8"


def test_all_problems_at_once(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(
        'tree = "--x {budgt}"\n[env]\nA = "{nope}"\n[read]\nwidth = {field = "x"}\n[log]\ntopk = "no group"\n'
    )
    with pytest.raises(DialectError) as caught:
        load(file)
    text = str(caught.value)
    assert (
        "tree: unknown placeholder {budgt}; known are block_size, budget, topk, verify_width, window" in text
    )
    assert "env.A: unknown placeholder {nope}" in text
    assert "read.width: unknown" in text
    assert "log.topk: needs exactly one group, has 0" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tree = 3", "tree must be a text"),
        ("speculative = 'x'", "unknown key 'speculative'"),
        ("name = 'x'", "neither `tree` nor `chain`"),
        ("tree = 'x'\nverify_width = 'many'", "verify_width must be"),
        ("tree = ", "is no TOML"),
        ("tree = '--x {budget'", "tree: '{budget': expected '}' before end of string; a brace that is meant"),
        ('tree = "--x \'a"', "tree: cannot be split into arguments: No closing quotation"),
        ("tree = '--x'\nbaseline = \"'\"", "baseline: cannot be split into arguments"),
        ("tree = '--x {budget:>3}'", "unknown placeholder {budget:>3}"),
        ("tree = '--x'\nenv = {A = 4}", "env.A must be a text"),
        ("tree = '--x'\nlog = {topk = 4}", "log.topk must be a text"),
        ("tree = '--x'\nlog = {budgt = '(.)'}", "log.budgt: unknown; known are algorithm, block_size"),
        (
            "tree = '--x'\nread = {budget = {field = 'a', add = '1'}}",
            "read.budget: add must be a whole number",
        ),
        ("tree = '--x'\ntopk = [true]", "topk must be a list of whole numbers"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(DialectError, match=message):
        load(file)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_bytes(b"tree = '\xff'")
    with pytest.raises(DialectError, match="is no TOML"):
        load(file)


def test_a_place_that_a_config_cannot_fill(tmp_path: Path) -> None:
    """It reached the server as `None`."""
    file = tmp_path / "mine.toml"
    file.write_text("tree = '--x {block_size}'\nchain = '--c {budget}'\nblock_size = ''\nverify_width = 9")
    dialect = load(file)
    assert dialect.unsupported(Config("chain"), REQUEST) == (
        "dialect custom has {budget} in `chain`, and chain-wnone has none"
    )
    assert dialect.unsupported(Config("tree", 8, 4), REQUEST) == (
        "dialect custom has {block_size} in `tree`, and b8-k4-wnone has none"
    )
    own = Config("tree", 8, 4, None, 16)
    assert dialect.arguments(own, REQUEST).args[-2:] == ("--x", "16")
    assert dialect.asked(own, REQUEST).verify_width == 9


def test_what_a_log_has_written(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        "tree = '--x'\n[log]\ncompact_cache = 'cc=(\\w+)'\nmem_fraction = 'mem=(\\S+)'\nwindow = 'w=(\\w+)'\ntopk = 'k(\\d)?'\n"
        "algorithm = 'alg=(\\w+)'"
    )
    seen = load(file).effective({}, "cc=False\ncc=True\nmem=0.8\nw=None\nk\nalg=DDTREE")
    read = {knob: seen.reading(knob).log for knob in ("compact_cache", "mem_fraction", "window", "algorithm")}
    assert read == {"compact_cache": True, "mem_fraction": 0.8, "window": None, "algorithm": "DDTREE"}
    assert seen.source("topk") is None


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DialectError, match="cannot be read: No such file"):
        load(tmp_path / "none.toml")


def test_the_example_of_the_documentation(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "dialects.md").read_text()
    file = tmp_path / "example.toml"
    file.write_text(text.split("```toml\n")[1].split("```")[0])
    dialect = load(file)
    assert dialect.arguments(Config("tree", 8, 4), REQUEST).env["MY_TOPK"] == "4"
    assert (
        dialect.effective(
            {"my_tree": True, "speculative_num_draft_tokens": 9, "speculative_algorithm": "X"}, ""
        ).budget
        == 8
    )
