"""Text from a path, from wheels, from a hub; tokens that add up to its bytes."""

import hashlib
import http.server
import json
import os
import re
import subprocess
import sys
import threading
import time
from typing import ClassVar
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import PROJECT

from engine.errors import UserError
from engine.lesson import Settings
from engine.training import corpus as corpora
from engine.training.corpus import Corpus, Document, open_corpus
from engine.training.tokens import BETWEEN_DOCUMENTS, load_text, load_tokenizer, token_files

BASE = {"layers": 1, "heads": 1, "width": 8, "context": 8, "steps": 1, "batch": 1, "lr": 1e-3, "checkpoint_every": 1}


def settings(corpus, **more) -> Settings:
    return Settings(corpus=str(corpus), **BASE | more)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder to work in, and a cache of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(corpora, "CACHE", tmp_path / "cache")
    return tmp_path


def error_of(call) -> str:
    with pytest.raises(UserError) as error:
        call()
    return str(error.value)


def documents_of(corpus) -> list[Document]:
    return list(open_corpus(settings(corpus)).documents())


# Paths


def test_a_folder_gives_a_document_a_file_and_holds_some_out(here):
    (here / "notes" / "deep").mkdir(parents=True)
    for number in range(60):
        (here / "notes" / ("deep" if number % 2 else "") / f"{number}.md").write_text(f"note {number}\n" * 20)
    documents = documents_of("notes")
    assert len(documents) == 60
    assert 1 <= sum(document.held_out for document in documents) <= 12
    assert documents == documents_of("notes")


def test_what_is_held_out_stays_so_when_other_documents_come(here):
    rows = [json.dumps({"text": f"document {number} " * 9}) for number in range(200)]
    (here / "few.jsonl").write_text("\n".join(rows[:100]))
    (here / "more.jsonl").write_text("\n".join(rows))
    few, more = ({d.text: d.held_out for d in documents_of(name)} for name in ("few.jsonl", "more.jsonl"))
    assert any(few.values())
    assert all(more[text] == held_out for text, held_out in few.items())


def test_one_lone_text_is_cut_at_a_line_near_its_end(here):
    (here / "book.txt").write_text("line of text\n" * 1_000)
    train, held_out = documents_of("book.txt")
    assert (train.held_out, held_out.held_out) == (False, True)
    assert len(train.text) == 950 * 13 and len(held_out.text) == 50 * 13


@pytest.mark.parametrize(("text", "cut"), [("word " * 1_000, 4_750), ("é" * 5_000, 9_500), ("x" * 999, 949)])
def test_a_text_of_one_line_is_cut_between_words_or_characters(here, text, cut):
    (here / "line.txt").write_text(text)
    train, held_out = documents_of("line.txt")
    assert len(train.text) == cut
    assert (train.text + held_out.text).decode() == text


def test_parquet_and_jsonl_are_read_by_their_text_column(here):
    pq.write_table(pa.table({"body": ["one " * 9, "two " * 9, None], "junk": [1, 2, 3]}), here / "x.parquet")
    (here / "x.jsonl").write_text('{"body": "one"}\n{"body": "two"}\n')
    for name in ("x.parquet", "x.jsonl"):
        assert len(list(open_corpus(settings(name, text_column="body")).documents())) == 2


