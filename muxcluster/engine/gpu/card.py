"""Which card a unit runs on, as its daemon and its processes must be told."""

import re
from collections.abc import Mapping

VISIBLE = "CUDA_VISIBLE_DEVICES"
PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
"""Read by the driver when a process creates its context; it cannot change later."""


def card_of(device: str, environment: Mapping[str, str]) -> str:
    """What `CUDA_VISIBLE_DEVICES` calls the card of `device` ("cuda:N"): an index or a UUID.

    environment: ours, whose own `CUDA_VISIBLE_DEVICES` N counts in. Raises ValueError where it
    names fewer cards.
    """
    index = int(device.partition(":")[2] or 0)
    visible = environment.get(VISIBLE)
    if visible is None:
        return str(index)
    names = [name.strip() for name in visible.split(",") if name.strip()]
    if index >= len(names):
        raise ValueError(f"{device} is not among the {len(names)} cards of {VISIBLE}={visible}")
    return names[index]


def seen_by_clients(card: str) -> str:
    """`CUDA_VISIBLE_DEVICES` of a daemon's clients: indices count among the daemon's own cards,
    UUIDs stay."""
    return "0" if card.isdigit() else card


def folder_name(card: str) -> str:
    """The card as part of a path; short, for a socket's path has at most 107 bytes."""
    return re.sub(r"[^A-Za-z0-9-]", "_", card)[:44]
