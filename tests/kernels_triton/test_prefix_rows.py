"""The engine's arrays of prefix groups are what the Triton kernel takes them for."""

import numpy as np
import pytest
import torch

from muxcluster.core.job import Rows, SharedPrefixes
from muxcluster.engine.forward.prefix_rows import fits, fixed_groups, group_arrays, side_by_side
from muxcluster.kernels.triton_ops.paged_decode import paged_decode
from muxcluster.kernels.triton_ops.prefix_attention import prefix_attention
from tests.kernels.paged_cases import random_query
from tests.kernels.prefix_cases import GroupedCase, decodes, grouped_case

GROUPS = [decodes(3, 5, 40, 1), decodes(0, 33, 2), decodes(2, 1, 65, 9)]


def job_rows(grouped: GroupedCase) -> Rows:
    """Rows of the case as a job has them: in any order, with what the scheduler says of them."""
    table_rows, lengths = (
        each.numpy().astype(np.int32) for each in (grouped.table_rows, grouped.lengths)
    )
    sizes = grouped.group_offsets.diff().numpy()
    tokens = grouped.prefix_lengths.numpy().astype(np.int32).repeat(sizes)
    firsts = table_rows[grouped.group_offsets[:-1].numpy()].repeat(sizes)
    leaders = np.where(tokens > 0, firsts, table_rows).astype(np.int32)
    order = np.random.default_rng(2).permutation(len(table_rows))
    ones = np.ones(len(table_rows), dtype=np.int32)
    prefixes = SharedPrefixes(leaders[order], tokens[order])
    return Rows(table_rows[order], lengths[order] - ones, ones, ones == 1, prefixes)


@pytest.mark.parametrize("num_rows", [None, 8, 16], ids=["as they are", "full", "filled up"])
def test_groups_of_a_step_give_what_rows_alone_give(num_rows: int | None) -> None:
    """num_rows: of a recorded step, in which rows that fill up see nothing."""
    grouped = grouped_case(GROUPS, 2, 64)
    rows, _ = side_by_side(job_rows(grouped))
    assert rows.prefixes is not None
    size = num_rows or len(rows)
    assert fits(rows.prefixes, size) and len(rows) == 8
    made = group_arrays(rows.prefixes) if num_rows is None else fixed_groups(rows.prefixes, size)
    offsets, prefix_lengths = (torch.from_numpy(each.astype(np.int64)) for each in made)
    table_rows, lengths = torch.zeros(size, dtype=torch.int64), torch.zeros(size, dtype=torch.int64)
    table_rows[: len(rows)] = torch.from_numpy(rows.table_rows)
    lengths[: len(rows)] = torch.from_numpy(rows.starts + 1)
    case = grouped.case
    query = random_query(size, 4, case)
    where = (case.pool, case.table, table_rows, lengths, case.from_right)
    options = {"block_tokens": case.block_tokens, "scale": 0.3}
    shared = prefix_attention(query, *where, offsets, prefix_lengths, **options)
    alone = paged_decode(query, *where, **options)
    torch.testing.assert_close(shared, alone, rtol=1e-5, atol=1e-5)
    assert not shared[len(rows) :].any()
