"""The vectorised stop rules against a loop over rows."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.core.events import FinishReason
from muxcluster.scheduling.completion import cut, ended_already
from muxcluster.scheduling.state.requests import LiveRequest
from muxcluster.scheduling.state.running import RunningTable
from tests.scheduling.rig import request

EOS = (7, 9)

ROWS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 9), max_size=5),  # new tokens
        st.integers(1, 6),  # how many may still come
        st.booleans(),  # ignores eos
        st.sampled_from([(), (3,), (3, 4)]),  # own stop ids
        st.booleans(),  # aborted
    ),
    min_size=1,
    max_size=8,
)


def naive(tokens, limit, ignores_eos, stops, is_aborted):
    """Kept tokens and whether the last one is an end token."""
    ends = set(stops) | (set() if ignores_eos else set(EOS))
    kept = []
    for token in [] if is_aborted else tokens[:limit]:
        kept.append(token)
        if token in ends:
            return kept, True
    return kept, False


@given(ROWS)
def test_cut_equals_a_loop(rows) -> None:
    table = RunningTable(8, 64)
    table_rows = []
    for i, (_, limit, ignores_eos, stops, is_aborted) in enumerate(rows):
        asked = request(str(i), num_prompt=3, ignore_eos=ignores_eos, stop_token_ids=stops)
        table_row = table.occupy(LiveRequest.of(asked, i, 0.0, None), 0, 3 + limit)
        if is_aborted:
            table.abort(table_row)
        table_rows.append(table_row)
    order = np.array(table_rows[::-1], dtype=np.int32)
    new = [row[0] for row in rows[::-1]]
    result = cut(
        table,
        order,
        np.array([token for tokens in new for token in tokens], dtype=np.int32),
        np.array([len(tokens) for tokens in new], dtype=np.int32),
        EOS,
    )
    wanted = [naive(*row) for row in rows[::-1]]
    assert result.kept.tolist() == [len(kept) for kept, _ in wanted]
    assert result.tokens.tolist() == [token for kept, _ in wanted for token in kept]
    stopped = [False] * len(rows) if result.is_stopped is None else result.is_stopped.tolist()
    assert stopped == [stopped for _, stopped in wanted]
    if result.width is not None:
        assert [len(tokens) for tokens in new] == [result.width] * len(rows)
        assert result.kept.tolist() == [result.width] * len(rows)


def test_recovered_output_may_have_ended() -> None:
    def ended(output, **sampling):
        asked = request("r", output_tokens=np.array(output, dtype=np.int32), **sampling)
        return ended_already(asked, 15, EOS)

    assert ended([]) is None
    assert ended([1, 2]) is None
    assert ended([1, 7], ignore_eos=False) == (FinishReason.STOP, 7)
    assert ended([1, 7], ignore_eos=True) is None
    assert ended([1, 3], stop_token_ids=(3,)) == (FinishReason.STOP, 3)
    assert ended([1, 2, 3, 4, 5]) == (FinishReason.LENGTH, None)
