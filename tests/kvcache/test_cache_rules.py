"""The rules of the KV cache one by one: quotas, eviction order, prefix sharing, salts, sides."""

import numpy as np
import pytest

from muxcluster.core.job import Side, TableDelta
from muxcluster.core.kvshape import KvShape, block_bytes
from muxcluster.kvcache.cache import KvCache
from muxcluster.kvcache.model import KvModel
from muxcluster.kvcache.pool import Shortage
from tests.blocks import only_with
from tests.kvcache.oracle import chain

pytestmark = only_with(16)

SHAPE = KvShape(num_layers=2, num_kv_heads=2, head_dim=128, itemsize=2)
OTHER = KvShape(num_layers=1, num_kv_heads=3, head_dim=64, itemsize=2)
BLOCK_BYTES = block_bytes(16, 2)
PATH = (1, 2, 3, 4)


def make_cache(num_blocks: int = 40, **quotas: int) -> KvCache:
    models = [KvModel("m", SHAPE, 8, 256), KvModel("o", OTHER, 8, 256)]
    return KvCache(num_blocks, BLOCK_BYTES, models, quotas)


def grow(cache: KvCache, model: str, tokens: dict[int, int]) -> TableDelta | Shortage:
    rows = np.array(list(tokens), dtype=np.int32)
    return cache.of(model).grow(rows, np.array(list(tokens.values()), dtype=np.int32))


