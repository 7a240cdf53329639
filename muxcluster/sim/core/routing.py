"""Choice of the replica that gets a request."""

from collections.abc import Sequence


def shortest_wait(outstanding: Sequence[float], speeds: Sequence[float], tokens: float) -> int:
    """Return the index of the replica that would end first with its requests and the new one.

    outstanding: tokens of the model's open requests, by replica. speeds: planned tokens/s of each,
    above 0. tokens: of the new request. The first one wins a tie.
    """
    waits = [(held + tokens) / speed for held, speed in zip(outstanding, speeds, strict=True)]
    return min(range(len(waits)), key=waits.__getitem__)
