"""Numbers of a plan as text, in ASCII for pipes and old terminals."""

from collections.abc import Sequence

from muxcluster.placement.hardware import GIB
from muxcluster.placement.plan import PlannedUnit


def rate_text(rate: float) -> str:
    """Format requests/s: two decimals, four for small rates."""
    return f"{rate:.4f}" if 0 < rate < 0.1 else f"{rate:.2f}"


def seconds_text(seconds: float) -> str:
    """ "87 ms", "1.20 s"."""
    if seconds < 0.01:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def gib_text(num_bytes: float) -> str:
    """ "12.3 GiB"."""
    return f"{num_bytes / GIB:.1f} GiB"


def percent_text(part: float) -> str:
    """ "82%"; "below 1%" is not 0."""
    return f"{part:.0%}" if part == 0 or part >= 0.01 else f"{part:.1%}"


def gpus_text(gpus: Sequence[int]) -> str:
    """ "0-3,6": runs of indices."""
    runs: list[list[int]] = []
    for gpu in sorted(gpus):
        if runs and gpu == runs[-1][-1] + 1:
            runs[-1].append(gpu)
        else:
            runs.append([gpu])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def mesh_text(unit: PlannedUnit) -> str:
    """ "a-0 (a: 0-3)": a unit and its GPUs."""
    return f"{unit.id} ({unit.node}: {gpus_text(unit.gpus)})"


def bar_text(part: float, width: int = 10) -> str:
    """ "[######....]", full at 1 and above."""
    full = round(min(1.0, part) * width)
    return f"[{'#' * full}{'.' * (width - full)}]"
