"""Groups of one, and ranks that share a GPU: how they talk, and through whose memory."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.gpu.fact_checks.answer import last_answer
from bench.gpu.running.children import run_child
from muxcluster.core.job import WorkerSpec
from muxcluster.engine.load.division.layers import GatheredLinear, SummedEmbedding, SummedLinear
from muxcluster.engine.parallel import process_group as processgroup
from muxcluster.engine.parallel import rank
from muxcluster.engine.parallel.process_group import GLOO, NCCL, ProcessGroup, backend_for
from muxcluster.engine.parallel.thread_groups import ThreadGroups
from tests.conftest import ROOT
from tests.engine.fakes import fake_spec

FACT = str(ROOT / "bench" / "gpu" / "fact_checks" / "fact.py")


class OnCard(Tensor):
    """A CUDA tensor as far as collectives look at it; its copy on the host is an ordinary one."""

    is_cuda = True

    def cpu(self) -> Tensor:  # type: ignore[override]
        return self.as_subclass(Tensor).clone()


def on_card(tensor: Tensor) -> Tensor:
    return tensor.as_subclass(OnCard)


class FakeDistributed:
    """Two ranks that always bring the same; gloo is given host memory alone."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.backends: list[tuple[str, Any]] = []
        self.num_collectives = 0
        patch.setattr(processgroup.dist, "init_process_group", self._init)
        patch.setattr(processgroup.dist, "all_reduce", self._all_reduce)
        patch.setattr(processgroup, "_all_gather", self._all_gather)
        patch.setattr(torch.cuda, "set_device", lambda device: None)

    def _init(self, backend: str, *, device_id: Any, world_size: int, **_: object) -> None:
        self.backends.append((backend, device_id))

    def _all_reduce(self, tensor: Tensor, *, group: object) -> None:
        self._check(tensor)
        tensor.mul_(2)

    def _all_gather(self, whole: Tensor, part: Tensor, *, group: object) -> None:
        self._check(whole)
        self._check(part)
        whole.copy_(torch.cat([part, part]))

    def _check(self, tensor: Tensor) -> None:
        self.num_collectives += 1
        is_gloo = self.backends[-1][0] == GLOO
        assert not (is_gloo and isinstance(tensor, OnCard)), "gloo reached for device memory"


@pytest.mark.parametrize(
    ("devices", "backend"),
    [
        (["cpu"], GLOO),
        (["cpu", "cpu"], GLOO),
        (["cuda:0"], NCCL),
        (["cuda:0", "cuda:1"], NCCL),
        (["cuda:0", "cuda:0"], GLOO),
        (["cuda:1", "cuda:0", "cuda:1"], GLOO),
    ],
)
def test_ranks_that_share_a_gpu_do_not_talk_by_nccl(devices: list[str], backend: str) -> None:
    assert backend_for(devices) == backend


