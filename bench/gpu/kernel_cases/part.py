"""Parts of bench/gpu/kernels.py in a process of their own; see isolated.py."""

import sys
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":
    sys.path.pop(0)  # the script's folder, whose kernels.py would hide the package
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from bench.gpu.kernel_cases import quantised
from bench.gpu.kernel_cases.correct import attention as correct_attention
from bench.gpu.kernel_cases.correct import rounded_kv
from bench.gpu.kernel_cases.correct import rows as correct_rows
from bench.gpu.kernel_cases.speed import attention as speed_attention
from bench.gpu.kernel_cases.speed import prefix as speed_prefix
from bench.gpu.kernel_cases.speed import rows as speed_rows
from bench.gpu.kernel_cases.speed import sample as speed_sample
from bench.gpu.running.isolated import run_here
from bench.gpu.running.run import Run

CORRECT = correct_attention.PARTS | rounded_kv.PARTS | correct_rows.PARTS | quantised.CORRECT
SPEED = (
    speed_attention.PARTS
    | speed_prefix.PARTS
    | speed_rows.PARTS
    | speed_sample.PARTS
    | quantised.SPEED
)
PARTS: dict[str, Callable[[Run], None]] = {
    **{f"correct.{name}": part for name, part in CORRECT.items()},
    **{f"speed.{name}": part for name, part in SPEED.items()},
}


if __name__ == "__main__":
    sys.exit(run_here(PARTS))
