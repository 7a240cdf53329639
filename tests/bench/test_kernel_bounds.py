"""Bounds of compiled kernels: what is worse is a fault, what is better a hint."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton's wheels are for Linux")

from bench.kernels.bounds import Bounds, binary_name, updated
from bench.kernels.compiled import Compiled, modules, specimens

ROW = Compiled(
    kernel="paged_decode bf16",
    capability=90,
    registers=112,
    stack_bytes=0,
    spills=0,
    shared_bytes=72_192,
    matrix="mma.sync",
    copies="cp.async",
    blocks=3,
    bytes_in_flight=196_608,
    loop_instructions=(51.1, 60.0),
    matrix_share=(0.08, 0.0),
    seconds=1.0,
)


@pytest.fixture
def bounds(tmp_path: Path) -> Bounds:
    updated([ROW], "3.7.1", {}).write(tmp_path / "bounds.json")
    return Bounds.read(tmp_path / "bounds.json")


def test_what_is_as_it_was_is_neither_fault_nor_hint(bounds: Bounds) -> None:
    slight = replace(ROW, registers=120, loop_instructions=(53.0, 61.0), matrix_share=(0.077, 0.0))
    for row in (ROW, slight):
        assert list(bounds.faults(row)) == list(bounds.hints(row)) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"registers": 121}, "121 registers, the bound is 112"),
        ({"blocks": 2}, "2 blocks a multiprocessor, the bound is 3"),
        ({"bytes_in_flight": 131_072}, "131072 bytes in flight, the bound is 196608"),
        ({"loop_instructions": (54.0, 60.0)}, "54.0 instructions a KiB in loop 0, the bound is"),
        ({"loop_instructions": (51.0, 64.0)}, "64.0 instructions a KiB in loop 1, the bound is"),
        ({"matrix_share": (0.07, 0.0)}, "7.0% tensor-core products in loop 0, the bound is 8.0%"),
        ({"loop_instructions": (51.1,), "matrix_share": (0.08,)}, "1 loops, the bound has 2"),
    ],
)
def test_what_is_worse_is_named(bounds: Bounds, change: dict, says: str) -> None:
    (fault,) = bounds.faults(replace(ROW, **change))
    assert fault.startswith(says)
    assert not list(bounds.hints(replace(ROW, **change)))


@pytest.mark.parametrize(
    "change",
    [
        {"registers": 90},
        {"blocks": 4},
        {"bytes_in_flight": 300_000},
        {"loop_instructions": (36.5, 60.0)},
        {"matrix_share": (0.2, 0.0)},
    ],
)
def test_what_is_better_is_a_hint(bounds: Bounds, change: dict) -> None:
    row = replace(ROW, **change)
    assert list(bounds.faults(row)) == []
    assert list(bounds.hints(row)) == ["better than its bounds: keep that with --update-bounds"]


def test_other_bounds_are_kept_and_a_binary_without_any_is_a_fault(bounds: Bounds) -> None:
    other = replace(ROW, capability=80)
    assert list(bounds.faults(other)) == ["no bounds: add them with --update-bounds"]
    both = updated([other], "3.7.1", bounds.by_binary)
    assert not list(both.faults(other)) and not list(both.faults(ROW))


def test_every_specimen_has_bounds_and_nothing_else_has() -> None:
    every = [each for module in modules() for each in specimens(module)]
    named = {
        binary_name(replace(ROW, kernel=each.name, capability=capability))
        for each in every
        for capability in each.capabilities
    }
    assert set(Bounds.read().by_binary) == named
