"""Parts of bench/gpu/engine.py in a process of their own; see isolated.py."""

import sys
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":
    sys.path.pop(0)  # the script's folder, whose kernels.py would hide the package
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from bench.gpu.engine_parts import decode, equal, prefill, serve
from bench.gpu.running.isolated import run_here
from bench.gpu.running.run import Run

PARTS: dict[str, Callable[[Run], None]] = {
    **equal.PARTS,
    **decode.PARTS,
    **prefill.PARTS,
    **serve.PARTS,
}

if __name__ == "__main__":
    sys.exit(run_here(PARTS))
