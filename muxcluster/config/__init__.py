"""Configuration: muxcluster.yaml as frozen values, plans, and unit specifications."""

from muxcluster.config.facts import ModelFacts, read_facts
from muxcluster.config.load import Config, ConfiguredModel, load_config
from muxcluster.config.planning import plan_for
from muxcluster.config.units import served_models, unit_specs

__all__ = [
    "Config",
    "ConfiguredModel",
    "ModelFacts",
    "load_config",
    "plan_for",
    "read_facts",
    "served_models",
    "unit_specs",
]