def run(cache: KvCache, model: str, row: int, path, salt="", side=Side.LEFT) -> int:
    """Open, compute and publish a prompt; the tokens that came from the cache."""
    hashes = chain(model, path, cache.of(model).block_tokens, salt)
    attached = cache.of(model).open(row, hashes, side)
    width = cache.of(model).block_tokens
    assert isinstance(grow(cache, model, {row: len(path) * width}), TableDelta)
    cache.of(model).commit(row, hashes[attached // width :])
    cache.check()
    return attached


def cached_tokens(cache: KvCache, model: str, path, salt="", side=Side.LEFT) -> int:
    """Tokens of `path` in the cache, leaving the order of eviction as it is seen by others."""
    attached = cache.of(model).open(7, chain(model, path, cache.of(model).block_tokens, salt), side)
    cache.of(model).close(7)
    return attached


def test_block_tokens_follow_the_head_width() -> None:
    cache = make_cache()
    assert (cache.of("m").block_tokens, cache.of("o").block_tokens) == (16, 32)


def test_a_delta_names_new_columns_layer_major_and_tables_repeat_them() -> None:
    cache = make_cache()
    cache.of("m").open(3, [])
    cache.of("m").open(1, [], Side.RIGHT)
    delta = grow(cache, "m", {3: 33, 1: 5})
    assert delta.rows.tolist() == [3, 3, 3, 1]
    assert delta.columns.tolist() == [0, 1, 2, 0]
    assert delta.blocks.shape == (4, 4) and len(np.unique(delta.blocks)) == 16
    whole = cache.of("m").tables(np.array([3, 1], dtype=np.int32))
    for name in ("rows", "columns", "blocks"):
        assert np.array_equal(getattr(whole, name), getattr(delta, name))
        assert getattr(whole, name).dtype == np.int32


def test_only_rows_beyond_their_capacity_get_columns() -> None:
    cache = make_cache()
    for row in (0, 1, 2):
        cache.of("m").open(row, [])
    grow(cache, "m", {0: 16, 1: 10, 2: 32})
    delta = grow(cache, "m", {0: 17, 1: 16, 2: 32})
    assert (delta.rows.tolist(), delta.columns.tolist()) == ([0], [1])
    assert len(grow(cache, "m", {0: 32, 1: 1})) == 0
    assert cache.of("m").capacity[:3].tolist() == [32, 16, 32]


def test_grow_is_all_or_nothing() -> None:
    cache = make_cache(num_blocks=14)
    cache.of("o").open(0, [])
    grow(cache, "o", {0: 32})
    cache.of("m").open(0, [])
    cache.of("m").open(1, [])
    assert grow(cache, "m", {0: 16, 1: 32}) == Shortage(1, by_quota=False)
    assert cache.free == 11 and not cache.of("m").capacity.any()


def test_growth_beyond_the_quota_is_refused_however_empty_the_pool_is() -> None:
    cache = make_cache(m=8)
    cache.of("m").open(0, [])
    assert grow(cache, "m", {0: 48}) == Shortage(4, by_quota=True)
    assert isinstance(grow(cache, "m", {0: 32}), TableDelta)
    assert cache.of("m").headroom() == 0 and cache.of("o").headroom() == 32


def test_lowering_a_quota_stops_growth_and_takes_nothing() -> None:
    cache = make_cache()
    cache.of("m").open(0, [])
    grow(cache, "m", {0: 32})
    cache.set_quotas({"m": 4})
    assert (cache.of("m").used, cache.of("m").headroom(), cache.of("m").quota) == (8, 0, 4)
    assert grow(cache, "m", {0: 33}) == Shortage(4, by_quota=True)
    cache.check()


@pytest.mark.parametrize("quotas", [{"x": 1}, {"m": 3, "o": -1}])
def test_a_wrong_quota_changes_nothing(quotas: dict[str, int]) -> None:
    cache = make_cache(m=7)
    with pytest.raises(ValueError, match="no quota"):
        cache.set_quotas(quotas)
    assert cache.of("m").quota == 7


def test_a_shared_prefix_is_charged_once() -> None:
    cache = make_cache()
    run(cache, "m", 0, PATH)
    assert run(cache, "m", 1, (1, 2, 9)) == 32
    assert cache.of("m").used == 5 * 4
    first, second = (cache.of("m").tables(np.array([s], np.int32)).blocks for s in (0, 1))
    assert np.array_equal(first[:2], second[:2])
    assert not np.intersect1d(first[2:], second[2:]).size


def test_closed_prefixes_stay_cached_and_are_charged_again_when_reopened() -> None:
    cache = make_cache()
    run(cache, "m", 0, PATH)
    grow(cache, "m", {0: 65})
    cache.of("m").close(0)
    assert (cache.of("m").used, cache.of("m").num_cached, cache.free) == (0, 16, 24)
    assert cache.of("m").headroom() == 40
    assert cache.of("m").open(5, chain("m", PATH, 16)) == 64
    assert (cache.of("m").used, cache.of("m").num_cached) == (16, 0)
    assert cache.of("m").capacity[5] == cache.of("m").num_committed[5] == 64


def test_a_quota_cuts_what_is_attached() -> None:
    cache = make_cache()
    run(cache, "m", 0, PATH)
    cache.of("m").close(0)
    cache.set_quotas({"m": 11})
    assert cache.of("m").open(1, chain("m", PATH, 16)) == 32
    # The columns another sequence reads already cost nothing more.
    assert cache.of("m").open(2, chain("m", PATH, 16)) == 32
    cache.check()


def test_eviction_takes_the_oldest_leaf_first() -> None:
    cache = make_cache(num_blocks=24)
    run(cache, "m", 0, (1, 2, 3))
    run(cache, "m", 1, (1, 9))
    cache.of("m").close(0)
    cache.of("m").close(1)
    cache.of("m").open(2, [])
    grow(cache, "m", {2: 48})
    assert cached_tokens(cache, "m", (1, 2, 3)) == 32
    cache.of("m").close(2)
    cache.of("m").open(2, [])
    grow(cache, "m", {2: 64})
    # (1, 9) was released before (1, 2) was looked at; the shared root is the last to go.
    assert (cached_tokens(cache, "m", (1, 2)), cached_tokens(cache, "m", (1, 9))) == (32, 16)


def test_batch_prefixes_go_before_older_interactive_ones() -> None:
    cache = make_cache(num_blocks=16)
    run(cache, "m", 0, (1, 2))
    cache.of("m").close(0)
    run(cache, "m", 0, (3, 4), side=Side.RIGHT)
    cache.of("m").close(0)
    cache.of("o").open(0, [])
    grow(cache, "o", {0: 64})
    assert cached_tokens(cache, "m", (1, 2)) == 32
    assert cached_tokens(cache, "m", (3, 4), side=Side.RIGHT) == 0


def test_sides_share_and_salts_do_not() -> None:
    cache = make_cache()
    run(cache, "m", 0, (1, 2), salt="a")
    assert cached_tokens(cache, "m", (1, 2), salt="b") == 0
    assert cached_tokens(cache, "m", (1, 2), salt="a", side=Side.RIGHT) == 32
    assert cached_tokens(cache, "m", (1, 2), salt="a") == 32
    cache.check()


def test_a_batch_prefix_that_an_interactive_sequence_read_is_no_batch_prefix() -> None:
    cache = make_cache(num_blocks=24)
    for path in ((1, 2), (3, 4)):
        run(cache, "m", 0, path, side=Side.RIGHT)
        cache.of("m").close(0)
    assert cached_tokens(cache, "m", (1, 2)) == 32
    run(cache, "m", 0, (1, 2, 5), side=Side.RIGHT)  # the last reader is a batch sequence
    cache.of("m").close(0)
    cache.of("o").open(0, [])
    grow(cache, "o", {0: 160})
    cache.check()
    assert cached_tokens(cache, "m", (1, 2, 5)) == 32
    assert cached_tokens(cache, "m", (3, 4)) == 0


def test_a_prefix_computed_twice_is_kept_once() -> None:
    cache = make_cache()
    hashes = chain("m", PATH, 16)
    for row in (0, 1):
        cache.of("m").open(row, hashes)
        grow(cache, "m", {row: 64})
    cache.of("m").commit(0, hashes[:3])
    cache.of("m").commit(1, hashes)
    assert cache.of("m").used == 32
    cache.of("m").close(0)
    assert cache.of("m").num_cached == 12
    cache.of("m").close(1)
    assert cache.of("m").num_cached == 16
    assert cached_tokens(cache, "m", PATH) == 64
    cache.check()


def test_a_twin_replaces_a_published_column_that_was_evicted() -> None:
    cache = make_cache(num_blocks=24)
    hashes = chain("m", PATH, 16)
    for row, count in ((0, 2), (1, 3)):
        cache.of("m").open(row, hashes)
        grow(cache, "m", {row: count * 16})
    cache.of("m").commit(0, hashes[:2])
    cache.of("m").commit(1, hashes[:3])
    cache.of("m").close(0)
    cache.of("m").open(2, [])
    grow(cache, "m", {2: 48})
    assert cached_tokens(cache, "m", PATH) == 0
    cache.of("m").close(1)
    assert cached_tokens(cache, "m", PATH) == 48
    cache.check()


def test_a_closing_twin_renews_the_columns_its_own_were_copies_of() -> None:
    cache = make_cache(num_blocks=24)
    hashes = chain("m", PATH, 16)
    for row, count in ((0, 2), (1, 3)):
        cache.of("m").open(row, hashes)
        grow(cache, "m", {row: count * 16})
    cache.of("m").commit(0, hashes[:2])
    cache.of("m").commit(1, hashes[:3])
    cache.of("m").close(0)
    run(cache, "m", 2, (9,))
    cache.of("m").close(2)
    cache.of("m").close(1)
    cache.of("m").open(3, [])
    grow(cache, "m", {3: 48})
    # (9,) is now the oldest; taking the twins' second column would orphan the third.
    assert cached_tokens(cache, "m", (9,)) == 0
    assert cached_tokens(cache, "m", PATH) == 48
    cache.check()


def test_without_prefix_caching_nothing_stays() -> None:
    model = KvModel("m", SHAPE, 8, 256, prefix_caching=False)
    cache = KvCache(40, BLOCK_BYTES, [model], {})
    run(cache, "m", 0, PATH)
    assert cache.of("m").num_committed[0] == 64
    cache.of("m").close(0)
    assert cache.free == 40


def test_drop_cache_spares_what_is_read() -> None:
    cache = make_cache()
    run(cache, "m", 0, (1, 2))
    run(cache, "m", 1, (3, 4))
    cache.of("m").close(1)
    cache.drop_cache()
    assert (cache.free, cache.of("m").used, cache.evictable) == (32, 8, 0)
    assert cached_tokens(cache, "m", (1, 2)) == 32


def test_views_cannot_be_written() -> None:
    cache = make_cache()
    for view in (cache.of("m").capacity, cache.of("m").num_committed):
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 1


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda cache: cache.of("m").open(0, []), "open already"),
        (lambda cache: cache.of("m").close(1), "not open"),
        (lambda cache: grow(cache, "m", {1: 5}), "not open"),
        (lambda cache: grow(cache, "m", {0: 257}), "max_model_len"),
        (lambda cache: cache.of("m").commit(0, [b"x"]), "does not hold"),
        (
            lambda cache: cache.of("m").grow(np.zeros(2, np.int32), np.full(2, 8, np.int32)),
            "named twice",
        ),
    ],
)
def test_misuse_is_caught_before_anything_changes(misuse, message: str) -> None:
    cache = make_cache()
    cache.of("m").open(0, [])
    with pytest.raises(AssertionError, match=message):
        misuse(cache)
    cache.check()
    assert cache.free == 40
