"""Which figures may be compared across sessions: the key of a cell, from a run's fingerprint and what its rounds say. Pure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath

from pytest_ddtree.results.expected import Key, Setting
from pytest_ddtree.results.fingerprint import Fingerprint, build_label
from pytest_ddtree.results.model import CellFigures


def setting_of(fingerprint: Fingerprint) -> Setting:
    """What of a fingerprint must agree before figures may be compared."""
    count = fingerprint.get("gpu.count") or 0
    gpu = f"{fingerprint.get('gpu.name')}" + (f" x{count}" if isinstance(count, int) and count > 1 else "")
    return Setting(
        gpu=gpu,
        model=f"{_base(fingerprint.get('model.name'))} {fingerprint.get('model.weights')}",
        draft=f"{_base(fingerprint.get('draft.name'))} {fingerprint.get('draft.weights')}",
        workload=str(fingerprint.get("workload.digest")),
    )


def key_of(fingerprint: Fingerprint, figures: CellFigures) -> Key:
    """The key of a cell of a run with that fingerprint."""
    setting = setting_of(fingerprint)
    parts = [setting.workload, figures.rounds[0].prompts]
    # Cells of a user's file or of the checkpoint's own sampling are comparable only where these say the same.
    parts.append(_axis(fingerprint, f"axis.workload.{figures.key.workload}"))
    if figures.key.sampling:
        parts.append(_axis(fingerprint, f"axis.sampling.{figures.key.sampling}"))
    setting = replace(setting, workload="-".join(part for part in parts if part))
    return Key(setting, figures.config, figures.key.id)


def started(fingerprint: Fingerprint) -> str:
    """What was started: the build, and the server arguments if there were any; with others it is another build."""
    given = [
        f"{name}={value}"
        for name, value in sorted(fingerprint.values.items())
        if name.startswith("args.") and value
    ]
    return " ".join([build_label(fingerprint), *given])


def _axis(fingerprint: Fingerprint, name: str) -> str:
    return str(fingerprint.values.get(name, ""))


def _base(name: object) -> str:
    # The directory a checkpoint happens to lie in says nothing about it; its digest does.
    return PurePath(str(name)).name or str(name)
