"""Small on purpose: files <= 300 lines, functions <= 50, the training loop alone <= 150."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(
    [
        ROOT / "launch.py",
        *(p for name in ("conf", "launcher", "preflight", "trainers", "scripts") for p in (ROOT / name).rglob("*.py")),
    ]
)
THIN = ("launch.py", "trainers/pretrain.py", "trainers/gpt.py", "trainers/data.py")
TRAINING_LOOP = ("trainers/pretrain.py", "pretrain")


def n_lines(path: Path) -> int:
    return len(path.read_text().splitlines())


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_file_is_small(path: Path) -> None:
    assert n_lines(path) <= 300


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_functions_are_small(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            is_loop = (str(path.relative_to(ROOT)), node.name) == TRAINING_LOOP
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno + 1 <= (150 if is_loop else 50), node.name


def test_launcher_and_trainer_are_thin() -> None:
    assert sum(n_lines(ROOT / name) for name in THIN) <= 700


def test_no_module_is_called_utils_or_common() -> None:
    assert not [path for path in SOURCES if path.stem in ("utils", "common", "helpers", "misc")]
