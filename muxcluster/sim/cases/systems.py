"""Systems by name: placement, lane, and which of MuxServe's parts are on.

A new system is a line in `SYSTEMS`; an ablation is a switch after a name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from muxcluster.scheduling.packing import PACKINGS

# Placements: ours; most free memory first (MuxServe §4.4); a mesh per model, sized by the model;
# the same sized by load.
METHODS = ("greedy", "memory-greedy", "spatial", "spatial-load")
# Lanes that run jobs side by side on parts of the SMs.
_SHARING = frozenset({"adbs", "round-robin"})
# Lanes that divide the KV pool by quotas; in others every model may use all of it.
_QUOTAS = frozenset({"adbs"})


@dataclass(frozen=True, slots=True)
class System:
    """One way to serve."""

    name: str
    method: str  # one of `METHODS`
    lane: str  # of `muxcluster.scheduling.lanes`
    shares_sms: bool = True  # False: every job gets all SMs, one at a time
    runs_mixed: bool = False  # with it, mixed jobs where no SMs are shared; quotas stay
    # False: each model keeps the part of the KV pool given by its planned rate and lengths.
    lends_blocks: bool = True
    packing: str | None = None  # of `muxcluster.scheduling.packing`; None: the configured one


# The order is that of the tables.
SYSTEMS: dict[str, System] = {
    system.name: system
    for system in (
        System("muxserve", "greedy", "adbs"),
        System("spatial", "spatial", "temporal"),
        System("spatial-load", "spatial-load", "temporal"),
        # A server per model with chunked prefill, as vLLM runs by default.
        System("spatial-mixed", "spatial", "mixed"),
        System("temporal", "greedy", "temporal"),
        System("round-robin", "greedy", "round-robin"),
        # MuxServe §4.4's name for prompts first come, first served, decodes in turn.
        System("fcfs", "greedy", "temporal"),
        System("mixed", "greedy", "mixed"),
    )
}


def system_named(text: str) -> System:
    """Return the system of a name with switches, as in "muxserve:sharing=off:quotas=off".

    Switches: placement=METHOD, sharing=on|off|mixed, quotas=on|off, packing=NAME. sharing=mixed:
    one mixed job at a time, and the quotas of the lane that would share. Raises ValueError with
    one line that lists the choices for an unknown name, switch or value, and for a switch that
    changes nothing because the lane never shares SMs or has no quotas.
    """
    name, *switches = text.split(":")
    if name not in SYSTEMS:
        raise ValueError(f"no system {name!r}: one of {', '.join(SYSTEMS)}")
    system = SYSTEMS[name]
    for switch in switches:
        key, _, value = switch.partition("=")
        if key not in _SWITCHES:
            raise ValueError(f"no switch {switch!r} of {name}: one of {', '.join(_SWITCHES)}")
        system = _SWITCHES[key](system, value)
    return replace(system, name=text)


def _placed(system: System, value: str) -> System:
    if value not in METHODS:
        raise ValueError(f"placement={value}: expected one of {', '.join(METHODS)}")
    return replace(system, method=value)


def _sharing(system: System, value: str) -> System:
    if system.lane not in _SHARING:
        raise ValueError(f"{system.name} never shares SMs: leave sharing={value} out")
    if value == "mixed" and system.lane == "adbs":
        return replace(system, shares_sms=False, runs_mixed=True)
    return replace(system, shares_sms=_is_on("sharing", value))


def _quotas(system: System, value: str) -> System:
    if system.lane not in _QUOTAS:
        raise ValueError(f"{system.name} has no quotas: leave quotas={value} out")
    return replace(system, lends_blocks=_is_on("quotas", value))


def _packed(system: System, value: str) -> System:
    if value not in PACKINGS:
        raise ValueError(f"packing={value}: expected one of {', '.join(PACKINGS)}")
    return replace(system, packing=value)


def _is_on(key: str, value: str) -> bool:
    if value not in ("on", "off"):
        raise ValueError(f"{key}={value}: expected on or off")
    return value == "on"


_SWITCHES: Mapping[str, Callable[[System, str], System]] = {
    "placement": _placed,
    "sharing": _sharing,
    "quotas": _quotas,
    "packing": _packed,
}
