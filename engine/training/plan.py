"""What a run will take, before anything is trained: parameters, arithmetic, memory, time, money. Never imports torch."""

import time
from dataclasses import dataclass

import numpy as np

from engine.lesson import Settings

# Share of the peak rate that training reaches. By this file's arithmetic the reference's own figures imply 0.38 (GPT-2
# 124M in 48 min on 8 H100), 0.39 (the same in 55 h on an A5000) and 0.64 (the 1B at 28,300 tokens/s on an A100);
# tests/test_plan.py computes them. The default lies at the careful end.
UTILISATION = 0.4

# Dense bf16 matrix products with fp32 sums, TFLOP/s, and memory in GB: from the makers' data sheets.
GPUS = {
    "RTX A5000": (111.1, 24),
    "RTX 4090": (165.2, 24),
    "A100": (312.0, 80),
    "H100": (989.4, 80),
    "H200": (989.4, 141),
}


def parameter_count(settings: Settings, vocab_size: int) -> int:
    """What GPT.parameter_count will say, by arithmetic alone."""
    width, inner = settings.width, settings.mlp_width or 4 * settings.width
    head_width, bias = width // settings.heads, int(settings.bias)
    rows = (settings.heads + 2 * (settings.kv_heads or settings.heads)) * head_width
    attention = width * rows + bias * rows + width * width + bias * width
    ways_in = 2 if settings.mlp == "swiglu" else 1
    mlp = ways_in * (width * inner + bias * inner) + inner * width + bias * width
    norm = {"layer": width * (1 + bias), "rms": width, "none": 0}[settings.norm]
    ends = vocab_size * width * (1 if settings.tied else 2)
    positions = settings.context * width if settings.position == "learned" else 0
    return ends + positions + settings.layers * (attention + mlp + 2 * norm) + norm


def flops_per_token(settings: Settings, vocab_size: int) -> int:
    """Floating-point operations of training on one token: 6 N + 12 L C T.

    N counts the weights that a token is multiplied with (not the embedding that is only looked up): 2 operations forward
    and 4 backward each. The second term is attention's products of queries with keys and weights with values over T
    tokens, the causal half not subtracted. Kaplan et al. (2020), arXiv 2001.08361, section 2.1; Chowdhery et al. (2022),
    arXiv 2204.02311, appendix B.
    """
    looked_up = 0 if settings.tied else vocab_size * settings.width
    looked_up += settings.context * settings.width if settings.position == "learned" else 0
    multiplied = parameter_count(settings, vocab_size) - looked_up
    return 6 * multiplied + 12 * settings.layers * settings.width * settings.context


def memory_bytes(settings: Settings, vocab_size: int) -> int:
    """Rough peak: weights, gradients and AdamW's two means in fp32 (16 bytes a parameter), and what the backward pass
    needs of each micro-batch: per layer about 16 numbers per token and width (attention not stored), and the logits."""
    micro_tokens = settings.batch // settings.accumulate * settings.context
    number = 4 if settings.precision == "fp32" else 2
    inner = settings.mlp_width or 4 * settings.width
    activations = micro_tokens * settings.layers * (10 * settings.width + 2 * inner) * number
    logits = micro_tokens * vocab_size * (4 + number) * 2  # themselves and their gradient
    return 16 * parameter_count(settings, vocab_size) + activations + logits


def vocab_size_of(tokenizer: str) -> int:
    return {"bytes": 256, "gpt2": 50_257}.get(tokenizer) or int(tokenizer.split(":")[1])


def matrix_rate_here(seconds: float = 0.5) -> float:
    """FLOP/s of this machine's fp32 matrix products, by multiplying 1,024 × 1,024 for a moment on all cores."""
    left, right = np.ones((2, 1024, 1024), dtype=np.float32)
    left @ right  # the first product starts the threads
    started, products = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        left @ right
        products += 1
    return products * 2 * 1024**3 / (time.perf_counter() - started)


@dataclass(frozen=True)
class Plan:
    """One arm's run in figures."""

    parameters: int
    tokens: int
    flops: int
    memory_bytes: int

    def minutes(self, flop_per_s: float, utilisation: float = UTILISATION) -> float:
        return self.flops / (flop_per_s * utilisation) / 60


def plan(settings: Settings) -> Plan:
    vocab_size = vocab_size_of(settings.tokenizer)
    tokens = settings.total_steps * settings.batch * settings.context
    return Plan(parameter_count(settings, vocab_size), tokens, tokens * flops_per_token(settings, vocab_size), memory_bytes(settings, vocab_size))  # fmt: skip


def plan_lines(name: str, settings: Settings, price_per_hour: float | None) -> list[str]:
    """The plan of one arm, for a terminal."""
    one = plan(settings)
    lines = [
        f"{name}: {one.parameters:,} parameters, {one.tokens:,} tokens in {settings.total_steps:,} steps",
        f"  {one.flops:.3g} FLOPs, about {one.memory_bytes / 1e9:.1f} GB of memory",
        f"  {'here, on all cores':<20} {_duration(one.minutes(matrix_rate_here()))} at {UTILISATION:.0%} of the fp32 matrix rate just measured",
    ]
    for gpu, (tflop_per_s, gigabytes) in GPUS.items():
        minutes = one.minutes(tflop_per_s * 1e12)
        fits = "" if one.memory_bytes < gigabytes * 1e9 else f"; does not fit into {gigabytes} GB"
        money = f", {minutes / 60 * price_per_hour:,.2f} at {price_per_hour:g} an hour" if price_per_hour else ""
        lines.append(f"  {gpu:<20} {_duration(minutes)} at {UTILISATION:.0%} of {tflop_per_s:g} TFLOP/s{money}{fits}")
    return lines


def _duration(minutes: float) -> str:
    if minutes < 1:
        return f"{minutes * 60:6.1f} s  "
    return f"{minutes:6.1f} min" if minutes < 120 else f"{minutes / 60:6.1f} h  "
