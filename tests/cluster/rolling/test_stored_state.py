"""The controller's stored state: read by this version and its neighbours, refused by others."""

import io
import pickle
from pathlib import Path
from typing import Any

import pytest

from muxcluster.cluster.control.store import state_of, stored
from muxcluster.cluster.ingress.serve_app import ingresses_of
from muxcluster.cluster.state.desired import Record, State
from muxcluster.cluster.state.fitting import desired_of
from muxcluster.config.load import load_config
from muxcluster.config.planner_input import nodes_of
from muxcluster.config.planning import plan_for
from muxcluster.core.directory import KeyPair
from muxcluster.core.errors import EngineFailure
from muxcluster.core.inputs.carried import WIRE


@pytest.fixture(scope="module")
def state(config_file: Path) -> State:
    """The state of a server of three models."""
    config = load_config(config_file)
    nodes = nodes_of(config)
    desired = desired_of(config, plan_for(config, nodes), nodes)
    edge = ingresses_of(config)
    records = tuple(Record(target.planned.id, "node", target) for target in desired.targets)
    return State(desired, edge, edge, records, 7, KeyPair(b"public", b"secret"))


def test_what_is_stored_is_read(state: State) -> None:
    found = state_of(stored(state))
    assert found == state
    assert [each.target.wanted for each in found.records] == [
        each.target.wanted for each in state.records
    ]


def test_neighbours_of_this_version_are_read_and_others_refused(state: State) -> None:
    _, _, data = stored(state).partition(b"\n")
    for wire in (WIRE - 1, WIRE + 1):
        assert state_of(b"%d\n" % wire + data) == state
    for form in (b"%d" % (WIRE - 2), b"%d" % (WIRE + 2), b"", b"x", b"-1"):
        with pytest.raises(EngineFailure, match="muxcluster down"):
            state_of(form + b"\n" + data)


def test_a_state_whose_values_have_no_names_is_refused() -> None:
    with pytest.raises(EngineFailure, match="muxcluster down"):
        state_of(b"4\n" + pickle.dumps(()))


class Classes(pickle.Unpickler):
    """Notes which of our classes a pickle names."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.found: set[str] = set()

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("muxcluster."):
            self.found.add(f"{module}:{name}")
        return super().find_class(module, name)


def test_classes_of_the_stored_state_have_not_moved(state: State) -> None:
    """Where one has, raise `WIRE`, put it into `MOVED` in the place of what is there, and here. New
    classes are added here by those who add them; an older version cannot read values of them."""
    classes = Classes(stored(state).partition(b"\n")[2])
    classes.load()
    assert classes.found >= STORED


STORED = {
    "muxcluster.batch.service.settings:BatchSettings",
    "muxcluster.cluster.ingress.serve_app:Ingresses",
    "muxcluster.cluster.state.desired:Desired",
    "muxcluster.cluster.state.desired:Record",
    "muxcluster.cluster.state.desired:State",
    "muxcluster.cluster.state.desired:Target",
    "muxcluster.config.facts:ModelFacts",
    "muxcluster.config.load:Config",
    "muxcluster.config.load:ConfiguredModel",
    "muxcluster.config.schema:BatchSection",
    "muxcluster.config.schema:ClusterSection",
    "muxcluster.config.schema:ModelSection",
    "muxcluster.config.schema:PolicySection",
    "muxcluster.config.schema:ServerSection",
    "muxcluster.core.directory:KeyPair",
    "muxcluster.core.inputs.carried:_made",
    "muxcluster.core.inputs.carried:_model",
    "muxcluster.core.inputs.web_url:HttpAddress",
    "muxcluster.core.job:Phase",
    "muxcluster.core.job:WorkerSpec",
    "muxcluster.core.kvshape:KvShape",
    "muxcluster.core.residency:Residency",
    "muxcluster.core.served:ServedModel",
    "muxcluster.core.unitspec:ModelSpec",
    "muxcluster.core.unitspec:SchedulerSpec",
    "muxcluster.core.unitspec:UnitSpec",
    "muxcluster.http.settings:ApiSettings",
    "muxcluster.http.settings:ConnectionLimits",
    "muxcluster.http.settings:QueueLimits",
    "muxcluster.placement.hardware:Gpu",
    "muxcluster.placement.plan:Plan",
    "muxcluster.placement.plan:PlannedExecution",
    "muxcluster.placement.plan:PlannedModel",
    "muxcluster.placement.plan:PlannedUnit",
    "muxcluster.placement.plan:PlannedWorker",
    "muxcluster.placement.problem:Node",
    "muxcluster.placement.shapes.shape:ModelShape",
}
