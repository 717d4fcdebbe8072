"""Optimizers: Muon for the matrices inside layers, AdamW for the rest, and the learning-rate schedule."""

from __future__ import annotations

import math
from collections import defaultdict

import torch
from torch import Tensor, nn

# Quintic iteration that drives all singular values of a matrix towards 1 (Newton-Schulz; coefficients as
# published with Muon, chosen for speed of convergence rather than for a limit of exactly 1).
COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalise(batch: Tensor, rounds: int = 5) -> Tensor:
    """Approximately replace every matrix of batch [N, R, C] by the nearest one with orthonormal rows or columns."""
    a, b, c = COEFFICIENTS
    x = batch.bfloat16() if batch.is_cuda else batch
    wide = x.shape[1] <= x.shape[2]
    if not wide:
        x = x.transpose(1, 2)
    x = x / (x.float().square().sum((1, 2), keepdim=True).sqrt() + 1e-7).to(x.dtype)
    for _ in range(rounds):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x if wide else x.transpose(1, 2)).float()


class Muon:
    """Momentum whose direction is orthogonalised; matrices of one shape are handled in one batch."""

    def __init__(
        self, parameters: list[nn.Parameter], lr: float, decay: float, momentum: float = 0.95
    ) -> None:
        groups: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
        for parameter in parameters:
            groups[parameter.shape].append(parameter)
        self.groups = list(groups.values())
        self.buffers = [torch.zeros((len(g), *g[0].shape), device=g[0].device) for g in self.groups]
        self.peak, self.decay, self.momentum = lr, decay, momentum

    @torch.no_grad()
    def step(self, factor: float) -> None:
        """One update at `factor` times the peak learning rate."""
        lr = self.peak * factor
        for parameters, buffer in zip(self.groups, self.buffers, strict=True):
            gradient = torch.stack([p.grad for p in parameters])  # type: ignore[arg-type]
            buffer.lerp_(gradient, 1 - self.momentum)
            update = orthogonalise(gradient.lerp(buffer, self.momentum))
            update *= max(1.0, update.shape[1] / update.shape[2]) ** 0.5
            torch._foreach_mul_(parameters, 1 - lr * self.decay)
            torch._foreach_add_(parameters, list(update.unbind(0)), alpha=-lr)


class Optimizer:
    """Muon for matrices of layers, AdamW for embedding and norms (`fc` of a drafter counts as a matrix)."""

    def __init__(self, model: nn.Module, *, matrix_lr: float, other_lr: float, decay: float) -> None:
        named = list(model.named_parameters())
        matrices = [p for n, p in named if p.ndim == 2 and "embed" not in n]
        others = [p for n, p in named if p.ndim != 2 or "embed" in n]
        self.parameters = [p for _, p in named]
        self.muon = Muon(matrices, matrix_lr, decay)
        fused = others[0].is_cuda
        self.adam = torch.optim.AdamW(
            others, lr=other_lr, betas=(0.9, 0.95), eps=1e-9, weight_decay=0.0, fused=fused
        )
        self.other_lr = other_lr

    def step(self, factor: float) -> None:
        """Clip, update both, and drop the gradients."""
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.muon.step(factor)
        for group in self.adam.param_groups:
            group["lr"] = self.other_lr * factor
        self.adam.step()
        for parameter in self.parameters:
            parameter.grad = None


def schedule(share: float, warmup: float = 0.02, floor: float = 0.01) -> float:
    """Factor on the peak rate: linear warm-up, then a cosine down to `floor`."""
    if share < warmup:
        return (share + 1e-3) / (warmup + 1e-3)
    progress = min(1.0, (share - warmup) / (1 - warmup))
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))
