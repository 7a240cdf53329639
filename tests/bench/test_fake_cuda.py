"""The fake CUDA device: what it counts, and what it refuses inside a captured step."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig

pytest.importorskip("triton", reason="Triton's wheels are for Linux")

from bench.kernels.fake_cuda import FakeCuda, decode_step, load
from muxcluster.core.job import WorkerSpec
from muxcluster.core.kvshape import KvShape
from muxcluster.core.unitspec import ModelSpec, UnitSpec
from muxcluster.engine.steps.device.capture_lint import NotCapturable
from muxcluster.kernels.silu_mul import silu_mul


@pytest.fixture
def cuda() -> Iterator[FakeCuda]:
    with torch.inference_mode(), FakeCuda() as entered:
        yield entered


def on_device(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="cuda:0")


def llama_unit(directory: Path, num_layers: int) -> UnitSpec:
    """Llama-3-8B's shapes in `num_layers` layers; no weights on disk."""
    config = LlamaConfig(
        num_hidden_layers=num_layers,
        hidden_size=4096,
        intermediate_size=14336,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        max_position_embeddings=8192,
        architectures=["LlamaForCausalLM"],
    )
    config.save_pretrained(directory)
    shape = KvShape(num_layers, 8, 128, 2)
    model = ModelSpec(
        "llama",
        str(directory),
        shape,
        config.vocab_size,
        8192,
        (2,),
        dtype="bfloat16",
        load_format="dummy",
        max_seqs=256,
    )
    return UnitSpec(
        "u", (model,), 1000, 8192, (WorkerSpec(0, (1.0,)),), device="cuda:0", partition="none"
    )


def test_views_and_memory_are_no_launches_and_a_product_is_one(cuda: FakeCuda) -> None:
    x, weight = on_device(1, 3, 8), on_device(16, 8)
    with cuda.recording() as recording:
        y = nn.functional.linear(x, weight)
        z = y.view(3, 16)[1:].transpose(0, 1)
        torch.empty_like(z)
        z.add_(1)
        y.isfinite()
    assert [(each.kind, each.name) for each in recording.launches] == [
        ("library", "aten.mm"),
        ("operator", "aten.add_"),
        ("operator", "aten.abs"),
        ("operator", "aten.ne"),
        ("operator", "aten.eq"),
        ("operator", "aten.mul"),
    ]


def test_a_triton_kernel_is_launched_by_its_own_wrapper(cuda: FakeCuda) -> None:
    with cuda.recording() as recording:
        product = silu_mul(on_device(5, 64), on_device(5, 64))
        with pytest.raises(ValueError, match="up must be"):
            silu_mul(on_device(5, 64), on_device(5, 65))
    assert product.shape == (5, 64)
    assert product.is_cuda
    assert recording.count() == {"_silu_mul": 1}


def test_a_kernel_is_compiled_once_for_arguments_that_are_alike(cuda: FakeCuda) -> None:
    def keys(width: int, offset: int = 0) -> set[tuple[str, str]]:
        memory = on_device(1 + 2 * 5 * width)
        gate, up = (memory[offset:][: 10 * width].view(2, 5, width)[i] for i in range(2))
        with cuda.recording() as recording:
            silu_mul(gate, up)
        return recording.kernel_keys

    assert len(keys(1024)) == 1
    assert keys(1024) == keys(2048)  # the same block of columns, all strides multiples of 16
    assert keys(1024) != keys(1026)  # a stride that is none
    assert keys(1024) != keys(1024, offset=1)  # a pointer that is none


def test_memory_is_counted_while_it_is_held_and_views_cost_nothing(cuda: FakeCuda) -> None:
    kept = on_device(1000, dtype=torch.float32)
    with cuda.recording() as recording:
        for _ in range(3):
            a = kept * 2
            b = a.view(10, 100)[3]
            del a, b
        c = kept + 1
        assert recording.peak_bytes == 4096  # 4,000 rounded up
        d = c[:10] * 2
    assert recording.peak_bytes == 4096 + 512
    del d


