"""Sans-IO reconciler: next actions that turn the running units into the planned ones."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Phase(StrEnum):
    """State of a unit as the controller sees it."""

    STARTING = "starting"  # created, or restarted by Ray, without a report yet
    LOADING = "loading"  # reads weights
    READY = "ready"
    AWAY = "away"  # its node is unreachable
    SILENT = "silent"  # its node is reachable, but it does not answer
    FAILED = "failed"  # it reported a failure
    STOPPING = "stopping"  # it is being stopped


COMING = frozenset({Phase.STARTING, Phase.LOADING})
# Their GPUs are in use, and no action is possible.
GOING = frozenset({Phase.AWAY, Phase.STOPPING})


@dataclass(frozen=True, slots=True)
class Mesh:
    """GPUs of one node, by index; a cpu node has one."""

    node: str
    gpus: tuple[int, ...]

    def overlaps(self, other: "Mesh") -> bool:
        """Return whether both contain a GPU."""
        return self.node == other.node and not set(self.gpus).isdisjoint(other.gpus)


@dataclass(frozen=True, slots=True)
class WantedUnit:
    """A planned unit."""

    key: str  # equal for units that need no restart to become each other
    mesh: Mesh
    models: frozenset[str]


@dataclass(frozen=True, slots=True)
class ObservedUnit:
    """A unit that was started and not stopped since."""

    name: str
    key: str
    mesh: Mesh
    models: frozenset[str]
    phase: Phase
    since_s: float  # start of `phase`
    num_open: int = 0  # open requests
    drain_until_s: float | None = None  # None if it is not draining

    @property
    def serves(self) -> bool:
        """Whether it takes new requests."""
        return self.phase is Phase.READY and self.drain_until_s is None


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may change at a time, and how long each change may take."""

    start_s: float = 600.0  # from creation to ready
    drain_s: float = 30.0  # for running requests, if other units take the new ones
    # Units that start at once if their models have no other unit; otherwise one
    max_starts: int = 4


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The input of a decision."""

    wanted: Sequence[WantedUnit]
    observed: Sequence[ObservedUnit]
    nodes: frozenset[str]  # the reachable nodes
    now_s: float
    # Units that failed, by (key, mesh), and when they may be tried again
    not_before: Mapping[tuple[str, Mesh], float] = field(default_factory=dict)
    limits: Limits = Limits()
    # Models that are no longer served because their units are gone
    lost: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Start:
    """Start this unit."""

    unit: WantedUnit


@dataclass(frozen=True, slots=True)
class Drain:
    """Send it no new requests; running ones may stay for `limit_s` seconds."""

    name: str
    limit_s: float


@dataclass(frozen=True, slots=True)
class Resume:
    """Send it new requests again."""

    name: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop its processes and free its GPUs."""

    name: str
    is_broken: bool = False  # True if it failed


Action = Start | Drain | Resume | Stop


def decide(view: ClusterView) -> tuple[Action, ...]:
    """Return the next actions; none if everything is as planned, or has to be waited for.

    A ready unit that is the last of a model is stopped only if a planned unit needs its GPUs, and
    never while another unit is starting or a new one has just failed. Units are stopped one at a
    time, so that a plan that does not work ends at the first unit; all units in the way of lost
    models are stopped together.
    """
    broken = [unit for unit in view.observed if _is_broken(unit, view)]
    rest = [unit for unit in view.observed if unit not in broken and unit.phase not in GOING]
    kept = matched(view.wanted, rest)
    surplus = [unit for unit in rest if unit.name not in kept.values()]
    missing = [
        unit
        for index, unit in enumerate(view.wanted)
        if index not in kept and unit.mesh.node in view.nodes
    ]
    actions: list[Action] = [Stop(unit.name, is_broken=True) for unit in broken]
    actions += [
        Resume(unit.name)
        for unit in rest
        if unit.name in kept.values() and unit.drain_until_s is not None
    ]
    actions += _starts(view, rest, missing)
    actions += _removals(view, rest, surplus)
    return tuple(actions or _eviction(view, rest, surplus, missing))


