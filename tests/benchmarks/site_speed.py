"""How long the site takes to build, on a machine where nothing else runs:

    python -m tests.benchmarks.site_speed                20 lessons: cold, unchanged, one changed
    python -m tests.benchmarks.site_speed --lessons 1000 the same at a thousand, with the peak of memory

The lessons are copies of the recorded ones, charts and pictures included. Copies of one lesson have the same drawings,
which are made once; with --own-charts each copy has its own (all but the small pictures and the dots of its seeds).
"""

import argparse
import hashlib
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROJECT = Path(__file__).parents[2]


def make_lessons(root: Path, count: int, own_charts: bool) -> None:
    """`count` copies of the recorded lessons, each kind in turn; their runs are hard links."""
    sources = [toml.parent for toml in sorted((PROJECT / "lessons").glob("*/lesson.toml")) if (PROJECT / "runs" / toml.parent.name.split("-")[0]).exists()]  # fmt: skip
    for number in range(count):
        source = sources[number % len(sources)]
        old, new = source.name.split("-")[0], f"1.{number + 1}"
        folder = root / "lessons" / new
        shutil.copytree(source, folder)
        text = (folder / "lesson.toml").read_text().replace(f'id = "{old}"', f'id = "{new}"', 1)
        if own_charts:
            text = text.replace(
                'y_label = "', f'y_label = "{"abcdefghij"[number % 10]}{number // 10 * "i"} '[: 40 + number // 40]
            )
        (folder / "lesson.toml").write_text(text)
        shutil.copytree(PROJECT / "runs" / old, root / "runs" / new, copy_function=os.link)
    for name in ("site.toml", "glossary.toml"):
        shutil.copy(PROJECT / "lessons" / name, root / "lessons")
    shutil.copytree(PROJECT / "lessons" / "explainers", root / "lessons" / "explainers")


def build(root: Path, cache: Path) -> float:
    """Seconds of `build.py --site-only`, from the start of Python to its end."""
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "build.py", "--site-only", "--lessons", str(root / "lessons"), "--runs", str(root / "runs"), "--out", str(root / "site")],
        cwd=PROJECT, env=os.environ | {"LESSON_LAB_CACHE": str(cache)}, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return time.perf_counter() - started


def snapshot(folder: Path) -> str:
    together = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            together.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return together.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lessons", type=int, default=20)
    parser.add_argument("--own-charts", action="store_true")
    options = parser.parse_args()
    count = options.lessons
    (PROJECT / ".cache").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir=PROJECT / ".cache"
    ) as folder:  # beside the runs, for hard links; never committed
        root, cache = Path(folder), Path(folder) / "cache"
        make_lessons(root, count, options.own_charts)
        cold = build(root, cache)
        print(
            f"{count} lessons, cold: {cold:.2f} s, {count / cold:.1f} lessons a second (20 lessons: at most 8 s)",
            flush=True,
        )
        unchanged = min(build(root, cache) for _ in range(3))
        print(
            f"unchanged: {unchanged:.2f} s, {count / unchanged:.0f} lessons a second (20 lessons: at most 0.7 s; 1,000: at least 100)"
        )
        page = root / "lessons" / "1.1" / "page.md"
        changed = []
        for word in ("One", "Two", "Three"):
            page.write_text(f"{page.read_text()}\n{word} more line.\n")
            changed.append(build(root, cache))
        print(f"one lesson's prose changed: {min(changed):.2f} s (20 lessons: at most 2 s)")
        incremental = snapshot(root / "site")
        shutil.rmtree(root / "site")
        shutil.rmtree(cache)
        build(root, cache)
        print(f"the same bytes as a clean build: {snapshot(root / 'site') == incremental}")
        sizes = sorted((root / "site" / "lessons").glob("*/index.html"), key=lambda path: path.stat().st_size)
        print(f"largest lesson page: {sizes[-1].stat().st_size / 1e3:.0f} kB; peak memory of one process: {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3:.0f} MB")  # fmt: skip


if __name__ == "__main__":
    main()
