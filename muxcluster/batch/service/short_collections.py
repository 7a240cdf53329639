"""Keeps Python's garbage collections short in a process with thousands of open lines."""

import asyncio
import gc
from collections.abc import Callable

PERIOD_S = 0.5


async def keep_collections_short(is_busy: Callable[[], bool]) -> None:
    """Take what is alive out of garbage collections again and again, until cancelled.

    A full collection visits every object: with the modules of a server and ten thousand open lines
    it stops the event loop for more than half a second (bench/batch.py, claim
    event_loop_blocked_s). Reference counts free all but cycles as before; cycles that became
    garbage meanwhile are collected, in one long collection, when `is_busy`, which tells whether
    batches run, is False again.
    """
    was_busy = False
    try:
        gc.freeze()  # the process's modules
        while True:
            is_now = is_busy()
            if was_busy and not is_now:
                gc.unfreeze()
                gc.collect()
            if was_busy or is_now:
                gc.freeze()
            was_busy = is_now
            await asyncio.sleep(PERIOD_S)
    finally:
        gc.unfreeze()
