"""The page is looked at by a real browser where there is one, and taken apart by a parser everywhere."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from preflight.plan import Precision, RunPlan
from preflight.planfile import to_jsonable
from preflight.record import append_line
from preflight.units import GIB
from scripts import report
from scripts.report_charts import CHARTS
from scripts.report_page import COLOURS, page
from scripts.report_tables import print_groups
from tests.conftest import build_plan

MakePlan = Callable[..., RunPlan]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
         "--disable-background-networking", "--disable-component-update", "--hide-scrollbars")  # fmt: skip
WIDTHS = (1280, 400)
# What a reader would see, written into the page: sizes in pixels on the screen, colours as they are painted.
PROBE = """<script>addEventListener("load", () => {
  const texts = [...document.querySelectorAll("svg text")].map(t => {
    const box = t.getBoundingClientRect();
    const scale = t.ownerSVGElement.getBoundingClientRect().width / t.ownerSVGElement.viewBox.baseVal.width;
    return {px: parseFloat(getComputedStyle(t).fontSize) * scale, left: box.left, right: box.right,
            fill: getComputedStyle(t).fill};
  });
  const marks = [...document.querySelectorAll("figure")].map(f =>
    [...f.querySelectorAll("svg path, svg use")].filter(p => p.getBoundingClientRect().width > 0).length);
  const found = {width: innerWidth, scroll: document.documentElement.scrollWidth, texts, marks,
    paper: getComputedStyle(document.body).backgroundColor, ink: getComputedStyle(document.body).color,
    body: parseFloat(getComputedStyle(document.querySelector("td")).fontSize)};
  parent.postMessage(found, "*");
});</script>"""


def record(plan: RunPlan, n: int) -> dict[str, Any]:
    """The n-th run of a plan: the bill comes closer and closer."""
    off = 1 + 0.5 / (n + 1)
    terms = {"startup": 5.0, "data": 0.0, "compile": 1.0, "steps": 80.0, "data_wait": 1.0, "evaluations": 1.0,
             "checkpoints": 10.0, "shutdown": 1.0, "restarts": 1.0}  # fmt: skip
    estimate = {"peak_device_bytes": 2 * GIB, "peak_device_bytes_low": 1.5 * GIB, "peak_device_bytes_high": 2.5 * GIB,
                "wall_seconds": 100.0, "wall_seconds_low": 80.0, "wall_seconds_high": 120.0, "step_seconds": 0.01,
                "cost_usd": 2.0, "cost_usd_low": 1.0, "cost_usd_high": 3.0,
                **{f"wall_{name}_seconds": seconds for name, seconds in terms.items()}}  # fmt: skip
    actual = {"peak_device_bytes": 2 * GIB * off, "wall_seconds": 100 * off, "step_seconds": 0.01 * off,
              "cost_usd": 2 * off, "first_step": 0, "n_steps_done": 1000,
              **{f"wall_{name}_seconds": seconds * off for name, seconds in terms.items()}}  # fmt: skip
    return {
        "schema_version": 2, "run_id": f"r{n}", "name": "<tiny & friends>", "created_at": plan.created_at,
        "device": "x", "decision": "go", "exit_code": 0, "exit_reason": "done", "plan": to_jsonable(plan),
        "raw": {"estimate/memory_terms_bytes": {"weights": GIB, "gradients": GIB // 2, "logits": GIB // 2}},
        "estimate": {f"estimate/{leaf}": value for leaf, value in estimate.items()},
        "actual": {f"actual/{leaf}": value for leaf, value in actual.items()},
    }  # fmt: skip


@pytest.fixture(name="records", scope="module")
def fixture_records() -> list[dict[str, Any]]:
    plans = [
        build_plan(budget={"max_cost_usd": 2.4}),
        build_plan(model="llama_7b", card="a100_80gb", precision=Precision.fp32, budget={"max_cost_usd": 5.0}),
    ]
    return [record(plans[n % 2], n) for n in range(12)]


@pytest.fixture(name="text", scope="module")
def fixture_text(records: list[dict[str, Any]]) -> str:
    return page(records)


def test_page_draws_every_chart_and_needs_nothing_from_elsewhere(text: str) -> None:
    assert text.count("<figure>") == len(CHARTS)
    assert len(text) < 400_000
    assert "<script" not in text
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", text.replace('xlink:href="#', ""))
    assert "@import" not in text
    assert "&lt;tiny &amp; friends&gt;" in text
    for drawing in re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL):
        root = ET.fromstring(drawing)
        assert root.get("aria-label")
        assert root.findall(".//{http://www.w3.org/2000/svg}text")


def test_page_has_a_light_and_a_dark_colour_for_everything_that_is_drawn(text: str) -> None:
    drawings = "".join(re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL))
    assert not re.findall(r"#[0-9a-f]{6}\b", drawings), "a colour that does not change with the reader's"
    names = {name for name, *_ in COLOURS.values()}
    assert set(re.findall(r"var\(--(\w+)\)", drawings)) <= names


def luminance(colour: str) -> float:
    channels = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    """WCAG 2.2."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def hexed(colour: str) -> str:
    return "rgb(" + ", ".join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5)) + ")"


