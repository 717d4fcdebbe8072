"""The prompts of the first contact: documents with a question, and the coding problems as chats."""

from __future__ import annotations

import tomllib
from pathlib import Path

from pytest_ddtree.exactness.prompts import Prompt
from pytest_ddtree.workload.prompts import PromptMaker, load_tokenizer
from pytest_ddtree.workload.template import load_template

PROBLEMS = Path(__file__).resolve().parents[2] / "evals" / "coding" / "problems"


def document_prompts(model: Path, sizes: dict[int, int], *, seed: int = 0) -> list[Prompt]:
    """`sizes[n]` prompts of n tokens each: template, document, question."""
    maker = PromptMaker(model, workload="code", seed=seed)
    return [
        Prompt(made.tag, tuple(made.ids))
        for tokens, count in sizes.items()
        for made in maker.make_many(tokens, count, purpose="contact")
    ]


def problem_prompts(model: Path, count: int, folder: Path = PROBLEMS) -> list[Prompt]:
    """The first `count` coding problems by name, each as a chat with nothing around it."""
    tokenizer, template = load_tokenizer(model), load_template(model)
    prompts = []
    for path in sorted(folder.glob("*.toml"))[:count]:
        problem = tomllib.loads(path.read_text("utf-8"))
        frame = template.frame(problem["prompt"].strip())
        text = frame.head + frame.tail.lstrip("\n")
        prompts.append(Prompt(f"problem-{problem['task_id']}", tuple(tokenizer.encode(text))))
    return prompts


def contact_prompts(model: Path) -> list[Prompt]:
    """The set that both the embedded engine and the real server answer: 48 prompts of 60 to about 2048 tokens."""
    return [*document_prompts(model, {60: 8, 186: 12, 700: 4, 2048: 2}), *problem_prompts(model, 22)]
