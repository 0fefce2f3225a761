"""Work for every core whose results come in order: threads, for what works outside of the interpreter lock."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

In = TypeVar("In")
Out = TypeVar("Out")


def in_order(work: Callable[[In], Out], items: Iterable[In], *, is_worth_threads: bool) -> Iterator[Out]:
    """`map` on every core, a few items ahead of whoever reads, so that memory stays bounded."""
    if not is_worth_threads:
        yield from map(work, items)
        return
    n_threads = os.cpu_count() or 1
    waiting: deque[Future[Out]] = deque()
    with ThreadPoolExecutor(n_threads) as pool:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > 2 * n_threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
