"""A server of a hundred models, one of which has a hostile name."""

from typing import Any

from muxcluster.core.job import Phase
from muxcluster.core.request import Slo
from muxcluster.core.served import JobRecord, ModelStats, ServedModel, UnitStats
from tests.http.fakes import FakeBackend

HOSTILE = "<img src=x onerror=alert(1)>"


class ManyModels(FakeBackend):
    """A hundred models on a unit, with hostile names."""

    def __init__(self, model: ServedModel) -> None:
        super().__init__([])
        names = [HOSTILE, *(f"model-{i}" for i in range(99))]
        self.served = [
            ServedModel(
                name, model.path, 256, model.vocab_size, model.eos_token_ids, Slo(0.2, 0.05)
            )
            for name in names
        ]

    def stats(self) -> list[UnitStats]:
        models = tuple(
            ModelStats(each.name, quota_blocks=50, used_blocks=2, cached_blocks=1, weights="parked")
            for each in self.served
        )
        jobs = tuple(
            JobRecord(i, each.name, phase.value, 0, 0.01, 1.0, 1.5, 2, 64)
            for i, each in enumerate(self.served)
            for phase in Phase
        )
        return [UnitStats(f"u {HOSTILE}", 3.0, 1000, 600, models, jobs)]


def told_plan() -> dict[str, Any]:
    """A plan as the server tells it, with hostile names."""
    model = {"name": HOSTILE, "prefill_sm": 0.4, "decode_sm": 1.0, "throughput": 2.5}
    unit = {"id": HOSTILE, "node": HOSTILE, "gpus": [0, 1], "tp": 2}
    return {
        "plan": {
            "method": "greedy",
            "objective": "goodput",
            "throughput": 2.5,
            "units": [{**unit, "models": [{**model, "quota_blocks": 0}]}],
        },
        "nodes": [{"name": HOSTILE, "gpus": 4, "gpu": "A100-80GB"}],
        "models": [{"name": HOSTILE, "rate": 2.5, "placed": True}]
        + [{"name": "big", "rate": 1.0, "placed": False}],
    }
