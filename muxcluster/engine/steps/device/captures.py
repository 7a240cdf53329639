"""Recording a step once and running it again: CUDA graphs, and a call of the same function."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from muxcluster.engine.steps.device.capture_lint import CaptureLint

Step = Callable[[], None]
"""Reads and writes tensors that stay where they are; asks the device nothing."""

NUM_WARM_UPS = 2
"""Kernels are compiled and libraries choose theirs in the first run; memory settles in the next."""


_ONE_AT_A_TIME = threading.Lock()
"""A capture begins by waiting for the whole device, which breaks one that another thread makes."""


class Capture(Protocol):
    """Makes of a step what runs it again."""

    @property
    def place(self) -> int:
        """Where the calling thread's work goes; a captured step is for one place."""
        ...

    def check(self, step: Step) -> None:
        """Runs `step` once. Raises NotCapturable where it cannot be captured, with the reason."""
        ...

    def capture(self, step: Step) -> Step:
        """What runs `step` on the tensors it reads and writes now, as often as it is called.

        `step` is run some times before, so what its tensors say must do no harm.
        Raises RuntimeError where it cannot be captured.
        """
        ...


class CallAgain:
    """No recording: the step itself. On the CPU, and where graphs fail."""

    @property
    def place(self) -> int:
        """The only one."""
        return 0

    def check(self, step: Step) -> None:
        """Any step can be called again."""

    def capture(self, step: Step) -> Step:
        """`step`."""
        return step


@dataclass(slots=True)
class _Place:
    """Where the graphs of one stream are captured, and the memory that they share.

    stream: the place's own, or for the default stream, which cannot be captured, one beside it.
    cuBLAS keeps a workspace of 32 MiB (on Hopper) for every stream it has seen, and torch a memory
    pool, so that all graphs of a place are captured on the same stream.
    pool: handle of the memory pool of its graphs, which run one after another.
    """

    stream: torch.cuda.Stream
    pool: Any


class CudaGraphs:
    """Graphs on the calling thread's stream, for instance a green context's.

    Graphs of one stream share their memory: they run one after another.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._places: dict[int, _Place] = {}

    @property
    def place(self) -> int:
        """The current stream."""
        return int(torch.cuda.current_stream(self._device).cuda_stream)

    def check(self, step: Step) -> None:
        """As `Capture.check`: by the operators of torch that it calls."""
        with CaptureLint(self._device):
            step()

    def capture(self, step: Step) -> Step:
        """As `Capture.capture`; other threads may use the device meanwhile."""
        current = torch.cuda.current_stream(self._device)
        place = self._places.get(self.place)
        if place is None:
            stream = current if self.place else _new_stream(self._device)
            place = self._places[self.place] = _Place(stream, torch.cuda.graph_pool_handle())
        graph = torch.cuda.CUDAGraph()
        place.stream.wait_stream(current)
        try:
            with _ONE_AT_A_TIME, torch.cuda.stream(place.stream):
                for _ in range(NUM_WARM_UPS):
                    step()
                with torch.cuda.graph(
                    graph,
                    pool=place.pool,
                    stream=place.stream,
                    capture_error_mode="thread_local",
                ):
                    step()
        except BaseException:
            # torch 2.11 never ends the use of a pool by a capture that failed, and refuses the
            # next capture into it. The graphs that are in it stay valid.
            place.pool = torch.cuda.graph_pool_handle()
            raise
        finally:
            current.wait_stream(place.stream)
        return graph.replay


def _new_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's own gap


def capture_for(device: torch.device) -> Capture | None:
    """What suits `device`; None on the CPU, where inputs need no packing and no capture pays."""
    return CudaGraphs(device) if device.type == "cuda" else None
