"""Random number generators by name, so that one stream's numbers do not depend on the others."""

from hashlib import sha256

import numpy as np


def rng_for(seed: int, *names: str) -> np.random.Generator:
    """The generator of (seed, names): the same on every machine and in every order of asking."""
    digest = sha256("\0".join(names).encode()).digest()[:16]
    return np.random.default_rng([seed, int.from_bytes(digest, "big")])
