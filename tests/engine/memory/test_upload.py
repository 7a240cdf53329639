"""Packed arrays arrive whole, in the same places each time; pending writes are made once."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.core.job import Admission, Side, TableDelta
from muxcluster.core.sampling import SamplingParams
from muxcluster.engine.memory.arena import ModelArena
from muxcluster.engine.memory.pending_writes import PendingWrites
from muxcluster.engine.memory.upload import PackedUpload, num_words

CPU = torch.device("cpu")
SHAPES = st.lists(
    st.tuples(
        st.sampled_from([np.int64, np.int32, np.float64, np.bool_]),
        st.sampled_from([(0,), (1,), (3,), (4,), (2, 3), (0, 5)]),
    ),
    max_size=6,
)


def arrays(shapes: list[tuple[type, tuple[int, ...]]], seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(-9, 9, shape).astype(dtype) for dtype, shape in shapes]


@given(SHAPES)
def test_what_is_uploaded_arrives(shapes: list[tuple[type, tuple[int, ...]]]) -> None:
    sent = arrays(shapes, 1)
    tensors = PackedUpload(CPU)(sent)
    for array, tensor in zip(sent, tensors, strict=True):
        expected = array.copy()
        array[...] = 0  # the caller may go on writing
        assert tensor.numpy().dtype == expected.dtype
        assert tensor.data_ptr() % 16 == 0 or not tensor.numel()
        np.testing.assert_array_equal(tensor.numpy(), expected)


def test_equal_shapes_lie_in_equal_places_whatever_follows() -> None:
    upload, shapes = PackedUpload(CPU), [(np.int64, (3,)), (np.float64, (5,))]
    into = torch.full((100,), -1)
    first = upload(arrays(shapes, 1), into)
    more = arrays([*shapes, (np.int32, (7,))], 2)
    second = upload(more, into)
    assert [t.data_ptr() for t in first] == [t.data_ptr() for t in second[:2]]
    np.testing.assert_array_equal(first[1].numpy(), more[1])
    assert (into[num_words(more) :] == -1).all()


def test_an_array_too_many_is_refused() -> None:
    with pytest.raises(ValueError, match="4 words"):
        PackedUpload(CPU)([np.arange(5)], torch.zeros(4, dtype=torch.int64))


def admission(row: int, tokens: list[int], side: Side) -> Admission:
    array = np.array(tokens, dtype=np.int32)
    return Admission(row, str(row), array, len(tokens), SamplingParams(), side)


def delta(rows: list[int], columns: list[int], first: int) -> TableDelta:
    blocks = first + np.arange(6 * len(rows), dtype=np.int32).reshape(len(rows), 6)
    return TableDelta(np.array(rows, np.int32), np.array(columns, np.int32), blocks)


@pytest.mark.parametrize("has_admissions", [False, True])
@pytest.mark.parametrize("has_tables", [False, True])
def test_pending_writes_are_written_where_they_belong_and_nowhere_else(
    has_admissions: bool, has_tables: bool
) -> None:
    arena = ModelArena(
        tables=torch.full((4, 2, 3, 5), -1, dtype=torch.int32),
        history=torch.full((5, 9), -1, dtype=torch.int32),
        from_right=torch.tensor([True, True, False, False]),
        block_tokens=8,
    )
    tables, history = arena.tables.clone(), arena.history.clone()
    writes, rights = PendingWrites(arena), [True, True, False, False]
    if has_admissions:
        writes.admit(admission(1, [7, 8, 9], Side.LEFT))
        writes.admit(admission(3, [], Side.RIGHT))
        history[1, :3] = torch.tensor([7, 8, 9])
        rights = [True, False, False, True]
    if has_tables:
        writes.add_tables(delta([0, 2], [4, 1], 100))
        writes.add_tables(delta([], [], 0))
        writes.add_tables(delta([0], [3], 500))
        tables[0, :, :, 4] = torch.arange(100, 106).view(2, 3)
        tables[2, :, :, 1] = torch.arange(106, 112).view(2, 3)
        tables[0, :, :, 3] = torch.arange(500, 506).view(2, 3)
    writes.write(PackedUpload(CPU)(writes.take()))
    assert torch.equal(arena.tables, tables)
    assert torch.equal(arena.history, history)
    assert arena.from_right.tolist() == rights
    assert writes.take() == []
