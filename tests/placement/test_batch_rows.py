"""Rows for batch sequences: as many as a job holds, less where memory for them or their KV ends."""

from dataclasses import replace

import pytest

from muxcluster.placement.memory import batch_seqs, block_bytes, table_bytes
from muxcluster.placement.problem import Backlog, Demand, Limits
from muxcluster.placement.shapes.known import SHAPES


def demand(shape: str = "llama-3.1-8b", **changes) -> Demand:
    found = Demand("m", SHAPES[shape], 1.0, 161, 338, max_model_len=4096, max_seqs=64)
    return replace(found, **changes)


def test_all_rows_fill_a_decode_job() -> None:
    assert batch_seqs(demand(), Limits(), 256) == 192
    assert batch_seqs(demand(max_seqs=256), Limits(), 256) == 0
    assert batch_seqs(demand(max_seqs=300), Limits(), 256) == 0


def test_a_given_pool_bounds_them() -> None:
    sequence = demand().shape.sequence_bytes(512, 2)
    rows = batch_seqs(demand(), Limits(kv_bytes=int(100.5 * sequence)), 256)
    assert rows == 36
    assert batch_seqs(demand(), Limits(kv_bytes=int(10 * sequence)), 256) == 0


def test_their_tables_take_half_a_gibibyte_at_most() -> None:
    long = demand(max_model_len=131_072)
    rows = batch_seqs(long, Limits(), 256)
    assert 0 < rows < 192
    size = block_bytes((long,), Limits())
    more = [table_bytes(replace(long, batch_seqs=each), size) for each in (0, rows, rows + 1)]
    assert more[1] - more[0] <= 2**29 < more[2] - more[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"rate": 50.0},
        {"prompt_tokens": 2000.0, "output_tokens": 10.0},
        {"backlog": Backlog(1e4, 100.0, 2000.0)},
        {"weight": 3.0},
    ],
)
def test_expectations_do_not_change_them(changes: dict) -> None:
    limits = Limits(kv_bytes=2**33)
    assert batch_seqs(demand(**changes), limits, 256) == batch_seqs(demand(), limits, 256)
