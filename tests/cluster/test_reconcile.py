"""The reconciler against a simulated cluster: it gets there, and takes nothing away on its way."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muxcluster.cluster.state.reconcile import (
    Action,
    ClusterView,
    Drain,
    Limits,
    Mesh,
    ObservedUnit,
    Phase,
    Resume,
    Start,
    Stop,
    WantedUnit,
    decide,
    is_converged,
)

MODELS = ("m", "n", "o")
NODES = ("a", "b")
LIMITS = Limits(start_s=50.0, drain_s=20.0, max_starts=2)
TURN_S = 1.0
MOST_TURNS = 400


@st.composite
def plans(draw: st.DrawFn) -> tuple[WantedUnit, ...]:
    """Units on disjoint GPUs of two nodes with two GPUs each."""
    units = []
    for node in NODES:
        for gpus in draw(st.sampled_from([[(0, 1)], [(0,), (1,)], [(0,)], [(1,)], []])):
            models = draw(st.frozensets(st.sampled_from(MODELS), min_size=1))
            key = draw(st.sampled_from(["x", "y"])) + "".join(sorted(models))
            units.append(WantedUnit(key, Mesh(node, gpus), models))
    return tuple(units)


@dataclass
class Cluster:
    """A world that carries out actions, with delays and losses that a seed decides."""

    draw: st.DataObject
    wanted: tuple[WantedUnit, ...] = ()
    units: dict[str, ObservedUnit] = field(default_factory=dict)
    due_s: dict[str, float] = field(default_factory=dict)
    now_s: float = 0.0
    serial: int = 0
    not_before: dict[tuple[str, Mesh], float] = field(default_factory=dict)
    away: set[str] = field(default_factory=set)
    served: set[str] = field(default_factory=set)

    def view(self) -> ClusterView:
        self.served |= self.serving()
        return ClusterView(
            self.wanted,
            tuple(self.units.values()),
            frozenset(NODES) - self.away,
            self.now_s,
            self.not_before,
            LIMITS,
            frozenset(self.served - self.serving()),
        )

    def serving(self, but: frozenset[str] = frozenset()) -> set[str]:
        return {m for u in self.units.values() if u.serves and u.name not in but for m in u.models}

    def turn(self) -> tuple[Action, ...]:
        actions = decide(self.view())
        self.check(actions)
        for action in actions:
            self.carry_out(action)
        self.now_s += TURN_S
        self.live()
        return actions

    def check(self, actions: tuple[Action, ...]) -> None:
        """What no decision may ever do."""
        names = [a.name for a in actions if not isinstance(a, Start)]
        assert len(names) == len(set(names)) and set(names) <= self.units.keys()
        kept = {(w.key, w.mesh) for w in self.wanted}
        needed = {m for w in self.wanted for m in w.models}
        going = set()
        for action in actions:
            if isinstance(action, Start):
                assert action.unit.mesh.node not in self.away
                for unit in self.units.values():
                    assert not unit.mesh.overlaps(action.unit.mesh), "two units on one GPU"
                continue
            unit = self.units[action.name]
            assert unit.phase not in (Phase.AWAY, Phase.STOPPING)
            if isinstance(action, Stop) and not action.is_broken:
                assert (unit.key, unit.mesh) not in kept or unit.drain_until_s is not None
                assert not unit.serves, "a unit that serves is drained before it is stopped"
            if isinstance(action, Drain):
                assert unit.serves
                going.add(unit.name)
        lost = (self.serving() - self.serving(frozenset(going))) & needed
        if lost:
            blocked = [
                w
                for w in self.wanted
                if any(self.units[name].mesh.overlaps(w.mesh) for name in going)
            ]
            assert blocked, "the last unit of a model goes only where its GPUs are wanted"
            assert not any(
                u.phase in (Phase.STARTING, Phase.LOADING) for u in self.units.values()
            ), "one at a time"

    def carry_out(self, action: Action) -> None:
        if isinstance(action, Start):
            self.serial += 1
            name = f"u{self.serial}"
            unit = action.unit
            self.units[name] = ObservedUnit(
                name, unit.key, unit.mesh, unit.models, Phase.STARTING, self.now_s
            )
            self.due_s[name] = self.now_s + self.draw.draw(st.integers(0, 5))
            return
        unit = self.units[action.name]
        match action:
            case Drain(_, limit_s):
                num_open = self.draw.draw(st.integers(0, 2))
                unit = replace(unit, drain_until_s=self.now_s + limit_s, num_open=num_open)
            case Resume():
                unit = replace(unit, drain_until_s=None)
            case Stop():
                if action.is_broken:
                    self.not_before[unit.key, unit.mesh] = self.now_s + 4.0
                unit = replace(unit, phase=Phase.STOPPING)
                self.due_s[action.name] = self.now_s + self.draw.draw(st.integers(0, 3))
        self.units[action.name] = unit

    def live(self) -> None:
        """Units come up, and go."""
        for name, unit in list(self.units.items()):
            if self.now_s < self.due_s.get(name, 0.0):
                continue
            if unit.phase is Phase.STOPPING:
                del self.units[name]
            elif unit.phase is Phase.STARTING:
                self.units[name] = replace(unit, phase=Phase.READY, since_s=self.now_s)

    def disturb(self) -> None:
        """A unit fails, or hangs while it starts; or a node goes away or comes back."""
        what = self.draw.draw(st.sampled_from(["fail", "hang", "leave", "return"]))
        if what in ("leave", "return"):
            node = self.draw.draw(st.sampled_from(NODES))
            (self.away.add if what == "leave" else self.away.discard)(node)
        for name, unit in list(self.units.items()):
            if unit.phase is Phase.STOPPING:
                continue
            phase = Phase.AWAY if unit.mesh.node in self.away else unit.phase
            if phase is not Phase.AWAY and unit.phase is Phase.AWAY:
                phase = Phase.READY
            if phase is Phase.READY and what == "fail" and self.draw.draw(st.booleans()):
                phase = self.draw.draw(st.sampled_from([Phase.FAILED, Phase.SILENT]))
            if phase is Phase.STARTING and what == "hang":
                self.due_s[name] = float("inf")
            self.units[name] = replace(unit, phase=phase, since_s=self.now_s)

    def settle(self) -> int:
        """Turns until all is as wanted."""
        for number in range(MOST_TURNS):
            if is_converged(self.view()):
                return number
            self.turn()
        raise AssertionError((self.wanted, self.units))


@settings(deadline=None, max_examples=150)
@given(plans(), plans(), st.data())
def test_it_gets_from_any_plan_to_any_other_and_then_does_nothing(
    first: tuple[WantedUnit, ...], second: tuple[WantedUnit, ...], data: st.DataObject
) -> None:
    cluster = Cluster(data, first)
    cluster.settle()
    cluster.wanted = second
    cluster.settle()
    for _ in range(3):
        assert cluster.turn() == ()


@settings(deadline=None, max_examples=150)
@given(st.lists(plans(), min_size=1, max_size=3), st.data())
def test_it_gets_there_through_failures_and_losses(
    steps: list[tuple[WantedUnit, ...]], data: st.DataObject
) -> None:
    cluster = Cluster(data)
    for wanted in steps:
        cluster.wanted = wanted
        for _ in range(data.draw(st.integers(0, 12))):
            cluster.turn()
            if data.draw(st.integers(0, 3)) == 0:
                cluster.disturb()
    cluster.away.clear()
    for name, unit in cluster.units.items():
        if unit.phase is Phase.AWAY:
            cluster.units[name] = replace(unit, phase=Phase.READY)
    cluster.settle()
    assert cluster.turn() == ()


def _wanted(key: str, node: str, *gpus: int, models: str = "m") -> WantedUnit:
    return WantedUnit(key, Mesh(node, gpus), frozenset(models))


def _ready(name: str, unit: WantedUnit, **fields: object) -> ObservedUnit:
    observed = ObservedUnit(name, unit.key, unit.mesh, unit.models, Phase.READY, 0.0)
    return replace(observed, **fields)  # type: ignore[arg-type]  # fields of ObservedUnit by name


def _view(wanted: list[WantedUnit], observed: list[ObservedUnit], **fields: object) -> ClusterView:
    view = ClusterView(wanted, observed, frozenset(NODES), 10.0, limits=LIMITS)
    return replace(view, **fields)  # type: ignore[arg-type]  # fields of ClusterView by name


def test_a_model_moves_by_start_then_drain_then_stop() -> None:
    old, new = _wanted("k", "a", 0), _wanted("k", "b", 0)
    before = _ready("u1", old)
    assert decide(_view([new], [before])) == (Start(new),)
    loading = _ready("u2", new, phase=Phase.LOADING)
    assert decide(_view([new], [before, loading])) == ()
    after = _ready("u2", new)
    assert decide(_view([new], [before, after])) == (Drain("u1", LIMITS.drain_s),)
    draining = replace(before, drain_until_s=30.0, num_open=3)
    assert decide(_view([new], [draining, after])) == ()
    assert decide(_view([new], [replace(draining, num_open=0), after])) == (Stop("u1"),)
    assert decide(_view([new], [draining, after], now_s=30.0)) == (Stop("u1"),)


def test_a_changed_unit_on_the_same_gpus_makes_way_at_once() -> None:
    old, new = _wanted("k", "a", 0), _wanted("changed", "a", 0)
    assert decide(_view([new], [_ready("u1", old)])) == (Drain("u1", 0.0),)
    draining = _ready("u1", old, drain_until_s=10.0, num_open=5)
    assert decide(_view([new], [draining])) == (Stop("u1"),)
    assert decide(_view([new], [replace(draining, phase=Phase.STOPPING)])) == ()
    assert decide(_view([new], [])) == (Start(new),)


def test_changed_units_are_replaced_one_by_one() -> None:
    old = [_wanted("k", "a", gpu, models=name) for gpu, name in enumerate("mn")]
    new = [replace(unit, key="changed") for unit in old]
    observed = [_ready(f"u{index}", unit) for index, unit in enumerate(old)]
    assert decide(_view(new, observed)) == (Drain("u0", 0.0),)
    coming = _ready("u2", new[0], phase=Phase.LOADING)
    assert decide(_view(new, [coming, observed[1]])) == ()
    assert decide(_view(new, [_ready("u2", new[0]), observed[1]])) == (Drain("u1", 0.0),)


def test_units_that_bring_lost_models_back_are_made_room_for_at_once() -> None:
    """Also where a model is merely new, or all of them are served: one by one."""
    old = [_wanted("k", "a", gpu, models=name) for gpu, name in enumerate("mn")]
    new = [replace(unit, key="changed", models=unit.models | {"o"}) for unit in old]
    observed = [_ready(f"u{index}", unit) for index, unit in enumerate(old)]
    drains = decide(_view(new, observed, lost=frozenset("o")))
    assert drains == (Drain("u0", 0.0), Drain("u1", 0.0))
    assert decide(_view(new, observed)) == (Drain("u0", 0.0),)
    coming = _ready("u2", new[0], phase=Phase.LOADING)
    assert decide(_view(new, [coming, observed[1]], lost=frozenset("mo"))) == ()


def test_a_change_that_does_not_start_stops_at_the_first_unit() -> None:
    old = [_wanted("k", "a", gpu, models=name) for gpu, name in enumerate("mn")]
    new = [replace(unit, key="changed") for unit in old]
    later = {(new[0].key, new[0].mesh): 99.0}
    assert decide(_view(new, [_ready("u1", old[1])], not_before=later)) == ()


@pytest.mark.parametrize("phase", [Phase.FAILED, Phase.SILENT])
def test_a_broken_unit_is_ended_and_one_that_is_away_is_left_alone(phase: Phase) -> None:
    unit = _wanted("k", "a", 0)
    assert decide(_view([unit], [_ready("u", unit, phase=phase)])) == (Stop("u", is_broken=True),)
    away = _ready("u", unit, phase=Phase.AWAY)
    assert decide(_view([], [away], nodes=frozenset("b"))) == ()
    elsewhere = _wanted("k", "b", 0)
    assert decide(_view([elsewhere], [away], nodes=frozenset("b"))) == (Start(elsewhere),)


def test_a_drained_unit_that_is_wanted_again_goes_on() -> None:
    unit = _wanted("k", "a", 0)
    assert decide(_view([unit], [_ready("u", unit, drain_until_s=20.0)])) == (Resume("u"),)
