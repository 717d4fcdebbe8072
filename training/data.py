"""Training text: the standard library's own source and the project's coding problems, as token arrays.

`python -m training.data` reads both, trains the tokenizer and writes everything that the GPU run needs into
one folder (`.carry/` unless told otherwise) and the tokenizer's files beside the weights.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sysconfig
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from training.tokenizer import END_OF_TEXT, train_tokenizer, write_json, write_tokenizer_files

ROOT = Path(__file__).resolve().parent.parent
PROBLEMS = ROOT / "evals" / "coding" / "problems"
WEIGHTS = ROOT / "pytest_ddtree" / "reference" / "weights"

HELD_OUT_PROBLEMS = 20
HELD_OUT_SHARE = 0.03
# Tests are data more than code; the others are tables (code pages, entities, documentation topics).
SKIPPED_FOLDERS = frozenset(
    {
        "__pycache__",
        "site-packages",
        "test",
        "tests",
        "idle_test",
        "encodings",
        "pydoc_data",
        "ensurepip",
    }
)
SKIPPED_FILES = frozenset({"html/entities.py"})
MAX_FILE_BYTES = 400_000

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a careful Python programmer.",
    "Answer with working Python code.",
    "You write short and correct Python programs.",
    "Think before you answer.",
)


@dataclass(frozen=True, slots=True)
class Problem:
    """The parts of a problem file that the model is trained on."""

    task_id: str
    category: str
    prompt: str
    thinking: str
    answer: str
    solution: str

    def reply(self) -> str:
        """Prose and final code block, as the assistant writes them after the thinking section."""
        return f"{self.answer}\n\n```python\n{self.solution}\n```"


def load_problems(folder: Path = PROBLEMS) -> list[Problem]:
    """All problems of `folder`, ordered by task id."""
    problems = []
    for path in sorted(folder.glob("*.toml")):
        raw: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        problems.append(
            Problem(
                raw["task_id"],
                raw["category"],
                raw["prompt"].strip(),
                raw["thinking"].strip(),
                raw["answer"].strip(),
                raw["solution"].strip("\n").rstrip(),
            )
        )
    return problems


def split_problems(problems: list[Problem]) -> tuple[list[Problem], list[Problem]]:
    """(trained, held out). Within a category problems are ordered by the SHA-256 of their id and the first ones
    are held out; each category gives its share of HELD_OUT_PROBLEMS, largest remainder first (ties by name)."""
    groups: dict[str, list[Problem]] = defaultdict(list)
    for problem in sorted(problems, key=lambda p: hashlib.sha256(p.task_id.encode()).hexdigest()):
        groups[problem.category].append(problem)
    exact = {name: HELD_OUT_PROBLEMS * len(group) / len(problems) for name, group in groups.items()}
    quota = {name: int(share) for name, share in exact.items()}
    missing = HELD_OUT_PROBLEMS - sum(quota.values())
    for name in sorted(exact, key=lambda n: (quota[n] - exact[n], n))[:missing]:
        quota[name] += 1
    held_out = [p for name in sorted(groups) for p in groups[name][: quota[name]]]
    trained = [p for name in sorted(groups) for p in groups[name][quota[name] :]]
    return trained, held_out


def stdlib_files(root: Path) -> Iterator[tuple[str, str]]:
    """(relative name, text) of every source file of the standard library that is used, ordered by name."""
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if SKIPPED_FOLDERS & set(name.parts) or name.as_posix() in SKIPPED_FILES:
            continue
        if name.name.startswith("_sysconfigdata") or not 0 < path.stat().st_size <= MAX_FILE_BYTES:
            continue
        try:
            yield name.as_posix(), path.read_text(encoding="utf-8").replace("\r\n", "\n")
        except UnicodeDecodeError:
            continue


def split_files(files: list[tuple[str, str]]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """(train, held out): files are taken in the order of the SHA-256 of their names until HELD_OUT_SHARE of the
    characters is held out."""
    ordered = sorted(files, key=lambda item: hashlib.sha256(item[0].encode()).hexdigest())
    limit = HELD_OUT_SHARE * sum(len(text) for _, text in files)
    taken, held_out = 0, set()
    for name, text in ordered:
        if taken >= limit:
            break
        held_out.add(name)
        taken += len(text)
    return [f for f in files if f[0] not in held_out], [f for f in files if f[0] in held_out]


def digest(files: list[tuple[str, str]]) -> str:
    """SHA-256 over names and contents, so that another machine can tell whether it has the same corpus."""
    total = hashlib.sha256()
    for name, text in files:
        total.update(f"{name}\0{hashlib.sha256(text.encode()).hexdigest()}\n".encode())
    return total.hexdigest()


def document_stream(tokenizer: Tokenizer, files: list[tuple[str, str]], seed: int) -> np.ndarray:
    """All files in a shuffled order as one uint16 array, each preceded by the document separator."""
    order = list(files)
    random.Random(seed).shuffle(order)
    pieces = [
        [END_OF_TEXT, *encoding.ids] for encoding in tokenizer.encode_batch([text for _, text in order])
    ]
    return np.array([token for piece in pieces for token in piece], dtype=np.uint16)


def chat_parts(tokenizer: Tokenizer, problems: list[Problem]) -> dict[str, Any]:
    """Token pieces out of which conversations are put together. Special tokens cut text before the byte pairs
    are merged, so joining the pieces gives the same ids as encoding the whole."""

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text).ids

    return {
        "user": encode("<|im_start|>user\n"),
        "system": [encode(f"<|im_start|>system\n{text}<|im_end|>\n") for text in SYSTEM_PROMPTS],
        "assistant": encode("<|im_end|>\n<|im_start|>assistant\n"),
        "no_think": encode("<think>\n\n</think>\n\n"),
        "newline": encode("\n"),
        "problems": [
            {
                "task_id": p.task_id,
                "prompt": encode(p.prompt),
                "prompt_nl": encode(p.prompt + "\n"),
                "prompt_after_document": encode("\n\n" + p.prompt),
                "thinking": encode(f"<think>\n{p.thinking}\n</think>\n\n"),
                "reply": encode(f"{p.reply()}<|im_end|>"),
            }
            for p in problems
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stdlib", type=Path, default=Path(sysconfig.get_paths()["stdlib"]))
    parser.add_argument("--out", type=Path, default=ROOT / ".carry")
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    parser.add_argument("--tokenizer", type=Path, help="keep this tokenizer.json and do not train one")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    train, held_out = split_files(list(stdlib_files(args.stdlib)))
    problems, held_out_problems = split_problems(load_problems())
    chats = [part for p in problems for part in (p.prompt, p.thinking, p.reply())]
    kept = Tokenizer.from_file(str(args.tokenizer)) if args.tokenizer else None
    tokenizer = kept or train_tokenizer([text for _, text in train] + chats * 8)
    write_tokenizer_files(tokenizer, args.weights / "target")

    streams = {
        "train": document_stream(tokenizer, train, 1),
        "heldout": document_stream(tokenizer, held_out, 2),
    }
    for name, stream in streams.items():
        np.save(args.out / f"stdlib_{name}.npy", stream)
    write_json(
        args.out / "chats.json",
        {
            "trained": chat_parts(tokenizer, problems),
            "heldout": chat_parts(tokenizer, held_out_problems),
        },
    )
    split = {
        "rule": "per category by SHA-256 of the task id, first ones held out (training/data.py: split_problems)",
        "trained": sorted(p.task_id for p in problems),
        "held_out": sorted(p.task_id for p in held_out_problems),
    }
    write_json(Path(__file__).with_name("split.json"), split)
    write_json(
        Path(__file__).with_name("corpus.json"),
        {
            "python": sysconfig.get_python_version(),
            "files": {"train": len(train), "held_out": len(held_out)},
            "characters": {
                "train": sum(len(t) for _, t in train),
                "held_out": sum(len(t) for _, t in held_out),
            },
            "tokens": {name: len(stream) for name, stream in streams.items()},
            "sha256": {"train": digest(train), "held_out": digest(held_out)},
            "held_out_files": [name for name, _ in held_out],
            "problems_sha256": hashlib.sha256(
                json.dumps([[p.task_id, p.prompt, p.thinking, p.reply()] for p in problems]).encode()
            ).hexdigest(),
        },
    )
    print(json.dumps(json.loads(Path(__file__).with_name("corpus.json").read_text())["tokens"]))


if __name__ == "__main__":
    main()
