"""The short soak: random kills of real processes, and nothing is lost."""

from scripts.soak import main


def test_short_soak_loses_nothing(capsys):
    assert main(["--kills", "3", "--steps", "60", "--ranks", "1", "--seed", "3"]) == 0
    said = capsys.readouterr().out
    assert "3 kills, 4 launches" in said
    assert "identical: every loss, every evaluation, all weights" in said
