"""Timing of calls on a GPU: CUDA events, with the L2 cache flushed before every repetition."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import torch

# Read before each repetition: several times the L2 of any card, and long enough (about a quarter of
# a millisecond) that the next launches are queued before the device comes to them. Written, it
# would leave an L2 full of changed lines, whose way to memory the timed call would pay for.
FLUSH_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Timing:
    """Measured times of a call."""

    samples_s: tuple[float, ...]  # seconds of each repetition
    # `graph` (a captured graph's replay, no launch costs inside), `eager` (capture failed: launch
    # costs may be inside) or `cpu`
    how: str

    @property
    def median_s(self) -> float:
        return median(self.samples_s)


class Clock:
    """Repeats calls on one device."""

    def __init__(self, device: torch.device, repeats: int) -> None:
        self._device = device
        self._repeats = repeats
        self._flush: torch.Tensor | None = None

    def time(self, call: Callable[[], Any]) -> Timing:
        """Seconds of `call`, which must do the same work each time and wait for nothing."""
        call()
        if self._device.type == "cpu":
            return Timing(tuple(self._timed_on_cpu(call) for _ in range(self._repeats)), "cpu")
        if self._flush is None:
            self._flush = torch.zeros(FLUSH_BYTES // 4, device=self._device)
        call()
        torch.cuda.synchronize()
        graph = _captured(call)
        run = call if graph is None else graph.replay
        run()
        events = [self._enqueue(run, self._flush) for _ in range(self._repeats)]
        torch.cuda.synchronize()
        samples = tuple(start.elapsed_time(end) / 1e3 for start, end in events)
        return Timing(samples, "eager" if graph is None else "graph")

    @staticmethod
    def _timed_on_cpu(call: Callable[[], Any]) -> float:
        start = perf_counter()
        call()
        return perf_counter() - start

    @staticmethod
    def _enqueue(
        run: Callable[[], Any], flush: torch.Tensor
    ) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        flush.sum()
        start.record()
        run()
        end.record()
        return start, end


def _captured(call: Callable[[], Any]) -> torch.cuda.CUDAGraph | None:
    """A graph of one call; None where it cannot be captured (it waits for the device, say)."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            call()
    except Exception as error:  # noqa: BLE001 - any refusal: the call is timed as it is
        print(f"  not captured: {str(error).splitlines()[0][:100]}", flush=True)
        torch.cuda.synchronize()
        return None
    return graph
