"""The index of the site's search, made by Pagefind: readers load a few small parts of it, and only when they search."""

import os
import subprocess
import tempfile
from pathlib import Path

import pagefind_bin

from engine.errors import UserError, problem

# Of what Pagefind writes: its loader, its worker, its program for English, and the index. Not its own dialogs.
WANTED = (
    "pagefind.js",
    "pagefind-worker.js",
    "pagefind-entry.json",
    "wasm.en.pagefind",
    "*.pf_meta",
    "index/*",
    "fragment/*",
)


def search_files(pages: dict[str, bytes]) -> dict[str, bytes]:
    """Address -> content. `pages` are HTML; what is searched of them lies within data-pagefind-body."""
    if not pages:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        site, out = Path(folder, "site"), Path(folder, "out")
        for address, html in pages.items():
            path = site / address
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(html)
        # The program itself: its Python interface waits a tenth of a second for every page.
        command = [str(pagefind_bin.get_executable()), "--site", str(site), "--output-path", str(out), "--silent"]
        # It would also read a pagefind.toml of the folder that the build was started in, and variables of its own.
        plain = {key: value for key, value in os.environ.items() if not key.startswith("PAGEFIND_")}
        done = subprocess.run(command, cwd=folder, env=plain, capture_output=True, text=True, check=False)
        if done.returncode:
            raise UserError(problem("the search index", "Pagefind failed", got=(done.stderr or done.stdout).strip(), next="pip install -c constraints.txt -e ."))  # fmt: skip
        found = sorted({path for pattern in WANTED for path in out.glob(pattern)})
        return {f"pagefind/{path.relative_to(out).as_posix()}": path.read_bytes() for path in found}
