"""Does what the plan relies on really work here? A tiny compiled step, and a copy between each two cards.

python -m trainers.trial cpu compile          prints one JSON object: what was tried -> "" or what went wrong
python -m trainers.trial cuda compile copies

Run in a process of its own: a compiler that crashes and a copy that hangs take nobody else with them.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Sequence
from itertools import permutations

import torch

N_NUMBERS = 2**16


def compiles(device: str) -> str:
    """Forward and backward of a few operations, against the same without the compiler."""
    weight = torch.linspace(-1.0, 1.0, 64 * 64, device=device).reshape(64, 64)

    def step(inputs: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(inputs @ weight).square().mean()

    def gradient(function: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        inputs = torch.ones(8, 64, device=device, requires_grad=True)
        function(inputs).backward()
        if inputs.grad is None:
            raise RuntimeError("no gradient came back")
        return inputs.grad

    try:
        same = torch.allclose(gradient(torch.compile(step)), gradient(step), rtol=1e-2, atol=1e-4)
    except Exception as error:  # noqa: BLE001  # a compiler may fail in any way: no triton, no C++, no headers, no disk
        return _first_line(error)
    return "" if same else "the compiled step gives other numbers"


def copies(device: str) -> str:
    """Old drivers let some cards read each other's memory, and the copy is all zeros."""
    numbers = torch.arange(N_NUMBERS)
    for source, target in permutations(range(torch.cuda.device_count()), 2):
        arrived = numbers.to(f"{device}:{source}").to(f"{device}:{target}").cpu()
        if not torch.equal(arrived, numbers):
            return f"what GPU {source} sends to GPU {target} does not arrive"
    return ""


TRIALS = {"compile": compiles, "copies": copies}
LIMIT_SECONDS = {"copies": 20}


def main(arguments: Sequence[str] | None = None) -> int:
    """0 whatever the answers are; they stand on the last line."""
    device, *names = sys.argv[1:] if arguments is None else arguments
    answers = {name: _within(name, device) for name in names}
    sys.stdout.write(json.dumps(answers) + "\n")
    return 0


def _within(name: str, device: str) -> str:
    """A copy that hangs ends this process by SIGALRM, which the launcher reads; loading torch does not count."""
    if name in LIMIT_SECONDS and hasattr(signal, "alarm"):
        signal.alarm(LIMIT_SECONDS[name])
    answer = TRIALS[name](device)
    if hasattr(signal, "alarm"):
        signal.alarm(0)
    return answer


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
