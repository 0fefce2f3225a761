"""New prices from files and from an HTTP server of our own; what is broken never replaces what is good."""

from __future__ import annotations

import csv
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from scripts import price_sources, refresh_prices

HEADER = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice\n"
OLD = (
    "provider,instance,card,n_gpus,counts_sold,usd_per_hour,usd_per_hour_spot,region,as_of,source\n"
    "aws,p4d.24xlarge,a100_40gb,8,8,32.77,9.8,us-east-1,2026-06-01,old\n"
    "aws,g5.xlarge,a10g,1,1,1.006,,us-east-1,2026-06-01,old\n"
    "runpod,community pod,4090,1,1-8,0.34,,marketplace,2026-09-25,the website\n"
)


def info(name: str, mib: int) -> str:
    return f"\"{{'Gpus': [{{'Name': '{name}', 'Count': 1, 'MemoryInfo': {{'SizeInMiB': {mib}}}}}]}}\""


AWS = (
    HEADER
    + "t3.micro,,,2,1,0.01,us-east-1,,\n"  # no card at all
    + f"p4d.24xlarge,A100,8.0,96,1152,30.0,eu-west-1,{info('A100', 40960)},12.0\n"
    + f"p4d.24xlarge,A100,8.0,96,1152,21.95,us-east-2,{info('A100', 40960)},9.5\n"  # the cheaper region
    + f"p4de.24xlarge,A100-80GB,8.0,96,1152,27.4,us-east-1,{info('A100', 81920)},0.0\n"  # no spot price
    + f"p4de.metal,A100-80GB,8.0,96,1152,29.0,us-east-1,{info('A100', 81920)},\n"  # dearer: not added
    + f"g6.xlarge,L4,1.0,4,16,0.8,us-east-1,{info('L4', 22888)},0.8\n"  # spot equals on demand: a gap
    + f"inf1.xlarge,Inferentia,1.0,4,8,0.23,us-east-1,{info('Inferentia', 8192)},\n"
)


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    path = tmp_path / "prices.csv"
    path.write_text(OLD)
    return path


def table(folder: Path, cloud: str, text: str) -> Path:
    (folder / cloud).mkdir(parents=True, exist_ok=True)
    (folder / cloud / "vms.csv").write_text(text)
    return folder


def rows_of(path: Path) -> dict[tuple[str, str], dict[str, str]]:
    with path.open(newline="") as file:
        return {(row["instance"], row["n_gpus"]): row for row in csv.DictReader(file)}


def refresh(catalog: Path, *arguments: str) -> int:
    return refresh_prices.main([*arguments, "--catalog", str(catalog), "--as-of", "2026-11-30"])


