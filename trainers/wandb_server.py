"""Can W&B be reached from here, and which of its exceptions and processes are ours to handle?"""

from __future__ import annotations

import netrc
import os
import threading
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from conf.choices import TrackingMode

PROBE_TIMEOUT_SECONDS = 2.0
HOSTED_URL = "https://api.wandb.ai"  # where netrc keeps the hosted service's key, whatever its address is today


def choose_mode(wanted: TrackingMode) -> tuple[str, str]:
    """`online`, `offline` or `disabled`, and why not online. `WANDB_MODE` decides when the plan says auto."""
    mode = wanted.name
    if wanted is TrackingMode.auto:
        mode = {"offline": "offline", "dryrun": "offline", "disabled": "disabled"}.get(
            os.environ.get("WANDB_MODE", ""), "online"
        )
    if mode != "online":
        return mode, f"tracking.mode={wanted.name}" if mode == wanted.name else f"WANDB_MODE={mode}"
    settings = _settings()
    default_url = type(settings)().base_url
    hosts = [settings.base_url] + ([HOSTED_URL] if settings.base_url == default_url else [])
    if not (settings.api_key or any(has_key(host) for host in hosts)):
        return "offline", "no API key (wandb login)"
    if not answers(settings.base_url, PROBE_TIMEOUT_SECONDS):
        return "offline", f"{settings.base_url} does not answer within {PROBE_TIMEOUT_SECONDS:g} s"
    return "online", ""


def _settings() -> Any:
    """W&B's settings from its files and the environment, before any run."""
    import wandb

    return wandb.setup(settings=quiet_settings()).settings


def quiet_settings(**settings: Any) -> Any:
    """`wandb.Settings` that print nothing; a setting that this version of W&B lacks is left out."""
    import wandb

    known = getattr(wandb.Settings, "model_fields", settings)
    return wandb.Settings(silent=True, **{name: value for name, value in settings.items() if name in known})


def has_key(base_url: str) -> bool:
    """In the environment or in the netrc file that `wandb login` writes; no network, no prompt."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    home = Path.home()
    default = next((path for path in (home / ".netrc", home / "_netrc") if path.exists()), home / ".netrc")
    host = urllib.parse.urlsplit(base_url).netloc
    try:
        entries = netrc.netrc(os.environ.get("NETRC", str(default)))
    except (OSError, netrc.NetrcParseError):  # no file, or one that W&B cannot read either
        return False
    found = entries.authenticators(host)
    return bool(found and found[2])


def answers(url: str, timeout_seconds: float) -> bool:
    """Whether anything speaks HTTP there. In a thread: name resolution has no time limit of its own."""
    answered = threading.Event()

    def ask() -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=timeout_seconds).close()
        except urllib.error.HTTPError:  # an answer, if a rude one
            answered.set()
        except (OSError, ValueError):  # refused, no route, no such name, not a URL
            return
        else:
            answered.set()

    thread = threading.Thread(target=ask, name="probe", daemon=True)
    thread.start()
    thread.join(timeout_seconds)
    return answered.is_set()


def failures() -> tuple[type[Exception], ...]:
    """What W&B raises when it is misconfigured, unreachable, or its helper process died."""
    import wandb
    from wandb.sdk.mailbox import HandleAbandonedError, MailboxClosedError

    return (wandb.Error, OSError, ValueError, MailboxClosedError, HandleAbandonedError)


def kill_service() -> None:
    """Kill the helper processes that W&B started for this process; what they have flushed stays."""
    import psutil

    for child in psutil.Process().children(recursive=True):
        try:
            if child.name().startswith("wandb-"):
                child.kill()
        except psutil.NoSuchProcess:
            continue
