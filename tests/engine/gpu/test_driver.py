"""Green contexts and IPC through a fake driver: order of calls, arguments, refusals."""

import logging
from collections.abc import Mapping
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from muxcluster.core.errors import EngineFailure
from muxcluster.core.job import WorkerSpec
from muxcluster.engine.gpu.driver import Driver, DriverError
from muxcluster.engine.gpu.green import parts
from muxcluster.engine.gpu.green.ends import TwoEnds
from muxcluster.engine.gpu.green.parts import GreenParts, Part
from muxcluster.engine.gpu.memory.allocator import check_configuration, check_segments
from muxcluster.engine.gpu.memory.files import SharedFiles, opened
from muxcluster.engine.gpu.memory.ipc import DeviceExports, DeviceImports
from muxcluster.engine.gpu.memory.manifest import Region, manifest_of, tensors_of
from muxcluster.engine.gpu.mps.messages import StartWorker, read, written
from muxcluster.engine.processes.rungs import WorkerRung, rung_per_share
from muxcluster.placement.execution import executions
from muxcluster.placement.hardware import GPUS
from tests.engine.fakes import fake_spec
from tests.engine.gpu.fakes import INVALID_CONFIGURATION, SMS, FakeCuda

BEGUN = ["cuInit", "cuDeviceGet"]
SPLIT = ["cuDeviceGetDevResource", "cuDevSmResourceSplitByCount", "cuDevSmResourceSplitByCount"]
MADE = [
    "cuDevResourceGenerateDesc",
    "cuGreenCtxCreate",
    "cuGreenCtxStreamCreate",
    "cuCtxFromGreenCtx",
]
GONE = ["cuStreamDestroy_v2", "cuGreenCtxDestroy"]
CPU = torch.device("cpu")


def test_one_split_into_groups_and_a_context_of_several() -> None:
    fake = FakeCuda()
    driver = Driver(fake)
    split = driver.split()
    assert (len(split.groups), split.group_sms, split.num_sms) == (16, 8, SMS)
    first, second = driver.create(split.groups[:5]), driver.create(split.groups[5:])
    assert split.rest is not None and split.rest.sm_count == 4
    third = driver.create([split.rest])
    assert [green.sm_count for green in (first, second, third)] == [40, 88, 4]
    parts = [fake.sms[green.stream] for green in (first, second, third)]
    assert sum(map(len, parts)) == len(frozenset().union(*parts)) == SMS
    driver.destroy(first)
    assert fake.calls == BEGUN + SPLIT + 3 * MADE + GONE


def test_resources_of_two_splits_are_not_combined() -> None:
    driver = Driver(FakeCuda())
    one, other = driver.split(), driver.split()
    with pytest.raises(DriverError, match="cuDevResourceGenerateDesc: .*915"):
        driver.create([one.groups[0], other.groups[1]])


@pytest.mark.parametrize(
    ("fake", "combines"),
    [
        (FakeCuda(), True),
        (FakeCuda(rest_alignment=2), False),
        (FakeCuda(reports=False), True),  # a driver before 13.0; a refusal is found at the creation
    ],
)
def test_the_rest_is_combined_where_its_alignment_is_that_of_the_groups(
    fake: FakeCuda, combines: bool
) -> None:
    split = Driver(fake).split()
    assert split.combines_rest == combines
    assert split.group_sms == 8


def test_a_gpu_that_makes_no_group_is_refused() -> None:
    with pytest.raises(DriverError, match="132 multiprocessors make no group of 8"):
        Driver(FakeCuda(num_groups=0)).split()


def test_a_refusal_names_the_call_and_the_reason() -> None:
    fake = FakeCuda("cuGreenCtxCreate", "CUDA_ERROR_INVALID_RESOURCE_TYPE")
    driver = Driver(fake)
    with pytest.raises(DriverError, match=r"cuGreenCtxCreate: CUDA_ERROR_INVALID_RESOURCE_TYPE"):
        driver.create(driver.split().groups)


class FakeProbe:
    """Sees the multiprocessors of the stream that is current at a launch."""

    current = 0

    def __init__(self, fake: FakeCuda, confined: bool) -> None:
        self._fake, self._confined = fake, confined
        self._on = frozenset[int]()

    def launch(self) -> None:
        every = frozenset(range(SMS))
        self._on = self._fake.sms.get(FakeProbe.current, every) if self._confined else every

    def seen(self) -> frozenset[int]:
        return self._on

    def run(self) -> frozenset[int]:
        return frozenset(range(SMS))


class OnStream:
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        FakeProbe.current = self._stream

    def __exit__(self, *_: object) -> None:
        FakeProbe.current = 0


def green_parts(
    monkeypatch: pytest.MonkeyPatch, fake: FakeCuda, *, confined: bool = True
) -> GreenParts:
    monkeypatch.setattr(parts, "SmProbe", lambda device: FakeProbe(fake, confined))
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda stream, device: stream)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: 1)
    monkeypatch.setattr(torch.cuda, "stream", OnStream)
    return GreenParts(Driver(fake), CPU)


