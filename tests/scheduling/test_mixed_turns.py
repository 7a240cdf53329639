"""Mixed jobs of several models: batch work alone lets interactive requests go first for a while."""

import pytest

from muxcluster.core.job import WorkerSpec
from muxcluster.core.request import ServiceClass
from tests.scheduling.rig import Rig, model_spec, request, unit_spec

ONE_WORKER = (WorkerSpec(0, (1.0,)),)
BATCH = ServiceClass.BATCH


def rig_of(packing: str) -> Rig:
    models = [model_spec("a", max_seqs=16), model_spec("b", max_seqs=16)]
    policy = {"lane": "mixed", "packing": packing, "token_budget": 64}
    return Rig(unit_spec(models, workers=ONE_WORKER, num_blocks=800, num_host_blocks=100, **policy))


def batch(model: str, count: int) -> list:
    fields = {"model": model, "num_prompt": 30, "num_output": 20, "service_class": BATCH}
    return [request(f"{model}{i}", **fields) for i in range(count)]


@pytest.mark.parametrize(("packing", "most"), [("hybrid", 1), ("priority", 1), ("fcfs", 2)])
def test_an_interactive_request_waits_for_one_batch_job_at_most(packing: str, most: int) -> None:
    """For the job that runs when it comes; in order of arrival also for the other model's."""
    rig, waited = rig_of(packing), []
    rig.add(*batch("a", 8), *batch("b", 8))
    for _ in range(10):
        rig.step()
    for number in range(6):
        rig.launch()
        name = f"now {number}"
        rig.add(request(name, "ab"[number % 2], num_output=1))
        before = len(rig.jobs) - 1
        while name not in rig.first_token_s:
            rig.step()
        waited.append(len(rig.jobs) - 1 - before)
        rig.step()
    assert max(waited) == most
    rig.run()


@pytest.mark.parametrize("packing", ["hybrid", "priority"])
def test_batch_work_of_another_model_is_not_starved(packing: str) -> None:
    rig = rig_of(packing)
    rig.add(*batch("b", 3))
    for number in range(400):
        rig.add(request(f"now {number}", num_prompt=16, num_output=1))
        rig.step()
        if all(f"b{i}" in rig.ends for i in range(3)):
            break
    assert all(f"b{i}" in rig.ends for i in range(3))
