import json

from conf.compose import compose
from launcher.grid import bills_and_runs


def test_grid_tells_a_row_without_a_bill_once_with_its_fix(capsys):
    assert bills_and_runs(compose(["-m", "hw=4,1x4090", "dry_run=true"])) == 2
    _, error_row, bill_row = capsys.readouterr().out.splitlines()
    assert error_row.startswith("hw=4: a machine is written as")
    assert error_row.endswith("To fix: hw=4x4090")
    assert error_row.count("hw=4:") == 1
    assert bill_row.endswith("hw=1x4090")


def test_grid_tells_in_json_why_the_machine_is_wrong(capsys, monkeypatch):
    for name, value in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    bills_and_runs(compose(["-m", "hw=4x4090", "dry_run=true", "report=json"]))
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert "torchrun started 2 ranks" in row["problems"][0]["message"]
