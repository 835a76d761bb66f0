"""The model: its size, that it cannot look ahead, where its loss begins."""

import math

import torch

from engine.lesson import Settings
from engine.training.model import GPT

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
