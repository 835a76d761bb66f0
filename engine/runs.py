"""The run folder: the only thing that the training room and the publishing room share.

A run is finished when metrics.parquet exists: it is renamed into place last, whole. Until then log.jsonl holds one
line an event, and whatever happens to the process, the lines that were flushed can be read.
"""

import contextlib
import datetime
import fcntl
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from engine.errors import UserError, problem, shown
from engine.lesson import Lesson, RunConfig, Settings

# Raised on purpose when a change of code changes what a run computes: it makes every recorded run stale.
NUMERICS_VERSION = 1
MAX_ROWS = 1_000
WITH_CHANGES = " with changes"  # behind the commit of a run whose tree was not clean

UNITS = {  # column -> (type, unit, meaning)
    "step": (pa.int32(), "optimizer updates", "updates done; 0 is the model before training"),
    "tokens": (pa.int64(), "tokens", "tokens trained on so far"),
    "bytes": (pa.int64(), "bytes", "bytes of text trained on so far"),
    "wall_s": (pa.float32(), "seconds", "process time over all attempts, redone steps included"),
    "train_loss": (pa.float32(), "nats per token", "loss on this step's batch, before its update"),
    "val_loss": (pa.float32(), "nats per token", "loss on the validation tokens, after this step's update"),
    "val_bpb": (pa.float32(), "bits per byte", "the same, per byte of validation text"),
    "lr": (pa.float32(), "1", "learning rate of this step's update"),
    "grad_norm": (pa.float32(), "1", "gradient norm before clipping"),
    "tokens_per_s": (pa.float32(), "tokens per second", "speed of this step without evaluation and checkpoint"),
    "peak_mem_bytes": (pa.int64(), "bytes", "largest resident memory of the process so far (on CUDA: allocated)"),
    "attempt": (pa.int16(), "1", "which start of the process computed the row; 1 is the first"),
}
SCHEMA = pa.schema(
    [pa.field(name, kind, metadata={"unit": unit, "meaning": meaning}) for name, (kind, unit, meaning) in UNITS.items()]
)
# What may differ between two runs of the same settings that computed the same thing.
MACHINE_COLUMNS = ("wall_s", "tokens_per_s", "peak_mem_bytes", "attempt")


class RunFolder:
    """Paths of one run and the order in which its files are written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        self.log = path / "log.jsonl"
        self.checkpoints = path / "checkpoints"
        self.summary = path / "summary.json"
        self.events = path / "events.parquet"
        self.metrics = path / "metrics.parquet"

    @property
    def finished(self) -> bool:
        return self.metrics.exists()

    def read_config(self) -> dict[str, Any]:
        return _read_json(self.config)

    def write_config(self, config: RunConfig, data_sha256: str, provenance: dict[str, Any]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        write_whole(
            self.config,
            _pretty(
                {
                    "lesson": config.lesson,
                    "profile": config.profile,
                    "arm": config.arm,
                    "seed": config.seed,
                    "settings": config.settings.stated(),
                    "settings_sha256": settings_hash(config.settings),
                    "numerics_version": NUMERICS_VERSION,
                    "data_sha256": data_sha256,
                    "provenance": provenance | {"threads": config.settings.threads},
                }
            ),
        )

    def read_log(self) -> list[dict[str, Any]]:
        """Every whole line; a last line that a kill cut short is no event."""
        if not self.log.exists():
            return []
        return self.parse_log(self.log.read_bytes().rpartition(b"\n")[0])

    @staticmethod
    def parse_log(lines: bytes) -> list[dict[str, Any]]:
        return [json.loads(line) for line in lines.splitlines()]

    def finish(self, summary: dict[str, Any]) -> None:
        """Write events, summary and, last, metrics. UserError if the log does not hold every step once or more."""
        events = self.read_log()
        rows = [row for row in metric_rows(events) if row["step"] <= summary["steps"]]
        if [row["step"] for row in rows] != list(range(len(rows))):
            raise UserError(
                problem(shown(self.log), "steps are missing from the log", next="train the run anew with --fresh")
            )
        metrics = self.path / "metrics.parquet.tmp"
        _write_table(metrics, pa.Table.from_pylist(thinned(rows), schema=SCHEMA))
        _write_table(self.events, _event_table([event for event in events if event["event"] not in ("step", "sample")]))
        if samples := [event for event in events if event["event"] == "sample"]:
            _write_table(self.path / "samples.parquet", _sample_table(samples))
        files = {self.config.name: self.config, self.events.name: self.events, self.metrics.name: metrics}
        files |= {path.name: path for path in self.path.glob("*.parquet") if path != self.metrics}
        summary = summary | {"files_sha256": {name: file_hash(path) for name, path in sorted(files.items())}}
        write_whole(self.summary, _pretty(summary))
        os.replace(metrics, self.metrics)
        sync_folder(self.path)


def metric_rows(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a step, in order. A step that was redone after a kill has one row, the last one written."""
    by_step = {event["step"]: event for event in events if event["event"] == "step"}
    return [{name: by_step[step].get(name) for name in SCHEMA.names} for step in sorted(by_step)]


