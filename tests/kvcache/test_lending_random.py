"""Blocks lent under random operations: no token is ever lost, nothing leaks."""

import pytest

from tests.amounts import slow
from tests.kvcache.walk import LendingWalk
from tests.kvcache.world import World

QUOTAS = {"wide": 40, "odd": 40}
NUM_OPERATIONS = 5000

# seed, blocks of the pool, host blocks, lazy saving
CONDITIONS = [
    (0, 30, 24, True),
    (1, 40, 12, True),
    (2, 48, 60, True),
    (3, 24, 40, True),
    (4, 36, 24, False),
]


@pytest.mark.parametrize(
    ("seed", "num_blocks", "num_host_blocks", "lazily"),
    [*CONDITIONS[:2], *slow(*CONDITIONS[2:4]), *CONDITIONS[4:]],
)
def test_no_token_is_lost(seed: int, num_blocks: int, num_host_blocks: int, lazily: bool) -> None:
    world = World.build(seed, num_blocks, num_host_blocks, QUOTAS, saves_lazily=lazily)
    walk = LendingWalk(world)
    for _ in range(NUM_OPERATIONS // len(CONDITIONS)):
        walk.step()
    assert min(walk.seen[kind] for kind in ("saves", "swaps", "failed")) > 0
    for side in ("LEFT", "RIGHT"):
        assert walk.seen[f"{side} lent"] > 0
        assert walk.seen[f"{side} restores"] + walk.seen[f"{side} moves"] > 0
    world.reset()
    world.check()
    assert world.cache.free == num_blocks
