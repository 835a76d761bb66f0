"""Train one run, from wherever it stopped, in this process:

    python -m engine.training.loop runs/local/1.7/cpu/often-s1

One step is: the batch of (seed, step), loss, gradients, clipping, update, a line in the log. Everything that a step
depends on is either a pure function of settings, seed and step, or in the checkpoint. So a run that was killed any
number of times ends on the same weights, bit for bit, as one that was not.
"""

import time

PROCESS_STARTED = time.perf_counter()  # before torch is imported: those seconds are part of what a restart costs

import hashlib
import os
import resource
import signal
import statistics
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.errors import UserError, disk_problem, problem, shown
from engine.lesson import Settings
from engine.runs import FINGERPRINT, WITH_CHANGES, Log, RunFolder, changed_keys, lock, metric_rows, provenance
from engine.training import checkpoint
from engine.training.corpus import load_corpus
from engine.training.data import BETWEEN_DOCUMENTS, batch, batch_starts, kill_steps
from engine.training.evaluate import Validation, evaluate, make_validation
from engine.training.model import GPT
from engine.training.optim import learning_rate, make_optimizer
from engine.training.tokens import load_tokenizer

PROJECT = Path(__file__).parents[2]
WARMING_STEPS = 10  # the first steps of a process allocate memory and choose kernels: no measure of speed


class Stopped(Exception):
    """Somebody asked this run to stop, and a checkpoint is saved."""


@dataclass
class Training:
    """What a step needs and what it changes."""

    folder: RunFolder
    config: dict[str, Any]
    settings: Settings
    machine: dict[str, Any]  # this process's provenance
    tokens: np.ndarray  # the training text
    byte_lengths: np.ndarray
    validation: Validation
    model: GPT
    optimizer: torch.optim.Optimizer
    log: Log
    attempt: int
    wall_before_s: float  # process time of earlier attempts
    step: int = 0
    bytes_seen: int = 0

    @property
    def wall_s(self) -> float:
        return self.wall_before_s + time.perf_counter() - PROCESS_STARTED

    def write(self, event: str, **fields: Any) -> None:
        self.log.write(event, step=self.step, attempt=self.attempt, wall_s=round(self.wall_s, 3), **fields)


def train(folder: RunFolder, *, inexact: bool, stop: threading.Event) -> None:
    """Bring the run in `folder` to its end. UserError if it cannot go on; Stopped once `stop` is set."""
    training, first_attempt_hash = prepare(folder)
    resume(training, inexact)
    settings, seed = training.settings, training.config["seed"]
    killed = {event["step"] for event in folder.read_log() if event["event"] == "kill"}
    kills = set(kill_steps(seed, settings.steps, settings.kills)) - killed
    if training.step == 0:
        write_row(training, {})
    while training.step < settings.steps:
        write_row(training, train_step(training))
        if training.step in kills:
            # Before the checkpoint that may be due now: it is lost too, as in a crash.
            training.write("kill")
            os.kill(os.getpid(), signal.SIGKILL)
        due = training.step % settings.checkpoint_every == 0 or training.step == settings.steps
        if due or stop.is_set():
            save(training)
        if stop.is_set():
            training.write("stopped")
            raise Stopped
    training.write("finished")
    folder.finish(summary(training, first_attempt_hash))


def prepare(folder: RunFolder) -> tuple[Training, str]:
    """Text, a new model drawn from the seed, its optimizer; and the hash of the model's initial weights."""
    config = folder.read_config()
    settings = Settings.model_validate(config["settings"])
    torch.set_num_threads(settings.threads)
    corpus, tokenizer = load_corpus(settings.corpus), load_tokenizer(settings.tokenizer)
    tokens = tokenizer.encode(BETWEEN_DOCUMENTS.join(corpus.train))
    held_out = tokenizer.encode(BETWEEN_DOCUMENTS.join(corpus.validation))
    validation = make_validation(
        held_out, settings.context, settings.eval_tokens, tokenizer.byte_lengths, settings.device
    )
    torch.manual_seed(config["seed"])
    model = GPT(settings, tokenizer.vocab_size).to(settings.device)
    earlier = folder.read_log()
    training = Training(
        folder, config | {"data_sha256": corpus.sha256}, settings, provenance(PROJECT), tokens, tokenizer.byte_lengths, validation,
        model, make_optimizer(model, settings), Log(folder.log),
        attempt=1 + sum(event["event"] == "started" for event in earlier),
        wall_before_s=earlier[-1]["wall_s"] if earlier else 0.0,
    )  # fmt: skip
    startup_s = (
        time.perf_counter() - PROCESS_STARTED
    )  # imports, text, model: what every restart costs beside the redone steps
    training.write("started", startup_s=round(startup_s, 3), provenance=training.machine)
    return training, weights_hash(model)


