"""Multiprocessors used by a stream, and its speed of matrix products."""

from collections.abc import Sequence
from time import perf_counter

import torch

from muxcluster.engine.gpu.sm_probe import SmProbe

_SIZE = 4096


class Probe(SmProbe):
    """The engine's own, on device 0."""

    def __init__(self) -> None:
        super().__init__(torch.device("cuda"))


class Products:
    """bf16 matrix products of random numbers."""

    def __init__(self) -> None:
        made = (torch.randn(_SIZE, _SIZE, device="cuda").bfloat16() for _ in range(2))
        self._left, self._right = made
        self._result = self._left @ self._right
        torch.cuda.synchronize()

    def rate(self, streams: Sequence[torch.cuda.Stream], count: int = 40) -> list[float]:
        """FLOP/s on each stream, all at once."""
        spans = []
        for stream in streams:
            with torch.cuda.stream(stream):
                self._multiply(5)
        torch.cuda.synchronize()
        for stream in streams:
            events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            with torch.cuda.stream(stream):
                events[0].record()
                self._multiply(count)
                events[1].record()
            spans.append(events)
        torch.cuda.synchronize()
        work = 2 * _SIZE**3 * count
        return [work / (start.elapsed_time(end) / 1e3) for start, end in spans]

    def rate_over(self, seconds: float) -> float:
        """FLOP/s over that long by the host's clock, beside whatever else runs."""
        start, done = perf_counter(), 0
        while perf_counter() - start < seconds:
            self._multiply(10)
            torch.cuda.synchronize()
            done += 10
        return 2 * _SIZE**3 * done / (perf_counter() - start)

    def _multiply(self, count: int) -> None:
        # A result of its own each time: two streams must not write the same memory.
        for _ in range(count):
            torch.mm(self._left, self._right)
