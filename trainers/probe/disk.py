"""How fast does the disk under a folder take and give bytes? A temporary file, flushed, read again, removed."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

FILE_BYTES = 2**28
CHUNK_BYTES = 2**23
FREE_SHARE = 0.1  # of the free space, at most


def disk_bytes_per_second(folder: Path, budget_seconds: float) -> tuple[float, float]:
    """Written and flushed, and read past the cache where the system lets us. OSError: the disk refuses."""
    folder.mkdir(parents=True, exist_ok=True)
    limit_bytes = max(CHUNK_BYTES, min(FILE_BYTES, int(FREE_SHARE * _free_bytes(folder))))
    with tempfile.TemporaryFile(dir=folder, prefix="probe-", buffering=0) as file:
        descriptor = file.fileno()
        written, write_seconds = _write(descriptor, limit_bytes, budget_seconds / 2)
        _forget(descriptor)
        read, read_seconds = _read(descriptor, written, budget_seconds / 2)
    return written / write_seconds, read / read_seconds


def _free_bytes(folder: Path) -> int:
    import shutil

    return shutil.disk_usage(folder).free


def _write(descriptor: int, limit_bytes: int, budget_seconds: float) -> tuple[int, float]:
    """Random bytes, which no file system can compress; the last flush counts, as a checkpoint's does."""
    chunk = os.urandom(CHUNK_BYTES)
    begin, written = time.perf_counter(), 0
    while written < limit_bytes:
        written += os.write(descriptor, chunk)
        if time.perf_counter() - begin > budget_seconds / 2:  # flushing takes the other half, or more
            break
    os.fsync(descriptor)
    return written, time.perf_counter() - begin


def _forget(descriptor: int) -> None:
    """Ask for the pages to leave the cache, so that reading means the disk (POSIX; elsewhere the cache answers)."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def _read(descriptor: int, n_bytes: int, budget_seconds: float) -> tuple[int, float]:
    os.lseek(descriptor, 0, os.SEEK_SET)
    begin, read = time.perf_counter(), 0
    while read < n_bytes:
        n = len(os.read(descriptor, CHUNK_BYTES))
        if n == 0:
            break
        read += n
        if time.perf_counter() - begin > budget_seconds:
            break
    return read, time.perf_counter() - begin
