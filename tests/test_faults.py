"""Runs that go wrong on purpose, samples, sweeps, queues: one wild lesson, trained once."""

import json
import os
import re

import pandas
import pytest
import torch
from conftest import LESSON, Content, write_content

from engine.lesson import Settings
from engine.training.generate import next_token
from engine.training.machine import decide_compile, decide_precision

WILD = (
    LESSON.replace('id = "1.7"', 'id = "1.8"')
    .replace("seeds = [1, 2]", "seeds = [0, 1]")
    .replace('change = ["checkpoint_every"]', 'change = ["lr"]')
    .replace('compare = [["rare", "often"]]', 'compare = [["calm", "wild"]]')
    .replace(
        'name = "redone_steps"\nlabel = "redone steps"\nunit = "steps"',
        'name = "val_loss"\nlabel = "validation loss"\nunit = "nats"',
    )
    .replace(
        'result = "Saving rarely redid {{ rare.final.redone_steps | count }} steps."',
        'result = "The calm run ended at {{ calm.final.val_loss | loss }}."',
    )
    .replace(
        "kills = 1\n",
        'checkpoint_every = 8\nmay_diverge = true\nsample_every = 12\nsample_prompts = ["To be", "</script>"]\nsample_tokens = 5\n',
        1,
    )
)
ARMS_FROM, ARMS_TO = WILD.index("[arms.rare]"), WILD.index("[[charts]]")
WILD = WILD[:ARMS_FROM].replace("lr = 1e-3\n", "") + """\
[arms.calm]
label = "calm"
lr = 1e-3

[arms.wild]
label = "wild"
lr = 1e30

[sweep]
key = "lr"
values = [1e-3, 1e-2]

[sweep.variants.tiny]
label = "tiny"
width = 16

""" + WILD[ARMS_TO:]  # fmt: skip
WILD = re.sub(
    r'holds = ".*"',
    'holds = "wild.final.diverged == 2 and calm.final.diverged == 0 and best(\\\\"tiny\\\\").value > 0"',
    WILD,
)
WILD = WILD.replace(
    'kind = "progress"\ntitle = "Progress"', 'kind = "sweep"\nx_label = "learning rate"\ntitle = "Sweep"'
)
PAGE = 'Ended at {{ calm.final.val_loss | loss }}, best {{ sweep("tiny", 0.01).final.val_loss | loss }}.\n'


@pytest.fixture(scope="module")
def wild(tmp_path_factory) -> Content:
    content = write_content(tmp_path_factory.mktemp("wild"), WILD, PAGE, "1.8-wild")
    before = os.getcwd()
    os.environ["GIT_DIR"] = str(content.root / "no-repository")
    try:
        assert content.build("--lesson", "1.8", "--run", "--seeds", "0,1") == 0
        assert content.build("--lesson", "1.8", "--record") == 0
        yield content
    finally:
        os.chdir(before)
        del os.environ["GIT_DIR"]


def summary(content: Content, run: str) -> dict:
    return json.loads((content.runs / "1.8" / "cpu" / run / "summary.json").read_text())


def test_a_run_that_may_diverge_ends_as_a_finished_run_without_a_final_loss(wild):
    broken = summary(wild, "wild-s0")
    assert broken["diverged_at"] == broken["steps"] < 24
    assert broken["val_loss"] is None
    assert "NaN" not in (wild.runs / "1.8" / "cpu" / "wild-s0" / "summary.json").read_text()
    frame = pandas.read_parquet(wild.runs / "1.8" / "cpu" / "wild-s0" / "metrics.parquet")
    assert list(frame["step"]) == list(range(broken["steps"] + 1))
    assert summary(wild, "calm-s0")["diverged_at"] is None


def test_seed_0_is_trained_like_any_other(wild):
    assert summary(wild, "calm-s0")["weights_sha256"] != summary(wild, "calm-s1")["weights_sha256"]


def test_a_diverged_arm_is_drawn_as_far_as_it_went_and_judged_as_infinitely_worse(wild):
    assert wild.build("--site-only") == 0
    page = (wild.site / "lessons" / "1.8" / "index.html").read_text()
    assert "<strong>differs</strong>: wild against calm" in page
    assert "+∞ nats" in page
    for spec in re.findall(r'<script type="application/json">(.*?)</script>', page, re.DOTALL):
        assert "NaN" not in spec and "Infinity" not in spec
        json.loads(spec)


def test_the_sweep_is_drawn_and_its_values_can_be_named(wild):
    wild.build("--site-only")
    page = (wild.site / "lessons" / "1.8" / "index.html").read_text()
    values = [summary(wild, f"tiny-0.01-s{seed}")["val_loss"] for seed in (0, 1)]
    assert f'best <span class="number">{sum(values) / 2:.3f}</span>' in page
    assert '<th scope="col">learning rate</th><th scope="col">tiny</th>' in page


def test_where_divergence_is_no_purpose_it_is_an_error_with_the_last_losses(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    content = write_content(
        tmp_path, WILD.replace("may_diverge = true\n", "").replace("lr = 1e30", "lr = 3e38"), PAGE, "1.8-wild"
    )
    assert content.build("--lesson", "1.8", "--run", "--arm", "wild", "--seeds", "1") == 1
    lines = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r".*wild-s1: the loss or its gradient is no finite number at step \d+", lines[0])
    assert re.fullmatch(r"  got:      loss \S+, gradient norm \S+; the losses before it: [\d., infa]+", lines[1])
    assert lines[2] == "  next:     lower lr, add warmup steps, or set may_diverge = true if the lesson is about this"