@pytest.mark.parametrize("name", [name for name, *_ in COLOURS.values() if name != "grid"])
def test_colours_stand_out_from_paper_in_light_and_in_dark(name: str) -> None:
    light, dark = next((light, dark) for known, light, dark in COLOURS.values() if known == name)
    least = 7.0 if name == "ink" else 3.0
    assert contrast(hexed(light), "rgb(255, 255, 255)") >= least
    assert contrast(hexed(dark), "rgb(20, 23, 27)") >= least


HOST = """<!doctype html><meta name="color-scheme" content="light dark"><title>{}</title>
<script>addEventListener("message", event => {
  document.title = JSON.stringify({...JSON.parse(document.title), [event.data.width]: event.data});
});</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian: apt install chromium)")
@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_page_is_readable_in_a_browser_on_a_desk_and_on_a_phone(text: str, tmp_path: Path, is_dark: bool) -> None:
    """In frames of 1280 and 400 pixels, since a window has at least 500."""
    (tmp_path / "report.html").write_text(text.replace("</body>", PROBE + "</body>"))
    frames = (f'<iframe src="report.html" style="border:0;width:{width}px;height:6000px"></iframe>' for width in WIDTHS)
    (tmp_path / "host.html").write_text(HOST + "".join(frames))
    scheme = f"--blink-settings=preferredColorScheme={0 if is_dark else 1}"
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1800,7000", scheme,
               "--virtual-time-budget=3000", "--dump-dom", (tmp_path / "host.html").as_uri()]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    title = re.search(r"<title>(.*?)</title>", done.stdout, flags=re.DOTALL)
    assert title
    found = json.loads(title[1].replace("&amp;", "&"))
    assert sorted(map(int, found)) == sorted(WIDTHS)
    for seen in found.values():
        width, paper = seen["width"], seen["paper"]
        assert seen["scroll"] <= width, "the page is wider than the screen"
        assert len(seen["marks"]) == len(CHARTS)
        assert min(seen["marks"]) >= 5, "a chart without marks"
        assert min(text["px"] for text in seen["texts"]) >= 9.0
        assert all(text["left"] >= -1 and text["right"] <= width + 1 for text in seen["texts"])
        assert seen["body"] >= 13
        assert contrast(seen["ink"], paper) >= 7
        assert all(contrast(text["fill"], paper) >= 7 for text in seen["texts"])
        assert (luminance(paper) < 0.05) is is_dark


def test_report_writes_the_page_where_it_is_asked_to(
    records: list[dict[str, Any]],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(report, "page", lambda read: text if len(read) == 3 else "")  # drawn once for all tests
    for line in records[:3]:
        append_line(tmp_path / "ledger.jsonl", line)
    assert report.main([str(tmp_path), "--html", str(tmp_path / "deep" / "r.html")]) == 0
    assert (tmp_path / "deep" / "r.html").read_text().startswith("<!doctype html>")
    assert not (tmp_path / "report.png").exists()
    assert "median error" in capsys.readouterr().out
    assert report.main([str(tmp_path), "--markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("* 3 bills")
    assert lines[-1].startswith("| 2026-11-30 12:00 | <tiny & friends> |")


def test_report_tells_cards_models_and_precisions_apart(
    records: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    print_groups(records)
    text = capsys.readouterr().out
    for word in ("4090", "a100_80gb", "gpt2_124m", "llama_7b", "bf16", "fp32"):
        assert word in text


def test_charts_that_have_nothing_to_draw_are_left_out() -> None:
    refused = record(build_plan(), 0) | {"actual": None, "decision": "refuse", "exit_code": 3}
    assert "<figure>" not in page([refused])
