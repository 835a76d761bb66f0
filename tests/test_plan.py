"""--plan: its arithmetic, held against what others report."""

import pytest
from conftest import Content

from engine.lesson import Settings
from engine.training.plan import GPUS, UTILISATION, flops_per_token, plan

GPT2_SMALL = Settings(
    corpus="hub:HuggingFaceFW/fineweb-edu/sample/10BT", tokenizer="gpt2", layers=12, heads=12, width=768, context=1024,
    tokens=10_000_000_000, batch=512, lr=6e-4, checkpoint_every=1000,
)  # fmt: skip
ONE_B = Settings(
    corpus="x", tokenizer="bpe:32005", layers=16, heads=32, kv_heads=8, width=2048, mlp_width=8192, context=2048, norm="rms",
    position="rope", mlp="swiglu", bias=False, steps=160_000, batch=64, lr=3e-4, checkpoint_every=1000,
)  # fmt: skip


def test_steps_follow_from_tokens():
    assert GPT2_SMALL.total_steps == 19_074  # 10 billion / (512 · 1,024), rounded up
    assert plan(GPT2_SMALL).tokens == 19_074 * 512 * 1024


def test_the_formula_is_6n_and_12lct():
    multiplied = 124_439_808 - 1024 * 768
    assert flops_per_token(GPT2_SMALL, 50_257) == 6 * multiplied + 12 * 12 * 768 * 1024


def implied_utilisations() -> dict[str, float]:
    """What share of the peak the reference's own figures mean by our arithmetic."""
    flops = plan(GPT2_SMALL).flops
    return {
        "124M on 10B tokens, 55 h on an A5000": flops / (55 * 3600) / (GPUS["RTX A5000"][0] * 1e12),
        "the same, 48 min on 8 H100": flops / (48 * 60) / (8 * GPUS["H100"][0] * 1e12),
        "1B, 28,300 tokens/s on an A100": 28_300 * flops_per_token(ONE_B, 32_005) / (GPUS["A100"][0] * 1e12),
    }


def test_the_default_utilisation_lies_within_what_the_reference_implies():
    implied = implied_utilisations()
    assert {name: round(share, 2) for name, share in implied.items()} == {
        "124M on 10B tokens, 55 h on an A5000": 0.39,
        "the same, 48 min on 8 H100": 0.38,
        "1B, 28,300 tokens/s on an A100": 0.64,
    }
    assert min(implied.values()) < UTILISATION < max(implied.values())


def test_the_plan_is_printed_for_every_profile(content: Content, capsys):
    assert content.build("--lesson", "1.7", "--plan", "--price", "0.5") == 0
    out = capsys.readouterr().out
    assert out.startswith("lesson 1.7, profile cpu\nrare: 21,984 parameters, 1,536 tokens in 24 steps\n")
    assert "RTX A5000" in out and "at 0.5 an hour" in out


def test_the_swept_1b_fits_where_the_reference_ran_it():
    one = plan(ONE_B.model_copy(update={"accumulate": 8, "precision": "bf16"}))
    assert 24e9 < one.memory_bytes < 80e9
    assert one.tokens == pytest.approx(20.97e9, rel=1e-3)
