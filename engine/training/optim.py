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
    linear-decay ("warmup-stable-decay", Hu et al. 2024, arXiv 2404.06395): lr, then a straight line down over the last
    decay_share of the steps.
    """
    if step <= settings.warmup:
        return settings.lr * step / settings.warmup
    if settings.schedule == "constant":
        return settings.lr
    lowest = settings.lr * settings.lr_final_share
    if settings.schedule == "linear-decay":
        decay_steps = settings.decay_share * settings.total_steps
        left = min(1.0, (settings.total_steps - step) / decay_steps)  # 1 until the decay begins, 0 at the last step
        return lowest + (settings.lr - lowest) * left
    progress = (step - settings.warmup) / max(1, settings.total_steps - settings.warmup)  # over 0 to 1
    return lowest + (settings.lr - lowest) * 0.5 * (1 + math.cos(math.pi * progress))
