"""Compiles every Triton kernel for the A100, H100 and B200, without a GPU.

Each module below kernels/triton_ops states realistic arguments of its kernels (SPECIMENS). Each is
compiled as Triton's JIT would at a launch, and the binary is asked for its registers, stack, shared
memory and loops, which are held against bench/kernels/bounds.json. Then the launches of a decode
layer are counted on a fake device, and the streams on which the CUDA graphs of one place are
captured. Exit code 1 where a kernel does not compile, spills to the stack, needs more shared memory
than the architecture has or is worse than its bounds, or a layer takes more launches than it may.
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

from bench.harness import Bench, Claim, make_parser
from bench.kernels.bounds import Bounds, binary_name, updated
from bench.kernels.compiled import SHARED_LIMITS, Compiled, compile_named, modules, specimens
from bench.kernels.cuda_stubs import capture_streams_per_place
from bench.kernels.launches import MOST_LAUNCHES, layer_launches

QUICK = (90,)
_HEAD = (
    f"{'GPU':6} {'regs':>5} {'stack':>5} {'spills':>6} {'shared':>7} {'matrix':>15} {'copies':>8} "
    f"{'blocks':>6} {'flight':>7} {'loops: instructions a KiB, matrix products':42}"
)

# Module, specimen's name, capability and the result to come.
Asked = tuple[str, str, int, Future[Compiled]]


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


def collect(asked: Sequence[Asked], allowed_stack: int) -> tuple[list[Compiled], list[str]]:
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
        loops = zip(row.loop_instructions, row.matrix_share, strict=True)
        loops_shown = ", ".join(f"{number:g} {share:.1%}" for number, share in loops)
        print(
            f"{name:{width}} sm_{capability:<3} {row.registers:5} {row.stack_bytes:5} "
            f"{row.spills:6} {row.shared_bytes:7} {row.matrix:>15} {row.copies:>8} "
            f"{row.blocks:6} {row.bytes_in_flight:7} {loops_shown:42} {row.seconds:5.1f}",
            flush=True,
        )
        faults.extend(
            f"{module}: {name} for sm_{capability}: {why}" for why in row.faults(allowed_stack)
        )
    return rows, faults


def compare(rows: Sequence[Compiled]) -> list[str]:
    """What is worse than its bounds, in words; print what is better."""
    bounds = Bounds.read()
    if bounds.triton != triton.__version__:
        print(f"bounds are of Triton {bounds.triton}, not {triton.__version__}: not compared")
        return []
    for row in rows:
        for hint in bounds.hints(row):
            print(f"{binary_name(row)}: {hint}")
    return [f"{binary_name(row)}: {why}" for row in rows for why in bounds.faults(row)]


def update(rows: Sequence[Compiled], *, is_whole: bool) -> None:
    """Write the rows' bounds; is_whole: the rows are all binaries there are."""
    kept = {} if is_whole else Bounds.read().by_binary
    updated(rows, triton.__version__, kept).write()
    print(f"wrote the bounds of {len(rows)} binaries")


def count_launches() -> dict[str, dict[str, int]]:
    """Print a row a family: launches of a decode step a layer, by name."""
    counted = {}
    for family, most in MOST_LAUNCHES.items():
        launches = layer_launches(family)
        counted[family] = dict(launches)
        names = ", ".join(f"{number} {name}" for name, number in launches.items())
        print(f"{family}: {launches.total()} launches a layer (at most {most}): {names}")
    return counted


def main() -> int:
    """Compile, print the table and what is wrong, publish the claims."""
    parser = make_parser(__doc__)
    parser.add_argument(
        "--modules", nargs="+", metavar="NAME", choices=modules(), help="only these kernels"
    )
    parser.add_argument(
        "--processes", type=int, default=2, metavar="N", help="compiles at a time (2)"
    )
    parser.add_argument(
        "--allowed-stack", type=int, default=0, metavar="N", help="bytes of stack let pass (0)"
    )
    parser.add_argument(
        "--update-bounds", action="store_true", help="take what is found as bounds from now on"
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
            rows, faults = collect(asked, options.allowed_stack)
    if options.update_bounds and not faults:
        update(rows, is_whole=not options.modules and not options.quick)
    faults += compare(rows)
    with_stack = sum(bool(row.stack_bytes or row.spills) for row in rows)
    launches = count_launches()
    totals = {family: sum(counts.values()) for family, counts in launches.items()}
    worst = max(totals, key=lambda family: totals[family] / MOST_LAUNCHES[family])
    claims = (
        Claim("kernels_compiled", len(rows), "binaries", len(asked)),
        Claim("kernels_with_stack", with_stack, "binaries", 0),
        Claim("launches_per_layer", totals[worst], "launches", MOST_LAUNCHES[worst]),
        Claim("capture_streams_per_place", capture_streams_per_place(), "streams", 1),
    )
    faults += [
        f"{family}: {total} launches a layer, over {MOST_LAUNCHES[family]}"
        for family, total in totals.items()
        if total > MOST_LAUNCHES[family]
    ]
    for fault in faults:
        print(f"FAULT {fault}")
    samples = {"seconds": [row.seconds for row in rows]}
    table = [asdict(row) for row in rows]
    bench.publish(
        claims, samples, triton=triton.__version__, kernels=table, faults=faults, launches=launches
    )
    return 1 if faults or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
