"""Embedded servers as processes, and what a contract is told about them."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tokenizers import Tokenizer

from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.exactness.contract.evidence import Subject
from pytest_ddtree.exactness.prompts import Prompt
from pytest_ddtree.workload.prompts import PromptMaker

WEIGHTS = Path(__file__).parents[2] / "pytest_ddtree" / "reference" / "weights"
BLOCK_SIZE = 8


class StartFailed(Exception):
    """A server ended before it was ready; the text is the tail of its log."""


@contextmanager
def server(*arguments: str) -> Iterator[str]:
    """An embedded server with these arguments, as its URL; stopped at the end."""
    command = [sys.executable, "-m", "pytest_ddtree.reference", "--port", "0", "--enable-metrics", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    output = process.stdout
    rest = threading.Thread(target=lambda: [None for _ in output], daemon=True)
    try:
        url, log = "", []
        for line in output:
            log.append(line)
            found = re.search(r"running on (http://\S+)", line)
            url = found[1] if found else url
            if "ready to roll" in line:
                break
        else:
            raise StartFailed("".join(log[-20:]).strip() or "it ended without a word")
        rest.start()
        yield url
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if rest.ident is not None:
            rest.join()
        output.close()


def tree_arguments(*, budget: int = 8, topk: int = 4, window: int | None = None) -> list[str]:
    """Arguments of a DDTree server on the shipped drafter."""
    window_arguments = [] if window is None else ["--speculative-draft-window-size", str(window)]
    return [
        *("--speculative-draft-model-path", str(WEIGHTS / "draft")),
        *("--speculative-algorithm", "DDTREE"),
        *("--speculative-ddtree-budget", str(budget)),
        *("--speculative-ddtree-topk", str(topk)),
        *window_arguments,
    ]


def chain_arguments(*, window: int | None = None) -> list[str]:
    """Arguments of a DFlash chain on the shipped drafter."""
    window_arguments = [] if window is None else ["--speculative-draft-window-size", str(window)]
    return [
        *("--speculative-draft-model-path", str(WEIGHTS / "draft")),
        *("--speculative-algorithm", "DFLASH"),
        *window_arguments,
    ]


def make_prompts(seed: int, count: int, *, shortest: int = 60, longest: int = 200) -> tuple[Prompt, ...]:
    """Prompts of ragged lengths for the shipped model."""
    maker = PromptMaker(WEIGHTS / "target", workload="code", seed=seed)
    lengths = [shortest + (longest - shortest) * index // max(1, count - 1) for index in range(count)]
    made = [maker.make(length, index, purpose="exactness") for index, length in enumerate(lengths)]
    return tuple(Prompt(prompt.tag, tuple(prompt.ids)) for prompt in made)


def subject(
    client: AsyncClient, prompts: Sequence[Prompt], info: dict[str, object], **changes: object
) -> Subject:
    """The embedded server as the subject of a contract."""
    tokenizer = Tokenizer.from_file(str(WEIGHTS / "target" / "tokenizer.json"))
    chunked = info.get("chunked_prefill_size")
    page = info.get("page_size")
    values: dict[str, object] = {
        "client": client,
        "prompts": tuple(prompts),
        "decode": lambda ids: tokenizer.decode(list(ids), skip_special_tokens=True),
        "output": 48,
        "eos": frozenset({tokenizer.token_to_id("<|im_end|>")}),
        "vocab_size": tokenizer.get_vocab_size(),
        "block_size": BLOCK_SIZE,
        "page_size": page if isinstance(page, int) else 1,
        "chunked_prefill": chunked if isinstance(chunked, int) and chunked > 0 else None,
        "context_length": 16384,
        "cache_tokens": info["max_total_num_tokens"],
        "deadline_s": 30.0,
        "long_output": 640,
        "float32": info.get("numerics", "f32") == "f32",
    }
    return Subject(**(values | changes))  # type: ignore[arg-type]
