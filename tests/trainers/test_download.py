"""Downloads and public corpora against a server of our own: HTTP is real, the network is not needed."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken  # noqa: TID253 - offline, with a vocabulary of our own

from preflight.dataset import read_manifest
from preflight.errors import ConfigError
from trainers import download, hub_corpus
from trainers.download import get_file
from trainers.hub_corpus import CORPORA, list_shards, only_one, prepare_hub_corpus

CONTENT = bytes(range(256)) * 40
SHARDS = {
    "sample/10BT/000_00000.parquet": ["The cat sat.", "A dog ran.", "Rain fell.", "Snow too."],
    "sample/10BT/001_00000.parquet": ["One more.", "And the last."],
}
CORPUS = CORPORA["fineweb_edu"]
END = 256


class Server(http.server.BaseHTTPRequestHandler):
    """/file breaks off in the middle the first time; /api and /datasets are a small hub."""

    requests: list[tuple[str, str | None]] = []  # noqa: RUF012 - one list for all requests, by intent
    breaks = 1

    def do_GET(self) -> None:
        Server.requests.append((self.path, self.headers["Range"]))
        if self.path == "/file":
            self._send_file()
        elif self.path == "/api/datasets/HuggingFaceFW/fineweb-edu/tree/main/sample/10BT":
            files = [{"type": "file", "path": path, "size": len(json.dumps(rows))} for path, rows in SHARDS.items()]
            self._send(json.dumps([*reversed(files), {"path": "sample/10BT/README.md", "size": 3}]).encode())
        elif (path := self.path.removeprefix("/datasets/HuggingFaceFW/fineweb-edu/resolve/main/")) in SHARDS:
            self._send(json.dumps(SHARDS[path]).encode())
        else:
            self.send_error(404)

    def _send_file(self) -> None:
        start = int((self.headers["Range"] or "bytes=0-")[6:-1])
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        is_broken = Server.breaks > 0
        Server.breaks -= 1
        self.wfile.write(CONTENT[start : 5000 if is_broken else None])

    def _send(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "*")
    Server.requests, Server.breaks = [], 1
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def byte_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """tiktoken with a vocabulary that needs no download, and shards that are JSON: pyarrow is an optional extra."""
    encoding = tiktoken.Encoding(
        "bytes", pat_str=r"\S+|\s+", mergeable_ranks={bytes([i]): i for i in range(256)},
        special_tokens={"<|endoftext|>": END},
    )  # fmt: skip
    monkeypatch.setattr(hub_corpus, "gpt2_encoding", lambda: encoding)
    monkeypatch.setattr(hub_corpus, "parquet_reader", lambda: lambda path: iter([json.loads(path.read_text())]))


def documents(path: Path) -> list[str]:
    ids = np.fromfile(path, dtype="<u2")
    return [
        bytes(part[part != END].astype(np.uint8)).decode() for part in np.split(ids, np.flatnonzero(ids == END) + 1)
    ][:-1]


def test_get_file_goes_on_where_the_connection_broke(url: str, tmp_path: Path):
    said: list[str] = []
    path = get_file(f"{url}/file", tmp_path / "new" / "file", said.append)
    assert path.read_bytes() == CONTENT
    assert Server.requests == [("/file", None), ("/file", "bytes=5000-")]
    assert "trying again" in said[0]
    assert [p.name for p in path.parent.iterdir()] == ["file"]


def test_get_file_does_not_ask_for_what_is_here(url: str, tmp_path: Path):
    (tmp_path / "file").write_text("here")
    assert get_file(f"{url}/file", tmp_path / "file", print).read_text() == "here"
    assert Server.requests == []


def test_get_file_gives_up_with_cause_and_cure_when_the_connection_keeps_breaking(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    Server.breaks = 99
    monkeypatch.setattr(download, "N_ATTEMPTS", 2)
    with pytest.raises(ConfigError, match=r"closed after(.|\n)*--base-url MIRROR"):
        get_file(f"{url}/file", tmp_path / "file", lambda _: None)
    assert not (tmp_path / "file").exists()


def test_get_file_names_url_and_answer_when_it_is_gone(url: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"/gone answers 404 Not Found"):
        get_file(f"{url}/gone", tmp_path / "file", print)


def test_get_file_says_at_once_that_there_is_no_network(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"cannot be reached(.|\n)*no download"):
        get_file("http://127.0.0.1:1/file", tmp_path / "file", print)  # nothing listens on port 1


def test_get_file_checks_the_disk_first(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1024})())
    with pytest.raises(ConfigError, match=r"needs 10 KiB, 1 KiB are free"):
        get_file(f"{url}/file", tmp_path / "file", print)


def test_list_shards_takes_the_parquet_files_in_order(url: str):
    shards = list_shards(CORPUS, url)
    assert [shard.rsplit("/", 1)[-1] for shard, _ in shards] == ["000_00000.parquet", "001_00000.parquet"]
    assert shards[0][1] == len(json.dumps(SHARDS["sample/10BT/000_00000.parquet"]))


@pytest.mark.usefixtures("byte_pairs")
def test_prepare_hub_corpus_tokenises_every_document_and_holds_some_out(url: str, tmp_path: Path):
    folder = tmp_path / "fineweb_edu"
    manifest = prepare_hub_corpus(CORPUS, folder, base_url=url, val_fraction=1 / 3, n_shards=None, say=lambda _: None)
    assert documents(folder / "train.bin") == ["The cat sat.", "A dog ran.", "Snow too.", "One more."]
    assert documents(folder / "val.bin") == ["Rain fell.", "And the last."]
    assert manifest == read_manifest(folder)
    assert manifest.n_train_tokens == sum(len(text) + 1 for text in documents(folder / "train.bin"))
    assert [path.name for path in tmp_path.iterdir()] == ["fineweb_edu"]


@pytest.mark.usefixtures("byte_pairs")
def test_prepare_hub_corpus_goes_on_after_the_last_finished_shard(url: str, tmp_path: Path):
    folders = [tmp_path / "undisturbed", tmp_path / "interrupted"]
    settings: dict[str, Any] = {"base_url": url, "val_fraction": 1 / 3, "n_shards": None, "say": lambda _: None}
    prepare_hub_corpus(CORPUS, folders[0], **settings)
    gone = SHARDS.pop("sample/10BT/001_00000.parquet")
    shards = list_shards(CORPUS, url)
    SHARDS["sample/10BT/001_00000.parquet"] = gone
    with pytest.MonkeyPatch.context() as patch:  # the second shard is listed, and cannot be had
        patch.setattr(hub_corpus, "list_shards", lambda *_: [*shards, (f"{url}/gone", 10)])
        with pytest.raises(ConfigError, match="404"):
            prepare_hub_corpus(CORPUS, folders[1], **settings)
    work = tmp_path / ".interrupted.unfinished"
    with (work / "train.bin").open("ab") as file:
        file.write(b"torn by a crash")
    Server.requests = []
    prepare_hub_corpus(CORPUS, folders[1], **settings)
    assert not [path for path, _ in Server.requests if path.endswith("000_00000.parquet")]
    for name in ("train.bin", "val.bin"):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()


@pytest.mark.usefixtures("byte_pairs")
def test_prepare_hub_corpus_takes_the_first_shards_only_when_asked(url: str, tmp_path: Path):
    settings: dict[str, Any] = {"base_url": url, "val_fraction": 0.5, "say": lambda _: None}
    prepare_hub_corpus(CORPUS, tmp_path / "x", n_shards=1, **settings)
    assert documents(tmp_path / "x" / "train.bin") == ["The cat sat.", "Rain fell."]


def test_prepare_hub_corpus_says_where_the_dataset_was_looked_for(url: str, tmp_path: Path):
    moved = replace(CORPUS, folder="sample/none")
    with pytest.raises(ConfigError, match="tree/main/sample/none answers 404"):
        prepare_hub_corpus(moved, tmp_path / "x", base_url=url, val_fraction=0.5, n_shards=None, say=print)


def test_only_one_process_prepares_at_a_time(tmp_path: Path):
    with only_one(tmp_path / "work"), pytest.raises(ConfigError, match="another process"), only_one(tmp_path / "work"):
        pass
    with only_one(tmp_path / "work"):
        pass


def test_parquet_reader_reads_the_text_column_in_batches(tmp_path: Path):
    pyarrow = pytest.importorskip("pyarrow", reason="an optional extra")
    path = tmp_path / "shard.parquet"
    texts = [f"document {i}" for i in range(hub_corpus.N_ROWS + 5)]
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table({"text": texts, "url": texts}), path)
    batches = list(hub_corpus.parquet_reader()(path))
    assert [len(batch) for batch in batches] == [hub_corpus.N_ROWS, 5]
    assert [text for batch in batches for text in batch] == texts
