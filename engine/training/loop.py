"""Train one run, from wherever it stopped, in this process:

    python -m engine.training.loop runs/local/1.7/cpu/often-s1

One step is: the batch of (seed, step), loss, gradients, clipping, update, a line in the log. Everything that a step
depends on is either a pure function of settings, seed and step, or in the checkpoint. So a run that was killed any
number of times ends on the same weights, bit for bit, as one that was not.
"""

import time

PROCESS_STARTED = time.perf_counter()  # before torch is imported: those seconds are part of what a restart costs

import math
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.errors import UserError, disk_problem, problem, shown
from engine.lesson import Settings
from engine.runs import FINGERPRINT, Log, RunFolder, changed_keys, lock, metric_rows, provenance
from engine.training import checkpoint
from engine.training.data import batch, kill_steps
from engine.training.evaluate import Validation, evaluate, make_validation
from engine.training.generate import sample
from engine.training.machine import autocast, decide_compile, decide_precision, peak_memory_bytes
from engine.training.model import GPT
from engine.training.optim import learning_rate, make_optimizer
from engine.training.summary import summary, weights_hash
from engine.training.tokens import Text, load_text

PROJECT = Path(__file__).parents[2]


class Stopped(Exception):
    """Somebody asked this run to stop, and a checkpoint is saved."""


@dataclass
class Training:
    """What a step needs and what it changes."""

    folder: RunFolder
    config: dict[str, Any]
    settings: Settings
    machine: dict[str, Any]  # this process's provenance
    text: Text
    validation: Validation
    model: GPT
    loss: Callable[[Tensor, Tensor], Tensor]  # the model's, compiled or not
    precision: str  # as decided: fp32 or bf16
    optimizer: torch.optim.Optimizer
    initial_weights: str  # hash
    log: Log
    attempt: int
    wall_before_s: float  # process time of earlier attempts
    step: int = 0
    bytes_seen: int = 0

    @property
    def seed(self) -> int:
        return self.config["seed"]

    @property
    def wall_s(self) -> float:
        return self.wall_before_s + time.perf_counter() - PROCESS_STARTED

    def write(self, event: str, **fields: Any) -> None:
        self.log.write(event, step=self.step, attempt=self.attempt, wall_s=round(self.wall_s, 3), **fields)


def train(folder: RunFolder, *, inexact: bool, stop: threading.Event) -> None:
    """Bring the run in `folder` to its end. UserError if it cannot go on; Stopped once `stop` is set."""
    training = prepare(folder)
    resume(training, inexact)
    settings = training.settings
    killed = {event["step"] for event in folder.read_log() if event["event"] == "kill"}
    kills = set(kill_steps(training.seed, settings.total_steps, settings.kills)) - killed
    if training.step == 0:
        write_row(training, {})
    while training.step < settings.total_steps:
        row = train_step(training)
        write_row(training, row)
        if not (math.isfinite(row["train_loss"]) and math.isfinite(row["grad_norm"])):
            end_diverged(training, row)
            break
        if training.step in kills:
            # Before the checkpoint that may be due now: it is lost too, as in a crash.
            training.write("kill")
            os.kill(os.getpid(), signal.SIGKILL)
        due = training.step % settings.checkpoint_every == 0 or training.step == settings.total_steps
        if due or stop.is_set():
            save(training)
        if stop.is_set():
            training.write("stopped")
            raise Stopped
    training.write("finished")
    folder.finish(summary(training))


