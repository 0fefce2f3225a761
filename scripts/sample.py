"""What does a run write? Text from its newest sound checkpoint.

python scripts/sample.py                         the newest run in runs/ (also: latest)
python scripts/sample.py runs/20261130T120000.000000-tiny --prompt "def main(" --tokens 400
python scripts/sample.py runs/.../checkpoints/step_00000700.pt --temperature 0 --samples 1
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from conf.choices import Tokenizer
from preflight.errors import ConfigError, PreflightError, Problem
from preflight.plan import RunPlan

LATEST = "latest"


def main(arguments: list[str] | None = None) -> int:
    """0, or 2 when there is nothing to sample from."""
    parser = argparse.ArgumentParser(
        prog="python scripts/sample.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, nargs="?", help="run folder, checkpoint, or latest (the default)")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"), help="where the newest run is looked for")
    parser.add_argument("--prompt", default="\n", help="text to go on from")
    parser.add_argument("--tokens", type=int, default=300, help="tokens to write")
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--temperature", type=float, default=0.8, help="0: always the likeliest token")
    parser.add_argument("--top-k", type=int, default=200, help="choose among the likeliest so many")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json, where the run does not name its own")
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--device", default="cpu", help="cpu, cuda, mps")
    options = parser.parse_args(arguments)
    try:
        for text in sample(options):
            print(text)
            print("-" * 20)
    except PreflightError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    return 0


def sample(options: argparse.Namespace) -> list[str]:
    """The texts."""
    path = find_checkpoint(run_named(options.run, options.runs_dir))
    import torch  # seconds: only when there is something to load

    from trainers.build import load_trained, melted

    trained, plan, step = load_trained(path, options.device)
    model = melted(trained, plan, options.device).eval()
    encode, decode = codec(plan, options.tokenizer)
    print(f"{path}: {plan.model.name} after step {step} of {plan.trainer.n_steps}", file=sys.stderr)
    torch.manual_seed(options.seed)
    prompt = torch.tensor([encode(options.prompt)] * options.samples, device=options.device)
    tokens = model.generate(prompt, options.tokens, temperature=options.temperature, top_k=options.top_k)
    return [decode(row) for row in tokens.tolist()]


def run_named(run: Path | None, runs_dir: Path) -> Path:
    """`latest`, or none, is the newest run with a checkpoint, as with `resume=latest`."""
    is_latest = run is None or (str(run) == LATEST and not run.exists())
    return newest_run(runs_dir) if run is None or is_latest else run


def newest_run(runs_dir: Path) -> Path:
    """Run folders begin with their time, so the last name is the newest."""
    runs = sorted({path.parents[1] for path in runs_dir.glob("*/checkpoints/step_*.pt")})
    if not runs:
        raise nothing(runs_dir, "no run with a checkpoint there", "python launch.py, or --runs-dir ELSEWHERE")
    return runs[-1]


def find_checkpoint(run: Path) -> Path:
    """A file as it is, if it is sound; of a folder the newest sound one."""
    from trainers import checkpoint

    if run.is_file():
        fault = checkpoint.fault_of(run)
        if fault is not None:
            raise nothing(run, fault, "another checkpoint, or the run's folder for the newest sound one")
        return run
    path, passed_over = checkpoint.find_latest(run)
    for line in passed_over:
        print(f"passed over {line}", file=sys.stderr)
    if path is None:
        raise nothing(run, "no sound checkpoint there", "a folder of runs/")
    return path


def codec(plan: RunPlan, tokenizer: Path | None) -> tuple[Any, Any]:
    """Text to ids and back: by the file that was given, the one that prepared the data, or the model's tokenizer."""
    from trainers.encoders import encoder

    path = tokenizer or (Path(plan.data.tokenizer_path) if plan.data.tokenizer_path else None)
    if path is None and plan.model.tokenizer is Tokenizer.other:
        message = "token files of a foreign tokenizer: no text to be had without it"
        raise nothing(Path(plan.data.dir), message, "--tokenizer PATH/tokenizer.json")
    words = encoder(plan.model.tokenizer, path)
    return lambda text: words.encode(text.encode()).tolist(), words.decode


def nothing(path: Path, message: str, fix: str) -> ConfigError:
    """Why there is nothing to sample from."""
    return ConfigError([Problem(path="", value="", message=f"{path}: {message}", fix=fix)])


if __name__ == "__main__":
    from scripts.ending import ended

    sys.exit(ended(main))
