"""Predicts the makespan of a batch job's file in each order, and of its units in the best."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from muxcluster.offline.choice import (
    Choice,
    JobSummary,
    Unplanned,
    compare_orders,
    sample_job,
    summary_of,
)
from muxcluster.offline.order.orders import ORDERS
from muxcluster.offline.predictor import Prediction
from muxcluster.sim.batch.division import Part, divide_job
from muxcluster.sim.batch.setting import Setting
from muxcluster.sim.batch.simulate import SimPredictor
from muxcluster.workload.files.batchfile import NOTHING, Skips

AUTO = "auto"  # choose the order with the least predicted makespan
LENGTHS = ("sampled", "known")  # what plans know of output lengths: samples, or all of them


@dataclass(frozen=True, slots=True)
class PredictionOptions:
    """Options of a comparison of orders."""

    order: str  # a name, or `AUTO`
    num_sampled: int  # most requests of the sample
    seed: int
    are_known: bool = False  # plans know output lengths; otherwise they learn them as in a real run
    tries_ways: bool = False  # predict the first unit in the other ways of running its jobs, too


@dataclass(frozen=True, slots=True, eq=False)
class Predicted:
    """The part of a job that one unit runs, in some orders, on a sample of it."""

    part: Part
    choice: Choice

    @property
    def scale(self) -> float:
        """The part's work as a multiple of the sample's."""
        return self.part.summary.optimum_s / self.choice.sample.optimum_s

    def makespan_s(self, order: str) -> float:
        """Predicted makespan of the whole part, extended from the sample."""
        return self.choice.predictions[order].makespan_s * self.scale


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """A job and its orders.

    Orders are compared on the first unit, which serves most of the model; the others run the best.
    """

    whole: JobSummary
    units: tuple[Predicted, ...]  # each runs its part
    # The first unit as it would run its jobs in another way, in the same orders
    others: tuple[Predicted, ...]
    num_known: int  # requests whose output length is known
    num_cut: int  # requests that the context cuts short or refuses

    @property
    def best(self) -> str:
        """The order in which all units run."""
        return self.units[0].choice.best

    @property
    def makespan_s(self) -> float:
        """Seconds until the last unit has ended."""
        return max(unit.makespan_s(self.best) for unit in self.units)

    @property
    def saved_share(self) -> float:
        """Share of the undivided job's saved tokens that its parts save too."""
        wanted = self.whole.sharing * self.whole.prompt_tokens
        summaries = [unit.part.summary for unit in self.units]
        kept = sum(each.sharing * each.prompt_tokens for each in summaries)
        return kept / wanted if wanted else 1.0

    def faster(self) -> Predicted | None:
        """Return the other way of the first unit that is predicted to be fastest, if that is faster
        than the unit as planned; each in its best order."""
        if not self.others:
            return None
        best = min(self.others, key=lambda each: each.makespan_s(each.choice.best))
        first = self.units[0]
        gains = best.makespan_s(best.choice.best) < first.makespan_s(first.choice.best)
        return best if gains else None

    def ranked(self) -> list[tuple[str, Prediction]]:
        """Return the orders with their results on the first unit, the fastest first."""
        found = self.units[0].choice.predictions
        return sorted(found.items(), key=lambda item: item[1].makespan_s)


def compare(
    settings: Sequence[Setting], path: Path, options: PredictionOptions, skips: Skips = NOTHING
) -> Comparison:
    """Compare the orders of the job in a file on the units of `settings`.

    skips: lines that are left out. Raises ConfigError.
    """
    read = replace(settings[0].file(path), skips=skips).read(options.seed)
    return compare_job(read.job, settings, options, read.num_known, read.num_cut)


def compare_job(
    job: Unplanned,
    settings: Sequence[Setting],
    options: PredictionOptions,
    num_known: int,
    num_cut: int = 0,
) -> Comparison:
    """Compare the orders of `job` on the units of `settings`; counts as `Comparison`'s."""
    whole = job.with_tree()
    first, *others = divide_job(job, whole, settings)
    names = tuple(ORDERS) if options.order == AUTO else (options.order,)
    units = [_predicted(first, names, options)]
    best = (units[0].choice.best,)
    units += [_predicted(part, best, options) for part in others]
    settings = first.setting.ways()[1:] if options.tries_ways else ()
    ways = (_in_way(first, setting) for setting in settings)
    in_other_ways = tuple(_predicted(part, names, options) for part in ways)
    return Comparison(summary_of(whole), tuple(units), in_other_ways, num_known, num_cut)


def _in_way(part: Part, setting: Setting) -> Part:
    """Return the same part on the unit of `setting`, whose memory may differ."""
    job = replace(part.job, size_bytes=setting.size_bytes)
    planned = replace(part.planned, size_bytes=setting.size_bytes)
    return Part(setting, job, planned, part.summary, part.numbers)


def _predicted(part: Part, names: Sequence[str], options: PredictionOptions) -> Predicted:
    setting = part.setting
    sample = sample_job(part.job, part.planned, options.num_sampled)
    predictor = SimPredictor(setting.unit, setting.spec.name, setting.resources)
    choice = compare_orders(sample, predictor, names, are_known=options.are_known)
    return Predicted(part, choice)
