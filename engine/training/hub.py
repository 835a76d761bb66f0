"""Text from a data set on the Hugging Face hub, e.g. "hub:HuggingFaceFW/fineweb-edu/sample/10BT".

The list of its Parquet files is asked for once and kept with the commit that it belongs to, so a corpus never changes
under a lesson. Files are fetched one by one, when their documents are needed, and only the text column is read.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from engine.errors import UserError, problem
from engine.lesson import Settings
from engine.runs import write_whole
from engine.training import corpus as corpora
from engine.training.corpus import Corpus, Document, is_held_out, parquet_column

HELD_OUT_SHARE = 1 / 200  # of the documents: a smaller share than of a small corpus still holds enough text


def open_hub(settings: Settings) -> Corpus:
    """UserError if the name is malformed, or if the hub cannot be reached and the list is not here yet."""
    parts = settings.corpus.removeprefix("hub:").split("/")
    if len(parts) < 2 or not all(parts):
        raise UserError(problem(f"corpus {settings.corpus}", "not a data set's name", expected="hub:OWNER/NAME or hub:OWNER/NAME/FOLDER", next="mend corpus in lesson.toml"))  # fmt: skip
    repository, folder = "/".join(parts[:2]), "/".join(parts[2:])
    listing = _listing(settings.corpus, repository, folder)
    identity = json.dumps([repository, listing, settings.text_column], sort_keys=True)

    def documents() -> Iterator[Document]:
        for file in listing["files"]:
            path = _fetch(settings.corpus, repository, listing["commit"], file)
            for text in parquet_column(path, settings.text_column):
                yield Document(text, is_held_out(text, HELD_OUT_SHARE))

    return Corpus(settings.corpus, hashlib.sha256(identity.encode()).hexdigest(), documents)


def _listing(name: str, repository: str, folder: str) -> dict:
    """{"commit": …, "files": […]}, from the hub the first time and from the cache ever after."""
    kept = corpora.CACHE / "hub" / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.json"
    if kept.exists():
        return json.loads(kept.read_text(encoding="utf-8"))
    from huggingface_hub import HfApi

    with _one_message(name):
        information = HfApi().dataset_info(repository, files_metadata=False)
        files = sorted(one.rfilename for one in information.siblings or [])
    wanted = [file for file in files if file.endswith(".parquet") and file.startswith(f"{folder}/" if folder else "")]
    if not wanted:
        raise UserError(problem(f"corpus {name}", "no Parquet file there", got=", ".join(files[:5]) or "nothing", next="name another folder of the data set"))  # fmt: skip
    listing = {"commit": information.sha, "files": wanted}
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_whole(kept, json.dumps(listing, indent=1))
    return listing


def _fetch(name: str, repository: str, commit: str, file: str) -> Path:
    """The file's path in the cache; a download that was cut short goes on where it stopped."""
    from huggingface_hub import hf_hub_download

    with _one_message(name):
        return Path(
            hf_hub_download(
                repository, file, repo_type="dataset", revision=commit, local_dir=corpora.CACHE / "hub" / repository
            )
        )


@contextlib.contextmanager
def _one_message(name: str) -> Iterator[None]:
    """Turns the many errors of hub and network into one that says what to do."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the library raises its own, the network's and the disk's
        cause = str(error).strip().splitlines()
        raise UserError(problem(
            f"corpus {name}", "the Hugging Face hub did not give it",
            got=f"{type(error).__name__}: {cause[0] if cause else ''}",
            next="check the network and the name, then run the same command again: it goes on where it stopped; a cpu profile needs no hub",
        )) from None  # fmt: skip
