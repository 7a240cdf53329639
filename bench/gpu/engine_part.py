"""Parts of bench/gpu/engine.py in a process of their own; see isolated.py."""

import sys
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":
    sys.path.pop(0)  # the script's folder, whose kernels.py would hide the package
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from bench.gpu import engine_decode, engine_equal, engine_prefill, engine_serve
from bench.gpu.isolated import run_here
from bench.gpu.run import Run

PARTS: dict[str, Callable[[Run], None]] = {
    **engine_equal.PARTS,
    **engine_decode.PARTS,
    **engine_prefill.PARTS,
    **engine_serve.PARTS,
}

if __name__ == "__main__":
    sys.exit(run_here(PARTS))
