"""A job's copies move exactly the bytes they name, in the order of design.md §3, on both paths."""

import mmap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from muxcluster.core.job import SlotCopies
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.memory.arena import Arena
from muxcluster.engine.memory.copies import DirectTransfer, StagedTransfer, Transfer, UnitCopies
from tests.blocks import block_tokens
from tests.engine.fakes import fake_spec
from tests.kernels.slot_copy_cases import copied, random_blocks

NUM_BLOCKS, NUM_HOST_BLOCKS = 12, 7
SPEC = replace(fake_spec(), num_blocks=NUM_BLOCKS, num_host_blocks=NUM_HOST_BLOCKS)
WIDE = block_tokens(16)  # of the wide model; twice as many of the narrow one
SIZES = {
    "wide": {"slot_bytes": 256, "destination_tokens": WIDE, "source_tokens": WIDE},
    "narrow": {"slot_bytes": 128, "destination_tokens": 2 * WIDE, "source_tokens": 2 * WIDE},
}
Run = tuple[int, int, int]
TRANSFERS: dict[str, Callable[[Tensor, Tensor], Transfer]] = {
    "direct": DirectTransfer,
    "staged": StagedTransfer,
    "staged in parts": lambda pool, host: StagedTransfer(pool, host, staging_bytes=1500),
}


@pytest.fixture
def arena() -> Arena:
    """Every byte of pool and host memory is random."""
    arena = Arena(SPEC)
    arena.pool.copy_(random_blocks(NUM_BLOCKS, SPEC.block_bytes))
    arena.host.copy_(random_blocks(NUM_HOST_BLOCKS, SPEC.block_bytes, seed=1))
    return arena


def copies_of(
    model: str, saves: list[Run] = (), moves: list[Run] = (), restores: list[Run] = ()
) -> SlotCopies:
    arrays = [np.array(runs, dtype=np.int64).reshape(-1, 3) for runs in (saves, moves, restores)]
    for array in arrays:
        array.setflags(write=False)  # as those of a message may be
    return SlotCopies(model, *arrays)


def expect(arena: Arena, copies: list[SlotCopies]) -> tuple[Tensor, Tensor]:
    """(pool, host) afterwards, byte by byte."""
    pool, host = arena.pool.clone(), arena.host.clone()
    for each in copies:
        host = copied(host, pool, each.saves.tolist(), SIZES[each.model])
    for each in copies:
        pool = copied(pool, pool.clone(), each.moves.tolist(), SIZES[each.model])
        pool = copied(pool, host, each.restores.tolist(), SIZES[each.model])
    return pool, host


@pytest.fixture(params=sorted(TRANSFERS))
def unit_copies(request: pytest.FixtureRequest, arena: Arena) -> UnitCopies:
    return UnitCopies(SPEC, arena, TRANSFERS[request.param](arena.pool, arena.host))


def do(unit_copies: UnitCopies, copies: list[SlotCopies]) -> None:
    unit_copies.run(copies)
    unit_copies.settle()


COPIES = [
    copies_of(
        "wide",
        saves=[(3, 20, 5), (40, 33, 1), (16 * 7, 16 * 4, 16)],
        moves=[(3, 16 * 5, 5)],
        restores=[(16 * 6 + 2, 16 * 8, 3)],
    ),
    copies_of("narrow", saves=[(32 * 9, 0, 31)], restores=[(32 * 3, 32 * 10, 32), (0, 32 * 9, 9)]),
]


def test_two_models_in_one_job(arena: Arena, unit_copies: UnitCopies) -> None:
    pool, host = expect(arena, COPIES)
    assert not torch.equal(host, arena.host)
    do(unit_copies, COPIES)
    assert torch.equal(arena.pool, pool)
    assert torch.equal(arena.host, host)


def test_saves_of_all_models_come_first(arena: Arena, unit_copies: UnitCopies) -> None:
    """One model's restore overwrites what another's save must still find."""
    copies = [
        copies_of("wide", restores=[(0, 16, 16)]),
        copies_of("narrow", saves=[(32, 32, 32)], moves=[(32 * 2, 32 * 3, 4)]),
    ]
    pool, host = expect(arena, copies)
    do(unit_copies, copies)
    assert torch.equal(arena.pool, pool)
    assert torch.equal(arena.host, host)


def test_a_restore_sees_what_its_own_job_saved(arena: Arena, unit_copies: UnitCopies) -> None:
    copies = [copies_of("wide", saves=[(0, 5, 9)], restores=[(5, 64, 9)])]
    pool, host = expect(arena, copies)
    do(unit_copies, copies)
    assert torch.equal(arena.pool, pool)
    assert torch.equal(arena.host, host)


