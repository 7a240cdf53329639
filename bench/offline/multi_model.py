"""Batch jobs of two models in one unit at once, over one after the other, simulated.

One A100-80GB, 74 GB for weights and KV, prefill jobs of 8,192 tokens, on the virtual clock, job
times from the planner's roofline. *One after the other*: each model alone on the GPU, with the KV
memory that the other's weights would take, in its best order (blend, DFS, FCFS) and its best lane
(prefill beside decode at the split that permits most, or mixed jobs); loading costs nothing. *At
once*: both models are there from the start, so less KV fits; each job keeps its best order and
their memory is divided by `offline.joint`. *Unaware*: at once, too, but FCFS, and each job takes
what it finds. Both in the best of the same lanes. Output lengths are known to the plans. The
optimum is the least time that the cost model permits. The last case has nothing to gain: each job
is a blend by itself. --quick: the first pair and the last case, whole: with shorter jobs the last
requests, which decode alone, hide what order and memory do.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

sys.path.pop(0)  # the script's folder, whose modules would hide others
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import numpy as np

from bench.harness import Bench, Claim, make_parser
from bench.offline.joint.cases import Case, cases, jobs_of
from bench.offline.joint.picture import draw
from bench.offline.joint.unit import (
    SPLITS,
    best_split,
    kv_bytes,
    least_s,
    make_unit,
    resources_of,
)
from muxcluster.offline.choice import JobSummary, Unplanned, summary_of
from muxcluster.offline.feed.feeder import BatchFeeder
from muxcluster.sim.batch.joint import JointPrediction, JointPredictor, ModelJob
from muxcluster.sim.batch.simulate import SimPredictor

ORDERS = ("dfs", "blend", "fcfs")
# Of work a job. With 6 s both jobs at once reach 0.34 of the optimum and the control gains 1.26
# times; with 24 s 0.70 and 1.05; whole 0.83 and 0.87 (a loss).
SECONDS = 60.0
MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class Alone:
    """One model's job by itself."""

    model: str
    num_requests: int
    density: float
    optimum_s: float  # least time permitted
    runs_s: dict[str, float]  # by lane and order

    @property
    def best(self) -> str:
        """Lane and order of the shortest run."""
        return min(self.runs_s, key=lambda name: self.runs_s[name])

    @property
    def order(self) -> str:
        """Of the shortest run."""
        return self.best.split()[-1]

    @property
    def seconds(self) -> float:
        """Of the shortest run."""
        return self.runs_s[self.best]


@dataclass(frozen=True, slots=True)
class Result:
    """A case."""

    case: str
    alone: tuple[Alone, ...]
    # density, optimum_s: of the union
    density: float
    optimum_s: float
    # joint_s, unaware_s: by lane, both jobs at once
    joint_s: dict[str, float]
    unaware_s: dict[str, float]
    end_s: dict[str, float]  # by model, of the shortest joint run
    # bin_s, compute, memory: its use over time
    bin_s: float
    compute: list[float]
    memory: list[float]

    @property
    def one_after_other_s(self) -> float:
        """Each in its best way."""
        return sum(each.seconds for each in self.alone)

    @property
    def seconds(self) -> float:
        """At once, planned, in the best lane."""
        return min(self.joint_s.values())

    def summary(self) -> dict[str, float]:
        """The ratios; permitted: what one after the other costs at least over at once at least."""
        overlap_s = min(seconds for lane, seconds in self.joint_s.items() if lane != MIXED)
        permitted_s = sum(each.optimum_s for each in self.alone)
        return {
            "throughput_over_one_after_other": self.one_after_other_s / self.seconds,
            "side_by_side": self.one_after_other_s / overlap_s,
            "mixed": self.one_after_other_s / self.joint_s[MIXED],
            "unaware": self.one_after_other_s / min(self.unaware_s.values()),
            "permitted": permitted_s / self.optimum_s,
            "share_of_optimum": self.optimum_s / self.seconds,
        }


