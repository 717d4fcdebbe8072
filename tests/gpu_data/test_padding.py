"""The padded twin of a checkpoint: what was there is where it was, and everything else is zero, but for norms of one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from benchmarks.gpu.pad_checkpoint import ONE, read

ROOT = Path(__file__).parents[2]
WEIGHTS = ROOT / "pytest_ddtree" / "reference" / "weights"


def test_a_twin_computes_the_same(tmp_path: Path) -> None:
    argv = [sys.executable, str(ROOT / "benchmarks" / "gpu" / "pad_checkpoint.py"), "--out", str(tmp_path)]
    argv += ["--target", str(WEIGHTS / "target"), "--draft", str(WEIGHTS / "draft")]
    subprocess.run([*argv, "--layers", "17", "--intermediate", "512"], check=True, capture_output=True)
    _, old, before = read(WEIGHTS / "target" / "model.safetensors")
    _, new, after = read(tmp_path / "target" / "model.safetensors")
    assert {tuple(shape) for name, shape in new.items() if ".mlp." in name} == {(512, 192), (192, 512)}
    for name, shape in new.items():
        padded = np.frombuffer(after[name], np.uint16).reshape(shape).copy()
        if name in old:
            here = tuple(slice(0, size) for size in old[name])
            assert (padded[here] == np.frombuffer(before[name], np.uint16).reshape(old[name])).all(), name
            padded[here] = 0
        elif "norm" in name:
            padded -= np.frombuffer(ONE, np.uint16)
        assert not padded.any(), name
    config = json.loads((tmp_path / "target" / "config.json").read_text())
    assert (config["num_hidden_layers"], len(config["layer_types"])) == (17, 17)
    assert json.loads((tmp_path / "draft" / "config.json").read_text())["num_target_layers"] == 17
