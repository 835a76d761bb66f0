"""Which tokens a step sees: a pure function of seed and step.

Nothing here has state. So two arms with one seed read the same batches, a resumed run needs no loader state to go on
where it stopped, and a test can ask for step 1,000,000 at once.
"""

from functools import lru_cache

import numpy as np

from engine.lesson import Settings


def batch_starts(token_count: int, settings: Settings, seed: int, step: int) -> np.ndarray:
    """Where each sequence of optimizer step `step` (the first is 1) starts in the training tokens: (B,), int64.

    The text is cut into windows of `context` tokens, each with one more token to predict. Every epoch is its own
    random permutation of them: no window comes twice before all came once, unlike independent random draws, which
    would leave out about a third of the text in one epoch's worth of steps.
    """
    windows = (token_count - 1) // settings.context
    step = 1 if settings.overfit_one_batch else step
    places = np.arange((step - 1) * settings.batch, step * settings.batch)  # in the endless sequence of windows
    epochs, within = np.divmod(places, windows)
    order = [_epoch_order(windows, seed, int(epoch))[at] for epoch, at in zip(epochs, within, strict=True)]
    return np.array(order) * settings.context


@lru_cache(maxsize=2)  # a batch can span the end of one epoch and the start of the next
def _epoch_order(windows: int, seed: int, epoch: int) -> np.ndarray:
    # Philox is counter-based: the key alone decides the numbers, wherever and however often they are drawn.
    return np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(windows)


def batch(tokens: np.ndarray, settings: Settings, seed: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of a step, both (B, T), int64: the targets are the inputs moved on by one token."""
    starts = batch_starts(len(tokens), settings, seed, step)
    windows = tokens[starts[:, None] + np.arange(settings.context + 1)].astype(np.int64)  # (B, T + 1)
    if not settings.shift_targets:
        return windows[:, :-1], windows[:, :-1]  # the data bug of lesson 1.8: copying the input is a perfect answer
    return windows[:, :-1], windows[:, 1:]


def kill_steps(seed: int, steps: int, kills: int) -> list[int]:
    """The steps at which a run is killed, drawn from the seed: the same for every arm, chosen by nobody."""
    generator = np.random.Generator(np.random.Philox(key=[seed, 0xDEAD]))
    return sorted(int(step) for step in generator.choice(np.arange(1, steps), size=kills, replace=False))
