"""The state that `muxcluster status` shows, from specs and reports."""

from dataclasses import replace
from io import StringIO
from typing import Any

from rich.console import Console

from muxcluster.cli.status import show
from muxcluster.cluster.control.status import UnitView, describe
from muxcluster.cluster.ray.application import raised_line
from muxcluster.cluster.state.desired import Record, Target
from muxcluster.cluster.state.reconcile import Phase
from muxcluster.cluster.units.actor import as_reported
from muxcluster.cluster.units.mesh import mesh_request, on_granted_gpu
from muxcluster.core.job import WorkerSpec
from muxcluster.core.kvshape import KvShape
from muxcluster.core.residency import Residency
from muxcluster.core.served import ModelStats, SharingStats, UnitState, UnitStats
from muxcluster.core.unitspec import ModelSpec, UnitSpec
from muxcluster.placement.plan import PlannedUnit

MODELS = tuple(
    ModelSpec(name, "/m", KvShape(2, 2, 64, 4), 100, 256, (0,)) for name in ("one", "two")
)
WORKERS = (WorkerSpec(0, (0.5, 1.0)), WorkerSpec(1, (0.5,)))


def _spec(device: str = "cpu") -> UnitSpec:
    return UnitSpec("unit-0", MODELS, 128, 4096, WORKERS, device=device)


def _view(stats: UnitStats | None, phase: Phase = Phase.READY, **fields: Any) -> UnitView:
    planned = PlannedUnit(id="n-0", node="n", gpus=(0,), tp=1, kv_blocks=128, models=())
    record = Record("n-0.1", "id-of-n", Target(_spec(), planned, 0.0))
    return UnitView(record, phase, stats, **fields)


def _shown(state: dict[str, Any]) -> str:
    console = Console(width=200, record=True, file=StringIO())
    show(console, state)
    return " ".join(console.export_text().split())


def test_a_unit_that_answers_shows_its_numbers() -> None:
    stats = UnitStats("n-0.1", 1.0, 128, 100, (ModelStats("two", 3, 1, 64, 28, 4, 0.25),))
    state = describe([{"name": "n"}], [_view(stats)], None)
    unit = state["units"][0]
    assert state["healthy"] and unit["healthy"] and unit["free_blocks"] == 100
    assert (unit["id"], unit["node"], unit["gpus"]) == ("n-0.1", "n", [0])
    assert unit["sm_shares"] == [0.5, 1.0]
    one, two = unit["models"]
    assert (one["name"], one["quota_blocks"]) == ("one", 0)
    assert (two["running"], two["waiting"], two["quota_blocks"], two["used_blocks"]) == (
        3,
        1,
        64,
        28,
    )


def test_what_runs_a_model_is_shown_and_what_that_left_of_the_pool() -> None:
    models = (ModelStats("one", backend="paged"), ModelStats("two", backend="dense"))
    state = describe([], [_view(UnitStats("n-0.1", 1.0, 96, 90, models))], None)
    (unit,) = state["units"]
    assert [model["backend"] for model in unit["models"]] == ["paged", "dense"]
    assert unit["num_blocks"] == 96
    (starting,) = describe([], [_view(None)], None)["units"]
    assert [model["backend"] for model in starting["models"]] == [None, None]
    text = _shown(state)
    assert "paged" in text and "dense" in text and "90 of 96 blocks" in text


def test_whether_jobs_share_the_sms_is_shown_where_it_is_decided() -> None:
    stats = UnitStats("unit-0", 1.0, 128, 100, sharing=SharingStats(False, 0.9125, 1.05))
    views = [_view(stats), _view(replace(stats, sharing=None))]
    state = describe([], views, None)
    gains = {"is_on": False, "gain": 0.9125, "mixed_gain": 1.05}
    assert [unit["sharing"] for unit in state["units"]] == [gains, None]
    shown = _shown(state)
    assert shown.count("not shared now (gain 0.91, of mixed jobs 1.05)") == 1


def test_a_silent_unit_makes_the_cluster_unhealthy() -> None:
    state = describe([], [_view(None, Phase.SILENT, reason="it does not answer")], None)
    unit = state["units"][0]
    assert not state["healthy"] and not unit["healthy"]
    assert (unit["phase"], unit["reason"]) == ("silent", "it does not answer")
    assert unit["free_blocks"] is None