def resume(training: Training, inexact: bool) -> None:
    """Go back to the newest whole checkpoint. UserError if it belongs to other settings, data or (unless inexact) machine."""
    warn = lambda text: training.write("warning", text=text)
    state = checkpoint.load(training.folder.checkpoints, warn)
    rows = metric_rows(training.folder.read_log())
    reached = [event["step"] for event in training.folder.read_log() if event["event"] == "step"]
    if state is not None:
        refuse_other_run(training, state)
        changes = [
            f"{key}: {state['machine'][key]} -> {training.machine[key]}"
            for key in FINGERPRINT
            if state["machine"][key] != training.machine[key]
        ]
        if changes:
            accept_other_machine(training, changes, inexact)
        if len(rows) <= state["step"]:
            raise UserError(
                problem(
                    shown(training.folder.log),
                    f"the log holds fewer steps than the checkpoint of step {state['step']}",
                    next="train the run anew with --fresh",
                )
            )
        restore(training, state)
    if reached:
        training.write("resumed", redone=reached[-1] - training.step)


def refuse_other_run(training: Training, state: dict[str, Any]) -> None:
    changes = changed_keys(state["config"], training.config)
    if changes:
        raise UserError(
            problem(
                shown(training.folder.checkpoints),
                "the checkpoint was made with other settings or data",
                got="; ".join(changes),
                next="set them back, or start over by adding --fresh",
            )
        )


def accept_other_machine(training: Training, changes: list[str], inexact: bool) -> None:
    if not inexact:
        raise UserError(
            problem(
                shown(training.folder.checkpoints),
                "the checkpoint was made on another machine, so the last bits would differ",
                got="; ".join(changes),
                next="go on there, start over by adding --fresh, or accept it by adding --resume-inexact (the page will say so)",
            )
        )
    training.write("resumed_inexactly", changes=changes)


def restore(training: Training, state: dict[str, Any]) -> None:
    """Everything back, but for what the lesson leaves out on purpose. Generators last: loading may draw from them."""
    training.step, training.bytes_seen = state["step"], state["bytes_seen"]
    training.model.load_state_dict(state["model"])
    if training.settings.resume_without != "optimizer":
        training.optimizer.load_state_dict(state["optimizer"])
    if training.settings.resume_without != "generators":
        torch.set_rng_state(state["generators"]["cpu"])
        if "cuda" in state["generators"]:
            torch.cuda.set_rng_state(state["generators"]["cuda"])


def save(training: Training) -> None:
    """A checkpoint of now. Only torch's generators are in it: nothing in training draws from Python's or numpy's."""
    generators = {"cpu": torch.get_rng_state()}
    if training.settings.device == "cuda":
        generators["cuda"] = torch.cuda.get_rng_state()
    training.log.sync()
    saved = checkpoint.save(
        training.folder.checkpoints,
        training.step,
        {
            "step": training.step,
            "bytes_seen": training.bytes_seen,
            "model": training.model.state_dict(),
            "optimizer": training.optimizer.state_dict(),
            "generators": generators,
            "config": {key: training.config[key] for key in ("settings", "seed", "data_sha256", "numerics_version")},
            "machine": {key: training.machine[key] for key in FINGERPRINT},
        },
    )
    training.write("checkpoint", file=saved.path.name, seconds=saved.seconds, bytes=saved.bytes)


def train_step(training: Training) -> dict[str, Any]:
    """One optimizer update; returns what the log keeps of it."""
    started = time.perf_counter()
    settings = training.settings
    step = training.step + 1
    inputs, targets = batch(training.tokens, settings.context, settings.batch, training.config["seed"], step)
    as_tensor = lambda ids: torch.from_numpy(ids).to(settings.device)
    for group in training.optimizer.param_groups:
        group["lr"] = learning_rate(settings, step)
    loss = training.model.loss(as_tensor(inputs), as_tensor(targets))
    loss.backward()
    grad_norm = torch.nn.utils.clip_grad_norm_(training.model.parameters(), settings.clip or float("inf"))
    training.optimizer.step()
    training.optimizer.zero_grad(set_to_none=True)
    training.step = step
    training.bytes_seen += int(training.byte_lengths[targets].sum())
    row = {"train_loss": loss.item(), "grad_norm": grad_norm.item(), "lr": learning_rate(settings, step)}
    return row | {"tokens_per_s": round(targets.size / (time.perf_counter() - started), 1)}


def write_row(training: Training, row: dict[str, Any]) -> None:
    """One line of the log, with the validation loss where it is due."""
    settings = training.settings
    if training.step % settings.eval_every == 0 or training.step == settings.steps:
        nats_per_token, bits_per_byte = evaluate(training.model, training.validation)
        row = row | {
            "val_loss": nats_per_token,
            "val_bpb": bits_per_byte,
            "peak_mem_bytes": peak_memory_bytes(settings.device),
        }
    tokens_seen = training.step * settings.batch * settings.context
    training.write("step", tokens=tokens_seen, bytes=training.bytes_seen, **row)


