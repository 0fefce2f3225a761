"""The short soak: random kills of real processes, and nothing is lost."""

import pytest

from scripts.soak import main


@pytest.mark.slow
def test_short_soak_loses_nothing(capsys):
    assert main(["--kills", "2", "--steps", "120", "--ranks", "1", "--seed", "3"]) == 0
    said = capsys.readouterr().out
    assert "identical: every loss, every evaluation, all weights" in said
    assert "SIG" in said  # a fast machine may be done before the second
