"""Units of models with states on the paged path: their specifications, as a plan makes them."""

from dataclasses import replace
from pathlib import Path

from muxcluster.config.facts import read_facts
from muxcluster.core.unitspec import ModelSpec, UnitSpec
from muxcluster.placement.columns import columns

_ITEMSIZE = 4


def with_states(spec: UnitSpec) -> UnitSpec:
    """Give the sequences of models with states the columns that a plan gives them."""
    models = tuple(_with_states(each, spec.block_bytes) for each in spec.models)
    return replace(spec, models=models)


def _with_states(spec: ModelSpec, block_bytes: int) -> ModelSpec:
    shape = read_facts(Path(spec.path)).shape
    found = columns(shape, _ITEMSIZE, block_bytes, 100)
    if not found.state_columns:
        return spec
    return replace(spec, state_columns=found.state_columns, prefix_caching=False)
