"""Large host memory of a GPU unit is locked at its exact size, and unlocked before unmapping."""

import gc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from muxcluster.engine.memory.arena import Arena
from muxcluster.engine.memory.copies import StagedTransfer, UnitCopies
from muxcluster.engine.memory.pinning import pinned_zeros
from tests.blocks import block_tokens
from tests.engine.fakes import fake_spec
from tests.engine.memory.test_copies import copies_of
from tests.kernels.slot_copy_cases import random_blocks

BLOCK_BYTES = fake_spec().block_bytes


class FakeRuntime:
    """The CUDA runtime's calls for host memory. locked: bytes by address."""

    def __init__(self, patch: pytest.MonkeyPatch, code: int = 0) -> None:
        self.locked: dict[int, int] = {}
        self._code = code
        patch.setattr(torch.cuda, "cudart", lambda: self)
        patch.setattr(torch.cuda, "check_error", self._check)

    def cudaHostRegister(self, address: int, num_bytes: int, flags: int) -> int:
        assert flags == 0 and address not in self.locked
        self.locked[address] = num_bytes
        return self._code

    def cudaHostUnregister(self, address: int) -> int:
        del self.locked[address]
        return 0

    @staticmethod
    def _check(code: int) -> None:
        if code:
            raise RuntimeError(f"CUDA error {code}")


def zeros_without_a_card(shape: Any, *, pin_memory: bool = False, **fields: Any) -> Tensor:
    """torch.zeros where device memory is ours, and torch's pinned memory is as torch makes it."""
    assert not pin_memory, "torch rounds it up to a power of two"
    return torch.empty(shape, dtype=fields["dtype"]).zero_()


def test_host_memory_takes_what_the_unit_says_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """20 GiB would have become 32."""
    runtime = FakeRuntime(monkeypatch)
    monkeypatch.setattr(torch, "zeros", zeros_without_a_card)
    arena = Arena(replace(fake_spec(), device="cuda:0", num_host_blocks=37))
    assert runtime.locked == {arena.host.data_ptr(): 37 * BLOCK_BYTES}
    assert arena.host.shape == (37, BLOCK_BYTES)
    assert not arena.host.any()


def test_memory_is_unlocked_when_nobody_sees_it_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = FakeRuntime(monkeypatch)
    tensor = pinned_zeros((3, 5000), torch.uint8)
    view = tensor[1]
    assert list(runtime.locked.values()) == [15000]
    del tensor
    gc.collect()
    assert len(runtime.locked) == 1
    view.fill_(7)
    del view
    gc.collect()
    assert runtime.locked == {}


def test_nothing_needs_no_pages_and_a_refusal_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeRuntime(monkeypatch, code=2)
    assert pinned_zeros((0, 64), torch.uint8).shape == (0, 64)
    with pytest.raises(RuntimeError, match="CUDA error 2"):
        pinned_zeros((1, 64), torch.uint8)


def test_staging_is_cut_to_its_size_however_long_a_run_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that is a little too large takes twice its size in torch's pinned memory."""
    spec = replace(fake_spec(), num_blocks=64, num_host_blocks=64)
    layout = (64, 2, block_tokens(16), 256)  # of model wide: K and V of a block's slots
    arena = Arena(spec)
    arena.pool.copy_(random_blocks(64, spec.block_bytes))
    slot_bytes = 2 * 256  # of K and V, model wide
    transfer = StagedTransfer(arena.pool, arena.host, staging_bytes=32 * slot_bytes)
    sizes: list[int] = []
    packed = StagedTransfer._packed

    def noted(self: StagedTransfer, *arguments: Any) -> Tensor:
        made = packed(self, *arguments)
        sizes.append(made.nbytes // slot_bytes)
        return made

    monkeypatch.setattr(StagedTransfer, "_packed", noted)
    runs = [(0, 500, 3), (16, 0, 31), (64, 100, 150), (400, 300, 40), (300, 350, 32)]
    copies = UnitCopies(spec, arena, transfer)
    copies.run([copies_of("wide", saves=runs)])
    copies.settle()
    assert max(sizes) == 32 and sum(sizes) == 2 * 256
    pool = arena.pool.view(layout).transpose(1, 2).reshape(-1, 2, 256).numpy()
    expected = np.zeros_like(pool)
    for source, destination, count in runs:
        expected[destination : destination + count] = pool[source : source + count]
    host = arena.host.view(layout).transpose(1, 2).reshape(-1, 2, 256).numpy()
    assert np.array_equal(host, expected)
