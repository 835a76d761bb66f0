"""What a finished run says of itself: final numbers, what they cost, and the hashes that prove what was paired."""

import datetime
import hashlib
import math
import statistics
from typing import Any

from engine.lesson import Settings
from engine.runs import WITH_CHANGES, metric_rows
from engine.training.data import batch_starts
from engine.training.model import GPT
from engine.training.plan import flops_per_token

WARMING_STEPS = 10


def weights_hash(model: GPT) -> str:
    """sha256 over every weight's name, shape and bytes: equal hashes mean equal models, to the last bit."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def batch_order_hash(settings: Settings, token_count: int, seed: int) -> str:
    """sha256 over where every sequence of every step starts: equal hashes mean that two runs read the same batches."""
    digest = hashlib.sha256()
    for step in range(1, settings.total_steps + 1):
        digest.update(batch_starts(token_count, settings, seed, step).tobytes())
    return digest.hexdigest()


def summary(training) -> dict[str, Any]:
    """summary.json of a loop.Training that ended, but for the files' hashes."""
    events, settings = training.folder.read_log(), training.settings
    of_kind = lambda kind: [event for event in events if event["event"] == kind]
    rows = [row for row in metric_rows(events) if row["step"] <= training.step]
    saves, started = of_kind("checkpoint"), of_kind("started")
    evaluated = [row for row in rows if row["val_loss"] is not None]
    diverged = events[-2]["event"] == "diverged"  # the last but one: the run ends by "finished" in any case
    final = (
        rows[-1] if not diverged else {}
    )  # a diverged run has no final loss: None, never a number that looks like one
    vocab_size = training.text.tokenizer.vocab_size
    return {
        "steps": training.step,
        "tokens": rows[-1]["tokens"],
        "bytes": rows[-1]["bytes"],
        "train_loss": final.get("train_loss"),
        "val_loss": final.get("val_loss"),
        "val_bpb": final.get("val_bpb"),
        "diverged_at": training.step if diverged else None,
        **extremes(rows),
        "parameters": training.model.parameter_count(),
        "flops_per_token": flops_per_token(settings, vocab_size),
        "weights_sha256": weights_hash(training.model),
        "initial_weights_sha256": training.initial_weights,
        "batch_order_sha256": batch_order_hash(settings, len(training.text.train), training.seed),
        "validation_sha256": hashlib.sha256(training.validation.targets.cpu().numpy().tobytes()).hexdigest(),
        "precision": training.precision,
        "compiled": started[-1]["compiled"],
        "wall_s": round(training.wall_s, 3),
        "tokens_per_s": median_speed(rows),
        "peak_mem_bytes": max(row["peak_mem_bytes"] for row in evaluated),
        "attempts": training.attempt,
        "kills": len(of_kind("kill")),
        "redone_steps": sum(event["redone"] for event in of_kind("resumed")),
        "redone_s": round(redone_seconds(events), 3),
        "startup_s": round(sum(event["startup_s"] for event in started), 3),
        "checkpoints": len(saves),
        "checkpoint_s": round(sum(event["seconds"] for event in saves), 4),
        "checkpoint_bytes": saves[-1]["bytes"] if saves else 0,
        "resumed_inexactly": [change for event in of_kind("resumed_inexactly") for change in event["changes"]],
        "commits": list(dict.fromkeys(_commit(event["provenance"]) for event in started)),
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def extremes(rows: list[dict[str, Any]]) -> dict[str, float | None]:
    """Where a curve began, its lowest and its highest point: what a lesson says of the way, not of the end. Of finite
    numbers only, None if a diverged run has none."""
    valued = lambda name: [(row[name], row["step"]) for row in rows if row[name] is not None]
    finite = lambda name: [pair for pair in valued(name) if math.isfinite(pair[0])]
    losses, norms = finite("val_loss"), finite("grad_norm")
    lowest, largest = min(losses, default=(None, None)), max(norms, default=(None, None))
    return {
        "first_val_loss": losses[0][0] if losses else None,  # of the model before training
        "lowest_val_loss": lowest[0],
        "lowest_val_step": lowest[1],
        "largest_grad_norm": largest[0],
        "largest_grad_step": largest[1],
    }


def _commit(provenance: dict[str, Any]) -> str:
    return (provenance["git_commit"] or "unknown") + (WITH_CHANGES if provenance["git_dirty"] else "")


def median_speed(rows: list[dict[str, Any]]) -> float:
    """Tokens per second as the median over steps. A step's time holds no evaluation and no checkpoint; the first steps
    of each attempt, which allocate memory and choose kernels, are left out."""
    steps_of: dict[int, int] = {}
    speeds = []
    for row in rows:
        if row["tokens_per_s"] is not None:
            steps_of[row["attempt"]] = steps_of.get(row["attempt"], 0) + 1
            speeds += [row["tokens_per_s"]] if steps_of[row["attempt"]] > WARMING_STEPS else []
    return statistics.median(speeds or [row["tokens_per_s"] for row in rows if row["tokens_per_s"]] or [0.0])


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
