"""What becomes of an attempt's checkpoints when a smaller model is started in its folder?"""

from __future__ import annotations

from pathlib import Path

from launcher import relaunch


def test_checkpoints_of_another_model_are_set_aside(tmp_path: Path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step_00000002.pt").write_bytes(b"weights")
    place = relaunch._set_aside(tmp_path, "gpt2_350m")
    assert not (tmp_path / "checkpoints").exists()
    assert (place / "step_00000002.pt").read_bytes() == b"weights"
    assert relaunch._set_aside(tmp_path, "gpt2_350m") == place  # a model that had saved nothing
