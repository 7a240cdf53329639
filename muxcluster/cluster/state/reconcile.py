"""What to do next so that the units that run become those that are planned: pure, no Ray."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Phase(StrEnum):
    """A unit as the controller sees it.

    starting: made, or restarted by Ray, and not heard yet. loading: it reads weights. away: its
    node cannot be reached, so nothing can be asked of it. silent: its node can, but it does not
    answer. failed: it said so. stopping: it is being ended.
    """

    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    AWAY = "away"
    SILENT = "silent"
    FAILED = "failed"
    STOPPING = "stopping"


COMING = frozenset({Phase.STARTING, Phase.LOADING})
# Their GPUs are not free, and nothing else is to be done about them.
GOING = frozenset({Phase.AWAY, Phase.STOPPING})


@dataclass(frozen=True, slots=True)
class Mesh:
    """GPUs of one node, by index; a cpu node has one."""

    node: str
    gpus: tuple[int, ...]

    def overlaps(self, other: "Mesh") -> bool:
        """Whether both want a GPU."""
        return self.node == other.node and not set(self.gpus).isdisjoint(other.gpus)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A planned unit."""

    key: str  # equal for units that need no restart to become each other
    mesh: Mesh
    models: frozenset[str]


@dataclass(frozen=True, slots=True)
class Seen:
    """A unit that was started and not stopped since."""

    name: str
    key: str
    mesh: Mesh
    models: frozenset[str]
    phase: Phase
    since_s: float  # when it came into `phase`
    num_open: int = 0  # requests it has
    drain_until_s: float | None = None  # None where it is not draining

    @property
    def serves(self) -> bool:
        """It takes new requests."""
        return self.phase is Phase.READY and self.drain_until_s is None


@dataclass(frozen=True, slots=True)
class Limits:
    """Of how much changes at a time, and how long it may take."""

    start_s: float = 600.0  # from its making to ready
    drain_s: float = 30.0  # that requests under way get where others take the new ones
    # Units that start at once where their models have no other; elsewhere it is one
    max_starts: int = 4


@dataclass(frozen=True, slots=True)
class View:
    """All that a decision is made from."""

    wanted: Sequence[Wanted]
    seen: Sequence[Seen]
    nodes: frozenset[str]  # those that can be reached
    now_s: float
    # Units that failed, by (key, mesh), and when they may be tried again
    not_before: Mapping[tuple[str, Mesh], float] = field(default_factory=dict)
    limits: Limits = Limits()
    # Models that were served and are not, because their units are gone
    lost: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Start:
    """Make this unit."""

    unit: Wanted


@dataclass(frozen=True, slots=True)
class Drain:
    """No new requests for it; those under way may stay for `limit_s` seconds."""

    name: str
    limit_s: float


@dataclass(frozen=True, slots=True)
class Resume:
    """It is wanted again: new requests may go there."""

    name: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End its processes and give its GPUs back."""

    name: str
    is_broken: bool = False  # because it failed


Action = Start | Drain | Resume | Stop


def decide(view: View) -> tuple[Action, ...]:
    """The next actions; none where all is as it should be, or has to be waited for.

    A ready unit that is the last of a model goes only where a planned unit needs its GPUs, and
    never while another unit is on its way or a new one has just failed. One goes at a time, so that
    a plan that does not work stops at the first unit, or all that keep lost models from coming
    back.
    """
    broken = [unit for unit in view.seen if _is_broken(unit, view)]
    rest = [unit for unit in view.seen if unit not in broken and unit.phase not in GOING]
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


def matched(wanted: Sequence[Wanted], seen: Sequence[Seen]) -> dict[int, str]:
    """Position in `wanted` -> name of the unit that is what is wanted there."""
    found: dict[int, str] = {}
    for index, unit in enumerate(wanted):
        equal = [each for each in seen if (each.key, each.mesh) == (unit.key, unit.mesh)]
        if equal:
            found[index] = min(
                equal, key=lambda each: (each.phase is not Phase.READY, each.name)
            ).name
    return found


def is_converged(view: View) -> bool:
    """Exactly the wanted units run, and all of them serve."""
    here = [unit for unit in view.seen if unit.phase is not Phase.AWAY]
    return (
        len(here) == len(view.wanted)
        and len(matched(view.wanted, here)) == len(view.wanted)
        and all(unit.serves for unit in here)
    )


def _is_broken(unit: Seen, view: View) -> bool:
    if unit.phase in (Phase.SILENT, Phase.FAILED):
        return True
    return unit.phase in COMING and view.now_s - unit.since_s > view.limits.start_s


def _starts(view: View, rest: Sequence[Seen], missing: Sequence[Wanted]) -> Iterator[Start]:
    """Units whose GPUs are free: those of models that nobody serves together, others one by one."""
    served = {model for unit in rest if unit.serves for model in unit.models}
    num_coming = sum(unit.phase in COMING for unit in rest)
    for unit in sorted(missing, key=lambda unit: unit.models <= served):
        if _blockers(unit, view.seen) or view.now_s < _next_try_s(view, unit):
            continue
        if num_coming < (1 if unit.models <= served else view.limits.max_starts):
            num_coming += 1
            yield Start(unit)


def _removals(view: View, rest: Sequence[Seen], surplus: Sequence[Seen]) -> Iterator[Action]:
    """What nobody wants any more, as long as every planned model keeps a unit that serves it."""
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
    view: View, rest: Sequence[Seen], surplus: Sequence[Seen], missing: Sequence[Wanted]
) -> Iterator[Drain]:
    """The units in the way of one that is wanted: their requests wait for it, or move.

    One at a time, but all at once that bring back a lost model: else the last of these would wait
    for every other one.
    """
    is_moving = any(unit.phase in COMING or unit.drain_until_s is not None for unit in rest)
    blocked = [unit for unit in missing if _blockers(unit, surplus)]
    if is_moving or len(blocked) < len(missing) or not blocked:
        return
    served = [model for unit in rest if unit.serves for model in unit.models]

    def harm(unit: Wanted) -> int:
        going = [model for each in _blockers(unit, surplus) for model in each.models]
        return sum(served.count(model) <= going.count(model) for model in set(going))

    bringing = [unit for unit in blocked if unit.models & view.lost]
    next_ones = bringing[: view.limits.max_starts] or [min(blocked, key=harm)]
    names = (each.name for unit in next_ones for each in _blockers(unit, surplus))
    for name in dict.fromkeys(names):
        yield Drain(name, 0.0)


def _blockers(unit: Wanted, seen: Sequence[Seen]) -> list[Seen]:
    return [each for each in seen if each.mesh.overlaps(unit.mesh)]


def _next_try_s(view: View, unit: Wanted) -> float:
    return view.not_before.get((unit.key, unit.mesh), 0.0)
