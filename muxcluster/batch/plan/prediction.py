"""From a file to predictions: a batch job's orders compared, and its units in the best of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from muxcluster.offline.choice import Choice, JobSummary, compare_orders, sample_job, summary_of
from muxcluster.offline.order.orders import ORDERS
from muxcluster.offline.predictor import Prediction
from muxcluster.sim.batch.division import Part, divide_job
from muxcluster.sim.batch.setting import Setting
from muxcluster.sim.batch.simulate import SimPredictor
from muxcluster.workload.files.batchfile import NOTHING, Skips

AUTO = "auto"
"""The order that stands for all of them: the fastest by prediction is taken."""
LENGTHS = ("sampled", "known")
"""What plans are told of output lengths: nothing, or all."""


@dataclass(frozen=True, slots=True)
class PredictionOptions:
    """What the command line asks for. order: a name, or `AUTO`. num_sampled: requests, at most.
    are_known: output lengths, to the plans; otherwise they are learnt as in a real run."""

    order: str
    num_sampled: int
    seed: int
    are_known: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Predicted:
    """The part of a job that one unit runs, in some orders, on a sample of it."""

    part: Part
    choice: Choice

    @property
    def scale(self) -> float:
        """How many times the sample's work the part has."""
        return self.part.summary.optimum_s / self.choice.sample.optimum_s

    def makespan_s(self, order: str) -> float:
        """Of the whole part: the sample's, extended by the work left."""
        return self.choice.predictions[order].makespan_s * self.scale


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """A job and its orders.

    units: that run it, each its part; orders are compared on the first, which serves most of the
    model, and the others run the best of them. num_known, num_cut: requests whose output length is
    known, and those that the context cuts short or refuses.
    """

    whole: JobSummary
    units: tuple[Predicted, ...]
    num_known: int
    num_cut: int

    @property
    def best(self) -> str:
        """The order that all units run."""
        return self.units[0].choice.best

    @property
    def makespan_s(self) -> float:
        """Until the last unit has ended."""
        return max(unit.makespan_s(self.best) for unit in self.units)

    @property
    def saved_share(self) -> float:
        """Of the tokens that the undivided job could save, those that its parts can."""
        wanted = self.whole.sharing * self.whole.prompt_tokens
        summaries = [unit.part.summary for unit in self.units]
        kept = sum(each.sharing * each.prompt_tokens for each in summaries)
        return kept / wanted if wanted else 1.0

    def ranked(self) -> list[tuple[str, Prediction]]:
        """Orders and what they came to on the first unit, the fastest first."""
        found = self.units[0].choice.predictions
        return sorted(found.items(), key=lambda item: item[1].makespan_s)


def compare(
    settings: Sequence[Setting], path: Path, options: PredictionOptions, skips: Skips = NOTHING
) -> Comparison:
    """The orders of the job in a file, side by side, on the units of `settings`.

    skips: lines that are left out. Raises ConfigError.
    """
    read = replace(settings[0].file(path), skips=skips).read(options.seed)
    whole = read.job.with_tree()
    first, *others = divide_job(read.job, whole, settings)
    names = tuple(ORDERS) if options.order == AUTO else (options.order,)
    units = [_predicted(first, names, options)]
    best = (units[0].choice.best,)
    units += [_predicted(part, best, options) for part in others]
    return Comparison(summary_of(whole), tuple(units), read.num_known, read.num_cut)


def _predicted(part: Part, names: Sequence[str], options: PredictionOptions) -> Predicted:
    setting = part.setting
    sample = sample_job(part.job, part.planned, options.num_sampled)
    predictor = SimPredictor(setting.unit, setting.spec.name, setting.resources)
    choice = compare_orders(sample, predictor, names, are_known=options.are_known)
    return Predicted(part, choice)
