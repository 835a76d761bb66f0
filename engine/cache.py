"""The cache folder: what was downloaded or computed and could be again. Deleting it costs time and nothing else."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

CACHE = Path(os.environ.get("LESSON_LAB_CACHE") or Path(__file__).parents[1] / ".cache")


def kept(name: str, make: Callable[[], bytes]) -> bytes:
    """The cached file of that name; made and written whole if it is not there. Its name must tell all it depends on."""
    path = CACHE / name
    try:
        return path.read_bytes()
    except FileNotFoundError:
        content = make()
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
        return content
