# The types of the names that __init__.py imports when they are used.
from muxcluster.api.planning import Config, Plan, load_config, plan
from muxcluster.api.sampling import SamplingParams
from muxcluster.api.serving import Output, Unit
from muxcluster.api.simulation import CaseReport, simulate
from muxcluster.core.errors import (
    ConfigError,
    EngineFailure,
    InfeasiblePlan,
    LoadError,
    MuxClusterError,
    RequestError,
    Unavailable,
)

__version__: str
__all__ = [
    "CaseReport",
    "Config",
    "ConfigError",
    "EngineFailure",
    "InfeasiblePlan",
    "LoadError",
    "MuxClusterError",
    "Output",
    "Plan",
    "RequestError",
    "SamplingParams",
    "Unavailable",
    "Unit",
    "load_config",
    "plan",
    "simulate",
]
