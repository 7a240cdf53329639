"""Recording a step once and running it again: CUDA graphs, and a call of the same function."""

import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch

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

    def capture(self, step: Step) -> Step:
        """`step`."""
        return step


class CudaGraphs:
    """Graphs on the calling thread's stream, for instance a green context's.

    Graphs of one stream share their memory: they run one after another.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pools: dict[int, Any] = {}

    @property
    def place(self) -> int:
        """The current stream."""
        return int(torch.cuda.current_stream(self._device).cuda_stream)

    def capture(self, step: Step) -> Step:
        """As `Capture.capture`; other threads may use the device meanwhile."""
        place, current = self.place, torch.cuda.current_stream(self._device)
        # The default stream cannot be captured.
        stream = _new_stream(self._device) if place == 0 else current
        graph = torch.cuda.CUDAGraph()
        stream.wait_stream(current)
        with _ONE_AT_A_TIME, torch.cuda.stream(stream):
            for _ in range(NUM_WARM_UPS):
                step()
            with torch.cuda.graph(
                graph,
                pool=self._pools.get(place),
                stream=stream,
                capture_error_mode="thread_local",
            ):
                step()
        current.wait_stream(stream)
        self._pools.setdefault(place, graph.pool())
        return graph.replay


def _new_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's own gap


def capture_for(device: torch.device) -> Capture | None:
    """What suits `device`; None on the CPU, where inputs need no packing and no capture pays."""
    return CudaGraphs(device) if device.type == "cuda" else None
