"""The command that runs a saved trace again: the session's own options, narrowed to one config."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddtree import grid
from pytest_ddtree.grid import Config
from pytest_ddtree.options import OPTIONS, make_settings
from pytest_ddtree.rerun import Rerun, config_options

LINE = "command line"
TREE = Config("tree", 8, 4, 2048, 16)


def test_it_keeps_what_names_the_server_and_drops_what_writes_or_compares() -> None:
    given_ = {
        "server": ("sglang", LINE),
        "model": ("/models/a b", LINE),
        "budget": ("chain,8,16", LINE),
        "where": ("topk <= budget", LINE),
        "expected": ("expected.json", LINE),
        "update_expected": ("true", LINE),
        "sudo": ("true", LINE),
        "gates": ("tok_s >= 1\nspeedup >= 1", LINE),
        "problems": ("a.jsonl\nb.jsonl", LINE),
        "api_key": ("hunter2", LINE),
        "start_timeout": ("45m", "ddtree_start_timeout in pytest.ini"),
    }
    words = shlex.split(Rerun(given_, Path("/somewhere")).command(TREE, Path("/somewhere/t.json")))
    assert words[0] == "pytest"
    assert words[2:] == [
        *("-m", "exactness", "--ddtree-trace=t.json"),
        *("--ddtree-server=sglang", "--ddtree-model=/models/a b", "--ddtree-sudo"),
        *("--ddtree-problems=a.jsonl", "--ddtree-problems=b.jsonl", "--ddtree-api-key=$API_KEY"),
        *("--ddtree-budget=8", "--ddtree-topk=4", "--ddtree-window=2048", "--ddtree-block-size=16"),
    ]
    assert "hunter2" not in " ".join(words)


@pytest.mark.parametrize("config", [Config("chain"), Config("chain", window=64), Config("tree", 16, 1), TREE])
def test_its_options_make_a_grid_of_this_one_config(config: Config) -> None:
    given_ = {}
    for word in config_options(config):
        flag, _, text = word.partition("=")
        given_[next(o.field for o in OPTIONS if o.flag == flag)] = (text, LINE)
    settings = make_settings(given_)
    made = grid.make_grid(settings.budget, settings.topk, settings.window, settings.block_size)
    assert made == (config,)


@given(st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1))
def test_any_text_survives_the_shell(text: str) -> None:
    words = shlex.split(Rerun({"spec_args": (text, LINE)}).command(TREE, Path("t.json")))
    assert f"--ddtree-spec-args={text}" in words