def main(argv: Sequence[str] | None = None) -> None:
    """Run the bench."""
    parser = make_parser(__doc__)
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="write the picture there")
    bench = Bench(parser, argv)
    asked = cases()[::3] if bench.options.quick else cases()
    results = [run_case(case, SECONDS, bench.options.seed) for case in asked]
    summaries = {each.case: each.summary() for each in results}
    *blends, _ = summaries.values()
    gains = [each["throughput_over_one_after_other"] for each in blends]
    means = {name: float(np.mean([each[name] for each in blends])) for name in blends[0]}
    if bench.options.plot is not None:
        draw(summaries, bench.options.plot)
    bench.publish(
        [
            Claim("throughput_over_one_after_other", np.mean(gains).item(), "x", 1.0),
            Claim("throughput_over_one_after_other_min", min(gains), "x", 1.0),
            Claim("throughput_over_one_after_other_max", max(gains), "x", means["permitted"]),
            Claim("throughput_over_unaware", means["side_by_side"] / means["unaware"], "x", 1.0),
            Claim("share_of_optimum", means["share_of_optimum"], "", 1.0),
        ],
        {"throughput_over_one_after_other": gains},
        seconds_of_work=SECONDS,
        summaries=summaries,
        cases=[asdict(each) for each in results],
    )


def run_case(case: Case, seconds: float, seed: int) -> Result:
    """All runs of a case whose jobs have so many seconds of work each."""
    jobs, shapes = jobs_of(case, seconds, seed), case.shapes
    summaries = {model: summary_of(job.with_tree()) for model, job in jobs.items()}
    alone = {model: _alone(case, model, job, summaries[model]) for model, job in jobs.items()}
    orders = {model: each.order for model, each in alone.items()}
    split = best_split(shapes, summaries)
    lanes = [each for each in SPLITS if abs(each - split) < 0.11]
    joint = {_lane(each): _at_once(case, jobs, orders, each) for each in (*lanes, None)}
    fcfs = dict.fromkeys(jobs, "fcfs")
    unaware = {
        _lane(each): _at_once(case, jobs, fcfs, each, is_joint=False) for each in (*lanes, None)
    }
    best = min(joint.values(), key=lambda found: found.together.makespan_s)
    use = best.together.use
    compute, memory = (
        sum(getattr(each, name) for each in summaries.values())
        for name in ("compute_s", "memory_s")
    )
    found = Result(
        case.name,
        tuple(alone.values()),
        compute / memory,
        least_s(shapes, summaries),
        {lane: each.together.makespan_s for lane, each in joint.items()},
        {lane: each.together.makespan_s for lane, each in unaware.items()},
        dict(best.end_s),
        use.bin_s,
        use.compute.round(3).tolist(),
        use.memory.round(3).tolist(),
    )
    print(case.name, found.summary(), flush=True)
    return found


def _alone(case: Case, model: str, job: Unplanned, summary: JobSummary) -> Alone:
    shapes = {model: case.shapes[model]}
    whole, split = job.with_tree(), best_split(shapes, {model: summary})

    def seconds(share: float | None, order: str) -> float:
        predictor = SimPredictor(make_unit(shapes, share), model, job.model)
        feeder = BatchFeeder(whole, order)
        return predictor.predict(job.prompts, job.output_tokens, feeder).makespan_s

    runs_s = {f"{_lane(split)} {order}": seconds(split, order) for order in ORDERS}
    order = min(runs_s, key=lambda name: runs_s[name]).split()[-1]
    runs_s[f"{MIXED} {order}"] = seconds(None, order)
    least = least_s(shapes, {model: summary})
    return Alone(model, summary.num_requests, summary.density, least, runs_s)


def _at_once(
    case: Case,
    jobs: Mapping[str, Unplanned],
    orders: Mapping[str, str],
    prefill_share: float | None,
    *,
    is_joint: bool = True,
) -> JointPrediction:
    size_bytes = kv_bytes(case.shapes)
    asked = {
        model: ModelJob(
            job.prompts,
            job.output_tokens,
            BatchFeeder(replace(job, size_bytes=size_bytes).with_tree(), orders[model]),
        )
        for model, job in jobs.items()
    }
    unit = make_unit(case.shapes, prefill_share)
    return JointPredictor(unit, resources_of(case.shapes)).predict(asked, is_joint=is_joint)


def _lane(prefill_share: float | None) -> str:
    return MIXED if prefill_share is None else f"{prefill_share:g}"


if __name__ == "__main__":
    main()