@pytest.mark.parametrize("backend", [NCCL, GLOO])
def test_collectives_of_tensors_on_a_card(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    """By gloo through copies on the host; the caller's tensor gets the sum in its place."""
    fake = FakeDistributed(monkeypatch)
    group = ProcessGroup(0, 2, "cuda:0", backend)
    group.join(Path("/meeting"))
    assert fake.backends == [(backend, torch.device("cuda:0") if backend == NCCL else None)]
    assert group.is_recordable == (backend == NCCL)
    partial = on_card(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    summed = group.all_reduce(partial)
    assert summed is partial
    assert torch.equal(partial, torch.tensor([[2.0, 4.0], [6.0, 8.0]]))
    part = on_card(torch.arange(6.0).view(2, 3))
    whole = group.gather(part.transpose(0, 1))
    assert torch.equal(whole, torch.cat([part.transpose(0, 1)] * 2, dim=-1))
    assert group.num_calls == 2
    assert fake.num_collectives == 3


@pytest.mark.parametrize(
    ("devices", "backend", "is_unrecorded"),
    [
        (("cuda:0", "cuda:0"), GLOO, True),
        (("cuda:0", "cuda:1"), NCCL, False),
        ((), GLOO, False),
    ],
    ids=["on one GPU", "on two", "on the CPU"],
)
def test_a_rank_records_steps_where_a_graph_can_hold_its_collectives(
    monkeypatch: pytest.MonkeyPatch, devices: tuple[str, ...], backend: str, is_unrecorded: bool
) -> None:
    fake = FakeDistributed(monkeypatch)
    made: dict[str, Any] = {}

    def runner(spec: object, memory: object, capture: object, group: object) -> Any:
        made.update(capture=capture, group=group)
        return SimpleNamespace(
            memory=None, backends=(), warm_up=lambda worker_id: None, record=lambda *_: None
        )

    def serve_unit(name: str, fd: int, load: Any, *_: object) -> int:
        device = devices[0] if devices else "cpu"
        spec = replace(fake_spec(), tp=2, rank_devices=devices, device=device, partition="none")
        load(replace(spec, workers=(WorkerSpec(0, (1.0,)),)))
        return 0

    monkeypatch.setattr(rank, "UnitRunner", runner)
    monkeypatch.setattr(rank, "serve_unit", serve_unit)
    assert rank.main(0, 1, Path("/meeting")) == 0
    assert fake.backends[0][0] == backend
    assert isinstance(made["capture"], rank.CallAgain) == is_unrecorded
    assert (made["capture"] is None) != is_unrecorded


@pytest.fixture
def lone(tmp_path: Path) -> Iterator[ProcessGroup]:
    group = ProcessGroup(0, 1, "cpu")
    group.join(tmp_path / "store")
    yield group
    group.leave()


@torch.inference_mode()
def test_a_group_of_one_computes_what_nobody_divided(lone: ProcessGroup) -> None:
    torch.manual_seed(0)
    inputs, tokens = torch.randn(5, 16), torch.randint(0, 20, (7,))
    linear, head, embedding = nn.Linear(16, 16), nn.Linear(16, 33), nn.Embedding(20, 16)
    expected = [linear(inputs), head(inputs), embedding(tokens)]
    found = [
        SummedLinear(linear, lone)(inputs),
        GatheredLinear(head, 33, lone)(inputs),
        SummedEmbedding(embedding, 0, lone)(tokens),
    ]
    for mine, whole in zip(found, expected, strict=True):
        assert mine.shape == whole.shape
        assert torch.allclose(mine, whole)
    assert lone.num_calls == 3
    assert lone.rank == 0 and lone.size == 1


def test_a_group_that_was_left_runs_no_thread_and_can_be_joined_again(tmp_path: Path) -> None:
    """So a rank may fork after it has met the others."""
    group = ProcessGroup(0, 1, "cpu")
    before = threads()
    for number in range(2):
        group.join(tmp_path / str(number))
        assert group.num_calls == 0
        group.all_reduce(torch.ones(3))
        assert len(threads()) > len(before)
        group.leave()
        assert threads() <= before


def threads() -> set[str]:
    return {task.name for task in Path("/proc/self/task").iterdir()}


def test_groups_beside_each_other_count_their_own_meetings(lone: ProcessGroup) -> None:
    groups = ThreadGroups(lone, [4, 7])
    for worker_id, count in ((4, 1), (7, 2)):
        with groups.entered(worker_id):
            for _ in range(count):
                groups.all_reduce(torch.ones(2))
    groups.gather(torch.ones(2))  # outside: while models load
    assert [groups.of(worker_id).num_calls for worker_id in (4, 7)] == [2, 2]
    assert (groups.rank, groups.size) == (0, 1)


def answer_of(*arguments: str) -> dict[str, Any]:
    ended = run_child((FACT, *arguments), 400)
    return last_answer(ended.output, ended.failure)


def test_the_script_for_one_card_runs_here_too() -> None:
    answer = answer_of("ranks_nccl", "cpu")
    assert answer["verdict"] == "yes", json.dumps(answer)
    assert not answer["numbers"]["recorded"]


@pytest.mark.slow
def test_two_ranks_on_one_device_say_the_tokens_of_one() -> None:
    answer = answer_of("ranks_gloo", "cpu")
    assert (answer["verdict"], answer["numbers"]) == ("yes", {"same": 8}), json.dumps(answer)


@pytest.mark.gpu
def test_collectives_of_a_group_of_one_are_recorded_over_nccl() -> None:
    answer = answer_of("ranks_nccl")
    assert answer["verdict"] == "yes", json.dumps(answer)
    assert answer["numbers"]["recorded"]


@pytest.mark.gpu
def test_two_ranks_share_a_card_over_gloo() -> None:
    answer = answer_of("ranks_gloo")
    assert (answer["verdict"], answer["numbers"]) == ("yes", {"same": 8}), json.dumps(answer)
