"""Sampling without the host: temperature, min-p, top-k, top-p and the draw in one kernel."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from muxcluster.engine.memory.upload import Array
from muxcluster.engine.sampling.parameters import SequenceSampling
from muxcluster.engine.sampling.randomness import uniforms
from muxcluster.kernels.sample import sample

Numbers = NDArray[np.int32]

# Added to the token of a broken row. Cast to int32 it is the token again, so steps on the device
# that continue from it are not affected.
BROKEN = 1 << 32


def is_plain(state: SequenceSampling, table_rows: Numbers, lengths: Numbers) -> bool:
    """Return whether no row needs more. table_rows, lengths: [rows], as for `sampler.sample`."""
    held = lengths - state.num_prompt_tokens[table_rows] < state.min_tokens[table_rows]
    return not bool((state.needs_host[table_rows] | held).any())


def limits(state: SequenceSampling, table_rows: Numbers, num_rows: int) -> list[Array]:
    """Return temperature, top_k, top_p and min_p of `num_rows` rows for `kernels.sample`.

    Rows beyond `table_rows` take the best token.
    """
    return [
        filled(state.temperature[table_rows], num_rows, 0.0),
        filled(state.top_k[table_rows], num_rows, 1),
        filled(state.top_p[table_rows], num_rows, 1.0),
        filled(state.min_p[table_rows], num_rows, 0.0),
    ]


def random_numbers(
    state: SequenceSampling, table_rows: Numbers, lengths: Numbers, num_steps: int, num_rows: int
) -> NDArray[np.float64]:
    """Return float64 [num_steps, num_rows] in (0, 1), for tokens at `lengths` and later ones."""
    numbers = np.full((num_steps, num_rows), 0.5)
    first = lengths - state.num_prompt_tokens[table_rows]
    for step in range(num_steps):
        numbers[step, : len(table_rows)] = uniforms(state.seed[table_rows], first + step)
    return numbers


def draw(logits: Tensor, drawing: Sequence[Tensor], live: Tensor | None, outcome: Tensor) -> None:
    """Draw a token per row into outcome[1:]; mark and count broken rows.

    logits: fp32 [rows, vocab]. drawing: `limits` and one step of `random_numbers`. live: int64
    [rows] of ones and zeros, None: all. outcome: int64 [1 + rows]; broken rows get BROKEN added to
    their token, and outcome[0] grows by those among `live`. Broken rows: see `sampler.Sampled`.

    The seed decides as in `sampler.sample`. Greedy rows get the same tokens. Drawn rows get the
    same tokens unless the sampler's sums in float64 and the kernel's in whole numbers of 2**-42
    round to different sides of the random number, or exp differs between devices: their
    distribution is the same.
    """
    temperature, top_k, top_p, min_p, uniform = drawing
    # A row's maximum shows NaN, +inf and, with nothing finite, -inf.
    is_broken = ~logits.amax(-1).isfinite()
    outcome[0].add_((is_broken if live is None else is_broken * live).sum())
    tokens = sample(logits, temperature, top_k, top_p, min_p, uniform)
    outcome[1:] = tokens + is_broken * BROKEN


def filled(values: Array, num_rows: int, fill: float) -> Array:
    array = np.full(num_rows, fill, dtype=values.dtype)
    array[: len(values)] = values
    return array