def thinned(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most MAX_ROWS rows: every evaluation, the last step, and others at equal distances."""
    fixed = {row["step"] for row in rows if row["val_loss"] is not None} | {rows[-1]["step"]}
    stride = max(1, -(-len(rows) // max(1, MAX_ROWS - len(fixed))))
    return [row for row in rows if row["step"] in fixed or row["step"] % stride == 0]


def _event_table(events: list[dict[str, Any]]) -> pa.Table:
    """Event, step, attempt, wall_s, and the rest as JSON text."""
    columns = ("event", "step", "attempt", "wall_s")
    rows = [
        {key: event.get(key) for key in columns}
        | {"details": json.dumps({key: value for key, value in event.items() if key not in columns}, sort_keys=True)}
        for event in events
    ]
    schema = pa.schema(
        [
            ("event", pa.string()),
            ("step", pa.int32()),
            ("attempt", pa.int16()),
            ("wall_s", pa.float32()),
            ("details", pa.string()),
        ]
    )
    return pa.Table.from_pylist(rows, schema=schema)


def _sample_table(samples: list[dict[str, Any]]) -> pa.Table:
    """One row a step and prompt, the last one written: a redone step draws the same sample again."""
    newest = {(sample["step"], sample["prompt"]): sample for sample in samples}
    fields = [("step", pa.int32()), ("prompt", pa.string()), ("text", pa.string()), ("tokens_per_s", pa.float32())]
    rows = [{name: newest[key][name] for name, _ in fields} for key in sorted(newest)]
    return pa.Table.from_pylist(rows, schema=pa.schema(fields))


class Log:
    """Appends to log.jsonl, each line flushed at once: a SIGKILL loses at most the line being written."""

    def __init__(self, path: Path) -> None:
        if path.exists():
            whole = path.read_bytes().rpartition(b"\n")
            os.truncate(path, len(whole[0]) + len(whole[1]))  # what a kill left of a last line
        self._file = path.open("a", encoding="utf-8")

    def write(self, event: str, **fields: Any) -> None:
        self._file.write(json.dumps({"event": event} | fields) + "\n")
        self._file.flush()

    def sync(self) -> None:
        """To the disk itself: before a checkpoint, so that no checkpoint is newer than its log after a power cut."""
        os.fsync(self._file.fileno())


@dataclass(frozen=True)
class Run:
    """A finished run, read and verified."""

    folder: Path
    config: dict[str, Any]
    summary: dict[str, Any]

    @property
    def arm(self) -> str:
        return self.config["arm"]

    @property
    def seed(self) -> int:
        return self.config["seed"]

    @property
    def name(self) -> str:
        return f"{self.arm}-s{self.seed}"

    @property
    def fingerprint(self) -> tuple[Any, ...]:
        """Two runs of one seed and equal fingerprints should be equal to the last bit."""
        return tuple(self.config["provenance"][key] for key in (*FINGERPRINT, "threads"))

    @cached_property
    def metrics(self) -> pa.Table:
        return _read_table(self.folder / "metrics.parquet")

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        rows = _read_table(self.folder / "events.parquet").to_pylist()
        return [row | json.loads(row["details"]) for row in rows]

    @cached_property
    def samples(self) -> list[dict[str, Any]]:
        """Rows of step, prompt, text; empty for a run that drew none."""
        path = self.folder / "samples.parquet"
        return _read_table(path).to_pylist() if path.name in self.summary["files_sha256"] else []

    def final(self, metric: str) -> float | None:
        """The run's final number of that name; None for the loss of a run that diverged."""
        return self.summary[metric]


def read_run(folder: Path) -> Run:
    """A finished run. UserError if a file is missing, damaged, or not the one that the summary names."""
    run = Run(folder, _read_json(folder / "config.json"), _read_json(folder / "summary.json"))
    problems = []
    for name, expected in run.summary["files_sha256"].items():
        path = folder / name
        got = file_hash(path) if path.exists() else "no such file"
        if got != expected:
            problems.append(
                problem(
                    shown(path),
                    "not the file that summary.json names",
                    got=got,
                    expected=expected,
                    next="restore the run from git, or record it anew",
                )
            )
    if problems:
        raise UserError(*problems)
    return run


def changed_keys(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What makes two configs compute different things: e.g. ["lr: 0.001 -> 0.002", "data"]. Empty when nothing does."""
    defaults = {name: field.default for name, field in Settings.model_fields.items()}
    before, after = (defaults | config["settings"] for config in (old, new))
    changes = [
        f"{key}: {before.get(key)!r} -> {after.get(key)!r}"
        for key in sorted(before | after)
        if before.get(key) != after.get(key)
    ]
    for key in ("seed", "data_sha256", "numerics_version"):
        if old[key] != new[key]:
            changes.append(f"{key}: {old[key]!r} -> {new[key]!r}")
    return changes


def staleness(run: Run, settings: Settings) -> list[str]:
    """What a lesson now asks for and the run did not have; empty for a run that is up to date."""
    new = run.config | {"settings": settings.stated(), "numerics_version": NUMERICS_VERSION}
    return changed_keys(run.config, new)


def finished_runs(folder: Path) -> list[Run]:
    """Every finished run below a profile's folder, verified. UserError with the problems of all of them."""
    runs, problems = [], []
    for path in sorted(folder.glob("*/metrics.parquet")):
        try:
            runs.append(read_run(path.parent))
        except UserError as error:
            problems.extend(error.problems)
    if problems:
        raise UserError(*problems)
    return runs


def record_runs(lesson: Lesson, profile: str, runs_folder: Path) -> list[str]:
    """Copy the finished local runs of a lesson's profile over the recorded ones; returns their names. Runs of seeds or
    arms that the lesson does not name stay local.

    UserError, and nothing copied, if there are none, or if one is stale, damaged or from a tree with uncommitted changes.
    """
    wanted = {config.name for config in lesson.runs(profile, lesson.spec.seeds, list(lesson.arms))}
    local = [run for run in finished_runs(runs_folder / "local" / lesson.id / profile) if run.name in wanted]
    where = shown(runs_folder / "local" / lesson.id / profile)
    again = f"python build.py --lesson {lesson.id} --run --fresh"
    problems = (
        []
        if local
        else [problem(where, "there is no finished run to record", next=f"python build.py --lesson {lesson.id} --run")]
    )
    for run in local:
        if changes := staleness(run, lesson.settings[profile][run.arm]):
            problems.append(
                problem(
                    shown(run.folder),
                    "stale: it was made with other settings than the lesson's",
                    got="; ".join(changes),
                    next=again,
                )
            )
        if any(commit.endswith(WITH_CHANGES) for commit in run.summary["commits"]):
            problems.append(
                problem(
                    shown(run.folder),
                    "trained from a tree with uncommitted changes, so nobody could train it again",
                    got=", ".join(run.summary["commits"]),
                    next=f"commit, then {again}",
                )
            )
    if problems:
        raise UserError(*problems)
    for run in local:
        _copy_whole(run, runs_folder / lesson.id / profile / run.name)
    return [run.name for run in local]


def _copy_whole(run: Run, target: Path) -> None:
    """The published part of a run folder, under its final name only when it is complete."""
    aside = run.folder / "recording"  # not beside the target: whoever lists runs would meet it half-written
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        for name in (*run.summary["files_sha256"], "summary.json"):
            shutil.copyfile(run.folder / name, aside / name)
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(aside, target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def settings_hash(settings: Settings) -> str:
    return hashlib.sha256(json.dumps(settings.stated(), sort_keys=True).encode()).hexdigest()


def file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def provenance(project: Path) -> dict[str, Any]:
    """Who computes: commit, versions, machine, date. It never imports torch: the version comes from its metadata."""
    return {
        "git_commit": _output("git", "-C", str(project), "rev-parse", "HEAD"),
        "git_dirty": bool(_output("git", "-C", str(project), "status", "--porcelain")),
        "torch": importlib.metadata.version("torch"),
        "python": platform.python_version(),
        "processor": processor_name(),
        "gpu": _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader"),
        "system": f"{platform.system()} {platform.machine()}",
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


FINGERPRINT = ("torch", "processor", "gpu", "system")  # of the provenance: where one differs, the last bits may


def _output(*command: str) -> str | None:
    """What a command prints, or None if it fails or is not there (a downloaded archive is no repository, a laptop has no GPU)."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def processor_name() -> str:
    """e.g. "AMD EPYC 7B13 (AVX2)". The vector unit is named too: it decides the order of sums, so the last bits."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        flags = facts.get("flags", "").split()
        unit = next((name for flag, name in (("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in flags), "")
        return f"{facts['model name']} ({unit})" if unit else facts["model name"]
    except (OSError, KeyError):
        return platform.processor() or platform.machine()


@contextlib.contextmanager
def lock(path: Path, what: str) -> Iterator[str]:
    """Hold `path` while the block runs. UserError that names the holder if another process has it.

    Yields who held it last and died without giving it back, e.g. "pid 4711 since 2026-11-30 16:10:25+00:00", or "".

    The operating system's lock, not the file's existence: it ends with the process that held it, however that ended.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "a process that has just started"
            raise UserError(
                problem(
                    what,
                    "another process is at work on it",
                    got=holder,
                    next="wait until it ends, or stop it with kill and its pid",
                )
            ) from None
        file.seek(0)
        left_by = file.read().strip()
        _rewrite(file, f"pid {os.getpid()} since {datetime.datetime.now().astimezone().isoformat(' ', 'seconds')}")
        try:
            yield left_by
        finally:
            _rewrite(file, "")  # not reached when we are killed: the next holder then knows


def _rewrite(file: Any, text: str) -> None:
    file.seek(0)
    file.truncate()
    file.write(text)
    file.flush()


def write_whole(path: Path, text: str) -> None:
    """The file has either its old content or all of the new one, never a part."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def sync_folder(path: Path) -> None:
    """Make renames in a folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _pretty(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=1, sort_keys=False) + "\n"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            problem(
                shown(path),
                "cannot be read",
                got=error.strerror,
                next="restore the run from git, or train it anew with --fresh",
            )
        ) from None
    except ValueError as error:
        raise UserError(
            problem(
                shown(path),
                "damaged: not JSON",
                got=str(error),
                next="restore the run from git, or train it anew with --fresh",
            )
        ) from None


def _write_table(path: Path, table: pa.Table) -> None:
    # Page checksums: without them a flipped bit is read as another number, silently.
    with path.open("wb") as file:
        pq.write_table(table, file, write_page_checksum=True, compression="zstd")
        file.flush()
        os.fsync(file.fileno())


def _read_table(path: Path) -> pa.Table:
    try:
        return pq.read_table(path, page_checksum_verification=True, memory_map=False)
    except (OSError, pa.ArrowException) as error:
        raise UserError(
            problem(shown(path), "damaged", got=str(error), next="restore the run from git, or record it anew")
        ) from None