LADDERS = (WorkerSpec(0, (0.3, 0.5, 1.0)), WorkerSpec(1, (0.3, 0.5, 0.7, 1.0)))


def granted(parts: Mapping[int, Part]) -> list[int | None]:
    return [part.green and part.green.sm_count for part in parts.values()]


def test_the_first_two_workers_take_the_gpu_from_its_two_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeCuda()
    made = green_parts(monkeypatch, fake)
    found = made.open(rung_per_share(LADDERS))
    assert granted(found) == [40, 64, None, 36, 68, 92, None]
    assert fake.calls == BEGUN + SPLIT + 5 * MADE
    made.close()
    made.close()
    assert fake.calls == BEGUN + SPLIT + 5 * MADE + 5 * GONE


@pytest.mark.parametrize("num_groups", [16, 14, 3])
@pytest.mark.parametrize("num_models", [2, 4])
def test_all_workers_of_a_unit_over_several_gpus_are_apart(
    num_groups: int, num_models: int
) -> None:
    """A collective that waited for an SM that another holds would wait for ever."""
    fake = FakeCuda(num_groups=num_groups)
    driver = Driver(fake)
    ends = TwoEnds(driver.split())
    prefill, decode = executions(GPUS["H100"], 2, num_models)[0].workers
    pairs = [
        (driver.create(ends.from_start(mine)), driver.create(ends.from_end(theirs)))
        for mine, theirs in product(prefill.shares, decode.shares)
        if mine + theirs <= 1.0
    ]
    assert len(pairs) == 5
    for one, other in pairs:
        assert not fake.sms[one.stream] & fake.sms[other.stream]


@pytest.mark.parametrize("num_groups", [16, 14, 3])
def test_shares_that_fill_the_gpu_are_apart_and_use_all_of_it(num_groups: int) -> None:
    """For every pair of shares, on GPUs whose GPCs leave few or many multiprocessors ungrouped."""
    fake = FakeCuda(num_groups=num_groups)
    split = Driver(fake).split()
    ends = TwoEnds(split)
    for percent in range(1, 100):
        mine, theirs = percent / 100, 1.0 - percent / 100
        driver = Driver(fake)
        one, other = driver.create(ends.from_start(mine)), driver.create(ends.from_end(theirs))
        parts = fake.sms[one.stream], fake.sms[other.stream]
        assert not parts[0] & parts[1]
        assert len(parts[0] | parts[1]) == SMS
        smaller = driver.create(ends.from_end(0.9 * theirs))
        assert fake.sms[smaller.stream] <= parts[1]


@pytest.mark.parametrize(
    ("rest_alignment", "says"), [(2, "4 of 132 multiprocessors are in no group"), (8, "")]
)
def test_a_rest_that_cannot_be_combined_is_left_to_whole_gpu_jobs(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    rest_alignment: int,
    says: str,
) -> None:
    made = green_parts(monkeypatch, FakeCuda(rest_alignment=rest_alignment))
    with caplog.at_level(logging.INFO):
        found = made.open(rung_per_share(LADDERS))
    assert granted(found)[3:6] == ([32, 64, 88] if says else [36, 68, 92])
    assert (says in caplog.text) and ("are in no group" in caplog.text) == bool(says)


def test_a_driver_that_refuses_the_rest_is_asked_again_without_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It does not report alignments, so the refusal comes as a surprise."""

    class Refusing(FakeCuda):
        def _cuDevResourceGenerateDesc(self, descriptor: Any, resources: Any, count: Any) -> int:
            if any(resource.sm_count != 8 for resource in resources):
                return INVALID_CONFIGURATION
            return super()._cuDevResourceGenerateDesc(descriptor, resources, count)

    fake = Refusing(reports=False)
    made = green_parts(monkeypatch, fake)
    assert granted(made.open(rung_per_share(LADDERS))) == [40, 64, None, 32, 64, 88, None]
    assert "were not combined" in caplog.text
    made.close()
    assert fake.calls.count("cuGreenCtxDestroy") == fake.calls.count("cuCtxFromGreenCtx")


def test_a_gpu_of_one_group_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = green_parts(monkeypatch, FakeCuda(num_groups=1))
    with pytest.raises(EngineFailure, match="132 multiprocessors make 1 group"):
        made.open(rung_per_share(LADDERS))


def test_contexts_that_do_not_confine_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = green_parts(monkeypatch, FakeCuda(), confined=False)
    with pytest.raises(EngineFailure, match="equal or swapped: work ran on 132 and 132"):
        made.open(rung_per_share(LADDERS))
    made.close()


def test_a_driver_without_green_contexts_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    made = green_parts(monkeypatch, FakeCuda("cuGreenCtxCreate", "CUDA_ERROR_NOT_SUPPORTED"))
    with pytest.raises(EngineFailure, match=r"no green contexts \(cuGreenCtxCreate: CUDA_ERROR"):
        made.open(rung_per_share(LADDERS))


class At:
    """A tensor's place, as far as exports look at it."""

    def __init__(self, address: int) -> None:
        self._address = address

    def data_ptr(self) -> int:
        return self._address


