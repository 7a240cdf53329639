"""What ingresses are told of units in each of their phases."""

from pathlib import Path

import pytest
import yaml

from muxcluster.cluster.control.routing_table import RETRY_AFTER_S, directory_of
from muxcluster.cluster.control.watch import UnitWatch
from muxcluster.cluster.state.desired import Desired, Record, State
from muxcluster.cluster.state.fitting import desired_of
from muxcluster.cluster.state.reconcile import Phase
from muxcluster.cluster.units.report import UnitReport
from muxcluster.config.load import load_config
from muxcluster.config.planning import plan_for
from muxcluster.core.directory import Directory, UnitAddress
from muxcluster.placement.hardware import gpu_named
from muxcluster.placement.problem import Node

NODES = (Node("n", 1, gpu_named("A100-80GB")),)
HERE = frozenset({"id-of-n"})


@pytest.fixture()
def desired(model_dirs: dict[str, Path], tmp_path: Path) -> Desired:
    """One unit with two of three models; the third has no place."""
    models = [{"name": name, "path": str(path)} for name, path in model_dirs.items()]
    file = tmp_path / "muxcluster.yaml"
    file.write_text(yaml.safe_dump({"models": models, "cluster": {"engine": "cpu"}}))
    config = load_config(file)
    lost = config.models[-1].name
    placed = [{"name": name, "path": str(path)} for name, path in model_dirs.items()]
    small = tmp_path / "placed.yaml"
    small.write_text(yaml.safe_dump({"models": placed[:-1], "cluster": {"engine": "cpu"}}))
    return desired_of(config, plan_for(load_config(small), NODES), NODES, (lost,))


def _watch(desired: Desired, name: str = "n-0.1") -> UnitWatch:
    (target,) = desired.targets
    return UnitWatch(Record(name, "id-of-n", target))


def _ready(watch: UnitWatch, endpoint: str = "tcp://1.2.3.4:5") -> UnitWatch:
    address = UnitAddress(watch.record.name, endpoint, b"k" * 40)
    watch.hear(Phase.READY, UnitReport(Phase.READY, None, address))
    return watch


def _told(desired: Desired, *watches: UnitWatch, reachable: frozenset[str] = HERE) -> Directory:
    return directory_of(State(desired), watches, reachable)


def test_a_ready_unit_takes_its_models_and_the_third_has_no_place(desired: Desired) -> None:
    told = _told(desired, _ready(_watch(desired)))
    *placed, lost = (model.name for model in desired.models)
    assert told.models == desired.models
    assert told.routes == {**dict.fromkeys(placed, ("n-0.1",)), lost: ()}
    assert told.units["n-0.1"].endpoint == "tcp://1.2.3.4:5"
    assert told.unplaced == {lost: RETRY_AFTER_S} and told.draining == {}


def test_a_unit_that_loads_is_not_told_of_and_its_models_are_waited_for(desired: Desired) -> None:
    watch = _watch(desired)
    watch.hear(Phase.LOADING, UnitReport(Phase.LOADING))
    told = _told(desired, watch)
    assert told.units == {} and not any(told.routes.values())
    assert list(told.unplaced) == [desired.models[-1].name]


def test_a_unit_that_restarts_keeps_its_place_without_an_address(desired: Desired) -> None:
    watch = _ready(_watch(desired))
    watch.hear(Phase.STARTING, None)
    told = _told(desired, watch)
    assert told.units == {} and told.routes[desired.models[0].name] == ("n-0.1",)


def test_a_draining_unit_finishes_what_it_has(desired: Desired) -> None:
    old, new = _ready(_watch(desired)), _ready(_watch(desired, "n-0.2"))
    old.drain(12.0)
    told = _told(desired, old, new)
    assert told.draining == {"n-0.1": 12.0} and set(told.units) == {"n-0.1", "n-0.2"}
    assert told.routes[desired.models[0].name] == ("n-0.2",)
    old.resume()
    assert _told(desired, old).routes[desired.models[0].name] == ("n-0.1",)


@pytest.mark.parametrize("how", ["failed", "stopping", "away"])
def test_a_unit_that_is_gone_is_nowhere(desired: Desired, how: str) -> None:
    watch = _ready(_watch(desired))
    reachable = HERE
    if how == "failed":
        watch.hear(Phase.FAILED, UnitReport(Phase.FAILED, "out of memory"))
        assert watch.reason == "out of memory"
    elif how == "stopping":
        watch.is_stopping = True
    else:
        reachable = frozenset()
    told = _told(desired, watch, reachable=reachable)
    assert told.units == {} and told.unit_ids() == ()
