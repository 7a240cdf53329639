"""Batch requests that wait for a prefix which a sibling computes, instead of computing it again.

Planned jobs start requests that share a prefix one after the other, so most are in the queue while
the first of them is in its prefill; what is computed can be found by others only when that job has
ended. Interactive requests wait for nobody.
"""

import numpy as np

from muxcluster.core.job import Side
from muxcluster.scheduling.state.live import LiveRequest
from muxcluster.scheduling.state.model import ModelState


def waits_for_sibling(model: ModelState, live: LiveRequest) -> bool:
    """True where a batch sequence in its prefill computes a block next that `live` needs, too.

    The hashes of `live` are known. Who may not run for now (it gave blocks away, or is a suspect)
    is not waited for, so whoever waits does so for a job that runs or could.
    """
    table = model.slots
    if live.side is not Side.RIGHT or not table.num_prefilling:
        return False
    computing = table.is_batch & table.is_prefilling & ~table.is_lent & ~table.is_suspect
    for slot in np.flatnonzero(computing).tolist():
        column = int(table.num_computed[slot]) // model.block_tokens
        theirs = table.at(slot).hashes
        if column < min(len(theirs), len(live.hashes)) and theirs[column] == live.hashes[column]:
            return True
    return False
