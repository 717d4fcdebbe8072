"""Free-running accept length, right answers and repetition of the exported weights, in float32.

A speculative server answers with the target's own greedy text, so the accept length follows from that text
and from the drafter's distributions at every position of it: decode greedily once, draft at every position,
then walk. It equals what a server with the same arithmetic would report.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from training.batches import Corpus, chat_prompt, chat_reply, crop, pad_prompts
from training.generate import Decoder
from training.modeling import Drafter, Target
from training.tokenizer import END_OF_TEXT, IM_END

Log = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Answers:
    """Greedy texts: ids [N, S], prompt lengths [N], ends [N] (one past the last token that counts)."""

    ids: Tensor
    start: Tensor
    end: Tensor

    def texts(self) -> list[list[int]]:
        rows = zip(self.ids.tolist(), self.start.tolist(), self.end.tolist(), strict=True)
        return [ids[start:end] for ids, start, end in rows]


def answer(target: Target, prompts: list[list[int]], new_tokens: int, *, stop: bool) -> Answers:
    """Greedy continuation of each prompt by up to `new_tokens` tokens; with `stop` it ends after IM_END or the
    document separator."""
    ids, lengths = pad_prompts(prompts)
    total = int(lengths.max()) + new_tokens
    device = target.cos.device
    decoder = Decoder(target, len(prompts), total, torch.float32)
    out, _ = decoder.run(
        torch.from_numpy(ids).to(device),
        torch.from_numpy(lengths).to(device),
        torch.zeros((len(prompts), total), device=device),
        total,
    )
    ends = []
    for row, length in zip(out.tolist(), lengths.tolist(), strict=True):
        end = length + new_tokens
        if stop:
            marks = [i for i in range(length, end) if row[i] in (IM_END, END_OF_TEXT)]
            end = marks[0] + 1 if marks else end
        ends.append(end)
    return Answers(out, torch.from_numpy(lengths).to(device), torch.tensor(ends, device=device))


@torch.no_grad()
def drafts(
    target: Target, drafter: Drafter, answers: Answers, window: int | None, top: int = 4, chunk: int = 16
) -> tuple[np.ndarray, np.ndarray]:
    """Token ids and log-probabilities of the `top` candidates of every mask position of a block at every
    position: two arrays [N, S, K - 1, top]; positions outside the answers hold rubbish."""
    rows, size = answers.ids.shape
    device = answers.ids.device
    block = drafter.cfg.block_size
    shape = (rows, size, block - 1, top)
    tokens, scores = np.zeros(shape, dtype=np.int32), np.zeros(shape, dtype=np.float32)
    first_row = 0
    while first_row < rows:
        part = slice(first_row, min(rows, first_row + chunk))
        ids = answers.ids[part]
        _, features = target(ids, drafter.cfg.target_layer_ids)
        assert features is not None
        widths = torch.full((len(ids),), window or size, device=device)
        begin, finish = int(answers.start[part].min()), int(answers.end[part].max())
        for first in range(begin, finish, 96):
            anchors = torch.arange(first, min(first + 96, finish), device=device).expand(len(ids), -1)
            hidden = drafter(target, features, ids.gather(1, anchors), anchors, widths)
            logprobs = target.logits(hidden[:, :, 1:]).log_softmax(-1)
            best = logprobs.topk(top, dim=-1)
            where = slice(first, first + anchors.shape[1])
            tokens[part, where] = best.indices.cpu().numpy()
            scores[part, where] = best.values.cpu().numpy()
        first_row += chunk
    return tokens, scores


def tree_depth(tokens: np.ndarray, scores: np.ndarray, truth: list[int], budget: int, topk: int) -> int:
    """How many of `truth`'s tokens the best-first tree over one block holds as a path from the root.

    tokens, scores [K - 1, top]. Nodes are taken in the order of their cumulative log-probability, ties by rank
    tuple (arXiv 2604.12989, Algorithm 1), until `budget` nodes are in the tree."""
    depth_limit, wanted = len(tokens), 0
    heap: list[tuple[float, tuple[int, ...]]] = [(-float(scores[0, 0]), (0,))]
    taken = 0
    while heap and taken < budget:
        cost, ranks = heapq.heappop(heap)
        taken += 1
        depth, rank = len(ranks) - 1, ranks[-1]
        if depth < len(truth) and all(int(tokens[d, r]) == truth[d] for d, r in enumerate(ranks)):
            wanted = max(wanted, depth + 1)
        if rank + 1 < topk:
            sibling = cost + float(scores[depth, rank]) - float(scores[depth, rank + 1])
            heapq.heappush(heap, (sibling, (*ranks[:-1], rank + 1)))
        if depth + 1 < depth_limit:
            heapq.heappush(heap, (cost - float(scores[depth + 1, 0]), (*ranks, 0)))
    return wanted


def accept_length(
    answers: Answers, tokens: np.ndarray, scores: np.ndarray, budget: int | None, topk: int = 4
) -> float:
    """Tokens per verify step over all answers, counted as servers do: the first token comes from the prefill,
    every step commits its accepted drafts and one bonus token. budget None: the chain."""
    committed = steps = 0
    rows = zip(answers.ids.tolist(), answers.start.tolist(), answers.end.tolist(), strict=True)
    for row, (ids, start, end) in enumerate(rows):
        position = start
        while position < end - 1:
            truth = ids[position + 1 : min(position + tokens.shape[2] + 1, end)]
            if budget is None:
                accepted = 0
                while accepted < len(truth) and int(tokens[row, position, accepted, 0]) == truth[accepted]:
                    accepted += 1
            else:
                accepted = tree_depth(tokens[row, position], scores[row, position], truth, budget, topk)
            advance = min(accepted + 1, end - 1 - position)
            committed, steps, position = committed + advance, steps + 1, position + advance
    return committed / max(steps, 1)


def distinct_share(texts: list[list[int]], n: int = 4) -> float:
    """Mean over the texts of (distinct n-grams / n-grams); a text that loops is near 0."""
    shares = []
    for text in texts:
        grams = [tuple(text[i : i + n]) for i in range(len(text) - n + 1)]
        if grams:
            shares.append(len(set(grams)) / len(grams))
    return float(np.mean(shares)) if shares else 0.0


def final_part(ids: list[int], size: int) -> list[int]:
    return ids[-size:] if size else []


def evaluate(
    target: Target,
    drafters: dict[str, Drafter],
    corpus: Corpus,
    log: Log,
    *,
    code_prompts: int = 96,
    code_tokens: int = 192,
    chat_tokens: int = 520,
) -> tuple[dict[str, object], dict[str, np.ndarray]]:
    """All figures, and the answers as arrays (`<set>_ids`, `<set>_start`, `<set>_end`)."""
    rng = np.random.default_rng(31)
    sets: dict[str, Answers] = {}
    lengths = (48, 160, 400)
    prompts = [crop(corpus.held_out, lengths[i % len(lengths)], rng) for i in range(code_prompts)]
    sets["heldout_code"] = answer(target, prompts, code_tokens, stop=False)
    trained = range(len(corpus.trained_chats["problems"]))
    unseen = range(len(corpus.held_out_chats["problems"]))
    sets["trained_thinking"] = answer(
        target, [chat_prompt(corpus.trained_chats, i, thinking=True) for i in trained], chat_tokens, stop=True
    )
    sets["trained_plain"] = answer(
        target,
        [chat_prompt(corpus.trained_chats, i, thinking=False) for i in trained],
        chat_tokens,
        stop=True,
    )
    sets["heldout_thinking"] = answer(
        target, [chat_prompt(corpus.held_out_chats, i, thinking=True) for i in unseen], chat_tokens, stop=True
    )
    figures: dict[str, object] = {}
    for name in ("trained_thinking", "trained_plain"):
        right = 0
        for i, text in zip(trained, sets[name].texts(), strict=True):
            reply = chat_reply(corpus.trained_chats, i, thinking=False)
            right += final_part(text, len(reply)) == reply
        figures[f"{name}_exact"] = right / len(trained)
    figures["heldout_code_distinct_4grams"] = distinct_share(sets["heldout_code"].texts())
    figures["heldout_code_distinct_4grams_source"] = distinct_share(
        [crop(corpus.held_out, code_tokens, rng) for _ in range(code_prompts)]
    )
    log("answers", figures)
    for label, drafter in drafters.items():
        for name, answers in sets.items():
            for window in (128, None):
                tokens, scores = drafts(target, drafter, answers, window)
                cell = {"chain": accept_length(answers, tokens, scores, None)}
                for budget in (8, 16):
                    cell[f"b{budget}-k4"] = accept_length(answers, tokens, scores, budget)
                figures[f"{label} {name} w{window or 'none'}"] = {k: round(v, 3) for k, v in cell.items()}
                log(label, name, f"w{window or 'none'}", figures[f"{label} {name} w{window or 'none'}"])
    arrays = {}
    for name, answers in sets.items():
        arrays[f"{name}_ids"] = answers.ids.cpu().numpy().astype(np.uint16)
        arrays[f"{name}_start"] = answers.start.cpu().numpy()
        arrays[f"{name}_end"] = answers.end.cpu().numpy()
    return figures, arrays
