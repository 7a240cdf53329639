"""Which of a model's replicas gets a request."""

from collections.abc import Sequence


def shortest_wait(outstanding: Sequence[float], speeds: Sequence[float], tokens: float) -> int:
    """Index of the replica that would be done first with what it has and the new request.

    outstanding: tokens of requests of the model that have not ended, by replica. speeds: tokens/s
    that each is planned to serve, above 0. tokens: of the new request. The first one wins a tie.
    """
    waits = [(held + tokens) / speed for held, speed in zip(outstanding, speeds, strict=True)]
    return min(range(len(waits)), key=waits.__getitem__)
