"""Files over HTTP, whole or not at all: continued where they were cut off, and offline a clear word at once."""

from __future__ import annotations

import json
import shutil
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from preflight.errors import ConfigError, Problem
from preflight.units import format_bytes, format_seconds
from trainers.prepare import Say

TIMEOUT_SECONDS = 15.0  # to connect, and between two pieces
N_ATTEMPTS = 5
PIECE_BYTES = 2**20
REPORT_INTERVAL_SECONDS = 2.0


def get_json(url: str) -> Any:
    """The document at `url`."""
    with _open(url, 0) as response:
        return json.load(response)


def get_file(url: str, path: Path, say: Say) -> Path:
    """`url` as `path`. A broken connection is taken up again where it broke, also by a later call."""
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    for attempt in range(1, N_ATTEMPTS + 1):
        try:
            _continue(url, partial, say)
        except (TimeoutError, ConnectionError, IncompleteFileError) as error:
            if attempt == N_ATTEMPTS:
                raise _unreachable(url, error) from error
            say(f"{url}: {error}; trying again")
            time.sleep(0.2 * attempt)
        else:
            return partial.replace(path)
    raise AssertionError("the loop returns or raises")


class IncompleteFileError(Exception):
    """The other side closed the connection before the end."""


def _continue(url: str, partial: Path, say: Say) -> None:
    n_done = partial.stat().st_size if partial.exists() else 0
    with _open(url, n_done) as response:
        is_continued = response.status == 206  # 200: the server starts from the beginning
        n_done = n_done if is_continued else 0
        n_left = response.headers["Content-Length"]
        total = None if n_left is None else n_done + int(n_left)
        _check_disk(partial, int(n_left or 0), url)
        began, reported = time.monotonic(), time.monotonic()
        n_begun = n_done
        with partial.open("ab" if is_continued else "wb") as file:
            while piece := response.read(PIECE_BYTES):
                file.write(piece)
                n_done += len(piece)
                if time.monotonic() - reported > REPORT_INTERVAL_SECONDS:
                    reported = time.monotonic()
                    say(_progress_line(url, n_done, total, (n_done - n_begun) / (reported - began)))
    if total is not None and n_done < total:
        raise IncompleteFileError(f"closed after {format_bytes(n_done)} of {format_bytes(total)}")


def _open(url: str, first_byte: int) -> Any:
    """A response, or ConfigError with the cause; only what may pass by itself is raised as it is."""
    headers = {"User-Agent": "preflight", "Accept-Encoding": "identity"}
    if first_byte:
        headers["Range"] = f"bytes={first_byte}-"
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        message = f"{url} answers {error.code} {error.reason}"
        fix = "--base-url MIRROR, or prepare the data elsewhere and copy the folder"
        raise ConfigError([Problem(path="", value="", message=message, fix=fix)]) from error
    except urllib.error.URLError as error:
        raise _unreachable(url, error.reason) from error


def _unreachable(url: str, cause: object) -> ConfigError:
    message = f"{url} cannot be reached ({cause}): no network here, or the server is down"
    fix = "run this where there is network and copy the folder here, or --base-url MIRROR; `stdlib` needs no download"
    return ConfigError([Problem(path="", value="", message=message, fix=fix)])


def _check_disk(path: Path, need_bytes: int, url: str) -> None:
    free_bytes = shutil.disk_usage(path.parent).free
    if need_bytes > free_bytes:
        message = f"{url} needs {format_bytes(need_bytes)}, {format_bytes(free_bytes)} are free in {path.parent}"
        raise ConfigError([Problem(path="", value="", message=message, fix="--dir ON_A_LARGER_DISK")])


def _progress_line(url: str, n_done: int, total: int | None, bytes_per_second: float) -> str:
    name = url.rsplit("/", 1)[-1]
    if total is None:
        return f"{name}: {format_bytes(n_done)}"
    left = format_seconds((total - n_done) / bytes_per_second) if bytes_per_second else "unknown"
    return f"{name}: {format_bytes(n_done)} of {format_bytes(total)}, {left} left"
