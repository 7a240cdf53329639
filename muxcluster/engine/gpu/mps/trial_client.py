"""Minimal CUDA process that tests whether a client of an MPS daemon can work.

Run as `python -m muxcluster.engine.gpu.mps.trial_client [DEVICE]` under an MPS daemon (trial.py):
it opens a context, runs an operation and reads its result. Exit status 0 if that was right, else 1
and a line on standard output that says why.
"""

import sys

import torch

from muxcluster.engine.gpu.mps.explaining import explained

_COUNT = 4096


def main(device: str) -> int:
    """Try the device; return the exit status."""
    try:
        total = int(torch.ones(_COUNT, device=device).sum().item())
    except Exception as error:  # noqa: BLE001 - the error is the answer
        said = explained(f"{type(error).__name__}: {error}")
    else:
        if total == _COUNT:
            return 0
        said = f"{_COUNT} ones add up to {total}"
    sys.stdout.write(said + "\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "cuda:0"))
