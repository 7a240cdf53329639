"""CUDA graphs against a torch that only takes notes: what is called, in which order."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from muxcluster.engine import captures
from muxcluster.engine.captures import CudaGraphs, capture_for

DEVICE = torch.device("cuda:1")


class FakeCuda:
    """Streams are numbered, 0 is the default one; `notes` says what happened."""

    def __init__(self, current: int) -> None:
        self.notes: list[str] = []
        self.on = self._stream(current)
        self.num_graphs = 0

    def _stream(self, number: int) -> SimpleNamespace:
        def wait_stream(other: SimpleNamespace) -> None:
            self.notes.append(f"{number} waits for {other.cuda_stream}")

        return SimpleNamespace(cuda_stream=number, wait_stream=wait_stream)

    def current_stream(self, device: torch.device) -> SimpleNamespace:
        assert device == DEVICE
        return self.on

    def Stream(self, device: torch.device) -> SimpleNamespace:
        assert device == DEVICE
        return self._stream(99)

    def CUDAGraph(self) -> SimpleNamespace:
        self.num_graphs += 1
        number = self.num_graphs
        return SimpleNamespace(
            pool=lambda: f"pool {number}",
            replay=lambda: self.notes.append(f"replay {number}"),
        )

    @contextmanager
    def stream(self, stream: SimpleNamespace) -> Iterator[None]:
        before, self.on = self.on, stream
        yield
        self.on = before

    @contextmanager
    def graph(
        self,
        graph: SimpleNamespace,
        pool: str | None,
        stream: SimpleNamespace,
        capture_error_mode: str,
    ) -> Iterator[None]:
        assert capture_error_mode == "thread_local"  # other threads may allocate meanwhile
        self.notes.append(f"begin on {stream.cuda_stream} in {pool}")
        yield
        self.notes.append("end")


def fake(monkeypatch: pytest.MonkeyPatch, current: int) -> FakeCuda:
    cuda = FakeCuda(current)
    monkeypatch.setattr(captures.torch, "cuda", cuda)
    return cuda


def test_on_a_partitions_stream_it_is_warmed_up_and_captured_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = fake(monkeypatch, current=7)
    graphs = CudaGraphs(DEVICE)
    assert graphs.place == 7
    replay = graphs.capture(lambda: cuda.notes.append(f"step on {cuda.on.cuda_stream}"))
    step = "step on 7"
    assert cuda.notes == ["7 waits for 7", step, step, "begin on 7 in None", step, "end"] + [
        "7 waits for 7"
    ]
    cuda.notes.clear()
    replay()
    assert cuda.notes == ["replay 1"]


def test_the_default_stream_lends_its_turn_to_one_that_can_be_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = fake(monkeypatch, current=0)
    CudaGraphs(DEVICE).capture(lambda: cuda.notes.append(f"step on {cuda.on.cuda_stream}"))
    step = "step on 99"
    assert cuda.notes == ["99 waits for 0", step, step, "begin on 99 in None", step, "end"] + [
        "0 waits for 99"
    ]


def test_graphs_of_one_stream_share_memory_and_others_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = fake(monkeypatch, current=7)
    graphs = CudaGraphs(DEVICE)
    for number in (7, 7, 8, 8, 7):
        cuda.on = cuda._stream(number)
        graphs.capture(lambda: None)
    begun = [note for note in cuda.notes if note.startswith("begin")]
    assert begun == [
        "begin on 7 in None",
        "begin on 7 in pool 1",
        "begin on 8 in None",
        "begin on 8 in pool 3",
        "begin on 7 in pool 1",
    ]


def test_each_device_gets_what_suits_it() -> None:
    assert capture_for(torch.device("cpu")) is None
    assert isinstance(capture_for(DEVICE), CudaGraphs)
