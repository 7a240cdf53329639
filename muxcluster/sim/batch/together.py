"""Choice whether batch jobs of several models run in their unit at once or one after the other."""

from collections.abc import Mapping
from dataclasses import dataclass

from muxcluster.offline.choice import Unplanned, feeder_of, sample_job, summary_of
from muxcluster.offline.feed.feeder import BatchFeeder
from muxcluster.sim.batch.joint import JointPredictor, ModelJob
from muxcluster.sim.batch.simulate import SimPredictor
from muxcluster.sim.core.unit import SimUnit


@dataclass(frozen=True, slots=True, eq=False)
class OrderedJob:
    """A model's job and the order that it runs in."""

    job: Unplanned
    order: str
    are_known: bool  # the plan knows output lengths


@dataclass(frozen=True, slots=True)
class Together:
    """Predicted seconds of all jobs at once, and of each by itself in the same unit, by model."""

    joint_s: float
    apart_s: Mapping[str, float]

    @property
    def one_after_other_s(self) -> float:
        """Return the seconds of the jobs one by one; loading in between costs nothing."""
        return sum(self.apart_s.values())

    @property
    def is_faster(self) -> bool:
        """Return True where all at once ends earlier."""
        return self.joint_s < self.one_after_other_s


def compare_together(unit: SimUnit, jobs: Mapping[str, OrderedJob], num_sampled: int) -> Together:
    """Predict both ways, on about `num_sampled` requests of all jobs together.

    jobs: by model of the unit. About the same share of each job is taken, so that their weights
    stay; the gain of running all at once is that of the samples. Raises ValueError as
    `UnitScheduler` does.
    """
    total = sum(len(each.job.prompts) for each in jobs.values())
    share = min(1.0, num_sampled / total)
    samples = {model: _Sample(each, share) for model, each in jobs.items()}
    predictor = JointPredictor(unit, {model: each.job.model for model, each in jobs.items()})
    joint = predictor.predict({model: each.model_job() for model, each in samples.items()})
    alone = {model: each.alone_s(unit, model) for model, each in samples.items()}
    apart = {model: samples[model].scale * seconds for model, seconds in alone.items()}
    gain = sum(alone.values()) / joint.together.makespan_s
    return Together(sum(apart.values()) / gain, apart)


class _Sample:
    """A share of a job."""

    def __init__(self, asked: OrderedJob, share: float) -> None:
        whole = asked.job.with_tree()
        self._asked = asked
        self._job = sample_job(asked.job, whole, max(1, round(share * len(asked.job.prompts))))
        self._planned = whole if self._job is asked.job else self._job.with_tree()
        # Work of the whole job, in samples.
        self.scale = summary_of(whole).optimum_s / summary_of(self._planned).optimum_s

    def model_job(self) -> ModelJob:
        return ModelJob(self._job.prompts, self._job.output_tokens, self._feeder())

    def alone_s(self, unit: SimUnit, model: str) -> float:
        predictor, job = SimPredictor(unit, model, self._job.model), self._job
        return predictor.predict(job.prompts, job.output_tokens, self._feeder()).makespan_s

    def _feeder(self) -> BatchFeeder:
        are_known = self._asked.are_known
        expected = None if are_known else float(self._job.output_tokens.mean())
        return feeder_of(self._planned, self._asked.order, expected)
