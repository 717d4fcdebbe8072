"""Prompts as the suite makes them, for the drafter to learn what the target answers to them.

`python -m training.prompts` writes `.carry/workload.npz`: one uint16 array [rows, length] for every length.
Prompts come from the suite's own maker, all workload classes, with a seed that nothing else uses.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from pytest_ddtree.workload.prompts import PromptMaker
from pytest_ddtree.workload.texts import WORKLOADS
from training.data import ROOT, WEIGHTS

SEED = 90_001
# Rows of each length, all classes together.
ROWS = {
    60: 640, 72: 256, 96: 384, 128: 512, 192: 384, 256: 512, 384: 384, 512: 640, 640: 256,
    1024: 256, 1536: 96, 2048: 160,
    4096: 48, 6144: 24, 8192: 32, 8960: 12,
}  # fmt: skip


def makers(folder: Path) -> list[PromptMaker]:
    """One maker for each workload class, and another one whose template says that there is no thinking."""
    return [
        PromptMaker(folder, workload=workload, seed=SEED, thinking=thinking)
        for workload in WORKLOADS
        for thinking in (None, False)
    ]


def prompts(sources: list[PromptMaker], length: int, count: int) -> np.ndarray:
    """[count, length] prompts of the makers in turn, those left out whose shortest prompt is longer."""
    able = [maker for maker in sources if maker.minimum <= length]
    rows = [able[number % len(able)].make(length, number).ids for number in range(count)]
    return np.array(rows, dtype=np.uint16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / ".carry")
    parser.add_argument("--target", type=Path, default=WEIGHTS / "target")
    args = parser.parse_args()
    sources = makers(args.target)
    made = {f"length{length}": prompts(sources, length, count) for length, count in ROWS.items()}
    np.savez_compressed(args.out / "workload.npz", **made)
    print({name: rows.shape for name, rows in made.items()})


if __name__ == "__main__":
    main()
