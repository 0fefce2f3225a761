"""The sums run where torch is not installed, and a dry run loads nothing heavy."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

BLOCK = """
import importlib.abc, sys
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "wandb", "numpy", "transformers", "matplotlib", "tiktoken"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


def test_every_module_of_preflight_imports_without_torch() -> None:
    paths = sorted((ROOT / "preflight").rglob("*.py"))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths]
    done = run(BLOCK + f"import importlib\nfor name in {names!r}:\n    importlib.import_module(name)\n")
    assert done.returncode == 0, done.stderr


def test_a_bill_is_worked_out_without_torch() -> None:
    code = BLOCK + "import launch\nassert launch.bill('model=gpt2_124m', 'hw=4x4090').estimate.n_params > 124e6\n"
    done = run(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("report", ["text", "full", "json"])
def test_dry_run_loads_no_heavy_module(report: str) -> None:
    code = (
        "import sys, launch\n"
        f"code = launch.main(['model=gpt2_124m', 'hw=4x4090', 'dry_run=true', 'report={report}'])\n"
        "heavy = {'torch', 'wandb', 'numpy', 'transformers', 'matplotlib', 'tiktoken'} & set(sys.modules)\n"
        "assert code == 0 and not heavy, (code, heavy)\n"
    )
    done = run(code)
    assert done.returncode == 0, done.stderr
