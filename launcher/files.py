"""A file that an option names: whole or not there; where it cannot be written is said before anything is worked out."""

from __future__ import annotations

import os
from pathlib import Path

from conf.schema import Config
from preflight.errors import ConfigError, Problem


def path_problems(option: str, name: str) -> list[Problem]:
    """Nothing is written by asking."""
    path = Path(os.path.abspath(os.path.expanduser(name)))
    if not name.strip() or path.is_dir():
        return [Problem(path=option, value=name, message="needs a file's name", fix=f"{option}=grid.{option[5:]}")]
    if not path.parent.is_dir():
        fix = f"mkdir -p {path.parent}, or another place"
        return [Problem(path=option, value=name, message=f"there is no folder {path.parent}", fix=fix)]
    return []


def refuse_without_grid(config: Config) -> None:
    """One bill is no grid; report=json is its document."""
    given = {"grid.csv": config.grid.csv, "grid.json": config.grid.json}
    message, fix = "is written by a grid only", "leave out {}, or -m with hw=1x4090,8xh100"
    if problems := [
        Problem(path=option, value=name, message=message, fix=fix.format(option))
        for option, name in given.items()
        if name is not None
    ]:
        raise ConfigError(problems)


def write_whole(option: str, name: str, content: bytes) -> None:
    """Beside its place, then renamed: what is there is the old file or the whole new one."""
    path = Path(name).expanduser()
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        message = error.strerror or str(error)
        raise ConfigError([Problem(path=option, value=name, message=message, fix="another file")]) from error
