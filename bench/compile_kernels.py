"""Compiles every Triton kernel for the A100, H100 and B200, without a GPU.

Each module below kernels/triton_ops states realistic arguments of its kernels (SPECIMENS). Each is
compiled as Triton's JIT would at a launch, and the binary is asked for its registers, stack and
shared memory. Exit code 1 where one does not compile, spills to the stack, or needs more shared
memory than the architecture has.
"""

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

sys.path.pop(0)  # the script's folder, whose http.py would hide Python's
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.pop("TRITON_INTERPRET", None)  # interpreted kernels cannot be compiled

import triton

from bench.compiled import SHARED_LIMITS, Compiled, compile_named, modules, specimens
from bench.harness import Bench, Claim, make_parser

QUICK = (90,)
_HEAD = (
    f"{'GPU':6} {'regs':>5} {'stack':>5} {'spills':>6} {'shared':>7} {'matrix':>15} {'copies':>13}"
)

Asked = tuple[str, str, int, Future[Compiled]]
"""Module, specimen's name, capability and the result to come."""


def submit(
    pool: ProcessPoolExecutor, wanted: Sequence[str], capabilities: Sequence[int]
) -> Iterator[Asked]:
    """Start the compile of every specimen of the wanted modules for each of its capabilities."""
    for module in wanted:
        for index, specimen in enumerate(specimens(module)):
            for capability in specimen.capabilities:
                if capability not in capabilities:
                    continue
                future = pool.submit(compile_named, module, index, capability)
                yield module, specimen.name, capability, future


def collect(asked: Sequence[Asked]) -> tuple[list[Compiled], list[str]]:
    """Print a row a compile as it is there. Returns the rows, and what is wrong in words."""
    width = max((len(name) for _, name, _, _ in asked), default=0)
    print(f"{'kernel':{width}} {_HEAD} {'s':>5}", flush=True)
    rows, faults = [], []
    for module, name, capability, future in asked:
        error = future.exception()
        if error is not None:
            print(f"{name:{width}} sm_{capability:<3} does not compile", flush=True)
            faults.append(f"{module}: {name} for sm_{capability}: {error}")
            continue
        row = future.result()
        rows.append(row)
        print(
            f"{name:{width}} sm_{capability:<3} {row.registers:5} {row.stack_bytes:5} "
            f"{row.spills:6} {row.shared_bytes:7} {row.matrix:>15} {row.copies:>13} "
            f"{row.seconds:5.1f}",
            flush=True,
        )
        faults.extend(f"{module}: {name} for sm_{capability}: {why}" for why in row.faults())
    return rows, faults


def main() -> int:
    """Compile, print the table and what is wrong, publish the claims."""
    parser = make_parser(__doc__)
    parser.add_argument(
        "--modules", nargs="+", metavar="NAME", choices=modules(), help="only these kernels"
    )
    parser.add_argument(
        "--processes", type=int, default=2, metavar="N", help="compiles at a time (2)"
    )
    bench = Bench(parser)
    options = bench.options
    capabilities = QUICK if options.quick else tuple(SHARED_LIMITS)
    with tempfile.TemporaryDirectory() as cache:
        # Nothing compiled earlier may answer for a kernel of today.
        os.environ["TRITON_CACHE_DIR"] = cache
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(options.processes, mp_context=context) as pool:
            asked = tuple(submit(pool, options.modules or modules(), capabilities))
            rows, faults = collect(asked)
    for fault in faults:
        print(f"FAULT {fault}")
    with_stack = sum(bool(row.stack_bytes or row.spills) for row in rows)
    claims = (
        Claim("kernels_compiled", len(rows), "binaries", len(asked)),
        Claim("kernels_with_stack", with_stack, "binaries", 0),
    )
    samples = {"seconds": [row.seconds for row in rows]}
    table = [asdict(row) for row in rows]
    bench.publish(claims, samples, triton=triton.__version__, kernels=table, faults=faults)
    return 1 if faults or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
