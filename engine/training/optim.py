"""The optimizer and its learning rate over time."""

import math

import torch
from torch import nn

from engine.lesson import Settings


def make_optimizer(model: nn.Module, settings: Settings) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2017, "Decoupled Weight Decay Regularization") in two groups.

    Only matrices decay. Biases and norm scales have no direction in which small is simpler: pulling them to 0 hurts.
    """
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    # fused: one pass over all parameters instead of a Python loop, 3 to 4 times as fast on a CPU.
    return torch.optim.AdamW(groups, lr=settings.lr, betas=(settings.beta1, settings.beta2), fused=True)


def learning_rate(settings: Settings, step: int) -> float:
    """The rate of update `step` (the first is 1): a linear ramp over `warmup` steps, then the schedule.

    cosine: half a wave from lr at the end of the ramp down to lr_final_share · lr at the last step
    (Loshchilov & Hutter 2016, "SGDR").
    """
    if step <= settings.warmup:
        return settings.lr * step / settings.warmup
    if settings.schedule == "constant":
        return settings.lr
    progress = (step - settings.warmup) / max(1, settings.steps - settings.warmup)  # over 0 to 1
    lowest = settings.lr * settings.lr_final_share
    return lowest + (settings.lr - lowest) * 0.5 * (1 + math.cos(math.pi * progress))
