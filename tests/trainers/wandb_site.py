"""A machine with no W&B account, W&B's own reader of its files, and a small server in its place."""

from __future__ import annotations

import gzip
import http.server
import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conf.choices import TrackingBackend, TrackingMode
from preflight.plan import RunPlan
from trainers.tracking import Tracker, make_tracker

ESTIMATE = {"estimate/step_seconds": 2.0, "estimate/step_seconds_low": 1.0, "estimate/mfu": None}


@pytest.fixture(name="run_dir")
def fixture_run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder on a machine with no W&B account and no W&B settings."""
    import wandb

    wandb.teardown()  # its settings are read once a process
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_ERROR_REPORTING"):
        monkeypatch.setenv(name, "")  # so that what make_tracker sets is forgotten afterwards
        monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    monkeypatch.setenv("NETRC", str(home / ".netrc"))
    folder = tmp_path / "20261130T120000.000000-tiny"
    folder.mkdir()
    return folder


@pytest.fixture(name="plan")
def fixture_plan(make_plan: Callable[..., RunPlan]) -> RunPlan:
    """A tracked one."""
    plan = make_plan(model="tiny", card="cpu")
    tracked = replace(
        plan.tracking,
        backend=TrackingBackend.wandb,
        mode=TrackingMode.auto,
        notes="baseline",
        tags=("small", "cpu"),
    )
    return replace(plan, tracking=tracked)


def track(plan: RunPlan, run_dir: Path, **arguments: Any) -> Tracker:
    """`make_tracker` with the arguments that a test is not about."""
    given = {"config": {"name": plan.name}, "estimate_flat": ESTIMATE, "resume_id": None, "rank": 0} | arguments
    return make_tracker(plan, run_dir, **given)


def runs(run_dir: Path) -> list[Path]:
    """Folders of W&B runs, oldest first."""
    return sorted((run_dir / "wandb").glob("*run-*"), key=lambda path: path.stat().st_mtime_ns)


def inspect(folder: Path, *options: str) -> str:
    """What is in a run's file, in the words of W&B's own reader."""
    import wandb.util

    core = wandb.util.get_core_path()  # what `wandb leet inspect` starts
    (file,) = folder.glob("*.wandb")
    command = [core, "leet", "inspect", "-no-observability", "-json", *options, "-run-file", str(file)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def records(folder: Path, kind: str) -> list[dict[str, Any]]:
    """`run`, `history`, ... lines of a run's file."""
    lines = [json.loads(line) for line in inspect(folder).splitlines()]
    return [line[kind] for line in lines if line["type"] == kind]


class Server(http.server.ThreadingHTTPServer):
    """As much of W&B's HTTP API as a run needs; `hangs` leaves what follows unanswered."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.hangs = threading.Event()
        self.closed = threading.Event()
        self.queries: list[dict[str, Any]] = []
        self.streams: list[tuple[str, dict[str, Any]]] = []

    def variables(self, name: str) -> list[dict[str, Any]]:
        """Of every GraphQL request of that name."""
        return [query["variables"] for query in self.queries if name in query["query"]]

    def history(self) -> list[dict[str, Any]]:
        """Rows that were streamed."""
        files = [body["files"] for _, body in self.streams if "wandb-history.jsonl" in body.get("files", {})]
        return [json.loads(row) for file in files for row in file["wandb-history.jsonl"]["content"]]


class Handler(http.server.BaseHTTPRequestHandler):
    """GraphQL, file streams and uploads."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_HEAD(self) -> None:
        self.reply({})

    do_PUT = do_HEAD  # noqa: N815

    def do_GET(self) -> None:
        if self.path == "/hang":
            self.server.hangs.set()
        self.reply({})

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.hangs.is_set():
            self.server.closed.wait(60)
            return
        if self.headers.get("Content-Encoding") == "gzip":
            data = gzip.decompress(data)
        if self.path == "/graphql":
            self.reply(self.answer(json.loads(data)))
            return
        if self.path.endswith("/file_stream"):
            self.server.streams.append((self.path, json.loads(data)))
        self.reply({})

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The shape that W&B's client expects, or an error where it can do without."""
        self.server.queries.append(request)
        entity = {"id": "e", "name": "me"}
        if "UpsertBucket" in request["query"]:
            bucket = {"id": "b", "name": request["variables"]["name"], "historyLineCount": 0,
                      "project": {"id": "p", "name": "test", "entity": entity}}  # fmt: skip
            return {"data": {"upsertBucket": {"bucket": bucket, "inserted": True}}}
        if "RunResumeStatus" in request["query"]:
            return {"data": {"model": {"id": "p", "name": "test", "entity": entity, "bucket": None}}}
        if "query Viewer" in request["query"]:
            viewer = {"id": "u", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}
            return {"data": {"viewer": viewer, "serverInfo": None}}
        return {"data": None, "errors": [{"message": "not here"}]}

    def reply(self, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode() if self.command != "HEAD" else b""
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(name="server")
def fixture_server(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:  # after the environment
    """W&B is there, and there is a key for it."""
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        yield server
        server.closed.set()
        server.shutdown()
        thread.join()
