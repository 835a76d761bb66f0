"""Runs each arm as a child process, side by side, restarts it where the lesson kills it, and shows how far each is.

The kills are real (the child sends itself SIGKILL), so only another process can see them and start it again. This
module never imports torch: a supervisor that weighs 20 MB starts at once.
"""

import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from engine.errors import UserError, problem, shown
from engine.lesson import RunConfig
from engine.runs import NUMERICS_VERSION, RunFolder, changed_keys, provenance
from engine.training.tokens import load_text

PROJECT = Path(__file__).parents[2]
PLAIN_EVERY_S = 10.0  # between two progress lines of an arm where there is no terminal
REDRAW_EVERY_S = 0.5


class Interrupted(Exception):
    """A signal ended the training; every run was asked to save a checkpoint. `number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def train_all(
    configs: list[RunConfig],
    folder_of: dict[str, Path],
    *,
    inexact: bool,
    alone: bool = False,
    out: TextIO | None = None,
) -> None:
    """Train what is not finished, as many runs at once as there are CPU cores for their threads; one if `alone`.

    `folder_of` maps a run's name to its folder. UserError with what went wrong in each failed run, after the others
    ended; Interrupted after SIGTERM or Ctrl-C.
    """
    arms = prepare_folders(configs, folder_of, inexact)
    display = Display(out or sys.stdout, [arm for arm in arms if not arm.folder.finished])
    for arm in arms:
        if arm.folder.finished:
            display.say(f"{arm.config.name}: finished before, nothing to do")
    waiting, running, failures = deque(display.arms), [], []
    with _signals() as received:
        while waiting or running:
            if received:
                waiting.clear()
            while waiting and len(running) < (1 if alone else _at_once(waiting[0])):
                running.append(waiting.popleft())
                running[-1].start()
            time.sleep(0.05)
            for arm in list(running):
                ended = arm.process.poll() is not None  # asked before reading: after it nothing more is written
                for line in arm.read_news():
                    display.say(line)
                if ended and not received and arm.was_killed_as_planned:
                    arm.start()
                elif ended:
                    running.remove(arm)
                    failures += [] if received else arm.failure()
            _pass_on(received, running)
            display.refresh(running)
    display.close()
    if received:
        raise Interrupted(received[0])
    if failures:
        raise UserError(*failures)


def prepare_folders(configs: list[RunConfig], folder_of: dict[str, Path], inexact: bool) -> list["Arm"]:
    """config.json of every new run; UserError naming what changed in every old one."""
    if any(config.settings.device == "cuda" for config in configs) and shutil.which("nvidia-smi") is None:
        raise UserError(problem("--run", "this profile needs an NVIDIA GPU, and this machine shows none", next="add --profile cpu, or run it on a machine with a GPU"))  # fmt: skip
    # Here and once, before any child starts: it would be fetched and tokenized by all of them at the same time.
    data = {
        key: load_text(settings).data_sha256 for key, settings in {_text_key(c): c.settings for c in configs}.items()
    }
    here = provenance(PROJECT)
    arms, problems = [], []
    for config in configs:
        folder = RunFolder(folder_of[config.name])
        new = {
            "settings": config.settings.stated(),
            "seed": config.seed,
            "data_sha256": data[_text_key(config)],
            "numerics_version": NUMERICS_VERSION,
        }
        changes = changed_keys(folder.read_config(), new) if folder.config.exists() else []
        if changes:
            problems.append(problem(
                shown(folder.path), "this run was begun with other settings or data", got="; ".join(changes),
                next="set them back, or start over by adding --fresh",
            ))  # fmt: skip
        elif not folder.finished and not any(folder.checkpoints.glob("*.pt")):
            # Nothing computed so far will be in the run, so we are its origin: not whoever began it and was stopped.
            folder.write_config(config, new["data_sha256"], here)
        arms.append(Arm(config, folder, ["--resume-inexact"] if inexact else []))
    if problems:
        raise UserError(*problems)
    return arms


def _text_key(config: RunConfig) -> tuple:
    """Runs with equal keys read the same tokens."""
    settings = config.settings
    return settings.corpus, settings.corpus_tokens, settings.text_column, settings.tokenizer, settings.context


def _at_once(arm: "Arm") -> int:
    if arm.config.settings.device == "cuda":
        return 1  # a GPU's memory holds one run; two would only take turns
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // arm.config.settings.threads)


class _signals:
    """Within the block, SIGTERM and Ctrl-C are collected in a list instead of ending this process."""

    def __enter__(self) -> list[int]:
        received: list[int] = []
        self._before = {
            number: signal.signal(number, lambda n, _: received.append(n)) for number in (signal.SIGINT, signal.SIGTERM)
        }
        return received

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _pass_on(received: list[int], running: list["Arm"]) -> None:
    """The first signal asks the runs to save and stop; another one, from somebody in a hurry, kills them."""
    for arm in running:
        if len(received) > 1:
            arm.process.kill()
        elif received and not arm.asked_to_stop:
            arm.process.terminate()
            arm.asked_to_stop = True


@dataclass
class Arm:
    """One run's child process and what its log has said so far."""

    config: RunConfig
    folder: RunFolder
    options: list[str]
    process: Any = None
    asked_to_stop: bool = False
    row: dict[str, Any] = field(default_factory=dict)  # the newest step
    val_loss: float | None = None
    last_event: str = ""
    speeds: deque[float] = field(default_factory=lambda: deque(maxlen=20))
    errors: deque[str] = field(default_factory=lambda: deque(maxlen=40))  # last lines of its standard error
    _read_to: int | None = None

    def start(self) -> None:
        if self._read_to is None:
            self._read_to = self.folder.log.stat().st_size if self.folder.log.exists() else 0
        self.last_event = ""
        threads = str(self.config.settings.threads)
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "engine.training.loop",
                str(self.folder.path.resolve()),
                "--watch-parent",
                *self.options,
            ],
            # As many runs as cores / threads go at once, so no two threads share a core, and waiting ones may spin:
            # told to sleep (OMP_WAIT_POLICY=passive), a run with two threads took 1.4 times as long.
            env=os.environ | {"OMP_NUM_THREADS": threads, "PYTHONPATH": str(PROJECT)},
            stdin=subprocess.PIPE,  # never written to: its end tells the child that we are gone
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C reaches us alone; we tell the children
        )
        threading.Thread(target=self.errors.extend, args=(self.process.stderr,), daemon=True).start()

    def read_news(self) -> Iterator[str]:
        """Take in new lines of the log; yields those that a person should see."""
        if not self.folder.log.exists():
            return
        with self.folder.log.open("rb") as file:
            file.seek(self._read_to)
            new = file.read().rpartition(b"\n")
        self._read_to += len(new[0]) + len(new[1])
        for event in RunFolder.parse_log(new[0]):
            self.last_event = event["event"]
            if event["event"] == "step":
                self.row = event
                self.val_loss = event.get("val_loss", self.val_loss)
                self.speeds.extend([event["tokens_per_s"]] if event.get("tokens_per_s") else [])
            elif text := _news(event):
                yield f"{self.config.name}: {text}"

    @property
    def was_killed_as_planned(self) -> bool:
        return self.process.returncode == -signal.SIGKILL and self.last_event == "kill"

    def failure(self) -> list[str]:
        """What to tell a person about a child that ended, if there is anything."""
        code = self.process.returncode
        if code == 0:
            return []
        again = "run the same command again: it goes on from the last checkpoint"
        where, at = shown(self.folder.path), f"at step {self.row.get('step', 0)}"
        if code == -signal.SIGKILL:
            return [problem(where, f"the process was killed from outside {at} (out of memory?)", next=again)]
        text = "".join(self.errors).strip()
        if code == 1 and "Traceback" not in text:
            return [text]  # the run's own message
        return [problem(where, f"the process ended with exit code {code} {at}", got="\n" + text, next=again)]

    def status(self) -> str:
        """e.g. "often-s1   step   410/1000  loss 2.301  val 2.254   7,900 tokens/s   1:10 left"."""
        settings = self.config.settings
        step = self.row.get("step", 0)
        text = f"{self.config.name:<16} step {step:>6,}/{settings.total_steps:,}"
        if self.row.get("train_loss") is not None:
            text += f"  loss {self.row['train_loss']:.3f}"
        if self.val_loss is not None:
            text += f"  val {self.val_loss:.3f}"
        if self.speeds:
            speed = statistics.median(self.speeds)
            left_s = round((settings.total_steps - step) * settings.batch * settings.context / speed)
            text += f"  {speed:>7,.0f} tokens/s  {left_s // 60}:{left_s % 60:02d} left"
        return text


