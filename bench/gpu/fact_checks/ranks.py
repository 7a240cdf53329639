"""Facts about tensor parallelism that one GPU can show.

NCCL refuses two ranks on one GPU. So a group of one over NCCL shows that collectives are captured
in a CUDA graph, and two ranks over gloo on CUDA tensors show that divided models compute the same.
"""

import tempfile
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor, nn

from bench.gpu.fact_checks.answer import Answer
from muxcluster.core.unitspec import UnitSpec

_WIDTH = 512
_TOLERANCE = 1e-5
_NUM_RANKS = 2


def group_of_one(device: str = "cuda:0") -> Answer:
    """A layer with an all-reduce and one with a gather, recorded and replayed on other inputs.

    device: `cpu` tries the script out, by gloo and without a recording.
    """
    # The facts must load where what this needs is missing.
    processgroup = import_module("muxcluster.engine.parallel.process_group")
    layers = import_module("muxcluster.engine.load.division.layers")
    captures = import_module("muxcluster.engine.steps.device.captures")
    place = torch.device(device)
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        group = processgroup.ProcessGroup(0, 1, device)
        group.join(Path(folder) / "store")
        torch.manual_seed(0)
        plain = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, _WIDTH, bias=False))
        plain.to(place)
        reference = [layer.weight.clone() for layer in plain]
        bias = plain[0].bias.clone()
        divided = nn.Sequential(
            layers.SummedLinear(plain[0], group),
            layers.GatheredLinear(plain[1], _WIDTH, group),
        )
        inputs, result = (torch.zeros(8, _WIDTH, device=place) for _ in range(2))

        def step() -> None:
            result.copy_(divided(inputs))

        recorded = (captures.capture_for(place) or captures.CallAgain()).capture(step)
        calls = group.num_calls
        worst = 0.0
        for _ in range(5):
            inputs.copy_(torch.randn(8, _WIDTH, device=place))
            recorded()
            expected = (inputs @ reference[0].T + bias) @ reference[1].T
            worst = max(worst, _relative_error(result, expected))
        is_recorded = group.num_calls == calls
        group.leave()
    right = worst < _TOLERANCE and (is_recorded or place.type == "cpu")
    how = "are in the graph" if is_recorded else "run from Python at every step"
    text = f"collectives of a group of one {how}; relative error after replays {worst:.1e}"
    return Answer("yes" if right else "no", text, {"error": worst, "recorded": is_recorded})


def two_ranks(device: str = "cuda:0") -> Answer:
    """A unit of two ranks on one device, over gloo, says the tokens of a unit of one."""
    try:
        import_module("msgspec")
    except ImportError as missing:
        return Answer("no", f"not run: rank processes need msgspec ({missing})")
    jobs = import_module("bench.gpu.partition_runs.jobs")
    play = import_module("bench.gpu.partition_runs.part").play
    inprocess = import_module("muxcluster.engine.unit.in_process")
    ranks = import_module("muxcluster.engine.parallel.executor")
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        jobs.write_models(Path(folder))
        whole = jobs.unit_of(Path(folder), device, "none")
        halves = _over_ranks(whole)
        said: list[list[list[int]]] = []
        for spec, made in ((whole, inprocess.InProcessExecutor), (halves, ranks.RanksExecutor)):
            executor = made(spec)
            try:
                executor.start()
                said.append(play(executor, spec))
            finally:
                executor.close()
    same = sum(one == other for one, other in zip(*said, strict=True))
    text = f"{same} of {len(said[0])} outputs of two ranks are those of one"
    return Answer("yes" if same == len(said[0]) else "no", text, {"same": same})


def _relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def _over_ranks(spec: UnitSpec, size: int = _NUM_RANKS) -> UnitSpec:
    """The unit on `size` ranks that share its device: each has a part of every model's KV heads."""
    models = tuple(
        replace(model, shape=replace(model.shape, num_kv_heads=model.shape.num_kv_heads // size))
        for model in spec.models
    )
    return replace(
        spec,
        models=models,
        num_blocks=spec.num_blocks // size,
        num_host_blocks=spec.num_host_blocks // size,
        tp=size,
        rank_devices=() if spec.device == "cpu" else (spec.device,) * size,
    )


CHECKS = {"ranks_nccl": group_of_one, "ranks_gloo": two_ranks}
