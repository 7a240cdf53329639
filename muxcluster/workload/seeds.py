"""Random number generators by name, so that streams are independent of one another."""

from hashlib import sha256

import numpy as np


def rng_for(seed: int, *names: str) -> np.random.Generator:
    """Return the generator of (seed, names), the same on every machine."""
    digest = sha256("\0".join(names).encode()).digest()[:16]
    return np.random.default_rng([seed, int.from_bytes(digest, "big")])
