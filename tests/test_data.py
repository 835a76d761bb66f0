"""Batches: a pure function of seed and step that covers the text evenly."""

import numpy as np
import pytest

from engine.lesson import Settings
from engine.training.data import batch, batch_starts, kill_steps

SETTINGS = Settings(
    corpus="shakespeare", layers=1, heads=1, width=8, context=10, steps=1, batch=4, lr=1e-3, checkpoint_every=1
)  # fmt: skip
TOKENS = np.arange(1, 402, dtype=np.uint16)  # 401 tokens: 40 windows of 10, and one more to predict


def test_targets_are_the_inputs_moved_on_by_one():
    inputs, targets = batch(TOKENS, SETTINGS, seed=1, step=3)
    assert inputs.shape == targets.shape == (4, 10)
    assert np.array_equal(inputs[:, 1:], targets[:, :-1])
    assert np.array_equal(targets[:, -1], inputs[:, -1] + 1)


def test_one_batch_for_ever_is_that_of_step_1():
    same = SETTINGS.model_copy(update={"overfit_one_batch": True})
    first = batch(TOKENS, SETTINGS, seed=1, step=1)
    assert np.array_equal(first, batch(TOKENS, same, seed=1, step=500))


def test_the_data_bug_makes_every_token_its_own_target():
    inputs, targets = batch(TOKENS, SETTINGS.model_copy(update={"shift_targets": False}), seed=1, step=3)
    assert np.array_equal(inputs, targets)


def test_a_step_gives_the_same_batch_whenever_it_is_asked():
    first = batch_starts(len(TOKENS), SETTINGS, seed=1, step=7)
    for step in (1, 500, 7, 8):
        last = batch_starts(len(TOKENS), SETTINGS, seed=1, step=step)
    assert not np.array_equal(first, last)
    assert np.array_equal(first, batch_starts(len(TOKENS), SETTINGS, seed=1, step=7))


@pytest.mark.parametrize("size", [4, 7])  # 7 does not divide 40: batches span the ends of epochs
def test_every_epoch_covers_every_window_once_in_its_own_order(size):
    steps = range(1, 2 * 40 // size + 2)
    starts = np.concatenate(
        [batch_starts(len(TOKENS), SETTINGS.model_copy(update={"batch": size}), seed=5, step=step) for step in steps]
    )
    epochs = starts[:40], starts[40:80]
    for epoch in epochs:
        assert sorted(epoch) == list(range(0, 400, 10))
    assert not np.array_equal(*epochs)


def test_seed_0_is_a_seed_like_any_other():
    zero, one = (batch_starts(len(TOKENS), SETTINGS, seed=seed, step=1) for seed in (0, 1))
    assert not np.array_equal(zero, one)
    assert np.array_equal(zero, batch_starts(len(TOKENS), SETTINGS, seed=0, step=1))


def test_kills_are_drawn_from_the_seed_alone():
    assert kill_steps(3, steps=800, kills=3) == kill_steps(3, steps=800, kills=3)
    assert kill_steps(3, steps=800, kills=3) != kill_steps(4, steps=800, kills=3)
    drawn = [step for seed in range(300) for step in kill_steps(seed, steps=800, kills=3)]
    assert 1 <= min(drawn) and max(drawn) <= 799
    assert (
        abs(np.mean(drawn) - 400) < 35
    )  # four standard errors of 900 even draws (231 / 30): one false alarm in 16,000
    assert kill_steps(1, steps=800, kills=0) == []
