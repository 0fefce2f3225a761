import csv
import json

import pytest

from conf.compose import compose
from launcher import grid
from launcher.files import refuse_without_grid
from launcher.grid import bills_and_runs
from preflight.errors import ConfigError


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


def test_rows_of_one_grid_start_from_the_run_that_was_newest_before_it(tmp_path):
    (row,) = compose(["-m", "trainer.init_from=latest", f"runs_dir={tmp_path}"]).grid
    assert grid._with_start(row) == row  # the row's own bill says that there is none
    (tmp_path / "1-run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "1-run" / "checkpoints" / "step_1.pt").touch()
    (tmp_path / "1-run" / "plan.json").touch()
    assert grid._with_start(row).overrides[-1] == f"trainer.init_from={tmp_path / '1-run'}"


def test_grid_is_written_as_csv_and_json(capsys, tmp_path):
    files = [f"grid.csv={tmp_path / 'g.csv'}", f"grid.json={tmp_path / 'g.json'}"]
    line = ["-m", "model=gpt2_124m,gpt2_1558m", "hw=1x4090,7x4090", "dry_run=true", "calibration=off", *files]
    assert bills_and_runs(compose(line)) == 2
    rows = list(csv.DictReader((tmp_path / "g.csv").read_text().splitlines()))
    assert [row["job"] for row in rows] == [
        f"model={model} hw={hw}" for model in ("gpt2_124m", "gpt2_1558m") for hw in ("1x4090", "7x4090")
    ]
    assert [row["exit_code"] for row in rows] == ["0", "2", "3", "2"]
    assert [row["verdict"] for row in rows] == ["go", "error", "refuse", "error"]
    assert float(rows[0]["hours_low"]) < float(rows[0]["hours_mid"]) < float(rows[0]["hours_high"])
    assert "7 ranks do not divide 480 sequences" in rows[1]["problem"]
    assert rows[2]["over"] == "memory hours"
    document = json.loads((tmp_path / "g.json").read_text())
    assert (document["schema_version"], document["exit_code"], len(document["rows"])) == (1, 2, 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g.csv", "g.json"]
    assert len(capsys.readouterr().out.splitlines()) == 5


def test_grid_files_that_cannot_be_written_are_told_before_any_row(capsys, tmp_path):
    files = [f"grid.csv={tmp_path}", "grid.json=/nowhere/at/all.json"]
    with pytest.raises(ConfigError) as caught:
        bills_and_runs(compose(["-m", "hw=1x4090,2x4090", "dry_run=true", *files]))
    assert [problem.path for problem in caught.value.problems] == ["grid.csv", "grid.json"]
    assert capsys.readouterr().out == ""


def test_one_bill_writes_no_grid():
    config = compose(["dry_run=true", "grid.csv=g.csv"]).config
    assert config is not None
    with pytest.raises(ConfigError, match="is written by a grid only"):
        refuse_without_grid(config)


def test_rows_that_are_launched_do_not_write_the_grid(monkeypatch, tmp_path):
    commands = []
    monkeypatch.setattr(grid.subprocess, "Popen", lambda command, **_: commands.append(command))
    monkeypatch.setattr(grid.local, "attend", lambda process, seconds: 0)
    rows = compose(["-m", "hw=1x4090,2x4090", f"grid.csv={tmp_path / 'g.csv'}"]).grid
    grid._launch_all(rows, [{"job": "a"}, {"job": "b"}], as_json=False)
    assert not [word for command in commands for word in command if word.startswith("grid.")]
