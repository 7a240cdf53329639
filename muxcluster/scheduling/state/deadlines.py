"""When a sequence's next token is due: its TPOT after the last one, the mean kept in view."""

import numpy as np
from numpy.typing import NDArray

from muxcluster.scheduling.state.slots import Slots, SlotTable

_MOST_CREDIT = 3.0
"""Tokens' worth of time that a sequence may save by being early."""
_MOST_DEBT = 0.5
"""Tokens' worth of time by which a late token makes the next one due earlier."""
_DAY_S = 86_400.0


def set_deadlines(table: SlotTable, slots: Slots, now: float) -> None:
    """`slots` got a token at `now`, so the next one of each is due after its TPOT.

    Earlier where that one was late: the target is of the mean over tokens.
    """
    if not table.has_targets:
        return
    places = slots.astype(np.intp)  # once: numpy would convert at each use
    tpot_s = table.tpot_s[places]
    earned_s = table.credit_s[places] + table.deadline_s[places] - now
    if table.num_prefilling:
        earned_s[table.is_prefilling[places]] = 0.0
    token_s = np.minimum(tpot_s, _DAY_S)
    table.credit_s[places] = np.minimum(np.maximum(earned_s, 0.0), _MOST_CREDIT * token_s)
    debt_s = np.maximum(np.minimum(earned_s, 0.0), -_MOST_DEBT * token_s)
    table.deadline_s[places] = now + tpot_s + debt_s
    table.forget_deadline()


def leeway_s(table: SlotTable, slots: Slots) -> NDArray[np.float64]:
    """How much later than due the next token of each may be: what it has earned and a debt."""
    debt_s: NDArray[np.float64] = _MOST_DEBT * np.minimum(table.tpot_s[slots], _DAY_S)
    return table.credit_s[slots] + debt_s
