"""Tables of facts that somebody edited by hand."""

from pathlib import Path

import pytest

from preflight import catalog
from preflight.errors import ConfigError
from preflight.tables import Columns, read_table

COLUMNS = Columns(texts=("name",), numbers=("watts",), forms={"kind": "cpu|cuda"}, dates=("as_of",))
HEAD = "name,watts,kind,as_of,note\n"


def _faults(path: Path, text: str) -> list[str]:
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_table(path, COLUMNS)
    return [problem.message.removeprefix(f"{path} ") for problem in caught.value.problems]


def test_read_table_gives_the_rows_as_texts(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(HEAD + "a,,cpu,2026-01-31,\nb,1.5,cuda,2026-02-01,x\n")
    assert [row["watts"] for row in read_table(path, COLUMNS)] == ["", "1.5"]


def test_read_table_tells_every_faulty_cell_with_its_line(tmp_path):
    text = HEAD + "a,x,cpu,2026-01-31,\n,nan,tpu,2026-02-30,\nb,1\nc,-1,cpu,2026-01-31,\n"
    assert _faults(tmp_path / "t.csv", text) == [
        "line 2: watts=x is no number",
        "line 3: name is empty",
        "line 3: watts=nan is no number",
        "line 3: kind=tpu has not the form of the other rows",
        "line 3: as_of=2026-02-30 has not the form of the other rows",
        "line 4: has not as many cells as there are columns",
        "line 5: watts=-1 is no number",
    ]


def test_read_table_tells_what_is_wrong_with_the_whole_file(tmp_path):
    path = tmp_path / "t.csv"
    assert _faults(path, "name,kind,as_of\na,cpu,2026-01-31\n") == ["has no column watts"]
    assert _faults(path, HEAD) == ["has no rows"]
    with pytest.raises(ConfigError, match=r"nowhere\.csv No such file"):
        read_table(tmp_path / "nowhere.csv", COLUMNS)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="no CSV in UTF-8"):
        read_table(path, COLUMNS)


@pytest.mark.parametrize("table", ["cards", "prices", "electricity", "pue"])
def test_catalog_names_a_table_that_is_broken(tmp_path, monkeypatch, table):
    lines = (catalog.CATALOG_DIR / f"{table}.csv").read_text().splitlines()
    (tmp_path / f"{table}.csv").write_text("\n".join([*lines, "one cell"]))
    monkeypatch.setattr(catalog, "CATALOG_DIR", tmp_path)
    with pytest.raises(ConfigError, match=rf"{table}\.csv line {len(lines) + 1}: has not as many cells"):
        catalog._rows.__wrapped__(table)
