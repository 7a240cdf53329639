"""Choose the order of a job: predict each candidate on a sample and take the fastest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from muxcluster.offline.blend.densities import node_work
from muxcluster.offline.blend.lengths import known_lengths
from muxcluster.offline.feed.feeder import BatchFeeder
from muxcluster.offline.order.orders import OfflineJob
from muxcluster.offline.predictor import MakespanPredictor, Prediction
from muxcluster.offline.prefix.prompts import Prompts, take_prompts
from muxcluster.offline.prefix.ranges import joined_ranges
from muxcluster.offline.prefix.tree import PrefixTree, build_tree
from muxcluster.placement.cost.resources import ResourceModel

_RUNS = (8, 32, 128)  # lengths tried of a sample's runs of neighbours in the tree


@dataclass(frozen=True, slots=True, eq=False)
class Unplanned:
    """A job for one unit, without a tree; its output lengths count as known."""

    prompts: Prompts
    output_tokens: NDArray[np.int64]  # int64 [n], by prompt number
    model: ResourceModel
    size_bytes: float  # KV that the batch may hold
    block_tokens: int  # only whole blocks are reused
    seed: int = 0
    shared_prefix_tokens: int = 0  # see `OfflineJob`

    def with_tree(self) -> OfflineJob:
        """Build the prefix tree. An engine computes the last token of every prompt."""
        tree = build_tree(self.prompts, self.block_tokens, own_tokens=1)
        outputs = known_lengths(self.output_tokens[tree.order].astype(np.float64))
        return OfflineJob(
            tree, outputs, self.model, self.size_bytes, self.seed, self.shared_prefix_tokens
        )


@dataclass(frozen=True, slots=True)
class JobSummary:
    """Size, sharing and resource seconds of a job."""

    num_requests: int
    prompt_tokens: int
    output_tokens: int
    sharing: float  # share of prompt tokens that need not be computed
    # Resource seconds of the whole (BlendServe §2.3), shared tokens counted once.
    compute_s: float
    memory_s: float

    @property
    def density(self) -> float:
        """Return compute over memory seconds."""
        return self.compute_s / self.memory_s

    @property
    def optimum_s(self) -> float:
        """Return the seconds that perfect overlap of compute and memory would take."""
        return max(self.compute_s, self.memory_s)


def summary_of(job: OfflineJob) -> JobSummary:
    tree = job.tree
    work = node_work(tree, job.model, job.leaf_work())
    return JobSummary(
        len(tree.order),
        tree.prompt_tokens,
        round(float(job.outputs.mean.sum())),
        tree.saved_tokens / tree.prompt_tokens,
        float(work.compute_s[0]),
        float(work.memory_s[0]),
    )


def sample_job(job: Unplanned, whole: OfflineJob, count: int) -> Unplanned:
    """Return about `count` requests of `job` with its sharing and density; `whole` has its tree.

    They are evenly spaced runs of neighbours in the tree, small families whole, so that they share
    as they do in the job; of several lengths of runs, the one whose sample is most like the job.
    Requests stay in the order of arrival. Returns the job itself where it is no larger.
    """
    if count >= len(job.prompts):
        return job
    wanted = summary_of(whole)
    samples = [_runs_of(job, whole.tree, count, run) for run in _RUNS]
    return min(samples, key=lambda each: _difference(summary_of(each.with_tree()), wanted))


def _difference(sample: JobSummary, whole: JobSummary) -> float:
    density = abs(np.log(sample.density / whole.density))
    return float(density) + abs(sample.sharing - whole.sharing)


def _runs_of(job: Unplanned, tree: PrefixTree, count: int, run: int) -> Unplanned:
    run = min(run, count)
    num_runs, total = count // run, len(tree.order)
    start = int(np.random.default_rng(job.seed).integers(total))
    first = (start + np.arange(num_runs) * total // num_runs) % total
    edges = _family_starts(tree, run)
    begins = edges[first]
    places = np.unique(joined_ranges(begins, edges[np.minimum(first + run, total)] - begins))
    numbers = np.sort(tree.order[places])
    return replace(
        job,
        prompts=take_prompts(job.prompts, numbers),
        output_tokens=job.output_tokens[numbers],
    )


def _family_starts(tree: PrefixTree, most: int) -> NDArray[np.int64]:
    """Return, for each place and the end, where the next family starts; int64 [n + 1].

    A family shares a first token. One of more than `most` counts as requests that share nothing.
    """
    edges = np.arange(len(tree.order) + 1)
    small = np.flatnonzero((tree.parent == 0) & (tree.depth > 0) & (tree.num_leaves <= most))
    first, sizes = tree.first[small], tree.num_leaves[small]
    edges[joined_ranges(first + 1, sizes - 1)] = np.repeat(first + sizes, sizes - 1)
    return edges


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """Predictions of several orders."""

    predictions: Mapping[str, Prediction]  # of the sample, by order
    sample: JobSummary

    @property
    def best(self) -> str:
        """Return the order of least predicted makespan; of equal ones the one asked for first."""
        return min(self.predictions, key=lambda name: self.predictions[name].makespan_s)


def compare_orders(
    sample: Unplanned, predictor: MakespanPredictor, names: Sequence[str], *, are_known: bool = True
) -> Choice:
    """Predict the sample in each of the orders. Raises ValueError for an unknown order.

    are_known: plans use the true output lengths. Otherwise they learn them while the job runs, and
    until then expect the mean of all from each request.
    """
    job = sample.with_tree()
    expected = None if are_known else float(sample.output_tokens.mean())
    predictions = {
        name: predictor.predict(
            sample.prompts, sample.output_tokens, feeder_of(job, name, expected)
        )
        for name in names
    }
    return Choice(predictions, summary_of(job))


def feeder_of(job: OfflineJob, order: str, expected: float | None = None) -> BatchFeeder:
    """Return a feeder that knows the job's output lengths, or none where `expected` is given.

    expected: output tokens assumed for every request until there are results. Raises ValueError for
    an unknown order.
    """
    if expected is None:
        return BatchFeeder(job, order)
    believed = np.full(len(job.tree.order), expected)
    untold = replace(job, outputs=known_lengths(believed))
    return BatchFeeder(untold, order, np.full(len(believed), np.nan))
