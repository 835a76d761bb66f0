"""The model: its size, that it cannot look ahead, where its loss begins."""

import math

import pytest
import torch

from engine.lesson import Settings
from engine.training.model import GPT, rotated
from engine.training.plan import parameter_count

GPT2_SMALL = Settings(
    corpus="shakespeare", layers=12, heads=12, width=768, context=1024, steps=1, batch=1, lr=1e-3, checkpoint_every=1
)
SMALL = Settings(
    corpus="shakespeare",
    layers=2,
    heads=2,
    width=32,
    context=16,
    dropout=0.5,
    steps=1,
    batch=1,
    lr=1e-3,
    checkpoint_every=1,
)


def test_gpt2_small_has_124_439_808_parameters_and_starts_at_ln_50257():
    torch.manual_seed(0)
    model = GPT(GPT2_SMALL, 50_257).eval()
    assert model.parameter_count() == 124_439_808
    ids = torch.randint(50_257, (2, 129), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        loss = model.loss(ids[:, :-1], ids[:, 1:]).item()
    assert abs(loss / math.log(50_257) - 1) < 0.02


def test_a_changed_later_token_changes_no_earlier_logit():
    torch.manual_seed(0)
    model = GPT(SMALL, 256).eval()
    ids = torch.randint(256, (1, 16))
    with torch.no_grad():
        before = model(ids)
        for changed in range(16):
            other = ids.clone()
            other[0, changed] = (other[0, changed] + 1) % 256
            after = model(other)
            assert torch.equal(before[:, :changed], after[:, :changed])
            assert not torch.equal(before[:, changed:], after[:, changed:])


SHAPES = {
    "GPT-2": {},
    "Llama": {"norm": "rms", "position": "rope", "mlp": "swiglu", "kv_heads": 1, "bias": False, "tied": False},
    "no norm": {"norm": "none"},
    "exact GELU": {"mlp": "gelu_exact"},
    "rope with shared heads": {"position": "rope", "heads": 4, "kv_heads": 2, "mlp_width": 48},
}


@pytest.mark.parametrize("name", SHAPES)
def test_no_shape_of_the_model_looks_ahead(name):
    torch.manual_seed(0)
    model = GPT(SMALL.model_copy(update=SHAPES[name]), 256).eval()
    ids = torch.randint(256, (2, 16))
    other = ids.clone()
    other[:, 9] = (other[:, 9] + 1) % 256
    with torch.no_grad():
        before, after = model(ids), model(other)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.equal(before[:, 9:], after[:, 9:])


@pytest.mark.parametrize("name", SHAPES)
def test_the_plan_counts_the_parameters_that_the_model_has(name):
    settings = SMALL.model_copy(update=SHAPES[name])
    assert parameter_count(settings, 300) == GPT(settings, 300).parameter_count()


def test_the_1b_of_the_reference_has_1_04_billion_parameters():
    llama = {"norm": "rms", "position": "rope", "mlp": "swiglu", "bias": False}
    shape = {"layers": 16, "width": 2048, "heads": 32, "kv_heads": 8, "mlp_width": 8192, "context": 2048}
    assert round(parameter_count(SMALL.model_copy(update=llama | shape), 32_005) / 1e9, 2) == 1.04


def test_rope_sees_distances_and_not_places():
    query, key = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)
    products = rotated(query.expand(1, 1, 20, 8), 100.0) @ rotated(key.expand(1, 1, 20, 8), 100.0).transpose(2, 3)
    for distance in (0, 3):
        along = products[0, 0].diagonal(-distance)
        assert torch.allclose(along, along[0].expand_as(along), atol=1e-5)


def test_one_batch_of_8_has_the_gradient_of_8_accumulated_batches_of_1():
    ids = torch.randint(256, (8, 17))
    gradients = []
    for parts in (1, 8):
        torch.manual_seed(0)
        model = GPT(SMALL.model_copy(update={"dropout": 0.0}), 256)
        for some in ids.chunk(parts):
            (model.loss(some[:, :-1], some[:, 1:]) / parts).backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    assert torch.allclose(*gradients, atol=1e-6)


def test_dropout_works_in_training_and_not_in_evaluation():
    torch.manual_seed(0)
    model = GPT(SMALL, 256)
    ids = torch.randint(256, (1, 16))
    assert not torch.equal(model(ids), model(ids))
    model.eval()
    assert torch.equal(model(ids), model(ids))


def test_a_sequence_longer_than_the_context_is_refused():
    try:
        GPT(SMALL, 256)(torch.zeros(1, 17, dtype=torch.long))
    except ValueError as error:
        assert str(error) == "17 tokens do not fit into a context of 16"
    else:
        raise AssertionError("it was let through")