BAD = {
    "invalid UTF-8": ("a.txt", b"good\nbad \xff\n", "a.txt:2: not UTF-8 text\n  got:      byte 0xff, invalid start byte\n  next:     save the file as UTF-8"),
    "an empty file": ("a.txt", b" \n", "a.txt: an empty file\n  next:     delete it, or put text into it"),
    "a broken line of JSON": ("a.jsonl", b'{"text": "x"}\n{"te', "a.jsonl:2: not a line of JSON\n  got:      Unterminated string starting at: line 1 column 2 (char 1)\n  next:     mend the line or take it out"),
    "no text column": ("a.jsonl", b'{"body": "x"}', 'a.jsonl:1: no text in column "text"\n  got:      body\n  next:     set text_column in lesson.toml'),
    "a column of numbers": ("a.jsonl", b'{"text": 7}', 'a.jsonl:1: no text in column "text"\n  got:      text\n  next:     set text_column in lesson.toml'),
    "a broken Parquet file": ("a.parquet", b"PAR1 not really", "a.parquet: not a whole Parquet file\n  got:      Parquet magic bytes not found in footer. Either the file is corrupted or this is not a parquet file.\n  next:     delete it and run the same command again"),
    "another kind of file": ("a.png", b"x", "a.png: not a kind of file that holds text\n  got:      .png\n  expected: .txt, .md, .jsonl, .parquet\n  next:     name another path as corpus"),
    "too short a text": ("a.txt", b"abc\nd", "corpus a.txt: the training text holds no full window\n  got:      4 tokens\n  expected: more than 8, the context\n  next:     name a longer corpus, or a smaller context"),
    "too short a validation part": ("a.txt", b"some more words here\nb\n", "corpus a.txt: the validation text holds no full window\n  got:      2 tokens\n  expected: more than 8, the context\n  next:     name a longer corpus, or a smaller context"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_source_that_is_no_text_is_told(here, name):
    file, content, message = BAD[name]
    (here / file).write_bytes(content)
    assert error_of(lambda: load_text(settings(file))) == message


def test_a_corpus_that_does_not_exist_is_told(here):
    assert error_of(lambda: load_text(settings("shakespear"))) == (
        "corpus shakespear: no such corpus\n  expected: shakespeare, a path, or hub:OWNER/NAME/FOLDER\n  next:     mend corpus in lesson.toml"
    )


def test_an_empty_folder_is_told(here):
    (here / "none").mkdir()
    assert error_of(lambda: load_text(settings("none"))).startswith("none: no text in this folder\n")


# Tokenizers

ODD = "naïve café 漢字 \N{REPLACEMENT CHARACTER} <|endoftext|> \x00\t\r\n  two  spaces 😀 1234 don't\n"


@pytest.mark.parametrize("name", ["bytes", "gpt2", "bpe:300"])
def test_the_bytes_of_all_tokens_add_up_to_the_bytes_of_the_text(name):
    (plays,) = [open_corpus(settings("shakespeare"))]
    tokenizer = load_tokenizer(name, plays)
    for text in (ODD.encode(), next(plays.documents()).text):
        (ids,) = tokenizer.encode([text])
        assert tokenizer.decode(ids.tolist()) == text
        assert tokenizer.byte_lengths[ids].sum() == len(text)


def test_gpt2s_tokens_are_those_of_the_original():
    tokenizer = load_tokenizer("gpt2", open_corpus(settings("shakespeare")))
    assert tokenizer.vocab_size == 50_257
    # The pairs that GPT-2's own encoder gives for these texts.
    assert tokenizer.encode([b"Hello, world!"])[0].tolist() == [15496, 11, 995, 0]
    assert tokenizer.encode([b" don't  stop"])[0].tolist() == [836, 470, 220, 2245]


@pytest.mark.parametrize(
    ("size", "kind"), [(256, np.uint8), (257, np.uint16), (65_536, np.uint16), (65_537, np.uint32)]
)
def test_ids_are_kept_in_the_smallest_type_that_holds_them(size, kind):
    tokenizer = load_tokenizer("bytes", None)
    assert type(tokenizer)(tokenizer.name, size, None, None, None).id_type is kind


def test_a_trained_vocabulary_has_its_size_and_is_the_same_each_time(here, monkeypatch):
    vocabularies = []
    for folder in ("one", "two"):
        monkeypatch.setattr(corpora, "CACHE", here / folder)
        text = "".join(f"the play {number} begins\n" for number in range(400)).encode()
        corpus = Corpus("x", "0" * 64, lambda text=text: iter([Document(text, False)]))
        tokenizer = load_tokenizer("bpe:290", corpus)
        assert tokenizer.vocab_size == 290
        vocabularies.append((here / folder / f"bpe-290-{'0' * 16}.json").read_text())
    assert vocabularies[0] == vocabularies[1]


def test_a_vocabulary_smaller_than_the_bytes_is_told(here):
    (here / "a.txt").write_text("words\n" * 99)
    assert error_of(lambda: load_text(settings("a.txt", tokenizer="bpe:100"))) == (
        "tokenizer: a byte-level vocabulary holds all 256 bytes\n  got:      bpe:100\n  expected: bpe:257 or more\n  next:     mend tokenizer in lesson.toml"
    )


def made_of(texts: list[str], broken_at: int | None = None) -> Corpus:
    """A corpus that fails in its midst if asked to."""

    def documents():
        for number, text in enumerate(texts):
            if number == broken_at:
                raise ConnectionError("the line went dead")
            yield Document(text.encode(), held_out=number % 10 == 9)

    return Corpus("made", hashlib.sha256("".join(texts).encode()).hexdigest(), documents)


def test_documents_are_joined_by_the_same_bytes_and_split_cleanly(here):
    texts = [f"<{number}>" for number in range(20)]
    train, held_out = token_files(made_of(texts), load_tokenizer("bytes", None), 0)
    assert held_out.tobytes() == b"<9>" + BETWEEN_DOCUMENTS + b"<19>"
    assert train.tobytes() == BETWEEN_DOCUMENTS.join(text.encode() for text in texts if text[1:-1] not in ("9", "19"))


def test_an_interrupted_tokenization_goes_on_and_gives_the_same_tokens(here, monkeypatch):
    texts = [f"document {number} with some words" for number in range(20_000)]
    tokenizer = load_tokenizer("bytes", None)
    with pytest.raises(ConnectionError):
        token_files(made_of(texts, broken_at=15_000), tokenizer, 0)
    (note,) = (here / "cache" / "tokens").glob("*.note")
    assert json.loads(note.read_text())["documents"] == 12_800
    assert not list((here / "cache" / "tokens").glob("*.uint8"))
    train, held_out = (part.tobytes() for part in token_files(made_of(texts), tokenizer, 0))
    monkeypatch.setattr(corpora, "CACHE", here / "other")
    same = (train, held_out) == tuple(part.tobytes() for part in token_files(made_of(texts), tokenizer, 0))
    assert same  # not in one line, as below


@pytest.mark.parametrize("harm", ["short", "gone"])
def test_parts_that_are_shorter_than_their_note_are_begun_anew(here, harm):
    """As a power cut or a kill between two renames leaves them: never filled up with zeros."""
    texts = [f"document {number} with some words" for number in range(15_000)]
    tokenizer = load_tokenizer("bytes", None)
    with pytest.raises(ConnectionError):
        token_files(made_of(texts, broken_at=14_000), tokenizer, 0)
    (part,) = (here / "cache" / "tokens").glob("*-train.uint8.part")
    part.write_bytes(b"half") if harm == "short" else part.unlink()
    train, _ = token_files(made_of(texts), tokenizer, 0)
    same = train.tobytes() == BETWEEN_DOCUMENTS.join(text.encode() for n, text in enumerate(texts) if n % 10 != 9)
    assert same  # not in one line: pytest would spend minutes on the difference of two long texts


def test_a_token_budget_stops_the_reading(here):
    train, _ = token_files(
        made_of([f"document {number}" for number in range(5_000)]), load_tokenizer("bytes", None), 10_000
    )
    assert 10_000 <= len(train) < 12_000


def test_the_cache_is_keyed_by_text_tokenizer_and_budget(here):
    names = set()
    for texts, budget in ((["a" * 99] * 20, 0), (["b" * 99] * 20, 0), (["a" * 99] * 20, 500)):
        token_files(made_of(texts), load_tokenizer("bytes", None), budget)
        names |= {path.name for path in (here / "cache" / "tokens").glob("*-train.uint8")}
    assert len(names) == 3


# The hub: a small one of our own on loopback


class Hub(http.server.BaseHTTPRequestHandler):
    """Answers what huggingface_hub asks for one data set: its list of files, and the files."""

    files: ClassVar[dict[str, bytes]] = {}
    asked: ClassVar[list[str]] = []
    broken = False

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        path = unquote(self.path.split("?")[0])
        self.asked.append(path)
        if path.startswith("/api/datasets/lab/web"):
            siblings = [{"rfilename": name} for name in self.files]
            return self.send(
                json.dumps({"id": "lab/web", "sha": "c" * 40, "siblings": siblings, "tags": []}).encode(),
                "application/json",
                body,
            )
        name = path.partition("/resolve/" + "c" * 40 + "/")[2]
        if self.broken or name not in self.files:
            return self.send_error(503 if self.broken else 404)
        return self.send(self.files[name], "application/octet-stream", body)

    def send(self, data, kind, body):
        start = 0
        if wanted := re.match(r"bytes=(\d+)-", self.headers.get("Range", "")):
            start = int(wanted[1])
        self.send_response(206 if start else 200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data) - start))
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", "c" * 40)
        self.end_headers()
        if body:
            self.wfile.write(data[start:])

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(here):
    """(port, handler class); two shards of FineWeb's shape, of 1,000 documents each."""
    files = {}
    for shard in range(2):
        texts = [f"shard {shard} document {number}: " + "the quick brown fox " * 5 for number in range(1_000)]
        path = here / "shard.parquet"
        pq.write_table(pa.table({"text": texts, "url": ["x" * 200] * 1_000}), path, row_group_size=100)
        files[f"sample/10BT/{shard:03d}_00000.parquet"] = path.read_bytes()
    files |= {"README.md": b"#", "sample/100BT/000_00000.parquet": b""}
    handler = type("Handler", (Hub,), {"files": files, "asked": [], "broken": False})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", handler
        server.shutdown()


