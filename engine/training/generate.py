"""Text from a model, one token at a time."""

import time
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.lesson import Settings
from engine.training.model import GPT
from engine.training.tokens import Tokenizer


@dataclass(frozen=True)
class Sample:
    prompt: str
    text: str  # what the model wrote after the prompt
    tokens_per_s: float


def sample(model: GPT, tokenizer: Tokenizer, settings: Settings, seed: int, step: int) -> list[Sample]:
    """One text per prompt of the settings. The generator is its own, drawn from seed and step: training draws the same
    numbers whether one samples or not."""
    generator = torch.Generator(device=settings.device).manual_seed(seed * 1_000_003 + step)
    model.eval()
    samples = []
    for prompt in settings.sample_prompts:
        started = time.perf_counter()
        given = tokenizer.encode([prompt.encode()])[0]
        ids = torch.tensor([given.tolist()], device=settings.device)  # (1, T)
        new = generate(model, ids, settings, generator)[0, ids.shape[1] :].tolist()
        text = tokenizer.decode(new).decode("utf-8", errors="replace")  # it may end within a character
        samples.append(Sample(prompt, text, round(len(new) / (time.perf_counter() - started), 1)))
    model.train()
    return samples


@torch.no_grad()
def generate(model: GPT, ids: Tensor, settings: Settings, generator: torch.Generator) -> Tensor:
    """`ids` (1, T) with settings.sample_tokens more behind them. The whole context is computed anew for each token:
    simple, and fast enough for samples; a cache of keys and values would double this file."""
    for _ in range(settings.sample_tokens):
        logits = model(ids[:, -model.context :])[0, -1].float()  # (V,)
        ids = torch.cat([ids, next_token(logits, settings, generator).view(1, 1)], dim=1)
    return ids


def next_token(logits: Tensor, settings: Settings, generator: torch.Generator) -> Tensor:
    """One id drawn from `logits` (V,): sharpened by temperature, then limited to the top_k likeliest tokens and to the
    likeliest ones that together reach top_p (Holtzman et al. 2019, arXiv 1904.09751)."""
    if settings.temperature == 0:
        return logits.argmax()
    logits = logits / settings.temperature
    if settings.top_k:
        worst_kept = logits.topk(min(settings.top_k, len(logits))).values[-1]
        logits = logits.masked_fill(logits < worst_kept, -torch.inf)
    if settings.top_p < 1:
        sorted_logits, order = logits.sort(descending=True)
        shares = F.softmax(sorted_logits, dim=0)
        beyond = shares.cumsum(0) - shares >= settings.top_p  # the token that crosses the share is kept
        logits = logits.masked_fill(torch.zeros_like(beyond).scatter(0, order, beyond), -torch.inf)
    return torch.multinomial(F.softmax(logits, dim=0), 1, generator=generator)
