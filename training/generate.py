"""Text written by the target itself: what the drafter has to predict."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from training.batches import Corpus, crop, pad_prompts, random_prompt, training_rows
from training.modeling import Target
from training.tokenizer import END_OF_TEXT

BUCKET = 128
PREFILL_TOKENS = 65_536


class Decoder:
    """Decodes all rows in step, position by position, with a fixed cache; on a GPU each step is a replayed
    graph, one for every BUCKET positions of cache that attention reads."""

    def __init__(self, target: Target, rows: int, length: int, dtype: torch.dtype) -> None:
        self.model = copy.deepcopy(target).to(dtype).eval()
        self.cos, self.sin = target.cos.to(dtype), target.sin.to(dtype)
        cfg, self.device = target.cfg, target.cos.device
        self.length = -(-length // BUCKET) * BUCKET
        shape = (rows, cfg.num_key_value_heads, self.length, cfg.head_dim)
        self.cache = [
            (
                torch.zeros(shape, dtype=dtype, device=self.device),
                torch.zeros(shape, dtype=dtype, device=self.device),
            )
            for _ in range(cfg.num_hidden_layers)
        ]
        self.ids = torch.zeros((rows, self.length + 1), dtype=torch.long, device=self.device)
        self.prompt_lengths = torch.zeros(rows, dtype=torch.long, device=self.device)
        self.temperature = torch.zeros((rows, self.length + 1), device=self.device)
        self.pos = torch.zeros(1, dtype=torch.long, device=self.device)
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def _step(self, size: int) -> None:
        """Read ids at pos, write the token at pos + 1 where the prompt does not give it."""
        body = self.model.model
        x = body.embed_tokens(self.ids.index_select(1, self.pos))
        cos, sin = self.cos.index_select(0, self.pos), self.sin.index_select(0, self.pos)
        later = torch.arange(size, device=self.device) > self.pos
        hidden = torch.zeros(size, device=self.device).masked_fill_(later, float("-inf"))
        for layer, cache in zip(body.layers, self.cache, strict=True):
            x = layer.step(x, cos, sin, cache, self.pos, hidden)
        logits = self.model.logits(body.norm(x))[:, 0].float()
        following = self.pos + 1
        heat = self.temperature.index_select(1, following)
        noise = -torch.empty_like(logits).exponential_().log()
        chosen = (logits + heat * noise).argmax(-1, keepdim=True)
        given = self.ids.index_select(1, following)
        self.ids.index_copy_(
            1, following, torch.where(following < self.prompt_lengths[:, None], given, chosen)
        )

    def _graph(self, size: int) -> torch.cuda.CUDAGraph:
        if size not in self.graphs:
            saved, position = self.ids.clone(), self.pos.clone()
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._step(size)  # warm-up outside the capture: it only rewrites the present position
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._step(size)
            self.ids.copy_(saved)
            self.pos.copy_(position)
            self.graphs[size] = graph
        return self.graphs[size]

    def _prefill(self, prompts: Tensor) -> None:
        """Fill the cache with the keys and values of prompts [rows, P], some rows at a time."""
        size = prompts.shape[1]
        body, cos, sin = self.model.model, self.cos[:size], self.sin[:size]
        for part in torch.arange(len(prompts), device=self.device).split(max(1, PREFILL_TOKENS // size)):
            x = body.embed_tokens(prompts[part])
            for layer, (keys, values) in zip(body.layers, self.cache, strict=True):
                q, k, v = layer.self_attn.qkv(layer.input_layernorm(x), cos, sin)
                keys[part, :, :size], values[part, :, :size] = k, v
                attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
                x = layer.finish(x, attended)

    @torch.no_grad()
    def run(
        self,
        prompts: Tensor,
        lengths: Tensor,
        temperature: Tensor,
        total: int,
        deadline: float = float("inf"),
    ) -> tuple[Tensor, int]:
        """prompts [rows, P], lengths [rows], temperature [rows, total]. Prompts of one length are read in one
        pass, others in step with the decoding. Returns ids [rows, total] and how many positions were filled
        before `deadline` (perf_counter seconds)."""
        first = prompts.shape[1] - 1 if bool((lengths == prompts.shape[1]).all()) else 0
        if first:
            self._prefill(prompts)
        self.ids.zero_()
        self.ids[:, : prompts.shape[1]] = prompts
        self.prompt_lengths.copy_(lengths)
        self.temperature[:, :total] = temperature
        for position in range(first, total - 1):
            if position % 64 == 0:
                if self.device.type == "cuda":
                    torch.cuda.synchronize()
                if time.perf_counter() > deadline:
                    return self.ids[:, : position + 1].clone(), position + 1
            self.pos.fill_(position)
            size = (position // BUCKET + 1) * BUCKET
            if self.device.type == "cuda":
                self._graph(size).replay()
            else:
                self._step(size)
        return self.ids[:, :total].clone(), total


@dataclass(frozen=True, slots=True)
class GeneratedText:
    """ids [N, S]; row n's text is ids[n, :end[n]], and its first start[n] tokens are the prompt."""

    ids: Tensor
    start: Tensor
    end: Tensor


