"""Blocks behind a window return to the pool while the sequence runs, and no token is lost."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muxcluster.core.hashing import extend_hashes, root_hash
from muxcluster.core.job import Side, TableDelta
from muxcluster.core.kvshape import KvShape
from muxcluster.kvcache.cache import KvCache, ModelCache
from muxcluster.kvcache.kinds import layer_kinds
from muxcluster.kvcache.model import KvModel
from tests.amounts import examples, slow
from tests.kvcache.memory_world import BLOCK, BLOCK_BYTES, Layout
from tests.kvcache.test_counts_only import Twins
from tests.kvcache.walk import LendingWalk
from tests.kvcache.world import World

# All layers of one have a window, and every second layer of the other.
ALL = KvModel(
    "wide",
    KvShape(2, 2, 128, 4),
    max_seqs=6,
    max_model_len=12 * BLOCK,
    window=5 * BLOCK // 2,
    window_layers=(0, 1),
)
MIXED = KvModel(
    "odd",
    KvShape(3, 1, 80, 4),
    max_seqs=6,
    max_model_len=12 * BLOCK,
    window=5 * BLOCK // 4,
    window_layers=(0, 2),
)
MODELS = {model.name: model for model in (ALL, MIXED)}
QUOTAS = {"wide": 40, "odd": 40}
NUM_OPERATIONS = examples(700, 1000)  # under each of the conditions

# seed, blocks of the pool, host blocks, lazy saving
CONDITIONS = [
    (0, 30, 24, True),
    *slow((1, 40, 12, True), (3, 26, 40, True)),
    (2, 48, 60, True),
    (4, 36, 24, False),
]


@pytest.mark.parametrize(("seed", "num_blocks", "num_host_blocks", "lazily"), CONDITIONS)
def test_no_token_that_a_window_sees_is_lost(
    seed: int, num_blocks: int, num_host_blocks: int, lazily: bool
) -> None:
    """As the walk of models without windows: lending, copies, failures, prefixes, preemption."""
    world = World.build(
        seed, num_blocks, num_host_blocks, QUOTAS, saves_lazily=lazily, models=MODELS
    )
    walk = LendingWalk(world)
    num_given_back = 0
    for _ in range(NUM_OPERATIONS):
        walk.step()
        num_given_back += sum(
            int(kv.sequences.begins.sum()) for name in MODELS for kv in world.cache.of(name)._kinds
        )
    assert num_given_back > 0
    assert min(walk.seen[kind] for kind in ("saves", "failed")) > 0
    for side in ("LEFT", "RIGHT"):
        assert walk.seen[f"{side} lent"] > 0
        assert walk.seen[f"{side} restores"] + walk.seen[f"{side} moves"] > 0
    world.reset()
    world.check()
    assert world.cache.free == num_blocks


def rows_of(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int32)


def grown(kv: ModelCache, row: int, num_tokens: int) -> TableDelta:
    answer = kv.grow(rows_of(row), rows_of(num_tokens))
    assert isinstance(answer, TableDelta)
    return answer


def chain(model: str, num_columns: int, width: int) -> list[bytes]:
    tokens = np.arange(num_columns * width, dtype=np.int32)
    return list(extend_hashes(root_hash(model, ""), tokens, width))


def most_held(model: KvModel, num_tokens: int) -> int:
    """Blocks with a token that the token after `num_tokens` sees, and those for that token."""
    layout = Layout.of(model)
    end = num_tokens // layout.block_tokens + 1
    return sum(
        (end - layout.first_seen(num_tokens, window)) * len(cells) for cells, window in layout.kinds
    )


@pytest.mark.parametrize("caches", [True, False])
@pytest.mark.parametrize("model", [ALL, MIXED], ids=lambda model: model.name)
def test_a_long_output_holds_what_its_windows_need(model: KvModel, caches: bool) -> None:
    """Token by token, as a decode does; the rest of the pool is free or cached."""
    own = KvModel(
        model.name,
        model.shape,
        1,
        model.max_model_len,
        prefix_caching=caches,
        window=model.window,
        window_layers=model.window_layers,
    )
    cache = KvCache(60, BLOCK_BYTES, [own], {})
    kv = cache.of(own.name)
    width = kv.block_tokens
    prompt = 3 * width
    hashes = chain(own.name, 3, width)
    kv.open(0, hashes if caches else ())
    grown(kv, 0, prompt)
    kv.commit(0, hashes)
    held = []
    for num_tokens in range(prompt, own.max_model_len):
        kv.give_back(rows_of(0), rows_of(num_tokens))
        grown(kv, 0, num_tokens + 1)
        cache.check()
        assert kv.used == most_held(own, num_tokens)
        held.append(kv.used)
        assert cache.free + cache.evictable + kv.used == 60
    if model is ALL:  # the second half of the output needs no more than the first
        half = len(held) // 2
        assert max(held[half:]) == max(held[:half]) < own.max_model_len // width * 4
    kv.close(0)
    cache.check()
    assert cache.free + cache.evictable == 60
    assert (cache.evictable > 0) is caches


@pytest.mark.parametrize("model", [ALL, MIXED], ids=lambda model: model.name)
@settings(max_examples=examples(10, 300), deadline=None)
@given(data=st.data())
def test_counts_alone_decide_as_ids_do(model: KvModel, data: st.DataObject) -> None:
    """The simulator's cache gives the same answers in any order of operations."""
    kvs = [KvCache(40, BLOCK_BYTES, [model], {}, has_block_ids=has) for has in (True, False)]
    kv = Twins(*(cache.of(model.name) for cache in kvs))
    width = kvs[0].of(model.name).block_tokens
    most = model.max_model_len // width
    lengths: dict[int, int] = {}  # tokens computed
    hashes = chain(model.name, most, width)
    for _ in range(data.draw(st.integers(1, 25))):
        row = data.draw(st.integers(0, 2))
        if row not in lengths:
            lengths[row] = kv.open(row, hashes[: data.draw(st.integers(0, most))], Side.LEFT)
        elif data.draw(st.booleans()):
            end = data.draw(st.integers(lengths[row], model.max_model_len))
            if isinstance(kv.grow(rows_of(row), rows_of(end)), TableDelta):
                lengths[row] = end
                start = int(kv.num_committed[row]) // width
                if data.draw(st.booleans()):
                    is_private = kv.slides and data.draw(st.booleans())
                    kv.commit(row, hashes[start : end // width], is_private=is_private)
                kv.give_back(rows_of(row), rows_of(end))
        elif kv.slides and data.draw(st.booleans()):
            num_tokens = data.draw(st.integers(lengths[row], model.max_model_len))
            kv.slide(row, lengths[row], num_tokens)
        else:
            kv.close(row)
            del lengths[row]
        for cache in kvs:
            cache.check()
        assert (kvs[0].free, kvs[0].evictable) == (kvs[1].free, kvs[1].evictable)
        assert kv.used == kvs[0].of(model.name).used
    for row in list(lengths):
        kv.close(row)
    for cache in kvs:
        cache.drop_cache()
        cache.check()
        assert cache.free == 40


@pytest.mark.parametrize("model", [ALL, MIXED], ids=lambda model: model.name)
def test_a_prefix_is_found_where_its_last_window_is_still_there(model: KvModel) -> None:
    cache = KvCache(40, BLOCK_BYTES, [model], {})
    kv = cache.of(model.name)
    width = kv.block_tokens
    hashes = chain(model.name, 5, width)
    kv.open(0, hashes)
    grown(kv, 0, 5 * width)
    kv.commit(0, hashes)
    kv.give_back(rows_of(0), rows_of(5 * width))
    first = Layout.of(model).first_seen(5 * width, model.window)
    assert first > 0
    # Nothing is evicted yet: any part of the prefix is there.
    for count in (1, 3, 5):
        assert kv.open(1, hashes[:count]) == count * width
        kv.close(1)
    # All that no sequence holds goes: the first columns of the layers with a window.
    cache.drop_cache()
    cache.check()
    assert kv.finds(hashes)
    assert kv.open(1, hashes) == 5 * width
    entries = kv.tables(rows_of(1))
    cells = Layout.of(model).kinds[-1][0]
    held = entries.columns >= first
    ours = kv.tables(rows_of(0))
    assert np.array_equal(
        entries.blocks[held][:, cells], ours.blocks[ours.columns >= first][:, cells]
    )
    kv.close(1)
    assert not kv.finds(hashes[:1])
    assert kv.open(1, hashes[:1]) == 0
    kv.close(1)
    kv.close(0)
    # The tail stays when its reader leaves, and goes when memory is short.
    assert kv.open(1, hashes) == 5 * width
    kv.close(1)
    cache.drop_cache()
    assert cache.free == 40
    assert not kv.finds(hashes)


def test_a_long_prompt_takes_what_a_job_and_its_window_need() -> None:
    """It trades columns behind for columns ahead; others find them when it has left them."""
    cache = KvCache(60, BLOCK_BYTES, [ALL], {})
    kv = cache.of(ALL.name)
    width, num_tokens, chunk = kv.block_tokens, 12 * BLOCK, 2 * BLOCK
    hashes = chain(ALL.name, 12, width)
    most = -(-(ALL.window + chunk + width) // width)
    assert kv.slides
    kv.open(0, hashes)
    grown(kv, 0, ALL.window + chunk + width)
    for computed in range(0, num_tokens, chunk):
        end = computed + chunk
        assert kv.capacity[0] >= end
        assert kv.used <= most * 4
        is_private = bool(kv.capacity[0] < num_tokens)
        kv.commit(0, hashes[computed // width : end // width], is_private=is_private)
        found = kv.open(1, hashes[: end // width])
        if is_private:  # only what it has left behind
            assert found <= Layout.of(ALL).first_seen(computed, ALL.window) * width
        kv.close(1)
        kv.slide(0, end, num_tokens)
        cache.check()
    assert kv.open(1, hashes) == num_tokens
    kv.close(1)
    kv.close(0)
    cache.check()
    assert cache.free + cache.evictable == 60


def test_a_shared_column_stays_with_the_sequence_that_still_sees_it() -> None:
    cache = KvCache(60, BLOCK_BYTES, [ALL], {})
    kv = cache.of(ALL.name)
    width = kv.block_tokens
    hashes = chain(ALL.name, 3, width)
    kv.open(0, hashes)
    grown(kv, 0, 3 * width)
    kv.commit(0, hashes)
    assert kv.open(1, hashes) == 3 * width
    grown(kv, 0, 12 * width)
    kv.give_back(rows_of(0), rows_of(12 * width - 1))
    cache.check()
    kept = kv.tables(rows_of(1))
    assert kept.columns.tolist() == [0, 1, 2]
    assert kv.used == (12 - Layout.of(ALL).first_seen(12 * width - 1, ALL.window) + 3) * 4
    kv.close(0)
    cache.check()
    assert np.array_equal(kv.tables(rows_of(1)).blocks, kept.blocks)


def test_steps_until_blocks_come_back() -> None:
    """The number that the simulator steps over at once."""
    cache = KvCache(60, BLOCK_BYTES, [ALL], {})
    kv = cache.of(ALL.name)
    kv.open(0, ())
    grown(kv, 0, ALL.max_model_len)
    for num_tokens in range(1, ALL.max_model_len):
        kv.give_back(rows_of(0), rows_of(num_tokens))
        steps = kv.tokens_before_return(rows_of(0), rows_of(num_tokens))
        assert steps is not None
        used = kv.used
        layout = Layout.of(ALL)
        begin = layout.first_seen(num_tokens, ALL.window)
        assert layout.first_seen(num_tokens + steps, ALL.window) == begin
        assert layout.first_seen(num_tokens + steps + 1, ALL.window) == begin + 1
        assert used == (ALL.max_model_len // kv.block_tokens - begin) * 4
    plain = KvCache(8, BLOCK_BYTES, [KvModel("a", ALL.shape, 1, BLOCK)], {}).of("a")
    assert plain.tokens_before_return(rows_of(0), rows_of(0)) is None


def test_kinds_of_layers() -> None:
    shape = KvShape(4, 2, 64, 2)
    (full,) = layer_kinds("m", shape, 0, ())
    assert (full.name, full.window, full.cells.tolist()) == ("m", 0, list(range(8)))
    (every,) = layer_kinds("m", shape, 5, (0, 1, 2, 3))
    assert (every.name, every.window, every.cells.tolist()) == ("m", 5, list(range(8)))
    full, windowed = layer_kinds("m", shape, 5, (0, 2))
    assert (full.name, full.window, full.cells.tolist()) == ("m", 0, [2, 3, 6, 7])
    assert (windowed.window, windowed.cells.tolist()) == (5, [0, 1, 4, 5])
    assert windowed.name != "m"
    for window, layers in ((5, (4,)), (0, (1,)), (5, (-1,))):
        with pytest.raises(ValueError, match="m has 4 layers"):
            layer_kinds("m", shape, window, layers)
