"""How long tests took in earlier runs, from the stores under a results directory."""

from __future__ import annotations

from pathlib import Path

from pytest_ddtree.estimate import Timing
from pytest_ddtree.results.fingerprint import Fingerprint
from pytest_ddtree.results.runs import SESSION, find_runs
from pytest_ddtree.results.store import StoreCorrupt, parse

RUNS_READ = 30
_ALIKE = (
    "gpu.name",
    "gpu.count",
    "model.name",
    "model.weights",
    "draft.name",
    "draft.weights",
    "engine.kind",
)
"""What must agree before an earlier run says anything about the time that this one will take."""


def earlier_timings(results: Path, now: Fingerprint) -> tuple[Timing, ...]:
    """The timings of the newest runs on the same GPU, model and kind of server, oldest first. A file that cannot be read has none."""
    found: list[Timing] = []
    for path in find_runs(results)[-RUNS_READ:]:
        try:
            records = parse(path.read_bytes(), str(path)).records
        except (OSError, StoreCorrupt):
            continue
        prints = [one for one in records if one["kind"] == "fingerprint" and one.get("scope") == SESSION]
        if not prints or any(prints[0]["fingerprint"].get(name) != now.get(name) for name in _ALIKE):
            continue
        for one in records:
            if one["kind"] == "timing":
                try:
                    found.append(Timing.from_json(one["timing"]))
                except (KeyError, TypeError, ValueError):
                    continue
    return tuple(found)
