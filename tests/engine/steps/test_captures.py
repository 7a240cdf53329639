"""CUDA graphs against a torch that only takes notes: what is called, in which order."""

from collections.abc import Iterator

import pytest
import torch

from bench.kernels.cuda_stubs import GraphStubs, capture_streams_per_place
from muxcluster.engine.steps.device.captures import NUM_WARM_UPS, CudaGraphs, capture_for

DEVICE = torch.device("cuda:1")


@pytest.fixture
def stubs() -> Iterator[GraphStubs]:
    cuda = GraphStubs()
    with cuda.patched():
        yield cuda


def test_on_a_partitions_stream_it_is_warmed_up_and_captured_there(stubs: GraphStubs) -> None:
    part = torch.cuda.ExternalStream(70, DEVICE)
    graphs = CudaGraphs(DEVICE)
    with torch.cuda.stream(part):
        assert graphs.place == 70
        current = torch.cuda.current_stream
        replay = graphs.capture(lambda: stubs.notes.append(f"step on {current().cuda_stream}"))
    step = "step on 70"
    expected = ["70 waits for 70", step, step, "begin on 70 in pool 1", step, "end"]
    assert stubs.notes == [*expected, "70 waits for 70"]
    assert NUM_WARM_UPS == 2
    replay()
    assert stubs.replays == 1
    assert stubs.streams == []


def test_the_default_stream_lends_its_turn_to_one_that_can_be_captured(stubs: GraphStubs) -> None:
    current = torch.cuda.current_stream
    graphs = CudaGraphs(DEVICE)
    graphs.capture(lambda: stubs.notes.append(f"step on {current().cuda_stream}"))
    step = "step on 1"
    expected = ["1 waits for 0", step, step, "begin on 1 in pool 1", step, "end"]
    assert stubs.notes == [*expected, "0 waits for 1"]


def test_all_graphs_of_a_place_share_one_stream_and_one_pool(stubs: GraphStubs) -> None:
    """cuBLAS keeps a workspace, and torch a pool, for every stream: 2.6 GB for 23 graphs."""
    graphs = CudaGraphs(DEVICE)
    parts = [torch.cuda.ExternalStream(number, DEVICE) for number in (70, 80)]
    for _ in range(23):
        graphs.capture(lambda: None)
        for part in parts:
            with torch.cuda.stream(part):
                graphs.capture(lambda: None)
    assert stubs.streams == [1]
    assert set(stubs.captures) == {(1, 1), (70, 2), (80, 3)}
    assert len(stubs.captures) == 3 * 23
    assert len(stubs.pools) == 3


def test_the_benchs_count_of_streams() -> None:
    assert capture_streams_per_place() == 1


def test_after_a_failed_capture_the_next_one_has_a_pool_of_its_own(stubs: GraphStubs) -> None:
    """torch 2.11 leaks the pool: a capture into it would fail too."""
    graphs = CudaGraphs(DEVICE)
    graphs.capture(lambda: None)
    calls = 0

    def fails_when_captured() -> None:
        nonlocal calls
        calls += 1
        if calls > NUM_WARM_UPS:
            raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="not permitted"):
        graphs.capture(fails_when_captured)
    assert stubs.notes[-1] == "0 waits for 1"  # what the stream still does comes first
    graphs.capture(lambda: None)
    graphs.capture(lambda: None)
    assert stubs.captures == [(1, 1), (1, 2), (1, 2)]
    assert stubs.num_failed == 1


def test_each_device_gets_what_suits_it() -> None:
    assert capture_for(torch.device("cpu")) is None
    assert isinstance(capture_for(DEVICE), CudaGraphs)
