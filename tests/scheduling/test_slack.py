"""What targets of requests that wait, and tokens that were late, leave for batch rows in a job."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.core.request import ServiceClass, Slo
from muxcluster.scheduling.packing.arrivals import longest_wait
from muxcluster.scheduling.state.running import RunningTable
from tests.scheduling.rig import Rig, model_spec, request, unit_spec

SLO = Slo(ttft_s=2.0, tpot_s=0.5)


def two_models(*, has_interactive: bool = True) -> Rig:
    """Both decode an interactive request, maybe, and three of the batch class; model b is next."""
    models = [model_spec(name, slo=SLO, max_seqs=8, max_model_len=2000) for name in ("a", "b")]
    rig = Rig(unit_spec(models, lane="mixed", packing="hybrid", num_blocks=4000, token_budget=64))
    for name in ("a", "b"):
        if has_interactive:
            rig.add(request(f"{name}/now", name, 10, 1500))
        for number in range(3):
            batch = {"service_class": ServiceClass.BATCH}
            rig.add(request(f"{name}/batch {number}", name, 10, 1500, **batch))
    for _ in range(60):
        rig.step()
    while rig.jobs[-1].model != "a":
        rig.step()
    return rig


def wait(rig: Rig, seconds: float) -> None:
    """Who decodes gets two tokens just then, the second to make up for the first."""
    rig.now += seconds
    for model in rig.scheduler._models.values():
        decoding = model.running.idle_decoding()
        for _ in range(2):
            model.running.set_deadlines(decoding, rig.now)


# A step takes 20 ms and 1 ms a row, so the prompt needs some 31 ms after it.
@pytest.mark.parametrize(
    ("waited_s", "num_rows"),
    [(0.0, 4), (1.5, 4), (1.94, 1), (1.99, 1), (2.5, 4)],
)
def test_a_first_token_of_another_model_that_is_due_has_a_job_without_batch_rows_before_it(
    waited_s: float, num_rows: int
) -> None:
    """Until it is late and binds nobody."""
    rig = two_models()
    rig.add(request("a/new", "a", 10, 5))
    wait(rig, waited_s)
    (job,) = rig.launch()
    assert job.model == "b"
    assert len(job.rows) == num_rows


@pytest.mark.parametrize("waited_s", [0.0, 1.99, 2.5])
def test_a_model_with_batch_work_alone_leaves_its_turn_to_a_first_token(waited_s: float) -> None:
    """Whether that has time left, is due or is late."""
    rig = two_models(has_interactive=False)
    rig.add(request("a/new", "a", 10, 5))
    rig.now += waited_s
    (job,) = rig.launch()
    assert job.model == "a"


@pytest.mark.parametrize(("waited_s", "has_batch"), [(0.0, True), (1.5, True), (1.97, False)])
def test_a_prompt_that_is_due_has_a_job_without_batch_rows(
    waited_s: float, has_batch: bool
) -> None:
    rig = two_models()
    rig.step()
    rig.add(request("a/new", "a", 10, 5))
    wait(rig, waited_s)
    (job,) = rig.launch()
    table = rig.scheduler._models["a"].running
    assert job.model == "a"
    assert "a/new" in rig.names_in(job)
    assert bool(table.is_batch[job.rows.table_rows].any()) is has_batch


def test_a_late_token_makes_the_next_one_due_earlier() -> None:
    table = RunningTable(4, 100)
    table.has_targets = True
    rows = np.arange(3, dtype=np.int32)
    table.tpot_s[rows] = 1.0, 1.0, np.inf
    table.deadline_s[rows] = 10.0, 10.0, np.inf
    table.set_deadlines(rows[:1], 9.4)
    table.set_deadlines(rows[1:], 10.2)
    assert table.deadline_s[rows].tolist() == pytest.approx([10.4, 11.0, np.inf])
    assert table.credit_s[0] == pytest.approx(0.6)
    assert table.leeway_s(rows[:2]).tolist() == pytest.approx([1.6, 1.0])
    table.set_deadlines(rows[1:2], 99.0)
    assert table.deadline_s[1] == pytest.approx(99.0)


SLACKS = st.floats(-1.0, 0.0) | st.floats(1e-9, 5.0)


@given(st.lists(SLACKS, max_size=64))
def test_one_in_a_hundred_that_come_amid_the_longest_job_is_late(slacks_s: list[float]) -> None:
    found_s = longest_wait(np.array(slacks_s, dtype=np.float64))
    counted = [slack for slack in slacks_s if slack > 0]
    if not counted:
        assert found_s == np.inf
        return

    def late(job_s: float) -> float:
        return float(np.mean([max(0.0, 1.0 - slack / job_s) for slack in counted]))

    assert late(found_s) == pytest.approx(0.01, abs=1e-6)
    assert late(1.01 * found_s) > 0.01
