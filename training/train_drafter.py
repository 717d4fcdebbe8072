"""Train DFlash drafters on text of the target: many anchors a sequence, distilled from the target's logits."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
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
    """One run; it ends like TargetPlan's. `window_share`: the part of the sequences in which the drafter sees
    only the last `window` positions of context."""

    seconds: float = 240.0
    steps: int = 20000
    matrix_lr: float = 0.02
    other_lr: float = 3e-3
    decay: float = 0.01
    window: int = 128
    window_share: float = 0.6


@dataclass(frozen=True, slots=True)
class Source:
    """Text of one length, `rows` and `anchors` a row in a step, and how often a step takes it (relative)."""

    text: GeneratedText
    rows: int
    anchors: int
    share: float


@dataclass(frozen=True, slots=True)
class LossRule:
    """A position weighs exp(-(j - 1) / fade); one that the target's own greedy text does not lead to
    `off_path`. `soft` is the part of the loss that is cross-entropy against the target's distribution, the
    rest is against its argmax."""

    fade: float = 4.0
    off_path: float = 0.25
    soft: float = 0.5


def anchor_scores(text: GeneratedText, block: int) -> Tensor:
    """[N, S] how often a position is drawn as an anchor: 1 where the block that starts there was written by the
    target (the anchor itself may be the last token of the prompt), 0 elsewhere."""
    position = torch.arange(text.ids.shape[1], device=text.ids.device)
    return ((position >= text.start[:, None] - 1) & (position + block <= text.end[:, None])).float()


def draft_loss(
    rule: LossRule, drafted: Tensor, target: Tensor, embedding: Tensor, following: Tensor
) -> Tensor:
    """Weighted mean loss. drafted and target [N, K - 1, H]: final normed hidden states of the drafter's mask
    positions and of the target's positions that predict the same tokens; following [N, K - 1]: the tokens
    that the text has there. `off_path` applies from the second position on, behind a token that is not the
    target's argmax."""
    logits = F.linear(target, embedding).float()
    logprobs = F.linear(drafted, embedding).float().log_softmax(-1)
    best = logits.argmax(-1)
    hard = -logprobs.gather(-1, best[..., None])[..., 0]
    soft = -(logits.softmax(-1) * logprobs).sum(-1)
    depth = torch.arange(best.shape[1], device=best.device)
    as_written = (best == following).float()
    on_path = torch.cat([torch.ones_like(as_written[:, :1]), as_written[:, :-1]], dim=1).cumprod(dim=1)
    weight = torch.exp(-depth / rule.fade) * (rule.off_path + (1 - rule.off_path) * on_path)
    losses = rule.soft * soft + (1 - rule.soft) * hard
    return (losses * weight).sum() / weight.sum()


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences [B, S], their anchors [B, A] and how much context each row's drafter sees [B]."""

    ids: Tensor
    anchors: Tensor
    window: Tensor


def draw(source: Source, scores: Tensor, plan: DraftPlan, generator: torch.Generator) -> Batch:
    text, rows = source.text, source.rows
    device = text.ids.device
    pick = torch.randint(0, len(text.ids), (rows,), generator=generator, device=device)
    drawn = torch.multinomial(scores[pick], source.anchors, replacement=True, generator=generator)
    narrow = torch.rand(rows, generator=generator, device=device) < plan.window_share
    window = torch.where(narrow, plan.window, text.ids.shape[1])
    return Batch(text.ids[pick].long(), drawn.sort(dim=1).values, window)


def train_drafters(
    target: Target,
    drafters: dict[str, Drafter],
    sources: Sequence[Source],
    plan: DraftPlan,
    log: Log,
    checkpoint: Callable[[], None],
    rule: LossRule | None = None,
) -> dict[str, object]:
    """Train every drafter on the same batches (the target's pass, which costs most, is shared). All must use
    the same block size and target layers. Returns the figures of the run."""
    step_of = DraftStep(target, drafters, rule or LossRule())
    device = target.cos.device.type
    generator = torch.Generator(device).manual_seed(21)
    coin = torch.Generator().manual_seed(22)
    scores = [anchor_scores(source.text, step_of.block) for source in sources]
    shares = torch.tensor([source.share for source in sources])
    optimizers = [
        Optimizer(d, matrix_lr=plan.matrix_lr, other_lr=plan.other_lr, decay=plan.decay)
        for d in drafters.values()
    ]
    for source, score in zip(sources, scores, strict=True):  # compile before the clock starts
        step_of(draw(source, score, plan, generator))
    step_of.forget()
    log("drafters compiled")
    started, step, last, since, anchors_seen = time.perf_counter(), 0, 0.0, 0, 0
    curve = []
    while True:
        elapsed = time.perf_counter() - started
        share = max(step / plan.steps, elapsed / plan.seconds)
        if share >= 1.0:
            break
        chosen = int(torch.multinomial(shares, 1, generator=coin))
        batch = draw(sources[chosen], scores[chosen], plan, generator)
        step_of(batch)
        for optimizer in optimizers:
            optimizer.step(schedule(share))
        step, since, anchors_seen = step + 1, since + 1, anchors_seen + batch.anchors.numel()
        if elapsed - last > 12:
            last = elapsed
            means = {k: round(float(v) / since, 3) for k, v in step_of.running.items()}
            curve.append({"step": step, "loss": means})
            log(
                f"drafter step {step} share {share:.2f} loss {means} anchors {anchors_seen / 1e6:.1f}M "
                f"{anchors_seen / elapsed / 1e3:.0f}k/s"
            )
            step_of.forget()
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


class DraftStep:
    """Forward and backward pass of all drafters on one batch; `running` sums the losses since `forget`."""

    def __init__(self, target: Target, drafters: dict[str, Drafter], rule: LossRule) -> None:
        some = next(iter(drafters.values())).cfg
        self.block, self._layer_ids = some.block_size, some.target_layer_ids
        self._target, self._drafters, self._rule = target, drafters, rule
        self._device = target.cos.device.type
        self._loss = torch.compile(draft_loss) if self._device == "cuda" else draft_loss
        self._embedding = target.model.embed_tokens.weight.detach()
        self.running = {k: torch.zeros((), device=self._device) for k in drafters}

    def __call__(self, batch: Batch) -> None:
        with torch.autocast(self._device, dtype=torch.bfloat16):
            with torch.no_grad():
                final, features = self._target(batch.ids, self._layer_ids)
            known = batch.ids.gather(1, batch.anchors)
            rows = torch.arange(len(batch.ids), device=batch.ids.device)[:, None, None]
            predicted = batch.anchors[:, :, None] + torch.arange(1, self.block, device=batch.ids.device)
            wanted = final[rows, predicted - 1].flatten(0, 1)
            following = batch.ids[rows, predicted].flatten(0, 1)
            for name, drafter in self._drafters.items():
                hidden = drafter(self._target, features.bfloat16(), known, batch.anchors, batch.window)
                drafted = hidden[:, :, 1:].flatten(0, 1)
                loss = self._loss(self._rule, drafted, wanted, self._embedding, following)
                loss.backward()
                self.running[name] += loss.detach()

    def forget(self) -> None:
        """Drop gradients and losses."""
        for drafter in self._drafters.values():
            drafter.zero_grad(set_to_none=True)
        for value in self.running.values():
            value.zero_()
