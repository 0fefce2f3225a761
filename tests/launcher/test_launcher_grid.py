import json

from conf.compose import compose
from launcher import grid
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


def test_rows_of_one_grid_share_a_group_unless_one_was_given(monkeypatch):
    commands = []

    def take(command, **_):
        commands.append(command)

    monkeypatch.setattr(grid.subprocess, "Popen", take)
    monkeypatch.setattr(grid.local, "attend", lambda process, seconds: 0)
    for given in ([], ["tracking.group=mine"]):
        rows = compose(["-m", "hw=1x4090,2x4090", *given]).grid
        grid._launch_all(rows, [{"job": "a"}, {"job": "b"}], as_json=False)
    groups = [[word for word in command if word.startswith("tracking.group=")] for command in commands]
    assert len(groups[0]) == 1
    assert groups[0][0].startswith("tracking.group=grid-")
    assert groups[0] == groups[1]
    assert groups[2] == groups[3] == ["tracking.group=mine"]
