"""Counting stubs of `torch.cuda`'s streams, events and graphs."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

from muxcluster.engine.steps.device.captures import CudaGraphs


class _Stream:
    """A stream. cuda_stream: its number; 0 is the default stream."""

    def __init__(self, cuda_stream: int, notes: list[str]) -> None:
        self.cuda_stream = cuda_stream
        self._notes = notes

    def wait_stream(self, other: "_Stream") -> None:
        """Noted; nothing runs, so there is nothing to wait for."""
        self._notes.append(f"{self.cuda_stream} waits for {other.cuda_stream}")

    def synchronize(self) -> None:
        """Likewise."""


class _Event:
    """An event that has always passed."""

    def __init__(self, **_options: Any) -> None:
        pass

    def record(self, stream: object = None) -> None:
        """Nothing to record."""

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        """Always."""
        return True


class GraphStubs:
    """Stands in for `torch.cuda`'s streams, events, graphs and current device, and counts them.

    streams: numbers of all that were made. pools: handles likewise. captures: (stream, pool) of
    each that ended well. device_index: of the current device. notes: what happened, in words.
    As in torch 2.11, no capture can begin in a pool in which one has failed.
    """

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.streams: list[int] = []
        self.pools: list[int] = []
        self.captures: list[tuple[int, int]] = []
        self.device_index = 0
        self.num_failed = 0
        self.replays = 0
        self._current = _Stream(0, self.notes)
        self._leaked: set[int] = set()

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Inside, `torch.cuda` has these in the place of its own."""
        stubs = {
            **self._classes(),
            "current_stream": lambda device=None: self._current,
            "stream": self.on_stream,
            "set_device": self._set_device,
            "current_device": lambda: self.device_index,
            "graph": self._graph,
            "graph_pool_handle": self.new_pool,
        }
        with ExitStack() as stack:
            for name, stub in stubs.items():
                stack.enter_context(mock.patch.object(torch.cuda, name, stub))
            yield

    def _classes(self) -> dict[str, type]:
        # Classes, not functions: what is imported meanwhile may name them in annotations, as
        # transformers 5.24 does (`torch.cuda.CUDAGraph | None`).
        stubs = self

        class Stream(_Stream):
            def __init__(self, device: object = None, **_options: Any) -> None:
                # torch has 32 streams and gives them out in turn; these are all different.
                stubs.streams.append(len(stubs.streams) + 1)
                super().__init__(stubs.streams[-1], stubs.notes)

        class ExternalStream(_Stream):
            def __init__(self, number: int, device: object = None) -> None:
                super().__init__(number, stubs.notes)

        class CUDAGraph:
            def __init__(self) -> None:
                self.pool: Any = None

            def replay(self) -> None:
                stubs.replays += 1

        return {
            "Stream": Stream,
            "ExternalStream": ExternalStream,
            "Event": _Event,
            "CUDAGraph": CUDAGraph,
        }

    def new_pool(self) -> int:
        """A handle of a memory pool."""
        self.pools.append(len(self.pools) + 1)
        return self.pools[-1]

    @contextmanager
    def on_stream(self, stream: _Stream) -> Iterator[None]:
        """`stream` is the current one."""
        before, self._current = self._current, stream
        try:
            yield
        finally:
            self._current = before

    def _set_device(self, device: Any) -> None:
        self.device_index = torch.device(device).index or 0

    @contextmanager
    def _graph(self, graph: Any, pool: int | None = None, **options: Any) -> Iterator[None]:
        stream = options.get("stream") or self._current
        assert stream.cuda_stream, "the default stream cannot be captured"
        pool = self.new_pool() if pool is None else pool
        if pool in self._leaked:
            raise RuntimeError(f"pool {pool} is still in use by a capture that failed")
        graph.pool = lambda: pool
        self.notes.append(f"begin on {stream.cuda_stream} in pool {pool}")
        with self.on_stream(stream):
            try:
                yield
            except BaseException:
                self.num_failed += 1
                self._leaked.add(pool)
                self.notes.append("fail")
                raise
        self.notes.append("end")
        self.captures.append((stream.cuda_stream, pool))


def capture_streams_per_place(num_places: int = 3, num_graphs: int = 23) -> int:
    """Most streams on which graphs of one place are captured: the default stream and other places.

    Each would have a cuBLAS workspace of 32 MiB of its own.
    """
    stubs, device = GraphStubs(), torch.device("cuda:0")
    most = 0
    with stubs.patched():
        graphs = CudaGraphs(device)
        for number in range(num_places):
            stubs.captures.clear()
            place = torch.cuda.ExternalStream(1000 * number, device)  # type: ignore[no-untyped-call]  # torch's own gap
            with torch.cuda.stream(place):
                for _ in range(num_graphs):
                    graphs.capture(lambda: None)
            most = max(most, len({stream for stream, _ in stubs.captures}))
    return most