def temperatures(rows: int, total: int, rng: np.random.Generator) -> np.ndarray:
    """[rows, total]: a third of the rows greedy throughout; the rest alternate short sampled stretches, which
    lead to new contexts, with longer greedy ones, which are what is to be predicted."""
    heat = np.zeros((rows, total), dtype=np.float32)
    for row in range(rows):
        if rng.random() < 0.33:
            continue
        level, position, sampled = float(rng.choice([0.7, 1.0])), 0, bool(rng.random() < 0.7)
        while position < total:
            stretch = int(rng.integers(4, 40)) if sampled else int(rng.integers(40, 260))
            if sampled:
                heat[row, position : position + stretch] = level
            position, sampled = position + stretch, not sampled
    return heat


def make_prompts(
    corpus: Corpus, rows: int, shortest: int, longest: int, chat_share: float, rng: np.random.Generator
) -> list[list[int]]:
    """Pieces of source code, and trained problems (cut at `longest` from the left if need be)."""
    prompts = []
    problems = len(corpus.trained_chats["problems"])
    for row in range(rows):
        if rng.random() < chat_share:
            room = longest - 300
            prompt, _ = random_prompt(corpus, rng, row % problems, room, 0.5 if room > 1000 else 0.15)
            prompts.append(prompt[-longest:])
        else:
            prompts.append(crop(corpus.train, int(rng.integers(shortest, longest + 1)), rng))
    return prompts


def generate(
    target: Target,
    corpus: Corpus,
    *,
    rows: int,
    total: int,
    longest: int,
    seconds: float,
    rounds: int,
    seed: int,
    log: Callable[..., None],
    shortest: int = 8,
) -> GeneratedText | None:
    """`rounds` rounds of `rows` rows of `total` positions; from the second round on half of the source-code
    prompts are pieces of what the round before wrote. None if the time did not suffice for one round."""
    rng = np.random.default_rng(seed)
    device = target.cos.device
    started = time.perf_counter()
    decoder = Decoder(target, rows, total, torch.bfloat16 if device.type == "cuda" else torch.float32)
    kept: list[GeneratedText] = []
    for number in range(rounds):
        prompts = make_prompts(corpus, rows, shortest, longest, 0.4, rng)
        if kept:
            written = kept[-1].ids.cpu().numpy()
            for row in range(0, rows, 2):
                width = int(rng.integers(shortest, min(longest, written.shape[1] // 2) + 1))
                first = int(rng.integers(0, written.shape[1] - width))
                prompts[row] = [
                    int(t) for t in written[int(rng.integers(len(written))), first : first + width]
                ]
        ids, lengths = pad_prompts(prompts)
        heat = temperatures(rows, total, rng)
        out, filled = decoder.run(
            torch.from_numpy(ids).to(device),
            torch.from_numpy(lengths).to(device),
            torch.from_numpy(heat).to(device),
            total,
            started + seconds,
        )
        log(
            f"generated round {number}: {rows} x {filled} of {total} at {time.perf_counter() - started:.1f} s"
        )
        if filled < total:
            break
        start = torch.from_numpy(lengths).to(device)
        kept.append(GeneratedText(out.short(), start, torch.full_like(start, total)))
    return joined(kept) if kept else None


def joined(parts: list[GeneratedText], width: int | None = None) -> GeneratedText:
    """All rows of `parts` (same device), padded on the right to `width` or to the longest part."""
    width = width or max(part.ids.shape[1] for part in parts)
    ids = torch.cat([F.pad(part.ids, (0, width - part.ids.shape[1]), value=END_OF_TEXT) for part in parts])
    return GeneratedText(ids, torch.cat([p.start for p in parts]), torch.cat([p.end for p in parts]))


def corpus_text(corpus: Corpus, rows: int, length: int, device: torch.device) -> GeneratedText:
    """Long rows of the training text itself in place of generated text: writing thousands of positions one by
    one takes too long, and the target knows its conversations by heart, so they are what it would write."""
    ids = torch.from_numpy(training_rows(corpus, rows, length, np.random.default_rng(43)).astype(np.int16))
    start = torch.full((rows,), length // 8, device=device)
    return GeneratedText(ids.to(device), start, torch.full_like(start, length))