def peak_memory_bytes(device: str) -> int:
    """Largest memory so far: of the allocator on CUDA, of the process (VmHWM) elsewhere."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    try:
        # Not ru_maxrss where it can be helped: a child inherits its parent's peak there.
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024
    except OSError:  # macOS has no /proc, and counts ru_maxrss in bytes
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def weights_hash(model: GPT) -> str:
    """sha256 over every weight's name, shape and bytes: equal hashes mean equal models, to the last bit."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def batch_order_hash(training: Training) -> str:
    """sha256 over where every sequence of every step starts: equal hashes mean that two runs read the same batches."""
    settings, digest = training.settings, hashlib.sha256()
    for step in range(1, settings.steps + 1):
        digest.update(
            batch_starts(
                len(training.tokens), settings.context, settings.batch, training.config["seed"], step
            ).tobytes()
        )
    return digest.hexdigest()


def summary(training: Training, initial_weights: str) -> dict[str, Any]:
    """summary.json but for the files' hashes: final numbers, what they cost, what was paired."""
    events = training.folder.read_log()
    of_kind = lambda kind: [event for event in events if event["event"] == kind]
    rows, saves = metric_rows(events), of_kind("checkpoint")
    evaluated = [row for row in rows if row["val_loss"] is not None]
    started = [event["provenance"] for event in of_kind("started")]
    return {
        "steps": training.step,
        "tokens": rows[-1]["tokens"],
        "train_loss": rows[-1]["train_loss"],
        "val_loss": evaluated[-1]["val_loss"],
        "val_bpb": evaluated[-1]["val_bpb"],
        "parameters": training.model.parameter_count(),
        "weights_sha256": weights_hash(training.model),
        "initial_weights_sha256": initial_weights,
        "batch_order_sha256": batch_order_hash(training),
        "validation_sha256": hashlib.sha256(training.validation.targets.cpu().numpy().tobytes()).hexdigest(),
        "wall_s": round(training.wall_s, 3),
        "tokens_per_s": statistics.median(
            [row["tokens_per_s"] for row in rows[1 + WARMING_STEPS :]] or [rows[-1]["tokens_per_s"]]
        ),
        "peak_mem_bytes": max(row["peak_mem_bytes"] for row in evaluated),
        "attempts": training.attempt,
        "kills": len(of_kind("kill")),
        "redone_steps": sum(event["redone"] for event in of_kind("resumed")),
        "redone_s": round(redone_seconds(events), 3),
        "startup_s": round(sum(event["startup_s"] for event in of_kind("started")), 3),
        "checkpoints": len(saves),
        "checkpoint_s": round(sum(event["seconds"] for event in saves), 4),
        "checkpoint_bytes": saves[-1]["bytes"],
        "resumed_inexactly": [change for event in of_kind("resumed_inexactly") for change in event["changes"]],
        "commits": list(
            dict.fromkeys(f"{p['git_commit'] or 'unknown'}{WITH_CHANGES if p['git_dirty'] else ''}" for p in started)
        ),
        "finished": provenance(PROJECT)["started"],
    }


def redone_seconds(events: list[dict[str, Any]]) -> float:
    """Time from each resume until the run was back at the step it had reached before (or was killed again)."""
    total_s, since_s, now_s, goal = 0.0, 0.0, 0.0, 0
    for event in events:
        if event["event"] == "resumed":
            total_s += now_s - since_s  # of the attempt before: it never got back
            since_s, now_s, goal = event["wall_s"], event["wall_s"], event["step"] + event["redone"]
        elif event["event"] == "step" and goal and event["step"] <= goal:
            now_s = event["wall_s"]
    return total_s + now_s - since_s


def stop_on_request(watch_parent: bool) -> threading.Event:
    """An event set by SIGTERM, by Ctrl-C and, if asked, by the end of the process that holds our standard input."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())

    def wait_for_parent() -> None:
        os.read(sys.stdin.fileno(), 1)  # returns when the parent's end is closed, however the parent ended
        stop.set()

    if watch_parent:
        threading.Thread(target=wait_for_parent, daemon=True).start()
    return stop


def main(arguments: list[str]) -> int:
    stop = stop_on_request("--watch-parent" in arguments)
    folder = RunFolder(Path(arguments[0]))
    try:
        with lock(folder.path / "lock", shown(folder.path)):
            train(folder, inexact="--resume-inexact" in arguments, stop=stop)
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(disk_problem(error), file=sys.stderr)
        return 1
    except Stopped:
        return 128 + signal.SIGTERM  # the shell's way to say "ended by SIGTERM"
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
