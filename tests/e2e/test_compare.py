"""`action=compare` as it is typed: a table or a document, files only when asked for, nothing launched."""

from tests.e2e.conftest import Desk


def test_comparison_ranks_and_leaves_no_trace(desk: Desk) -> None:
    done = desk.launch("model=gpt2_124m", "action=compare")
    assert done.code == 0, done.err
    assert "cheapest" in done.out
    assert " 1x4090 " in done.out
    assert list(desk.folder.iterdir()) == []


def test_comparison_writes_the_files_that_are_asked_for(desk: Desk) -> None:
    done = desk.launch(
        "model=gpt2_124m", "action=compare", "report=json", "compare.by=time", "compare.csv=offers.csv",
        "compare.png=offers.png", "compare.max_gpus=1", "trainer.total_tokens=500_000_000",
    )  # fmt: skip
    assert done.code == 0, done.err
    goes = [row["hours"]["mid"] for row in done.document["rows"] if row["is_go"]]
    assert goes == sorted(goes)
    visible = [path.name for path in desk.folder.iterdir() if not path.name.startswith(".")]  # matplotlib's own cache
    assert sorted(visible) == ["offers.csv", "offers.png"]
    assert len((desk.folder / "offers.csv").read_text().splitlines()) == len(done.document["rows"]) + 1


def test_comparison_is_no_grid_and_no_replay(desk: Desk) -> None:
    grid = desk.launch("-m", "model=tiny,gpt2_124m", "action=compare")
    assert grid.code == 2
    assert "action=compare" in grid.err
    replay = desk.frozen("plan=plan.json", "action=compare")
    assert replay.code == 2
    assert "a frozen plan takes only" in replay.err
    both = desk.launch("action=compare", "compare.max_gpus=0", "modle=tiny", "trainer.precision=fp16")
    assert both.code == 2
    assert "compare.max_gpus" in both.err
    assert "modle" in both.err
    assert "fp16" not in both.err


def test_comparison_without_a_go_is_over_budget(desk: Desk) -> None:
    done = desk.launch("model=gpt2_124m", "action=compare", "budget.max_cost_usd=0.01")
    assert done.code == 3
    assert "over" in done.out