PROGRAM = """
import sys
from engine.errors import UserError
from engine.lesson import Settings
from engine.training.tokens import load_text
settings = Settings(corpus=sys.argv[1], corpus_tokens=int(sys.argv[2]), layers=1, heads=1, width=8, context=8, steps=1, batch=1, lr=1e-3, checkpoint_every=1)
try:
    text = load_text(settings)
    print(len(text.train), len(text.validation), text.data_sha256)
except UserError as error:
    sys.exit(str(error))
"""


def read_hub(
    here, endpoint: str, budget: int = 0, name: str = "hub:lab/web/sample/10BT"
) -> subprocess.CompletedProcess:
    """In a process of its own: the hub's library reads its address from the environment once, when it is imported."""
    environment = os.environ | {
        "HF_ENDPOINT": endpoint,
        "LESSON_LAB_CACHE": str(here / "cache"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HOME": str(here / "home"),
    }
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, name, str(budget)],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_data_set_on_the_hub_becomes_tokens_and_then_needs_no_network(here, hub):
    endpoint, handler = hub
    first = read_hub(here, endpoint)
    assert first.returncode == 0, first.stderr
    train, held_out, sha = first.stdout.split()
    assert int(train) > 200_000 and 0 < int(held_out) < int(train) / 50
    assert not [path for path in handler.asked if "100BT" in path]
    asked = len(handler.asked)
    handler.broken = True
    assert read_hub(here, endpoint).stdout.split() == [train, held_out, sha]
    assert len(handler.asked) == asked