def matched(wanted: Sequence[WantedUnit], observed: Sequence[ObservedUnit]) -> dict[int, str]:
    """Map positions in `wanted` to names of units that fulfil them."""
    found: dict[int, str] = {}
    for index, unit in enumerate(wanted):
        equal = [each for each in observed if (each.key, each.mesh) == (unit.key, unit.mesh)]
        if equal:
            found[index] = min(
                equal, key=lambda each: (each.phase is not Phase.READY, each.name)
            ).name
    return found


def is_converged(view: ClusterView) -> bool:
    """Return whether exactly the wanted units run, and all of them serve."""
    here = [unit for unit in view.observed if unit.phase is not Phase.AWAY]
    return (
        len(here) == len(view.wanted)
        and len(matched(view.wanted, here)) == len(view.wanted)
        and all(unit.serves for unit in here)
    )


def _is_broken(unit: ObservedUnit, view: ClusterView) -> bool:
    if unit.phase in (Phase.SILENT, Phase.FAILED):
        return True
    return unit.phase in COMING and view.now_s - unit.since_s > view.limits.start_s


def _starts(
    view: ClusterView, rest: Sequence[ObservedUnit], missing: Sequence[WantedUnit]
) -> Iterator[Start]:
    """Yield units whose GPUs are free: those of unserved models together, others one by one."""
    served = {model for unit in rest if unit.serves for model in unit.models}
    num_coming = sum(unit.phase in COMING for unit in rest)
    for unit in sorted(missing, key=lambda unit: unit.models <= served):
        if _blockers(unit, view.observed) or view.now_s < _next_try_s(view, unit):
            continue
        if num_coming < (1 if unit.models <= served else view.limits.max_starts):
            num_coming += 1
            yield Start(unit)


def _removals(
    view: ClusterView, rest: Sequence[ObservedUnit], surplus: Sequence[ObservedUnit]
) -> Iterator[Action]:
    """Yield removals of unplanned units, while every planned model keeps a serving unit."""
    planned = {model for unit in view.wanted for model in unit.models}
    serving = [unit for unit in rest if unit.serves]
    for unit in surplus:
        if unit.drain_until_s is not None:
            if unit.num_open == 0 or view.now_s >= unit.drain_until_s:
                yield Stop(unit.name)
        elif unit.phase is not Phase.READY:
            yield Stop(unit.name)
        else:
            others = [each for each in serving if each is not unit]
            if unit.models & planned <= {model for each in others for model in each.models}:
                serving = others
                yield Drain(unit.name, view.limits.drain_s)


def _eviction(
    view: ClusterView,
    rest: Sequence[ObservedUnit],
    surplus: Sequence[ObservedUnit],
    missing: Sequence[WantedUnit],
) -> Iterator[Drain]:
    """Return the units in the way of a wanted one: their requests wait for it, or move."""
    # One at a time, but together all whose removal brings back a lost model: otherwise the last of
    # these would wait for every other one.
    is_moving = any(unit.phase in COMING or unit.drain_until_s is not None for unit in rest)
    blocked = [unit for unit in missing if _blockers(unit, surplus)]
    if is_moving or len(blocked) < len(missing) or not blocked:
        return
    served = [model for unit in rest if unit.serves for model in unit.models]

    def harm(unit: WantedUnit) -> int:
        going = [model for each in _blockers(unit, surplus) for model in each.models]
        return sum(served.count(model) <= going.count(model) for model in set(going))

    bringing = [unit for unit in blocked if unit.models & view.lost]
    next_ones = bringing[: view.limits.max_starts] or [min(blocked, key=harm)]
    names = (each.name for unit in next_ones for each in _blockers(unit, surplus))
    for name in dict.fromkeys(names):
        yield Drain(name, 0.0)


def _blockers(unit: WantedUnit, observed: Sequence[ObservedUnit]) -> list[ObservedUnit]:
    return [each for each in observed if each.mesh.overlaps(unit.mesh)]


def _next_try_s(view: ClusterView, unit: WantedUnit) -> float:
    return view.not_before.get((unit.key, unit.mesh), 0.0)
