"""Thread blocks of a multiprocessor, against NVIDIA's occupancy tables."""

import pytest

from bench.kernels.occupancy import BlockNeeds, blocks_per_multiprocessor


@pytest.mark.parametrize(
    ("warps", "registers", "shared", "columns", "capability", "blocks"),
    [
        (4, 32, 0, 0, 90, 16),  # 64 warps
        (1, 32, 0, 0, 90, 32),  # 32 blocks
        (8, 128, 0, 0, 90, 2),
        (8, 129, 0, 0, 90, 1),  # rounded up to 136
        (4, 168, 0, 0, 90, 3),
        (8, 255, 0, 0, 80, 1),
        (4, 112, 72_192, 0, 90, 3),
        (4, 112, 72_192, 0, 80, 2),
        (4, 32, 232_448, 0, 90, 1),
        (4, 32, 232_449, 0, 90, 0),
        (4, 32, 166_912, 0, 80, 1),
        (4, 32, 0, 256, 100, 2),
        (4, 32, 0, 0, 100, 16),
    ],
)
def test_the_scarcest_thing_decides(warps, registers, shared, columns, capability, blocks) -> None:
    needs = BlockNeeds(warps, registers, shared, columns)
    assert blocks_per_multiprocessor(needs, capability) == blocks