def test_what_comes_back_to_the_host_is_real(cuda: FakeCuda) -> None:
    x = on_device(3, dtype=torch.int64)
    host = torch.arange(3)
    assert (host + 1).tolist() == [1, 2, 3]
    host.copy_(x, non_blocking=True)
    assert x.cpu().numpy().shape == (3,)
    with cuda.recording() as recording:
        assert x[0].item() == 0
        x.copy_(host)
        torch.tensor([1, 2], device="cuda:0")
    assert [each.kind for each in recording.operations] == ["sync", "copy", "copy"]


VIOLATIONS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "truth": lambda x: bool(x[0] > 0),
    "list": lambda x: x.tolist(),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "where": lambda x: torch.where(x > 0),
    "equal": lambda x: torch.equal(x, x),
    "unique": lambda x: x.unique(),
    "to the host": lambda x: x.cpu(),
    "from the host": lambda x: x + torch.arange(4).to("cuda:0"),
    "constant": lambda x: x * torch.tensor([1, 2, 3, 4], device="cuda:0"),
    "copied from the host": lambda x: x.copy_(torch.arange(4)),
    "copied to the host": lambda x: torch.arange(4).copy_(x, non_blocking=True),
    "index of the host": lambda x: x[torch.tensor([0, 1])],
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_the_lint_refuses_what_a_graph_cannot_capture(cuda: FakeCuda, name: str) -> None:
    x = on_device(4, dtype=torch.int64)
    with pytest.raises(NotCapturable), cuda.lint():
        VIOLATIONS[name](x)
    with cuda.lint():  # and still runs what is allowed
        torch.where(x > 0, x, x[torch.zeros_like(x)]).index_select(0, x).cumsum(0)


def test_launches_of_a_layer_are_the_difference_of_two_models(tmp_path: Path) -> None:
    counts = []
    for num_layers in (1, 2, 3):
        with torch.inference_mode(), FakeCuda() as cuda:
            (model,) = load(llama_unit(tmp_path / str(num_layers), num_layers))
            step = decode_step(model, 64)
            with cuda.recording() as recording, cuda.lint():
                step.run()
            counts.append(recording.count())
    layer = counts[1] - counts[0]
    assert counts[2] - counts[1] == layer
    assert layer["write_kernel"] == layer["decode_kernel"] == 1
    assert 4 <= layer["aten.mm"] <= 7  # q, k, v, output, gate, up, down, or merged ones
    assert not recording.syncs


def test_a_decode_steps_memory_is_that_of_its_logits_and_one_layer(tmp_path: Path) -> None:
    rows, peaks = 256, []
    for num_layers in (1, 3):
        with torch.inference_mode(), FakeCuda() as cuda:
            (model,) = load(llama_unit(tmp_path / str(num_layers), num_layers))
            assert cuda.live_bytes > 2 * 2 * 4096 * 128256  # embeddings and output layer
            step = decode_step(model, rows)
            with cuda.recording() as recording:
                step.run()
            peaks.append(recording.peak_bytes)
    assert peaks[0] == peaks[1]
    logits = rows * 128256 * 4  # those in fp32 have a buffer already; the sampler's copy has none
    assert logits <= peaks[0] < 2 * logits


def test_graphs_streams_and_pools_are_counted(cuda: FakeCuda) -> None:
    stream = torch.cuda.Stream(cuda.device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        assert torch.cuda.current_stream().cuda_stream == stream.cuda_stream
    with pytest.raises(ZeroDivisionError), torch.cuda.graph(graph, graph.pool(), stream=stream):
        raise ZeroDivisionError
    with pytest.raises(RuntimeError, match="failed"), torch.cuda.graph(graph, 1, stream=stream):
        pass
    graph.replay()
    stubs = cuda.graphs
    assert (stubs.streams, stubs.pools, stubs.captures) == ([1], [1], [(1, 1)])
    assert (stubs.num_failed, stubs.replays) == (1, 1)