def test_saved_bytes_are_those_from_before_the_forward(
    arena: Arena, unit_copies: UnitCopies
) -> None:
    copies = [copies_of("wide", saves=[(0, 16, 16 * 3)])]
    _, host = expect(arena, copies)
    unit_copies.run(copies)
    arena.pool.zero_()
    unit_copies.settle()
    assert torch.equal(arena.host, host)


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    """Pinned host memory, staging and the stream's order; elsewhere the CPU plays the device."""
    arena = Arena(replace(SPEC, device="cuda:0"))
    arena.pool.copy_(random_blocks(NUM_BLOCKS, SPEC.block_bytes))
    arena.host.copy_(random_blocks(NUM_HOST_BLOCKS, SPEC.block_bytes, seed=1))
    assert arena.host.is_pinned()
    on_cpu = Arena(SPEC)
    on_cpu.pool.copy_(arena.pool)
    on_cpu.host.copy_(arena.host)
    pool, host = expect(on_cpu, COPIES)
    unit_copies = UnitCopies(SPEC, arena)
    unit_copies.run(COPIES)
    after = arena.pool.cpu()
    arena.pool.zero_()
    unit_copies.settle()
    assert torch.equal(after, pool)
    assert torch.equal(arena.host, host)


def test_saves_of_a_failed_job_never_come_later(arena: Arena) -> None:
    """The frames may belong to somebody else by then."""
    staged = UnitCopies(SPEC, arena, StagedTransfer(arena.pool, arena.host))
    host = arena.host.clone()
    staged.run([copies_of("wide", saves=[(0, 0, 4)])])
    do(staged, [copies_of("wide", restores=[(16, 32, 4)])])
    assert torch.equal(arena.host, host)


def test_random_copies_come_back(arena: Arena, unit_copies: UnitCopies) -> None:
    """Saved in some runs, restored in others into other blocks: the pool's bytes move whole."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        model, width = [("wide", WIDE), ("narrow", 2 * WIDE)][int(rng.integers(2))]
        blocks = rng.permutation(NUM_BLOCKS)
        frames = rng.permutation(NUM_HOST_BLOCKS)[:4]
        cut = int(rng.integers(1, width))
        saves = [
            (int(block) * width + first, int(frame) * width + first, count)
            for block, frame in zip(blocks[:4], frames, strict=True)
            for first, count in ((0, cut), (cut, width - cut))
        ]
        restores = [
            (int(frame) * width, int(block) * width, width)
            for block, frame in zip(blocks[4:8], frames, strict=True)
        ]
        copies = [copies_of(model, saves=saves, restores=restores)]
        pool, host = expect(arena, copies)
        do(unit_copies, copies)
        assert torch.equal(arena.pool, pool)
        assert torch.equal(arena.host, host)
        half = width * SIZES[model]["slot_bytes"]
        before, after = arena.pool[blocks[:4].copy()], arena.pool[blocks[4:8].copy()]
        assert torch.equal(before[:, :half], after[:, :half])


@pytest.mark.parametrize("run", [(WIDE * NUM_BLOCKS - 1, 0, 2), (0, WIDE * NUM_HOST_BLOCKS, 1)])
def test_runs_that_leave_the_memory_are_refused(arena: Arena, run: Run) -> None:
    with pytest.raises(ValueError, match="leaves the"):
        UnitCopies(SPEC, arena).run([copies_of("wide", saves=[run])])


def test_a_unit_without_host_memory(arena: Arena) -> None:
    spec: UnitSpec = replace(SPEC, num_host_blocks=0)
    arena = Arena(spec)
    assert arena.host.shape == (0, spec.block_bytes)
    arena.pool.copy_(random_blocks(NUM_BLOCKS, spec.block_bytes))
    copies = [copies_of("wide", moves=[(0, 16, 16)])]
    pool, _ = expect(arena, copies)
    do(UnitCopies(spec, arena), copies)
    assert torch.equal(arena.pool, pool)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux tells")
def test_host_memory_nobody_wrote_takes_no_pages() -> None:
    spec = replace(SPEC, num_host_blocks=2**30 // SPEC.block_bytes)
    before = resident_bytes()
    host = Arena(spec).host
    assert host.shape[0] * host.shape[1] == 2**30
    assert not host[-1].any()
    assert resident_bytes() - before < 2**28


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
