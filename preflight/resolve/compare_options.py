"""Do the options of an action mean anything: known providers, files that can be written, the action itself?"""

from __future__ import annotations

import os
from dataclasses import fields

from conf.choices import Action
from conf.schema import CalibrateConfig, CompareConfig, Config
from preflight.catalog import provider_names
from preflight.resolve.resolution import Resolution


def check_compare(config: Config, resolution: Resolution) -> None:
    """The problems are noted."""
    if config.action is not Action.calibrate:
        _refuse_stray_options("calibrate", config.calibrate, config.action, resolution)
    if config.action is not Action.compare:
        _refuse_stray_options("compare", config.compare, config.action, resolution)
        return
    _check_providers(config.compare, resolution)
    for name in ("csv", "png"):
        path = getattr(config.compare, name)
        if path is not None:
            _check_file(f"compare.{name}", path, f"offers.{name}", resolution)


def _refuse_stray_options(
    group: str, options: CompareConfig | CalibrateConfig, action: Action, resolution: Resolution
) -> None:
    default = type(options)()
    for option in fields(options):
        value = getattr(options, option.name)
        if value != getattr(default, option.name):
            shown = f"[{','.join(value)}]" if isinstance(value, list) else value
            message = f"has no effect with action={action.name}"
            resolution.refuse(f"{group}.{option.name}", shown, message, f"action={group}")


def _check_providers(compare: CompareConfig, resolution: Resolution) -> None:
    known = provider_names()
    unknown = [name for name in compare.providers if name not in known]
    if not unknown:
        return
    from difflib import get_close_matches  # not at module level: only mistakes need it

    near = [match for name in unknown for match in get_close_matches(name.lower(), known, n=1)]
    meant = [name for name in compare.providers if name in known] + near or [known[0]]
    resolution.refuse(
        "compare.providers",
        f"[{','.join(compare.providers)}]",
        f"no prices of {', '.join(unknown)}; there are {', '.join(known)}",
        f"'compare.providers=[{','.join(dict.fromkeys(meant))}]'",
    )


def _check_file(option: str, path: str, example: str, resolution: Resolution) -> None:
    full = os.path.abspath(os.path.expanduser(path))
    folder = os.path.dirname(full)
    if not path.strip() or os.path.isdir(full):
        resolution.refuse(option, path, "needs a file's name", f"{option}={example}")
    elif not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        what = "cannot be written to" if os.path.isdir(folder) else "does not exist"
        resolution.refuse(option, path, f"the folder {folder} {what}", f"{option}={example}")