def _news(event: dict[str, Any]) -> str:
    kind, step = event["event"], event["step"]
    if kind == "kill":
        return f"SIGKILL at step {step:,}, as the lesson says; starting it again"
    if kind == "resumed":
        return f"resumed from step {step:,}, {event['redone']:,} steps to redo"
    if kind == "resumed_inexactly":
        return f"warning: going on with another machine's checkpoint ({'; '.join(event['changes'])})"
    if kind == "diverged":
        return f"the loss is no finite number at step {step:,}"
    return {
        "warning": f"warning: {event.get('text')}",
        "stopped": f"stopped at step {step:,}; a checkpoint is saved",
        "finished": f"finished {step:,} steps in {event['wall_s']:.0f} s",
    }.get(kind, "")


class Display:
    """Progress: a block redrawn in place on a terminal, plain lines elsewhere."""

    def __init__(self, out: TextIO, arms: list[Arm]) -> None:
        self.arms = arms
        self._out = out
        self._in_place = out.isatty()
        self._drawn = 0  # lines of the block now on the screen
        self._drawn_at = 0.0
        self._said_at: dict[str, float] = {}

    def say(self, line: str) -> None:
        self._erase()
        print(line, file=self._out, flush=True)

    def refresh(self, running: list[Arm]) -> None:
        now = time.monotonic()
        if self._in_place and now - self._drawn_at >= REDRAW_EVERY_S:
            self._erase()
            width = os.get_terminal_size(self._out.fileno()).columns
            for arm in running:
                print(arm.status()[: width - 1], file=self._out)  # a line that wraps could not be erased
            self._out.flush()
            self._drawn, self._drawn_at = len(running), now
        elif not self._in_place:
            for arm in running:
                if now - self._said_at.setdefault(arm.config.name, now) >= PLAIN_EVERY_S:
                    self._said_at[arm.config.name] = now
                    print(arm.status(), file=self._out, flush=True)

    def close(self) -> None:
        self._erase()

    def _erase(self) -> None:
        if self._drawn:
            print(f"\033[{self._drawn}F\033[J", end="", file=self._out)
            self._drawn = 0
