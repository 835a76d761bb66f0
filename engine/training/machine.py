"""What the machine allows: precision and compilation where a lesson leaves them open, memory used."""

import contextlib
import resource
import shutil
from pathlib import Path

import torch

from engine.lesson import Settings


def decide_precision(settings: Settings) -> str:
    """ "auto" by what the processor can do, never by a measurement: the same machine always decides the same.

    CUDA: bf16 if the GPU has it. CPU: bf16 if there are instructions for its products (AMX or AVX512-BF16); without
    them torch computes them in fp32 with conversions around, which is slower than fp32.
    """
    if settings.precision != "auto":
        return settings.precision
    if settings.device == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported() else "fp32"
    return "bf16" if cpu_flags() & {"amx_bf16", "avx512_bf16"} else "fp32"


def decide_compile(settings: Settings) -> tuple[bool, str]:
    """(whether to compile, a warning or ""). "auto": on CUDA, for models of 10 million parameters or more by width and
    layers (smaller ones train in less time than the compiler takes); never on a CPU, where compiled training with two
    threads gives other bits each time."""
    if settings.compile == "auto":
        return settings.device == "cuda" and 12 * settings.layers * settings.width**2 >= 10_000_000, ""
    if settings.compile == "on" and settings.device == "cpu" and not (shutil.which("g++") or shutil.which("clang++")):
        return False, "compile is on, but there is no C++ compiler (g++ or clang++): going on without"
    return settings.compile == "on", ""


def autocast(device: str, precision: str) -> contextlib.AbstractContextManager:
    """bf16: matrix products in bf16, sums, norms and losses in fp32, weights kept in fp32."""
    return torch.autocast(device, dtype=torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()


def cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return set(next(line for line in lines if line.startswith("flags")).split())
    except (OSError, StopIteration):
        return set()


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
