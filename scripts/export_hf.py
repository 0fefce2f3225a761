"""Hand a trained model on: a folder that transformers' `from_pretrained` reads.

python scripts/export_hf.py runs/20261130T120000.000000-tiny OUT                        its newest sound checkpoint
python scripts/export_hf.py latest OUT                                                  of the newest run in runs/
python scripts/export_hf.py runs/.../checkpoints/step_00000700.pt OUT --dtype bfloat16

GPT-2, Llama, Qwen2 and Qwen3 are written (config.json, model.safetensors); a model of other parts is refused by name.
Adapters are melted into their weights. Biases that GPT-2 has there and ours lacks are zeros. `trainer.init_from=hf:OUT`
reads the folder back. Needs safetensors: pip install 'preflight[hf]'
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from preflight.errors import PreflightError
from scripts.sample import find_checkpoint, run_named

DTYPES = ("float32", "bfloat16", "float16")


def main(arguments: list[str] | None = None) -> int:
    """0, or 2 when there is nothing to export or no such model over there."""
    parser = argparse.ArgumentParser(
        prog="python scripts/export_hf.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="run folder, checkpoint, or latest")
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"), help="where the latest run is looked for")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of the weights (default float32)")
    options = parser.parse_args(arguments)
    try:
        print(export(run_named(options.run, options.runs_dir), options.out, options.dtype))
    except PreflightError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    return 0


def export(run: Path, out: Path, dtype: str) -> str:
    """Write the folder; what was written, in a line."""
    path = find_checkpoint(run)
    import torch  # seconds: only when there is something to load

    from trainers import hf_weights, lora
    from trainers.build import load_trained

    model, plan, step = load_trained(path)
    state = {name: tensor.to(getattr(torch, dtype)) for name, tensor in lora.merged_state(model).items()}
    config, tensors = hf_weights.to_hugging_face(state, plan.model, plan.trainer.sequence_length)
    hf_weights.write_folder(out, config | {"dtype": dtype}, tensors)
    n_params = sum(tensor.numel() for tensor in tensors.values())
    return f"{out}: {config['architectures'][0]} of {plan.model.name} after step {step}, {n_params:,} parameters"


if __name__ == "__main__":
    from scripts.ending import ended

    sys.exit(ended(main))
