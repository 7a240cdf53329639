"""Records a step once to run it again: as a CUDA graph, or as a call of the same function."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from muxcluster.engine.steps.device.capture_lint import CaptureLint

# Reads and writes tensors that stay where they are; asks the device nothing.
Step = Callable[[], None]

# Kernels are compiled and libraries choose theirs in the first run; memory settles in the next.
NUM_WARM_UPS = 2


# A capture begins by waiting for the whole device, which breaks one that another thread makes.
_ONE_AT_A_TIME = threading.Lock()


class Capture(Protocol):
    """Turns a step into a function that repeats it."""

    @property
    def place(self) -> int:
        """Return where the calling thread's work goes; a captured step is for one place."""
        ...

    def check(self, step: Step) -> None:
        """Run `step` once. Raises NotCapturable with the reason if it cannot be captured."""
        ...

    def capture(self, step: Step) -> Step:
        """Return a function that repeats `step` on the tensors it reads and writes now.

        `step` is run some times before, so its tensors must allow that without harm. Raises
        RuntimeError if it cannot be captured.
        """
        ...


class CallAgain:
    """Calls the step again instead of recording it: on the CPU, and where graphs fail."""

    @property
    def place(self) -> int:
        return 0

    def check(self, step: Step) -> None:
        """Do nothing: any step can be called again."""

    def capture(self, step: Step) -> Step:
        return step


@dataclass(slots=True)
class _Place:
    """Where the graphs of one stream are captured, and the memory that they share."""

    # The place's own stream, or another one for the default stream, which cannot be captured.
    # cuBLAS keeps a workspace of 32 MiB (on Hopper) for every stream it has seen, and torch a
    # memory pool, so all graphs of a place are captured on the same stream.
    stream: torch.cuda.Stream
    pool: Any  # handle of the memory pool of its graphs, which run one after another


class CudaGraphs:
    """Graphs on the calling thread's stream, for instance a green context's.

    Graphs of one stream share their memory: they run one after another.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._places: dict[int, _Place] = {}

    @property
    def place(self) -> int:
        return int(torch.cuda.current_stream(self._device).cuda_stream)

    def check(self, step: Step) -> None:
        """As `Capture.check`, by the operators of torch that the step calls."""
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
    """Return the capture for `device`; None on the CPU, where no capture pays."""
    return CudaGraphs(device) if device.type == "cuda" else None
