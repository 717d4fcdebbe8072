"""Baseline answers that outlast a session (`--ddtree-records`): found again by what makes them comparable, written when new."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddtree.exactness.fingerprint import Fingerprint, prompts_digest
from pytest_ddtree.exactness.floor import NoiseFloor
from pytest_ddtree.exactness.prompts import BaselineAnswers, Prompt
from pytest_ddtree.exactness.store import StoredBaseline, load_records, save_records
from pytest_ddtree.results.fingerprint import build_label

if TYPE_CHECKING:
    from pytest_ddtree.run import Run

TOP = 20
"""Most probable tokens that are kept at every position."""


def load(run: Run, prompts: Sequence[Prompt]) -> StoredBaseline | None:
    """The records of `--ddtree-records` that belong to this run; None without that option or without any record.

    Raises:
        RecordsRefused: there are some, but they are broken or differ; the text says where and in what.
        Infrastructure: nothing can be said of the build that is to be judged.
    """
    settings = run.settings
    if settings.records is None:
        return None
    wanted = settings.records_from_build
    if wanted is not None:
        wanted = revision_of(wanted, settings.sglang_src) or wanted
    stored = load_records(settings.records, fingerprint(run, prompts), prompts, from_build=wanted)
    if stored is not None:
        whose = f" of build {stored.fingerprint.build}" if settings.records_from_build is not None else ""
        run.progress(
            f"baseline: {len(prompts)} recorded answers{whose} from {stored.path}, made {stored.made}"
        )
    return stored


def save(
    run: Run, prompts: Sequence[Prompt], answers: BaselineAnswers, floor: NoiseFloor, *, float32: bool
) -> None:
    """Keep the answers for later sessions, where `--ddtree-records` says so. Raises OSError."""
    folder = run.settings.records
    if folder is None:
        return
    path = save_records(
        folder,
        fingerprint(run, prompts),
        prompts,
        answers,
        floor,
        float32=float32,
        name=run.build_name,
    )
    run.progress(f"baseline: answers of {len(prompts)} prompts recorded in {path}")


def fingerprint(run: Run, prompts: Sequence[Prompt]) -> Fingerprint:
    """What the baseline's answers depend on, as far as it can be known without starting the baseline."""
    settings, session = run.settings, run.fingerprint

    def said(name: str) -> str:
        return str(session.get(name) or "")

    arguments = f"{said('args.all')} {said('args.baseline')}".strip()
    return Fingerprint(
        tokenizer=said("model.tokenizer"),
        weights=said("model.weights"),
        build=_build(run),
        arguments=arguments or "none",
        prompts=prompts_digest(prompts, output=settings.exactness_output, top=TOP),
        gpu=f"{said('gpu.count')} x {said('gpu.name')}" if session.get("gpu.count") else said("gpu.name"),
    )


def _build(run: Run) -> str:
    """The build: the revision of its sources with a hash of what is changed, else the version that it says."""
    session = run.fingerprint
    if session.get("engine.revision") is not None or session.get("engine.sources") is not None:
        return build_label(session)
    return f"{run.settings.server} {run.engine_version()}"


def revision_of(name: str, checkout: Path | None) -> str | None:
    """The revision that git knows as `name` (a branch, a tag) in a checkout, as long as build labels spell it; None if it knows none."""
    if checkout is None:
        return None
    command = ["git", "-C", str(checkout), "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip()[:12] or None if done.returncode == 0 else None