def test_samples_are_kept_with_their_step_prompt_and_speed(wild):
    frame = pandas.read_parquet(wild.runs / "1.8" / "cpu" / "calm-s0" / "samples.parquet")
    assert list(frame.columns) == ["step", "prompt", "text", "tokens_per_s"]
    assert sorted(zip(frame["step"], frame["prompt"], strict=True)) == [
        (step, prompt) for step in (0, 12, 24) for prompt in ("</script>", "To be")
    ]
    assert (frame["tokens_per_s"] > 0).all()


def test_a_new_lesson_checks_trains_and_builds_as_it_stands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    content = write_content(tmp_path, LESSON, "x\n", "1.7-x")
    (content.lesson / "lesson.toml").unlink()
    (content.lesson / "page.md").unlink()
    assert content.build("--new", "1.10", 'Weight "decay" & <b>') == 0
    folder = tmp_path / "lessons" / "1.10-weight-decay-b"
    assert (
        capsys.readouterr().out == "made lessons/1.10-weight-decay-b; train it: python build.py --lesson 1.10 --run\n"
    )
    assert content.build("--check") == 0
    toml = folder / "lesson.toml"
    toml.write_text(toml.read_text().replace("steps = 300", "steps = 60"))
    assert content.build("--lesson", "1.10", "--run") == 0
    assert "Weight &#34;decay&#34; &amp; &lt;b&gt;" in (content.site / "lessons" / "1.10" / "index.html").read_text()
    assert content.build("--new", "1.10", "again") == 1
    assert capsys.readouterr().err.endswith(
        "--new 1.10: there is such a lesson already\n  got:      lessons/1.10-weight-decay-b\n  next:     choose another id\n"
    )


def test_a_phase_or_queue_trains_what_is_not_done_in_order(wild, tmp_path, monkeypatch, capsys):
    import shutil

    monkeypatch.chdir(tmp_path)
    shutil.copytree(wild.root, tmp_path / "content")
    content = Content(tmp_path / "content", "1.8-wild")
    second = write_content(content.root, LESSON, "x\n", "1.7-checkpointing")
    shutil.rmtree(content.local.parent.parent / "1.8" / "cpu" / "calm-s0")
    assert second.build("--phase", "1", "--run", "--seeds", "0") == 0
    out = capsys.readouterr().out
    assert out.index("lesson 1.7: Checkpointing") < out.index("lesson 1.8: Checkpointing")
    assert "wild-s0: finished before, nothing to do" in out and "calm-s0: finished 24 steps" in out
    assert second.build("--queue", "1.8", "1.7", "--seeds", "0") == 0
    out = capsys.readouterr().out
    assert out.index("lesson 1.8: Checkpointing") < out.index("lesson 1.7: Checkpointing")
    assert "finished 24 steps" not in out


def test_a_queue_goes_on_after_a_lesson_that_failed(wild, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    first = write_content(
        tmp_path, LESSON.replace('corpus = "shakespeare"', 'corpus = "nowhere"'), "x\n", "1.7-checkpointing"
    )
    write_content(tmp_path, WILD, PAGE, "1.8-wild")
    assert first.build("--queue", "1.7", "1.8", "--seeds", "1") == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("corpus nowhere: no such corpus\n")
    assert "calm-s1: finished 24 steps" in captured.out


# Decisions and sampling, without a run

SETTINGS = Settings(
    corpus="x",
    layers=1,
    heads=1,
    width=8,
    context=8,
    steps=1,
    batch=1,
    lr=1e-3,
    checkpoint_every=1,
    precision="auto",
    compile="auto",
)


@pytest.mark.parametrize(
    ("flags", "precision"),
    [({"avx2"}, "fp32"), ({"avx2", "avx512f"}, "fp32"), ({"amx_bf16"}, "bf16"), ({"avx512_bf16"}, "bf16")],
)
def test_auto_precision_follows_the_instruction_set(monkeypatch, flags, precision):
    monkeypatch.setattr("engine.training.machine.cpu_flags", lambda: flags)
    assert decide_precision(SETTINGS) == precision
    assert decide_precision(SETTINGS.model_copy(update={"precision": "bf16"})) == "bf16"


def test_auto_never_compiles_on_a_cpu_and_compiles_large_models_on_a_gpu():
    assert decide_compile(SETTINGS) == (False, "")
    assert decide_compile(SETTINGS.model_copy(update={"device": "cuda"})) == (False, "")
    assert decide_compile(SETTINGS.model_copy(update={"device": "cuda", "layers": 6, "width": 384})) == (True, "")


def test_without_a_compiler_training_goes_on_with_a_warning(monkeypatch):
    monkeypatch.setattr("engine.training.machine.shutil.which", lambda name: None)
    assert decide_compile(SETTINGS.model_copy(update={"compile": "on"})) == (
        False, "compile is on, but there is no C++ compiler (g++ or clang++): going on without"
    )  # fmt: skip


def drawn(update: dict) -> set[int]:
    logits = torch.tensor([2.0, 1.0, 0.0, -9.0])
    generator = torch.Generator().manual_seed(3)
    return {int(next_token(logits, SETTINGS.model_copy(update=update), generator)) for _ in range(400)}


def test_sampling_obeys_temperature_top_k_and_top_p():
    assert drawn({"temperature": 0.0}) == {0}
    assert drawn({"top_k": 2}) == {0, 1}
    assert drawn({"top_k": 99, "temperature": 1e6}) == {0, 1, 2, 3}
    assert drawn({"top_p": 0.5}) == {0}  # the likeliest one alone has 0.67
    assert drawn({"top_p": 0.7}) == {0, 1}