def test_an_allocation_is_exported_once_and_opened_once() -> None:
    fake = FakeCuda()
    exports = DeviceExports(Driver(fake))
    found = [exports.find(At(address)) for address in (8192, 8192 + 512, 4096 + 16)]
    assert [offset for _, offset in found] == [0, 512, 16]
    assert found[0][0] == found[1][0] != found[2][0]
    assert fake.calls.count("cuIpcGetMemHandle") == 2
    assert Driver(fake).open_handle(found[2][0].handle) == 4096 + 2**40


def test_mapped_device_memory_is_read_at_the_drivers_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[dict[str, Any]] = []

    def as_tensor(mapped: Any, device: torch.device) -> Tensor:
        taken.append(mapped.__cuda_array_interface__)
        return torch.zeros(mapped.__cuda_array_interface__["shape"], dtype=torch.uint8)

    monkeypatch.setattr(torch, "as_tensor", as_tensor)
    region = Region(4096, handle=(12288).to_bytes(64, "little"))
    assert len(DeviceImports(Driver(FakeCuda()), CPU).opened(region)) == 4096
    assert taken[0]["data"] == (12288 + 2**40, False)
    assert taken[0]["typestr"] == "|u1"


@pytest.mark.parametrize(
    ("refused", "call"),
    [
        ("cuMemGetAddressRange_v2", lambda driver: DeviceExports(driver).find(At(4096))),
        ("cuIpcGetMemHandle", lambda driver: DeviceExports(driver).find(At(4096))),
        (
            "cuIpcOpenMemHandle_v2",
            lambda driver: DeviceImports(driver, CPU).opened(Region(1, handle=bytes(64))),
        ),
    ],
)
def test_a_refused_handle_says_what_to_do(refused: str, call: Any) -> None:
    with pytest.raises(EngineFailure, match=rf"IPC is refused \({refused}: .*--ipc=host"):
        call(Driver(FakeCuda(refused)))


@pytest.mark.parametrize(
    ("name", "value", "is_plain"),
    [
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", False),
        ("PYTORCH_ALLOC_CONF", "max_split_size_mb:64, expandable_segments: true", False),
        ("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync", False),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:False", True),
        ("OTHER", "expandable_segments:True", True),
    ],
)
def test_only_plain_memory_can_be_exported(name: str, value: str, is_plain: bool) -> None:
    environment: Mapping[str, str] = {name: value}
    if is_plain:
        check_configuration(environment)
        return
    with pytest.raises(EngineFailure, match="plain cudaMalloc"):
        check_configuration(environment)


def test_expandable_segments_are_found_in_the_allocator_too() -> None:
    check_segments([{"is_expandable": False}, {}])
    with pytest.raises(EngineFailure, match="an expandable segment"):
        check_segments([{"is_expandable": False}, {"is_expandable": True}])


def test_a_driver_names_the_missing_call() -> None:
    class Old:
        def cuInit(self, flags: object) -> int:
            return 0

    with pytest.raises(DriverError, match="cuDeviceGet is not in this driver"):
        Driver(Old())


def test_tensors_are_found_again_over_the_same_memory() -> None:
    files = SharedFiles()
    weight = torch.arange(24.0).view(4, 6)
    moved = files.moved({"weight": weight, "tied": weight, "half": torch.ones(3).bfloat16()})
    pool = files.zeros((5, 8), torch.int32)
    none = files.zeros((0, 8), torch.uint8)
    tensors = {**moved, "column": moved["weight"][:, 2], "pool": pool, "none": none}
    manifest = manifest_of(tensors, files.find)
    assert len(manifest.regions) == 2
    # As it travels.
    sent = StartWorker(fake_spec(), WorkerRung(3, 1, 0.5), manifest)
    start = read(written(sent))
    assert start == sent
    found = tensors_of(start.manifest, CPU, opened)
    assert {name: tensor.tolist() for name, tensor in found.items()} == {
        name: tensor.tolist() for name, tensor in tensors.items()
    }
    assert found["half"].dtype == torch.bfloat16
    found["pool"][4, 7] = 9
    assert pool[4, 7] == 9
    moved["tied"][0, 2] = 50
    assert found["weight"][0, 2] == found["column"][0] == 50
    assert found["none"].shape == (0, 8)


def test_neighbours_in_one_storage_are_neighbours_in_the_file() -> None:
    """Whatever order they come in; others begin at a multiple of 64 bytes."""
    first, alone, second = torch.arange(10.0).split((3, 4, 3))
    alone = alone.clone()
    joint = torch.cat((first, second))
    first, second = joint.split((3, 3))
    files = SharedFiles()
    moved = files.moved({"second": second, "alone": alone, "first": first})
    assert moved["second"].data_ptr() == moved["first"].data_ptr() + first.nbytes
    assert moved["alone"].data_ptr() % 64 == moved["first"].data_ptr() % 64 == 0
    for name, tensor in (("first", first), ("second", second), ("alone", alone)):
        assert torch.equal(moved[name], tensor)


def test_memory_of_nobodys_file_cannot_be_exported() -> None:
    with pytest.raises(ValueError, match="no other process can map"):
        manifest_of({"plain": torch.zeros(3)}, SharedFiles().find)
