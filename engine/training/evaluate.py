"""How well the model predicts text it never trained on."""

import math
from dataclasses import dataclass

import numpy as np
import torch

from engine.lesson import Settings
from engine.training.model import GPT

SEQUENCES_AT_ONCE = 32  # a matter of memory: the sum over all tokens is the result, so the number does not show in it


@dataclass(frozen=True)
class Validation:
    """A fixed stretch of validation text, cut into windows. The same for every arm, seed and step."""

    inputs: torch.Tensor  # (N, T)
    targets: torch.Tensor  # (N, T)
    target_bytes: int  # bytes of text that the targets spell


def make_validation(tokens: np.ndarray, settings: Settings, byte_lengths: np.ndarray) -> Validation:
    """The first eval_tokens (or all there are) in whole windows of the context."""
    context, device = settings.context, settings.device
    windows = max(1, min(settings.eval_tokens, len(tokens) - 1) // context)
    shift = 1 if settings.shift_targets else 0  # a data bug sits in the one function that all data come from
    inputs = tokens[: windows * context].astype(np.int64).reshape(windows, context)
    targets = tokens[shift : windows * context + shift].astype(np.int64).reshape(windows, context)
    as_tensor = lambda ids: torch.from_numpy(ids).to(device)
    return Validation(as_tensor(inputs), as_tensor(targets), int(byte_lengths[targets].sum()))


@torch.no_grad()
def evaluate(model: GPT, validation: Validation) -> tuple[float, float]:
    """(nats per token, bits per byte). Bits per byte compares models with different tokenizers: nats of the whole
    text / (ln 2 · its bytes). Dropout is off, so nothing is drawn and how often one evaluates changes no training."""
    model.eval()
    nats = 0.0  # a Python float: float32 would lose digits over many windows
    parts = zip(validation.inputs.split(SEQUENCES_AT_ONCE), validation.targets.split(SEQUENCES_AT_ONCE), strict=True)
    for inputs, targets in parts:
        nats += model.loss(inputs, targets).item() * targets.numel()
    model.train()
    return nats / validation.targets.numel(), nats / (math.log(2) * validation.target_bytes)
