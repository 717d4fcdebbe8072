"""Train DFlash drafters on text of the target: cross-entropy of the mask positions, many anchors a sequence."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from training.generate import GeneratedText
from training.modeling import Drafter, Target
from training.optim import Optimizer, schedule

Log = Callable[..., None]


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """One run; it ends like TargetPlan's. `fade`: a position weighs exp(-(j - 1) / fade). `window_share`: the
    part of the sequences in which the drafter sees only the last `window` positions of context."""

    seconds: float = 240.0
    steps: int = 20000
    rows: int = 48
    anchors: int = 128
    matrix_lr: float = 0.02
    other_lr: float = 3e-3
    decay: float = 0.01
    fade: float = 4.0
    window: int = 128
    window_share: float = 0.6
    long_share: float = 0.08
    sampled_weight: float = 0.25


def anchor_scores(text: GeneratedText, block: int) -> Tensor:
    """[N, S] how often a position is drawn as an anchor: 1 where the block that starts there was written by the
    target (the anchor itself may be the last token of the prompt), 0 elsewhere."""
    size = text.ids.shape[1]
    position = torch.arange(size, device=text.ids.device)
    return ((position >= text.start[:, None] - 1) & (position + block <= size)).float()


def draft_loss(hidden: Tensor, embedding: Tensor, wanted: Tensor, weight: Tensor) -> Tensor:
    """Weighted mean cross-entropy: hidden [N, H], wanted and weight [N]."""
    losses = F.cross_entropy(F.linear(hidden, embedding).float(), wanted, reduction="none")
    return (losses * weight).sum() / weight.sum()


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences, their anchors [B, A], the tokens to predict and their weights [B, A, K - 1]."""

    ids: Tensor
    anchors: Tensor
    wanted: Tensor
    weight: Tensor
    window: Tensor


def draw(
    text: GeneratedText,
    scores: Tensor,
    plan: DraftPlan,
    rows: int,
    anchors: int,
    block: int,
    generator: torch.Generator,
) -> Batch:
    device = text.ids.device
    pick = torch.randint(0, len(text.ids), (rows,), generator=generator, device=device)
    ids = text.ids[pick].long()
    start = torch.multinomial(scores[pick], anchors, replacement=True, generator=generator).sort(dim=1).values
    offsets = torch.arange(1, block, device=device)
    index = (start[:, :, None] + offsets).flatten(1)
    wanted = ids.gather(1, index).unflatten(1, (anchors, block - 1))
    greedy = text.greedy[pick].gather(1, index).unflatten(1, (anchors, block - 1)).float()
    fade = torch.exp(-(offsets - 1).float() / plan.fade)
    # A greedily chosen token counts fully only if the ones before it in the block were chosen so too.
    weight = fade * (plan.sampled_weight + (1 - plan.sampled_weight) * greedy.cumprod(dim=2))
    narrow = torch.rand(rows, generator=generator, device=device) < plan.window_share
    window = torch.where(narrow, plan.window, text.ids.shape[1])
    return Batch(ids, start, wanted, weight, window)


def train_drafters(
    target: Target,
    drafters: dict[str, Drafter],
    text: GeneratedText,
    long_text: GeneratedText | None,
    plan: DraftPlan,
    log: Log,
    checkpoint: Callable[[], None],
) -> dict[str, object]:
    """Train every drafter on the same batches (the target's pass, which costs most, is shared). All must use
    the same block size and target layers. Returns the figures of the run."""
    device = target.cos.device.type
    some = next(iter(drafters.values())).cfg
    block, layer_ids = some.block_size, some.target_layer_ids
    generator = torch.Generator(device).manual_seed(21)
    coin = torch.Generator().manual_seed(22)
    scores = anchor_scores(text, block)
    long_scores = anchor_scores(long_text, block) if long_text else None
    optimizers = {
        k: Optimizer(d, matrix_lr=plan.matrix_lr, other_lr=plan.other_lr, decay=plan.decay)
        for k, d in drafters.items()
    }
    loss_of = torch.compile(draft_loss) if device == "cuda" else draft_loss
    embedding = target.model.embed_tokens.weight.detach()
    running = {k: torch.zeros((), device=device) for k in drafters}
    long_rows = max(1, plan.rows * text.ids.shape[1] // long_text.ids.shape[1]) if long_text else 0

    def short_batch() -> Batch:
        return draw(text, scores, plan, plan.rows, plan.anchors, block, generator)

    def long_batch() -> Batch:
        assert long_text is not None
        assert long_scores is not None
        return draw(long_text, long_scores, plan, long_rows, plan.anchors * 2, block, generator)

    def backward(batch: Batch) -> None:
        with torch.autocast(device, dtype=torch.bfloat16):
            with torch.no_grad():
                _, features = target(batch.ids, layer_ids)
            known = batch.ids.gather(1, batch.anchors)
            for name, drafter in drafters.items():
                hidden = drafter(target, features.bfloat16(), known, batch.anchors, batch.window)
                loss = loss_of(
                    hidden[:, :, 1:].flatten(0, 2), embedding, batch.wanted.flatten(), batch.weight.flatten()
                )
                loss.backward()
                running[name] += loss.detach()

    for make in (short_batch, long_batch) if long_text else (short_batch,):  # compile before the clock starts
        backward(make())
        for drafter in drafters.values():
            drafter.zero_grad(set_to_none=True)
    for value in running.values():
        value.zero_()
    log("drafters compiled")
    started, step, last, since, anchors_seen = time.perf_counter(), 0, 0.0, 0, 0
    curve = []
    while True:
        elapsed = time.perf_counter() - started
        share = max(step / plan.steps, elapsed / plan.seconds)
        if share >= 1.0:
            break
        long = long_text is not None and float(torch.rand((), generator=coin)) < plan.long_share
        batch = long_batch() if long else short_batch()
        backward(batch)
        for optimizer in optimizers.values():
            optimizer.step(schedule(share))
        step, since, anchors_seen = step + 1, since + 1, anchors_seen + batch.anchors.numel()
        if elapsed - last > 12:
            last = elapsed
            means = {k: round(float(v) / since, 3) for k, v in running.items()}
            curve.append({"step": step, "loss": means})
            log(
                f"drafter step {step} share {share:.2f} loss {means} anchors {anchors_seen / 1e6:.1f}M "
                f"{anchors_seen / elapsed / 1e3:.0f}k/s"
            )
            for value in running.values():
                value.zero_()
            since = 0
            checkpoint()
    figures = {
        "steps": step,
        "anchors": anchors_seen,
        "seconds": time.perf_counter() - started,
        "curve": curve,
    }
    log("drafters done", {k: v for k, v in figures.items() if k != "curve"})
    return figures
