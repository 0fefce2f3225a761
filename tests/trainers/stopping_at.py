"""A run is asked to stop at a known step, without a signal."""

from __future__ import annotations

import os


class StopAt:
    """Asked when it has been looked at `n` times: during step `n`; one rank alone, or every one."""

    def __init__(self, n: int, name: str = "SIGTERM", rank: int | None = None) -> None:
        self.n_looks, self.n, self.name, self.rank = 0, n, name, rank

    @property
    def requested(self) -> str | None:
        self.n_looks += 1
        is_asked = self.rank is None or os.environ["RANK"] == str(self.rank)
        return self.name if is_asked and self.n_looks >= self.n else None
