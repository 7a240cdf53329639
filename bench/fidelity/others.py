"""Processor time that others take while a case is measured: it disturbs one side only."""

import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
# Fields of a processor's line in /proc/stat that are not work: idle, iowait; guest is in user.
_BUSY = (0, 1, 2, 5, 6, 7)  # user, nice, system, irq, softirq, steal


@dataclass(frozen=True, slots=True)
class ProcessorTime:
    """Seconds since the machine started, of all processors."""

    busy_s: float  # of everybody, and what the host took
    ours_s: float  # of this process and its descendants that live

    @classmethod
    def now(cls) -> "ProcessorTime | None":
        """Read it; None where there is no Linux /proc."""
        try:
            ticks = [int(each) for each in (_PROC / "stat").read_text().split(None, 11)[1:9]]
        except OSError:
            return None
        second = os.sysconf("SC_CLK_TCK")
        return cls(sum(ticks[i] for i in _BUSY) / second, _ticks_of_family() / second)

    def others_since(self, before: "ProcessorTime", elapsed_s: float) -> float:
        """Return the share of all processors that others took, 0 to 1."""
        others_s = (self.busy_s - before.busy_s) - (self.ours_s - before.ours_s)
        return max(0.0, others_s / (elapsed_s * (os.cpu_count() or 1)))


def _ticks_of_family() -> int:
    """Return the clock ticks of this process and its descendants (proc(5))."""
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = defaultdict(list)
    for folder in _PROC.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        ticks[int(folder.name)] = int(fields[11]) + int(fields[12])
        children[int(fields[1])].append(int(folder.name))
    total, left = 0, [os.getpid()]
    while left:
        process = left.pop()
        total += ticks.get(process, 0)
        left += children[process]
    return total
