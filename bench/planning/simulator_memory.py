"""Memory of a simulation of very many requests: only its records grow."""

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from time import process_time
from typing import Any

from muxcluster.placement.hardware import GPUS
from muxcluster.placement.planner import place
from muxcluster.placement.problem import Demand, Node, Problem
from muxcluster.placement.shapes.known import SHAPES
from muxcluster.sim.core.planned import units_of
from muxcluster.sim.core.simulate import simulate
from muxcluster.workload.arrival import Arrival
from muxcluster.workload.generate import Source, generate
from muxcluster.workload.lengths import Independent
from muxcluster.workload.marginals import LogNormal
from muxcluster.workload.processes import Poisson

_RATE = 100.0
# About 23 and 5 tokens, so that a million requests take minutes.
_PROMPT, _OUTPUT = LogNormal(3.0, 0.5, 256), LogNormal(1.5, 0.5, 64)
_NUM_MARKS = 20
_MB = 1e6


class Memory:
    """Resident bytes of this process as arrivals are drawn: (arrivals, bytes), in order."""

    def __init__(self, every: int) -> None:
        self._every = every
        self.marks: list[tuple[int, int]] = []

    def watched(self, asked: Iterator[Arrival]) -> Iterator[Arrival]:
        """The same arrivals."""
        for index, arrival in enumerate(asked):
            if index % self._every == 0:
                self.marks.append((index, resident_bytes()))
            yield arrival


def resident_bytes() -> int:
    """Of this process, now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def measure_memory(num_requests: int, seed: int) -> dict[str, Any]:
    """Short requests to four 7B models on two GPUs, all of them to their end."""
    demands = tuple(
        Demand(f"m{index}", SHAPES["llama-7b"], _RATE, 23.0, 5.0, 512, 256) for index in range(4)
    )
    problem = Problem(demands, (Node("node", 2, GPUS["A100-80GB"]),))
    units = units_of(place(problem), problem)
    lengths = Independent(_PROMPT, _OUTPUT)
    sources = [Source(each.name, Poisson(each.rate), lengths) for each in demands]
    end_s = 2 * num_requests / (_RATE * len(demands))
    asked = islice(generate(sources, seed, end_s), num_requests)
    memory = Memory(max(1, num_requests // _NUM_MARKS))
    start = process_time()
    result = simulate(units, memory.watched(asked), exact=True)
    cpu_s = process_time() - start
    memory.marks.append((num_requests, resident_bytes()))
    # the first tenth warms up: caches, rows, tables of durations
    before = memory.marks[len(memory.marks) // 10]
    after = memory.marks[-2]
    return {
        "num_requests": len(result.records),
        "num_units": len(units),
        "num_jobs": result.num_jobs,
        "virtual_s": round(result.end_s, 1),
        "cpu_s": round(cpu_s, 1),
        "bytes_per_request": round((after[1] - before[1]) / (after[0] - before[0]), 1),
        "record_bytes": result.records.rows.itemsize,
        "resident_mb": [[index, round(size / _MB, 1)] for index, size in memory.marks],
    }
