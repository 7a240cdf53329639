"""How many rows products by oneDNN have on CPUs."""

import math

from torch import Tensor

# up to so many rows, products have a multiple of so many rows: some 2 % more work
_ROW_STEPS = ((32, 1), (64, 4), (256, 8), (512, 16), (math.inf, 32))


def filled_rows(num_rows: int) -> int:
    """Return with how many rows a product of `num_rows` rows is computed; the same up to 32."""
    # oneDNN compiles a kernel for every number of rows, some 0.1 ms and 0.4 to 0.7 MiB per number
    # and linear, and prompts come in all lengths: a worker of a tiny model grew from 300 to 830 MiB
    # within 4,000 requests. Few numbers of rows are few kernels; how many of them a worker keeps is
    # bounded by its environment (`owner_link.ONE_THREAD`).
    step = next(step for most, step in _ROW_STEPS if num_rows <= most)
    return -(-num_rows // step) * step


def filled(inputs: Tensor, num_rows: int) -> Tensor:
    """Return [..., features] as [num_rows, features], the last rows zeros."""
    flat = inputs.reshape(-1, inputs.shape[-1])
    rows = flat.new_empty((num_rows, flat.shape[1]))
    rows[: len(flat)] = flat
    rows[len(flat) :] = 0
    return rows
