"""What the shell is offered, and that a real bash is."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from conf.completion import candidates
from conf.compose import compose
from preflight.errors import ConfigError


@pytest.mark.parametrize(
    ("line", "first", "count"),
    [
        ("python launch.py trainer.prec", "trainer.precision=", 1),
        ("python launch.py model=gpt2_1", "model=gpt2_10m", 3),
        ("python launch.py model=tiny,gpt2_35", "model=tiny,gpt2_350m", 1),
        ("python launch.py hw=4x409", "hw=4x4090", 1),
        ("python launch.py hw=2x8xh2", "hw=2x8xh200", 1),
        ("./launch.py trainer.precision=bf", "trainer.precision=bf16", 2),
        ("launch.py dry_run=", "dry_run=true", 2),
        ("launch.py lowering.rungs=[batch,check", "lowering.rungs=[batch,checkpointing", 1),
        ("launch.py --sh", "--shell-completion", 1),
        ("launch.py trainer.compile=n", "trainer.compile=null", 1),
    ],
)
def test_candidates_are_what_may_stand_there(line, first, count):
    found = candidates(line)
    assert found[0] == first
    assert len(found) == count


def test_candidates_of_nothing_are_the_groups_and_what_people_use():
    assert candidates("python launch.py ")[0] == "model="
    assert len(candidates("python launch.py ")) < 50
    assert "budget=" not in candidates("python launch.py budg")  # there is one choice: its options are what is set
    assert "budget.max_hours=" in candidates("python launch.py budg")
    assert candidates("python launch.py data.path=/et") == []  # the shell's own


def test_a_real_bash_completes():
    if shutil.which("bash") is None:
        pytest.skip("no bash")
    script = compose(["--shell-completion", "install=bash"]).text
    assert script is not None
    line = "python launch.py model=gpt2_1"
    program = (
        f"{script}\ncompopt() {{ :; }}\nCOMP_LINE='{line}'; COMP_POINT={len(line)}; _preflight\n"
        'echo "${COMPREPLY[@]}"; complete -p launch.py'
    )
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == ["gpt2_10m gpt2_124m gpt2_1558m", "complete -F _preflight launch.py"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script(shell):
    text = compose(["-sc", f"install={shell}"]).text
    assert text is not None
    assert "--shell-completion query=" in text


def test_an_unknown_shell_is_told():
    with pytest.raises(ConfigError, match="takes install=bash, install=zsh or install=fish"):
        compose(["--shell-completion", "install=tcsh"])