def prepare(folder: RunFolder) -> Training:
    """Text, a new model drawn from the seed, its optimizer."""
    config = folder.read_config()
    settings = Settings.model_validate(config["settings"])
    torch.set_num_threads(settings.threads)
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise UserError(
            problem("device", "torch sees no CUDA GPU", next="install a torch built for CUDA, or add --profile cpu")
        )
    text = load_text(settings)
    if text.data_sha256 != config["data_sha256"]:
        raise UserError(problem(shown(folder.config), "the text changed since this run was begun", got=text.data_sha256, expected=config["data_sha256"], next="put the old text back, or start over by adding --fresh"))  # fmt: skip
    torch.manual_seed(config["seed"])
    model = GPT(settings, text.tokenizer.vocab_size).to(settings.device)
    compiled, warning = decide_compile(settings)
    earlier = folder.read_log()
    training = Training(
        folder, config, settings, provenance(PROJECT), text,
        make_validation(text.validation, settings, text.tokenizer.byte_lengths), model,
        # The method and not the model is compiled: weights keep their names, so a compiled run's checkpoint loads anywhere.
        torch.compile(model.loss) if compiled else model.loss,
        decide_precision(settings), make_optimizer(model, settings), weights_hash(model), Log(folder.log),
        attempt=1 + sum(event["event"] == "started" for event in earlier),
        wall_before_s=earlier[-1]["wall_s"] if earlier else 0.0,
    )  # fmt: skip
    startup_s = (
        time.perf_counter() - PROCESS_STARTED
    )  # imports, text, model: what every restart costs beside the redone steps
    training.write(
        "started",
        startup_s=round(startup_s, 3),
        provenance=training.machine,
        precision=training.precision,
        compiled=compiled,
    )
    if warning:
        training.write("warning", text=warning)
    return training


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
    """One optimizer update; returns what the log keeps of it. A loss that is no number is returned, and updates nothing."""
    started = time.perf_counter()
    settings = training.settings
    step = training.step + 1
    inputs, targets = (
        torch.from_numpy(ids).to(settings.device) for ids in batch(training.text.train, settings, training.seed, step)
    )
    rate = learning_rate(settings, step)
    for group in training.optimizer.param_groups:
        group["lr"] = rate
    loss_sum = 0.0
    for some_inputs, some_targets in zip(
        inputs.chunk(settings.accumulate), targets.chunk(settings.accumulate), strict=True
    ):
        with autocast(settings.device, training.precision):
            # Each micro-batch holds the same number of tokens, so the mean of their means is the batch's mean.
            loss = training.loss(some_inputs, some_targets) / settings.accumulate
        loss.backward()
        loss_sum += loss.item()
    grad_norm = clip_gradients(training.model, settings.clip)
    if math.isfinite(loss_sum) and math.isfinite(grad_norm):
        training.optimizer.step()
    training.optimizer.zero_grad(set_to_none=True)
    training.step = step
    training.bytes_seen += int(training.text.tokenizer.byte_lengths[targets.cpu().numpy()].sum())
    speed = round(targets.numel() / (time.perf_counter() - started), 1)
    return {"train_loss": loss_sum, "grad_norm": grad_norm, "lr": rate, "tokens_per_s": speed}


def clip_gradients(model: GPT, largest: float) -> float:
    """Scale all gradients down so that their common norm is at most `largest` (0 = leave them); returns the norm before.

    torch's clip_grad_norm_ in two parts: the second one runs only where it changes something.
    """
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if largest and norm + 1e-6 > largest:  # torch divides by norm + 1e-6
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), largest, norm)
    return norm.item()


def end_diverged(training: Training, row: dict[str, Any]) -> None:
    """A loss or gradient that is infinite or no number: the end of a run that may diverge, an error in any other.

    UserError with the step and the last ten losses. The last checkpoint stays; going on from it would end here again.
    """
    training.write("diverged")
    if training.settings.may_diverge:
        return
    before = [one["train_loss"] for one in metric_rows(training.folder.read_log()) if 0 < one["step"] < training.step]
    losses = ", ".join(f"{loss:.3f}" for loss in before[-10:])
    raise UserError(problem(
        shown(training.folder.path), f"the loss or its gradient is no finite number at step {training.step}",
        got=f"loss {row['train_loss']}, gradient norm {row['grad_norm']}; the losses before it: {losses}",
        next="lower lr, add warmup steps, or set may_diverge = true if the lesson is about this",
    ))  # fmt: skip


def write_row(training: Training, row: dict[str, Any]) -> None:
    """One line of the log, with validation loss and samples where they are due."""
    settings, step = training.settings, training.step
    last = step == settings.total_steps
    if step % settings.eval_every == 0 or last:
        with autocast(settings.device, training.precision):
            nats_per_token, bits_per_byte = evaluate(training.model, training.validation)
        row = row | {
            "val_loss": nats_per_token,
            "val_bpb": bits_per_byte,
            "peak_mem_bytes": peak_memory_bytes(settings.device),
        }
    if settings.sample_every and (step % settings.sample_every == 0 or last):
        for one in sample(training.model, training.text.tokenizer, settings, training.seed, step):
            training.write("sample", prompt=one.prompt, text=one.text, tokens_per_s=one.tokens_per_s)
    tokens_seen = step * settings.batch * settings.context
    training.write("step", tokens=tokens_seen, bytes=training.bytes_seen, **row)


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
