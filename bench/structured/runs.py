"""Runs of forced tokens: how many output tokens take no step of their own."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bench.structured.steps import NAME
from muxcluster.constraints import grammars
from muxcluster.constraints.matching import Matching, TokenMasks
from muxcluster.constraints.rows import MaskRow
from muxcluster.core.sampling import Constraint

MOST_TOKENS = 200  # of an output


def forced_share(masks: TokenMasks, schemas: Sequence[Mapping[str, Any]], seed: int) -> float:
    """Return the part of outputs' tokens that take no step of their own.

    Outputs are drawn without a model: at each step any of the allowed tokens.
    """
    matching = Matching({NAME: masks})
    chance = np.random.default_rng(seed)
    num_tokens = num_steps = 0
    for number, schema in enumerate(schemas):
        constraint = Constraint(grammars.json_schema(schema, "schema"))
        tokens: list[int] = []
        while len(tokens) < MOST_TOKENS:
            array = np.array(tokens, np.int32)
            found = matching.masks([MaskRow(NAME, f"{number}", constraint, array, joins=True)])
            if found.errors or found.must_end[0]:
                break
            num_steps += 1
            bits = np.unpackbits(found.bits[0].view(np.uint8), bitorder="little")
            drawn = int(chance.choice(np.flatnonzero(bits)))
            tokens += found.runs.get(0, (drawn,))
            if drawn in masks.end_tokens:
                break
        num_tokens += len(tokens)
    return 1 - num_steps / num_tokens