def test_a_unit_that_loads_is_said_to_load() -> None:
    shown = _shown(describe([], [_view(None, Phase.LOADING)], None))
    assert "n-0.1 on cpu of n, GPU 0: loading; SM shares 50%, 100%; 128 blocks" in shown
    assert "None" not in shown and "blocks free" not in shown
    failed = _shown(describe([], [_view(None, Phase.FAILED, reason="no [weights]")], None))
    assert "failed (no [weights])" in failed


def test_a_rate_is_not_called_measured_before_a_request_came() -> None:
    one = ModelStats("one", rate_per_s=1.5)
    stats = UnitStats("n-0.1", 1.0, 128, 100, (one, replace(one, name="two")))
    unit = describe([], [_view(stats)], None)["units"][0]
    assert [model["rate_per_s"] for model in unit["models"]] == [None, None]
    measured = replace(stats, models=(replace(one, is_rate_measured=True),))
    unit = describe([], [_view(measured)], None)["units"][0]
    assert unit["models"][0]["rate_per_s"] == 1.5


def test_a_unit_that_leaves_does_not_make_the_cluster_unhealthy() -> None:
    assert describe([], [_view(None, Phase.STOPPING, is_draining=True)], None)["healthy"]


def test_a_failed_or_stalled_unit_is_unhealthy_and_a_recovering_one_is_not() -> None:
    stats = UnitStats("unit-0", 1.0, 128, 100)
    assert as_reported(stats, 9.0) is stats
    stalled = as_reported(stats, 11.0)
    recovering = replace(stats, state=UnitState.RECOVERING)
    found = [describe([], [_view(s)], None) for s in (stalled, recovering)]
    assert [state["healthy"] for state in found] == [False, True]
    assert [state["units"][0]["state"] for state in found] == ["failed", "recovering"]


def test_a_gpu_unit_asks_for_its_gpu_and_sees_it_as_the_first() -> None:
    assert mesh_request(1.0).num_gpus == 1.0
    assert [bundle.get("GPU") for bundle in mesh_request(1.0).bundles] == [1.0]
    assert on_granted_gpu(_spec("cuda:3")).device == "cuda:0"
    assert mesh_request(0.0).num_gpus == 0.0 and on_granted_gpu(_spec()) == _spec()


def test_a_unit_of_several_gpus_sees_them_all_in_one_process() -> None:
    spec = replace(_spec("cuda:2"), tp=2, rank_devices=("cuda:2", "cuda:3"))
    assert mesh_request(2.0).num_gpus == 2.0
    assert [bundle["GPU"] for bundle in mesh_request(2.0).bundles] == [2.0]
    assert on_granted_gpu(spec).rank_devices == ("cuda:0", "cuda:1")


def test_the_reason_of_a_failed_start_is_the_last_exception() -> None:
    message = (
        "The deployment failed to start 3 times in a row. Error:\n"
        "Traceback (most recent call last):\n"
        '  File "a.py", line 3, in f\n'
        "KeyError: 'x'\n"
        "During handling of the above exception, another exception occurred:\n"
        "muxcluster.core.errors.LoadError: /m/model.safetensors: tensor 'w' is missing\n"
    )
    assert raised_line(message) == "/m/model.safetensors: tensor 'w' is missing"
    assert raised_line("Deploying.") is None


def test_where_weights_are_is_shown_where_models_are_parked() -> None:
    stats = ModelStats("two", weights="parked", num_wakes=4, num_parks=5, waking_s=6.0)
    stats = replace(stats, expected_wait_s=1.25, order="hold")
    stats = replace(stats, num_wakes_ahead=3, num_wakes_ahead_used=2)
    stats = replace(stats, resident_bytes=3 * 2**20, parked_bytes=2**18)
    view = _view(UnitStats("n-0.1", 1.0, 128, 100, (stats,)))
    assert "weights" not in _shown(describe([], [view], None))
    models = (MODELS[0], replace(MODELS[1], residency=Residency.ON_DEMAND))
    spec = replace(_spec(), models=models, resident_bytes=10)
    view = replace(view, record=Record("n-0.1", "id", replace(view.record.target, spec=spec)))
    state = describe([], [view], None)
    (_, two) = state["units"][0]["models"]
    assert (two["residency"], two["weights"], two["wakes"], two["parks"]) == (
        "on-demand",
        "parked",
        4,
        5,
    )
    shown = _shown(state).replace("│ ", "")
    assert "parked (on-demand, held) 3, 0.25 4 3, 2 1.50 1.25" in shown