def test_a_budget_fetches_no_more_shards_than_it_needs(here, hub):
    endpoint, handler = hub
    assert read_hub(here, endpoint, budget=20_000).returncode == 0
    assert not [path for path in handler.asked if "001_00000" in path]


def test_a_hub_that_fails_midway_is_one_message_and_the_next_call_goes_on(here, hub):
    endpoint, handler = hub
    second = "sample/10BT/001_00000.parquet"
    kept = handler.files.pop(second)
    handler.files[second] = b"PAR1 cut short"
    broken = read_hub(here, endpoint)
    assert broken.returncode == 1 and "not a whole Parquet file" in broken.stderr and "Traceback" not in broken.stderr
    handler.files[second] = kept
    for path in (here / "cache" / "hub").rglob("001_00000.parquet"):
        path.unlink()  # what the message says to do
    assert read_hub(here, endpoint).returncode == 0


def test_without_a_network_one_message_says_what_to_do(here):
    started = time.monotonic()
    done = read_hub(here, "http://127.0.0.1:9")  # nothing listens there
    assert done.returncode == 1
    assert done.stderr.startswith("corpus hub:lab/web/sample/10BT: the Hugging Face hub did not give it\n  got:      ")
    assert done.stderr.endswith(
        "\n  next:     check the network and the name, then run the same command again: it goes on where it stopped; a cpu profile needs no hub\n"
    )
    assert time.monotonic() - started < 60


def test_a_folder_without_parquet_is_told(here, hub):
    done = read_hub(here, hub[0], name="hub:lab/web/sample/1BT")
    assert done.stderr.startswith(
        "corpus hub:lab/web/sample/1BT: no Parquet file there\n  got:      README.md, sample/100BT/000_00000.parquet, "
    )
