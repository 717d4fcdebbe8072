"""Servers that fake acceptance, and drafters that are used other than they were trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_ddtree.dialects import draft, faked
from pytest_ddtree.grid import BASELINE, Config


@pytest.mark.parametrize(
    ("args", "env", "word"),
    [
        ((), {"SGLANG_SIMULATE_ACC_LEN": "4.5"}, "SGLANG_SIMULATE_ACC_LEN=4.5"),
        ((), {"SGLANG_SIMULATE_ACC_TOKEN_MODE": "fixed"}, "accept length is simulated"),
        (("--allow-auto-truncate",), {}, "cuts long inputs"),
        (("--speculative-accept-threshold-single", "0.9"), {}, "acceptance is relaxed"),
        (("--speculative-accept-threshold-acc=0.99",), {}, "acceptance is relaxed"),
        (("--speculative-accept-threshold-acc",), {}, "acceptance is relaxed"),
    ],
)
def test_refused_before_the_start(args: tuple[str, ...], env: dict[str, str], word: str) -> None:
    (sign,) = faked.before_start(args, env)
    assert word in sign


def test_honest_settings_pass() -> None:
    assert (
        faked.before_start(
            ("--speculative-accept-threshold-single", "1.0"), {"SGLANG_SIMULATE_ACC_LEN": "-1"}
        )
        == []
    )


def test_refused_after_the_start() -> None:
    info = {
        "speculative_accept_threshold_single": 0.8,
        "allow_auto_truncate": True,
        "internal_states": [{"env_vars": ["SGLANG_SIMULATE_ACC_LEN=3", "SGLANG_OTHER=1"]}],
    }
    assert len(faked.after_start(info)) == 3


def write(folder: Path, **values: object) -> Path:
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def test_trained_window(tmp_path: Path) -> None:
    found = draft.read(
        write(
            tmp_path,
            block_size=16,
            sliding_window=2048,
            layer_types=["sliding_attention", "full_attention"],
            num_target_layers=36,
            dflash_config={"target_layer_ids": [1, 9, 17]},
        )
    )
    assert found is not None
    assert (found.block_size, found.window, found.target_layers, found.target_depth) == (
        16,
        2048,
        (1, 9, 17),
        36,
    )
    assert draft.warnings(Config("tree", 8, 4), found) == (
        "draft window none, but the drafter was trained with 2048",
    )
    assert draft.warnings(Config("tree", 8, 4, 128, 8), found, target_depth=28) == (
        "draft window 128, but the drafter was trained with 2048",
        "block size 8, but the drafter was trained with 16",
        "the drafter was trained for a target of 36 layers, this one has 28",
    )
    assert draft.warnings(Config("tree", 8, 4, 2048), found, target_depth=36) == ()
    assert draft.warnings(BASELINE, found) == ()


@pytest.mark.parametrize(
    ("layers", "depth", "fits"),
    [
        ([1, 9, 17], 18, True),
        ([1, 9, 17], 17, False),
        ([-1], 4, False),
        ([1, 9, 17], None, True),
        ([], 4, True),
    ],
)
def test_a_drafter_that_reads_layers_which_the_target_lacks(
    tmp_path: Path, layers: list[int], depth: int | None, fits: bool
) -> None:
    found = draft.read(write(tmp_path, dflash_config={"target_layer_ids": layers}))
    why = draft.unfit(found, depth)
    assert (why is None) is fits
    assert draft.unfit(None, depth) is None
    if why is not None:
        assert str(layers[-1]) in why
        assert f"which has {depth}" in why


@pytest.mark.parametrize(
    "values",
    [
        {"sliding_window": 4096, "use_sliding_window": False},
        {"sliding_window": 4096, "layer_types": ["full_attention"]},
    ],
)
def test_a_window_that_no_layer_uses_is_none(tmp_path: Path, values: dict[str, object]) -> None:
    found = draft.read(write(tmp_path, block_size=True, **values))
    assert found is not None
    assert found.window is None
    assert found.block_size is None
    assert draft.warnings(Config("chain"), found) == ()


def test_no_config_at_hand(tmp_path: Path) -> None:
    assert draft.read(None) is None
    assert draft.read("org/some-hub-id") is None
    (tmp_path / "config.json").write_text("[1]")
    assert draft.read(tmp_path) is None
