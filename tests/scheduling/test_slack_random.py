"""Batch work beside targets on a machine whose jobs overrun: it makes nobody late nor starves."""

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from muxcluster.core.job import Job, WorkerSpec
from muxcluster.core.request import Request, ServiceClass, Slo
from tests.amounts import examples
from tests.scheduling.rig import Rig, model_spec, request, unit_spec

BATCH = ServiceClass.BATCH
FIXED_S, TOKEN_S = 0.02, 0.001  # of every job
# A first job of a kind may be mispredicted, and jobs a little longer than the margin are
# part of it: so much of a target.
TOLERANCE = 1.03


class Overrunning(Rig):
    """Every job takes up to `overrun` longer than the same work takes at best."""

    def __init__(self, spec, seed: int, overrun: float) -> None:
        super().__init__(spec, seed, checks=False)
        self._overrun = overrun

    def seconds(self, job: Job) -> float:
        work_s = FIXED_S + TOKEN_S * int(job.rows.counts.sum())
        return work_s * (1.0 + self._overrun * self._rng.random())


@dataclass(frozen=True, slots=True)
class Load:
    """Interactive requests that leave each other's first tokens alone, and their targets."""

    num_models: int
    overrun: float
    slo: Slo
    prompts: list[int]  # of a request each
    gaps_s: list[float]  # before each
    seed: int

    def rig(self) -> Overrunning:
        """A unit that has learnt what its jobs take."""
        names = "ab"[: self.num_models]
        models = [model_spec(name, slo=self.slo, max_seqs=40, max_model_len=200) for name in names]
        spec = unit_spec(
            models,
            num_blocks=8000,
            workers=(WorkerSpec(0, (1.0,)),),
            lane="mixed",
            packing="hybrid",
            token_budget=200,
        )
        rig = Overrunning(spec, self.seed, self.overrun)
        for number in range(240):
            rig.add(request(f"teacher {number}", names[number % len(names)], 1 + number % 60, 4))
            rig.step()
        return rig.run()

    def requests(self) -> list[Request]:
        return [
            request(f"r{number}", "ab"[number % self.num_models], prompt, 12)
            for number, prompt in enumerate(self.prompts)
        ]


def batch_requests(num_models: int, count: int) -> list[Request]:
    return [
        request(f"batch {number}", "ab"[number % num_models], 60, 40, service_class=BATCH)
        for number in range(count)
    ]


@dataclass(slots=True)
class Served:
    """What requests waited for."""

    ttft_s: list[float] = field(default_factory=list)
    tpot_s: list[float] = field(default_factory=list)
    batch_tokens: int = 0


def served(load: Load, *, has_batch: bool) -> Served:
    """The load on a fresh unit, alone or beside more batch work than it can do."""
    rig = load.rig()
    if has_batch:
        rig.add(*batch_requests(load.num_models, 400))
        # they expect interactive requests from the first one on
        rig.add(*[request(f"first {name}", name, 4, 2) for name in "ab"[: load.num_models]])
    start_s, asked = rig.now + 1.0, load.requests()
    due_s = (start_s + np.cumsum(load.gaps_s)).tolist()
    for each, at_s in zip(asked, due_s, strict=True):
        while rig.now < at_s and (rig.num_open or rig.running):
            rig.launch()
            if not rig.running or rig.running[0][0] > at_s:
                break
            rig.finish()
        rig.now = at_s  # amid a job, maybe
        rig.add(each)
        rig.launch()
    names = [each.request_id for each in asked]
    while not all(name in rig.ends for name in names):
        rig.step()
    found = Served()
    for name in names:
        first_s = rig.first_token_s[name]
        found.ttft_s.append(first_s - rig.add_s[name])
        found.tpot_s.append((rig.end_s[name] - first_s) / (len(rig.tokens[name]) - 1))
    found.batch_tokens = sum(
        len(tokens) for name, tokens in rig.tokens.items() if name.startswith("batch")
    )
    return found


@st.composite
def loads(draw: st.DrawFn) -> Load:
    """Prompts of up to 60 tokens; the next one comes when the first token was due."""
    num_models = draw(st.integers(1, 2))
    slo = Slo(draw(st.floats(0.25, 1.0)), draw(st.floats(0.08, 0.3)) * num_models)
    count = draw(st.integers(4, 12))
    return Load(
        num_models,
        draw(st.floats(0.0, 0.3)),
        slo,
        [draw(st.integers(1, 60)) for _ in range(count)],
        [slo.ttft_s + draw(st.floats(0.0, 0.5)) for _ in range(count)],
        draw(st.integers(0, 2**16)),
    )


@settings(max_examples=examples(2, 15), deadline=None)
@given(loads())
def test_who_would_be_in_time_alone_is_in_time_beside_batch_work(load: Load) -> None:
    alone, beside = served(load, has_batch=False), served(load, has_batch=True)
    for name, target_s in (("ttft_s", load.slo.ttft_s), ("tpot_s", load.slo.tpot_s)):
        pairs = zip(getattr(alone, name), getattr(beside, name), strict=True)
        late = [both_s for alone_s, both_s in pairs if alone_s <= target_s < both_s / TOLERANCE]
        assert not late, (name, target_s, late)
    assert beside.batch_tokens > 0


@settings(max_examples=examples(2, 10), deadline=None)
@given(loads(), st.booleans())
def test_batch_work_alone_runs_at_full_speed(load: Load, has_been_interactive: bool) -> None:
    """A minute after the last interactive request, too, in jobs of the whole budget."""
    rig = load.rig()
    if has_been_interactive:
        rig.add(*load.requests())
        rig.run()
    rig.now += 61.0
    rig.add(*batch_requests(load.num_models, 30))
    first = len(rig.jobs)
    rig.run()
    # 40 tokens each, after the prompts of a model have come in, 3 a job, one model after the other
    most_jobs = load.num_models * (40 + 30 // load.num_models // 3 + 1)
    tokens = [int(job.rows.counts.sum()) for job in rig.jobs[first:]]
    # prompts come whole, and from the second one on with 64 tokens at least
    assert max(tokens) > 200 - 64
    assert len(tokens) <= most_jobs


@settings(max_examples=examples(2, 10), deadline=None)
@given(loads())
def test_batch_work_goes_on_where_no_interactive_request_waits(load: Load) -> None:
    """Though some came just now and others may."""
    rig = load.rig()
    rig.add(*load.requests())
    rig.run()
    rig.add(*batch_requests(load.num_models, 8))
    while rig.num_open:
        assert any(job.rows.counts.sum() for job in rig.launch()), "batch work waits for nobody"
        rig.finish()