def test_prices_are_replaced_added_and_kept(catalog: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refresh(catalog, "aws", "--from", str(table(tmp_path / "mirror", "aws", AWS))) == 0
    rows = rows_of(catalog)
    p4d = rows["p4d.24xlarge", "8"]
    assert (p4d["usd_per_hour"], p4d["usd_per_hour_spot"], p4d["region"]) == ("21.95", "9.5", "us-east-2")
    assert (p4d["as_of"], p4d["source"]) == ("2026-11-30", "skypilot-catalog v8/aws/vms.csv")
    assert rows["p4de.24xlarge", "8"]["card"] == "a100_80gb"
    assert rows["p4de.24xlarge", "8"]["usd_per_hour_spot"] == ""
    assert rows["g6.xlarge", "1"]["usd_per_hour_spot"] == ""
    assert ("p4de.metal", "8") not in rows
    assert rows["g5.xlarge", "1"]["as_of"] == "2026-06-01"  # not in the table: keeps its own date and source
    assert rows["community pod", "1"]["counts_sold"] == "1-8"
    told = capsys.readouterr().out
    assert "~ aws p4d.24xlarge (8 x a100_40gb): $32.77, spot $9.80 -> $21.95, spot $9.50" in told
    assert "+ aws p4de.24xlarge (8 x a100_80gb): $27.40" in told
    assert "Inferentia (1)" in told


def test_dry_run_shows_and_writes_nothing(catalog: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refresh(catalog, "aws", "--dry-run", "--from", str(table(tmp_path / "mirror", "aws", AWS))) == 0
    assert catalog.read_text() == OLD
    assert "p4d.24xlarge" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<html><body>404</body></html>\n", "no table of prices"),
        ("", "no table of prices"),
        (HEADER, "no table of prices"),
        (HEADER.replace("Price,", "Cost,", 1) + "a,H100,8,1,1,1,r,,\n", "no column Price"),
        (HEADER + "a,Unheard-of,8,1,1,1,r,,\n", "no price of a card of ours"),
        (HEADER + "a,H100,8.0,1,1,98000,r,,\n", "cannot be right"),  # cents
        (HEADER + "a,H100,8.0,1,1,not a price,r,,\n", "no price of a card of ours"),
    ],
)  # fmt: skip
def test_bad_table_leaves_the_catalog_as_it_is(
    text: str, reason: str, catalog: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refresh(catalog, "aws", "--from", str(table(tmp_path / "mirror", "aws", text))) == 1
    assert catalog.read_text() == OLD
    assert reason in capsys.readouterr().err
    assert sorted(tmp_path.glob(".prices*")) == []


def test_one_bad_provider_does_not_keep_the_others_old(catalog: Path, tmp_path: Path) -> None:
    mirror = table(table(tmp_path / "mirror", "aws", AWS), "lambda", "nonsense")
    assert refresh(catalog, "lambda", "aws", "--from", str(mirror)) == 1
    assert rows_of(catalog)["p4d.24xlarge", "8"]["usd_per_hour"] == "21.95"


def test_price_that_jumps_tenfold_is_not_believed(
    catalog: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = HEADER + f"g5.xlarge,A10G,1.0,4,16,101,us-east-1,{info('A10G', 24576)},\n"
    assert refresh(catalog, "aws", "--from", str(table(tmp_path / "mirror", "aws", text))) == 0
    assert catalog.read_text() == OLD
    assert "not believed: aws/g5.xlarge" in capsys.readouterr().err


def test_catalog_that_would_not_be_sound_is_not_written(
    catalog: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(price_sources, "_card", lambda name, memory_gb: "no_such_card")
    assert refresh(catalog, "aws", "--from", str(table(tmp_path / "mirror", "aws", AWS))) == 1
    assert catalog.read_text() == OLD


def test_shipped_catalog_stays_sound_after_a_refresh(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    path.write_bytes((refresh_prices.CATALOG_DIR / "prices.csv").read_bytes())
    assert refresh(path, "aws", "--from", str(table(tmp_path / "mirror", "aws", AWS))) == 0
    refresh_prices.check_prices(path)


class CutShort(BaseHTTPRequestHandler):
    """Promises more than it sends, as a broken connection does."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(AWS) + 1000))
        self.end_headers()
        self.wfile.write(AWS.encode())

    def log_message(self, *arguments: object) -> None: ...


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None: ...


@pytest.fixture
def serve() -> Iterator[object]:
    servers: list[ThreadingHTTPServer] = []

    def start(handler: object) -> str:
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)  # type: ignore[arg-type]
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_prices_come_over_http_too(catalog: Path, tmp_path: Path, serve) -> None:
    mirror = table(tmp_path / "mirror", "aws", AWS)
    assert refresh(catalog, "aws", "--from", serve(partial(Quiet, directory=str(mirror)))) == 0
    assert rows_of(catalog)["p4d.24xlarge", "8"]["usd_per_hour"] == "21.95"


def test_missing_table_or_answer_cut_short_changes_nothing(
    catalog: Path, tmp_path: Path, serve, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert refresh(catalog, "aws", "--from", serve(partial(Quiet, directory=str(tmp_path / "empty")))) == 1
    assert refresh(catalog, "aws", "--from", serve(CutShort)) == 1
    assert refresh(catalog, "aws", "--from", "http://127.0.0.1:9") == 1  # nobody listens
    assert catalog.read_text() == OLD
    assert "404" in capsys.readouterr().err


def item(**fields: object) -> SimpleNamespace:
    defaults = {"instance_name": "pod", "gpu_count": 1, "location": "EU", "spot": False}
    return SimpleNamespace(**(defaults | fields))


def test_gpuhunt_is_the_other_source(catalog: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Catalog:
        def __init__(self, **options: bool) -> None: ...

        def load(self) -> None: ...

        def query(self, *, provider: str, min_gpu_count: int) -> list[SimpleNamespace]:
            assert (provider, min_gpu_count) == ("lambdalabs", 1)
            return [
                item(gpu_name="H100", gpu_memory=80.0, price=3.29),
                item(gpu_name="H100", gpu_memory=80.0, price=2.1, spot=True),
                item(gpu_name="TPU", gpu_memory=None, price=1.0),
            ]

    module = ModuleType("gpuhunt")
    module.Catalog = Catalog  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gpuhunt", module)
    assert refresh(catalog, "lambda", "--source", "gpuhunt") == 0
    row = rows_of(catalog)["pod", "1"]
    assert (row["card"], row["usd_per_hour"], row["usd_per_hour_spot"]) == ("h100", "3.29", "2.1")
    assert row["source"] == "gpuhunt catalog of lambdalabs"


def test_without_gpuhunt_the_way_to_get_it_is_said(
    catalog: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "gpuhunt", None)
    assert refresh(catalog, "aws", "--source", "gpuhunt") == 1
    assert "pip install 'preflight[prices]'" in capsys.readouterr().err
    assert catalog.read_text() == OLD
