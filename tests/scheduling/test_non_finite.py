"""Rows whose tokens are noise: their request ends with an error, and nobody else's."""

from dataclasses import replace

import pytest

from muxcluster.core.events import Finished, FinishReason
from muxcluster.core.job import Job, JobResult
from muxcluster.core.sampling import Constraint
from tests.scheduling.fake_worker import FakeMemory
from tests.scheduling.rig import SOME_LANES, Rig, expected_output, request, unit_spec


class Breaking(FakeMemory):
    """Rows of requests whose name says so are broken, from their output token `first` on."""

    first = 3

    def run(self, job: Job) -> JobResult:
        result = super().run(job)
        sequences = [
            self._sequences[job.model, table_row] for table_row in job.rows.table_rows.tolist()
        ]
        broken = tuple(
            row
            for row, each in enumerate(sequences)
            if "broken" in each.request_id and len(each.tokens) >= each.num_prompt + self.first
        )
        return replace(result, broken_rows=broken)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("lane", SOME_LANES)
def test_only_the_requests_of_broken_rows_end_with_an_error(lane: str, depth: int) -> None:
    spec = unit_spec(lane=lane, pipeline_depth=depth)
    rig = Rig(spec)
    rig.memory = Breaking(spec)
    good = [request(f"good {i}", "aab"[i % 3], num_output=12) for i in range(6)]
    broken = [request(f"broken {i}", "ab"[i], num_prompt=20, num_output=20) for i in range(2)]
    rig.add(*good[:3], *broken, *good[3:])
    rig.run()
    for each in broken:
        end = rig.ends[each.request_id]
        assert isinstance(end, Finished)
        assert (end.reason, end.code) == (FinishReason.ERROR, "non_finite_logits")
        assert f"{each.model} computed NaN" in end.message
        assert len(rig.tokens[each.request_id]) == 2, "what came before is kept"
    rig.check_outputs(good)
    rig.check_empty()
    stats = {each.name: each for each in rig.scheduler.stats(rig.now, "unit").models}
    assert [stats[name].num_non_finite for name in "abc"] == [1, 1, 0]


def test_what_a_broken_row_computed_is_not_shared() -> None:
    """Its keys and values may be NaN too, which the next request with the prefix would read."""
    spec = unit_spec(lane="temporal")
    rig = Rig(spec)
    rig.memory = Breaking(spec)
    rig.memory.first = 10
    prompt = list(range(17))
    rig.add(request("broken", prompt_tokens=prompt, num_output=20))
    rig.run()
    computed = rig.scheduler.stats(rig.now, "unit").models[0]
    assert computed.num_non_finite == 1
    output = rig.tokens["broken"]
    again = request("good", prompt_tokens=[*prompt, *output], num_output=4)
    rig.add(again)
    rig.run()
    end = rig.ends["good"]
    assert isinstance(end, Finished)
    assert end.num_cached_tokens <= 16, "the column that its output filled was published"


class Refusing(Breaking):
    """As `Breaking`, but the constraint of those rows cannot be followed."""

    def run(self, job: Job) -> JobResult:
        result = super().run(job)
        return replace(
            result, broken_rows=(), refused_rows=dict.fromkeys(result.broken_rows, "why")
        )


def test_a_row_whose_constraint_cannot_be_followed_ends_with_the_reason() -> None:
    spec = unit_spec(lane="mixed", pipeline_depth=2)
    rig = Rig(spec)
    rig.memory = Refusing(spec)
    good = [request(f"good {i}", "aab"[i % 3], num_output=12) for i in range(6)]
    refused = request("broken", "a", num_output=20)
    rig.add(*good[:3], refused, *good[3:])
    rig.run()
    end = rig.ends["broken"]
    assert isinstance(end, Finished)
    assert (end.reason, end.code, end.message) == (FinishReason.ERROR, "constraint_failed", "why")
    rig.check_outputs(good)
    rig.check_empty()
    assert rig.scheduler.stats(rig.now, "unit").models[0].num_non_finite == 0


def test_end_tokens_end_a_constrained_request_that_ignores_them() -> None:
    """Its grammar allows one only where nothing else is left."""
    rig = Rig(unit_spec(lane="mixed"))
    bound = [
        request(f"r{i}", num_output=40, ignore_eos=True, constraint=Constraint("{}"))
        for i in range(8)
    ]
    rig.add(*bound)
    rig.run()
    lengths = set()
    for each in bound:
        obeying = replace(each, sampling=replace(each.sampling, ignore_eos=False))
        assert rig.tokens[each.request_id] == expected_output(obeying)
        lengths.add(len(rig.tokens[each.request_id]))
    assert len(lengths) > 1, "some end early"
