"""Chained hashes of token blocks: an equal hash means equal tokens from the start."""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray


def root_hash(model: str, salt: str, adapter: str = "") -> bytes:
    """Return the 32-byte start of every hash chain of `model` under tenant `salt`.

    adapter: of the model, whose keys and values are others; names of models and adapters hold no
    NUL, so no salt can lead to the chain of another.
    """
    return hashlib.sha256(f"{model}\0{adapter}\0{salt}".encode()).digest()


def extend_hashes(
    parent: bytes,
    tokens: NDArray[np.int32],
    block_tokens: int,
    marks: Mapping[int, bytes] | None = None,
) -> Sequence[bytes]:
    """Return the hashes of the full blocks of `tokens` (int32 [n]) after the chain value `parent`.

    marks: by number of the block, what its keys and values depend on beside tokens (images).

    A trailing partial block has no hash. sha256 rather than a fast hash: a collision would show
    one tenant another's cached prefix.
    """
    data = np.ascontiguousarray(tokens, dtype=np.int32).tobytes()
    width = 4 * block_tokens
    hashes: list[bytes] = []
    for block in range(len(data) // width):
        of_block = data[block * width : (block + 1) * width]
        mark = marks.get(block, b"") if marks else b""
        parent = hashlib.sha256(parent + of_block + mark).digest()
        hashes.append(parent)
    return hashes
