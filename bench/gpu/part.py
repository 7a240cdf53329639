"""Parts of bench/gpu/kernels.py in a process of their own: `part.py NAME,... FILE OPTIONS-as-JSON`.

A kernel that hangs, or leaves the CUDA context unusable, takes down its own part alone.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import torch

if __name__ == "__main__":
    sys.path.pop(0)  # the script's folder, whose kernels.py would hide the package
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from bench.gpu import (
    correct_attention,
    correct_rows,
    speed_attention,
    speed_prefix,
    speed_rows,
    speed_sample,
)
from bench.gpu.ceilings import Ceilings
from bench.gpu.clock import Clock
from bench.gpu.run import Run

CORRECT = correct_attention.PARTS | correct_rows.PARTS
SPEED = speed_attention.PARTS | speed_prefix.PARTS | speed_rows.PARTS | speed_sample.PARTS
PARTS: dict[str, Callable[[Run], None]] = {
    **{f"correct.{name}": part for name, part in CORRECT.items()},
    **{f"speed.{name}": part for name, part in SPEED.items()},
}


def main() -> None:
    """Run the parts; what they found is in FILE, whatever happens after."""
    names, path, options = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    device = torch.device(options["device"])
    torch.manual_seed(options["seed"])
    run = Run(
        device=device,
        clock=Clock(device, options["repeats"]),
        ceilings=Ceilings(**options["ceilings"]),
        tiny=options["tiny"],
        ends_at=monotonic() + options["seconds"],
        path=path,
    )
    for name in names.split(","):
        PARTS[name](run)


if __name__ == "__main__":
    main()
