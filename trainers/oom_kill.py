"""Did the kernel kill a process for its memory? Its own counters say so; a process killed by it cannot.

`oom_kill` of memory.events (cgroup v2) or memory.oom_control (v1) counts the processes of this control group that any
out-of-memory killer ended; /proc/vmstat counts those of the whole machine, where no group is readable.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

COUNTER = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def n_oom_kills(root: Path = Path("/")) -> int | None:
    """Since the machine, or its container, was started; None: the kernel does not say."""
    for path in (*_of_the_group(root), root / "proc/vmstat"):
        found = COUNTER.search(_text(path))
        if found:
            return int(found[1])
    return None


@cache
def _n_before() -> int | None:
    return n_oom_kills()


def was_killed_for_memory() -> bool:
    """Since this was first asked, some process of this group was."""
    before, now = _n_before(), n_oom_kills()
    return now is not None and before is not None and now > before


def _of_the_group(root: Path) -> list[Path]:
    """The files of this process's control group; in a container the group is mounted as if it were the root."""
    paths = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        top, name = (
            ("sys/fs/cgroup", "memory.events") if not controllers else ("sys/fs/cgroup/memory", "memory.oom_control")
        )
        if not controllers or "memory" in controllers.split(","):
            paths += [root / top / group.lstrip("/") / name, root / top / name]
    return paths


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # no such kernel, or not ours to read
        return ""
