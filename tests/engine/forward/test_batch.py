"""The flattened batch against a plain loop."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.core.job import Admission
from muxcluster.core.sampling import SamplingParams
from muxcluster.engine.forward.batch import ManyRows, token_batch
from muxcluster.engine.sampling.prompt_positions import PromptPositions

CPU = torch.device("cpu")
ROWS = st.lists(
    st.tuples(
        st.integers(0, 99),
        st.one_of(st.just(0), st.integers(0, 500)),
        st.sampled_from([1, 1, 2, 9]),
    ),
    min_size=1,
    max_size=12,
)


def arrays(rows: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    table_rows, starts, counts = np.array(rows, dtype=np.int32).T
    return table_rows, starts, counts


def check_several(
    many: ManyRows, rows: list[tuple[int, int, int]], flat: list[tuple[int, int]]
) -> None:
    """`many` is of `rows`; flat: row and position of each token of the batch."""
    bounds, tokens = many.query_offsets.tolist(), many.tokens.tolist()
    assert many.table_rows.tolist() == [table_row for table_row, _, _ in rows]
    assert many.starts.tolist() == [start for _, start, _ in rows]
    for i, (table_row, start, count) in enumerate(rows):
        own = [flat[t] for t in tokens[bounds[i] : bounds[i + 1]]]
        assert own == [(table_row, start + k) for k in range(count)]


@given(ROWS)
def test_every_token_is_in_its_row_and_place(rows: list[tuple[int, int, int]]) -> None:
    batch = token_batch(*arrays(rows), CPU)
    flat = [(table_row, start + i) for table_row, start, count in rows for i in range(count)]
    assert list(zip(batch.token_rows.tolist(), batch.positions.tolist(), strict=True)) == flat
    ends = batch.ends.tolist()
    assert [flat[end] for end in ends] == [(s, start + n - 1) for s, start, n in rows]
    covered: list[int] = []
    if batch.single is not None:
        singles = [row for row in rows if row[2] == 1]
        covered += batch.single.tokens.tolist()
        lengths = zip(batch.single.table_rows.tolist(), batch.single.lengths.tolist(), strict=True)
        assert list(lengths) == [(table_row, start + 1) for table_row, start, _ in singles]
        assert [flat[i] for i in batch.single.tokens.tolist()] == [r[:2] for r in singles]
    fresh = batch.fresh
    for several, is_fresh in ((batch.many, False), (fresh and fresh.rows, True)):
        own = [row for row in rows if row[2] > 1 and (row[1] == 0) == is_fresh]
        assert (several is None) == (not own)
        if several is not None:
            covered += several.tokens.tolist()
            check_several(several, own, flat)
    if fresh is not None:
        assert fresh.offsets.dtype == torch.int32
        assert torch.equal(fresh.offsets, fresh.rows.query_offsets)
        assert fresh.max_tokens == max(n for _, start, n in rows if n > 1 and start == 0)
    assert sorted(covered) == list(range(len(flat)))


@given(ROWS, st.dictionaries(st.integers(0, 99), st.integers(1, 500), max_size=30))
def test_prompt_positions(rows: list[tuple[int, int, int]], asking: dict[int, int]) -> None:
    positions = PromptPositions()
    for table_row, num_prompt in asking.items():
        sampling = SamplingParams(prompt_logprobs=0)
        positions.admit(Admission(table_row, "r", np.empty(0, np.int32), num_prompt, sampling))
    asked = positions.of(*arrays(rows))
    flat = [(r, s, start + i) for r, (s, start, n) in enumerate(rows) for i in range(n)]
    expected = [i for i, (_, s, p) in enumerate(flat) if p + 1 < asking.get(s, 0)]
    assert asked.tokens.tolist() == expected
    assert [a.row for a in asked.rows for _ in range(a.num_tokens)] == [
        flat[i][0] for i in expected
    ]


def test_a_row_that_no_longer_asks_is_forgotten() -> None:
    positions = PromptPositions()
    for sampling in (SamplingParams(prompt_logprobs=1), SamplingParams()):
        positions.admit(Admission(4, "r", np.empty(0, np.int32), 9, sampling))
    assert positions.of(*arrays([(4, 0, 3)])).rows == ()
