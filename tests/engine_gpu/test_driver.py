"""Green contexts and IPC through a fake driver: order of calls, arguments, refusals."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from muxcluster.core.errors import EngineFailure
from muxcluster.core.job import WorkerSlot
from muxcluster.engine.gpu import parts
from muxcluster.engine.gpu.allocator import check_configuration, check_segments
from muxcluster.engine.gpu.driver import Driver, DriverError
from muxcluster.engine.gpu.files import SharedFiles, opened
from muxcluster.engine.gpu.ipc import DeviceExports, DeviceImports
from muxcluster.engine.gpu.manifest import Region, manifest_of, tensors_of
from muxcluster.engine.gpu.parts import GreenParts
from muxcluster.engine.gpu.seating import Seating, decode, encode
from muxcluster.engine.seats import Seat, rung_seats
from tests.engine_gpu.fakes import SMS, FakeCuda

BEGUN = ["cuInit", "cuDeviceGet"]
SPLIT = ["cuDeviceGetDevResource", "cuDevSmResourceSplitByCount"]
MADE = [
    "cuDevResourceGenerateDesc",
    "cuGreenCtxCreate",
    "cuGreenCtxStreamCreate",
    "cuCtxFromGreenCtx",
]
GONE = ["cuStreamDestroy_v2", "cuGreenCtxDestroy"]
CPU = torch.device("cpu")


def test_the_rest_is_what_the_first_leaves() -> None:
    fake = FakeCuda()
    driver = Driver(fake)
    first, rest = driver.first(60), driver.rest(60)
    assert (first.sm_count, rest.sm_count) == (64, SMS - 64)
    assert not fake.sms[first.stream] & fake.sms[rest.stream]
    driver.destroy(first)
    assert fake.calls == BEGUN + 2 * (SPLIT + MADE) + GONE


def test_a_split_is_into_two_parts_that_are_the_whole() -> None:
    fake = FakeCuda()
    one, other = Driver(fake).split(33)
    assert (one.sm_count, other.sm_count) == (40, SMS - 40)
    assert fake.sms[one.stream] | fake.sms[other.stream] == frozenset(range(SMS))
    assert fake.calls == BEGUN + SPLIT + MADE + MADE


def test_a_refusal_names_the_call_and_the_reason() -> None:
    fake = FakeCuda("cuGreenCtxCreate", "CUDA_ERROR_INVALID_RESOURCE_TYPE")
    with pytest.raises(DriverError, match=r"cuGreenCtxCreate: CUDA_ERROR_INVALID_RESOURCE_TYPE"):
        Driver(fake).split(33)


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


LADDERS = (WorkerSlot(0, (0.3, 0.5, 1.0)), WorkerSlot(1, (0.3, 0.5, 0.7, 1.0)))


def test_the_first_two_slots_take_the_card_from_its_two_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeCuda()
    made = green_parts(monkeypatch, fake)
    seats = rung_seats(LADDERS)
    opened_parts = made.open(seats)
    greens = {seat_id: part.green for seat_id, part in opened_parts.items()}
    assert [green and green.sm_count for green in greens.values()] == [
        *(40, 72, None),
        *(36, 60, 92, None),
    ]
    assert fake.calls == BEGUN + 5 * (SPLIT + MADE)
    made.close()
    made.close()
    assert fake.calls == BEGUN + 5 * (SPLIT + MADE) + 5 * GONE


def test_contexts_that_do_not_confine_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = green_parts(monkeypatch, FakeCuda(), confined=False)
    with pytest.raises(EngineFailure, match="equal or swapped: work ran on 132 and 132"):
        made.open(rung_seats(LADDERS))
    made.close()


def test_a_driver_without_green_contexts_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    made = green_parts(monkeypatch, FakeCuda("cuGreenCtxCreate", "CUDA_ERROR_NOT_SUPPORTED"))
    with pytest.raises(EngineFailure, match=r"no green contexts \(cuGreenCtxCreate: CUDA_ERROR"):
        made.open(rung_seats(LADDERS))


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
    seating = decode(encode(Seating(Seat(3, 1, 0.5), manifest)))
    assert isinstance(seating, Seating)
    assert seating.manifest == manifest
    found = tensors_of(seating.manifest, CPU, opened)
    assert {name: tensor.tolist() for name, tensor in found.items()} == {
        name: tensor.tolist() for name, tensor in tensors.items()
    }
    assert found["half"].dtype == torch.bfloat16
    found["pool"][4, 7] = 9
    assert pool[4, 7] == 9
    moved["tied"][0, 2] = 50
    assert found["weight"][0, 2] == found["column"][0] == 50
    assert found["none"].shape == (0, 8)


def test_memory_of_nobodys_file_cannot_be_exported() -> None:
    with pytest.raises(ValueError, match="no other process can map"):
        manifest_of({"plain": torch.zeros(3)}, SharedFiles().find)
