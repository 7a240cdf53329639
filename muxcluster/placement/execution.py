"""How a unit runs its jobs: lane, partition of the SMs, workers and their rungs, jobs ahead.

The one place that decides it. The estimator evaluates these executions, a plan carries the one that
was chosen, and simulator, order chooser and engine build their units from the plan.
"""

from dataclasses import dataclass, field, replace

from muxcluster.core.job import Phase, WorkerSpec
from muxcluster.core.unitspec import SchedulerSpec
from muxcluster.placement.hardware import WHOLE, Gpu
from muxcluster.placement.plan import PlannedExecution, PlannedUnit, PlannedWorker

SHARING_LANES = frozenset({"adbs", "round-robin"})
_ONE_WORKER = (WorkerSpec(0, (1.0,)),)
# Rungs of a GPU: each prefill share but 1.0 has its complement. Each is a process or a context from
# the start on (0.5 GiB under MPS), so there are few.
_PREFILL_SHARES = (0.3, 0.5, 1.0)
_DECODE_SHARES = (0.3, 0.5, 0.7, 1.0)
# Of a unit of one model, which has fewer workers: prompts get most SMs while little KV is held.
_PREFILL_SHARES_ALONE = (0.3, 0.5, 0.7, 1.0)
_MOST_DECODES = 2  # decode workers of a GPU, for the same reason
# Over several GPUs jobs that run side by side must have no SM in common: a collective that waited
# for one that another holds would wait for ever. Green contexts keep two workers apart, one from
# each end of the GPU (engine/gpu/green/parts.py).
_MOST_DECODES_APART = 1
_GPU_PARTITIONS = frozenset({"auto", "mps", "green", "none"})
_CPU_PARTITIONS = frozenset({"auto", "threads", "none"})


class CannotRun(ValueError):
    """A mesh cannot run units as they were asked for; the message says why.

    key: of the policy that asked for it.
    """

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


@dataclass(frozen=True, slots=True)
class UnitPolicy:
    """What was asked of every unit."""

    # `lane` as asked: a unit with one worker runs `mixed` in place of `adbs`. `token_budget` and
    # `pipeline_depth` are ignored: see Limits and the field below
    scheduler: SchedulerSpec = field(default_factory=lambda: SchedulerSpec(may_unshare=True))
    # "auto", "mps" or "green" (of a GPU), "threads" (of a CPU), "none"
    partition: str = "auto"
    # None: 1 where a unit of several ranks runs one job at a time, and on ranks of a CPU; else 2
    pipeline_depth: int | None = None
    num_threads: int | None = None  # of a CPU unit, None: all cores
    host_bytes: int | None = None  # host memory of a unit for lent blocks, None: by kind of GPU
    prefix_caching: bool = True


@dataclass(frozen=True, slots=True)
class Execution:
    """How one unit runs its jobs; the fields are those of `UnitSpec` and its `SchedulerSpec`."""

    lane: str
    partition: str  # "auto": which kind of sharing is found out where the unit starts
    workers: tuple[WorkerSpec, ...]
    pipeline_depth: int
    may_unshare: bool = False  # may run `mixed` jobs while sharing the SMs gains less
    # Every worker has a process or thread on each GPU of the mesh, and with several a communicator
    num_ranks: int = 1
    is_unproven: bool = False  # no GPUs have run units in this way yet

    @property
    def shares_sms(self) -> bool:
        """Whether jobs can run side by side."""
        return len(self.workers) > 1

    @property
    def runs_mixed(self) -> bool:
        """Whether prompt chunks and decodes of a model can be one job."""
        return self.lane == "mixed" or self.may_unshare

    @property
    def uses_quotas(self) -> bool:
        """Whether every model holds at most its quota of KV blocks."""
        return self.lane == "adbs"

    @property
    def num_contexts(self) -> int:
        """CUDA contexts on each GPU of the mesh: the owner's, and one for every rung under MPS."""
        if self.partition not in ("mps", "auto") or self.num_ranks > 1:
            return 1
        return 1 + sum(len(worker.shares) for worker in self.workers)

    @property
    def num_communicators(self) -> int:
        """Communicators between the GPUs of the mesh: one a worker."""
        return len(self.workers) if self.num_ranks > 1 else 0

    @property
    def num_recordings(self) -> int:
        """Places that keep recorded decode steps of every model: those at which jobs decode."""
        decoding = (each for each in self.workers if Phase.DECODE in each.phases)
        # Mixed jobs run on all SMs; a worker that has no others that decode records steps there.
        num_mixed = sum(
            self.runs_mixed and Phase.MIXED in each.phases and Phase.DECODE not in each.phases
            for each in self.workers
        )
        return num_mixed + sum(len(each.shares) for each in decoding)

    def rungs(self, phase: Phase) -> tuple[float, ...]:
        """Return the SM shares at which jobs of `phase` can run, ascending."""
        able = [worker for worker in self.workers if phase in worker.phases]
        return tuple(sorted({share for worker in able for share in worker.shares}))

    def num_workers(self, phase: Phase) -> int:
        """Return how many jobs of `phase` can run at the same time beside other phases."""
        return sum(phase in worker.phases for worker in self.workers)


def executions(
    gpu: Gpu, tp: int, num_models: int, policy: UnitPolicy = UnitPolicy()
) -> tuple[Execution, ...]:
    """Return the ways in which a unit of `num_models` on `tp` GPUs can run; the planner chooses.

    The first one shares SMs where that is possible. A unit over several GPUs shares them by green
    contexts alone: MPS limits how many SMs a process has, but not which, and every rung would be a
    process with a communicator on each GPU. Unless a partition was named, a single model runs mixed
    jobs first, because prompts beside its decodes read the weights twice; on one GPU it may share
    the SMs, too, for work that gains by it. Raises CannotRun where the named partition cannot be
    had.
    """
    check_partition(gpu, policy.partition)
    if gpu.is_cpu:
        return (_on_cpu(gpu, tp, num_models, policy),)
    asked, lane = policy.partition, policy.scheduler.lane
    is_wide = tp > 1
    if is_wide and asked == "mps":
        message = f"a unit over {tp} GPUs shares SMs by green contexts: use auto, green or none"
        raise CannotRun("partition", message)
    alone = _alone_on_gpus(tp, policy)
    is_single = asked == "auto" and num_models == 1
    may_unshare = policy.scheduler.may_unshare and lane == "adbs"
    if asked == "none" or lane not in SHARING_LANES or (is_single and (is_wide or not may_unshare)):
        return (alone,)
    if gpu.shares == WHOLE:
        if asked != "auto":
            raise CannotRun("partition", f"{asked} cannot be had on this node's {gpu.name}")
        return (alone,)
    shared = Execution(
        lane,
        asked,
        _gpu_workers(num_models, _MOST_DECODES_APART if is_wide else _MOST_DECODES),
        policy.pipeline_depth or 2,
        may_unshare,
        num_ranks=tp,
        is_unproven=is_wide,
    )
    if is_single:
        return alone, shared
    return (shared, alone) if asked == "auto" and may_unshare else (shared,)


def execution_of(gpu: Gpu, unit: PlannedUnit, policy: UnitPolicy = UnitPolicy()) -> Execution:
    """Return the execution that the plan chose for `unit`; the first possible one if the plan says
    none (it was written by hand), or the mesh or policy no longer permit it.

    Raises CannotRun as `executions` does.
    """
    possible = executions(gpu, unit.tp, len(unit.models), policy)
    chosen = next((each for each in possible if planned(each) == unit.execution), None)
    return chosen or possible[0]


def planned(execution: Execution) -> PlannedExecution:
    """Return the execution as a plan carries it."""
    return PlannedExecution(
        lane=execution.lane,
        partition=execution.partition,
        workers=tuple(
            PlannedWorker(
                phases=tuple(sorted(phase.value for phase in worker.phases)), shares=worker.shares
            )
            for worker in execution.workers
        ),
        pipeline_depth=execution.pipeline_depth,
        may_unshare=execution.may_unshare,
        unproven=execution.is_unproven,
    )


def check_partition(gpu: Gpu, asked: str) -> None:
    """Raise CannotRun if no GPU of this kind has the partition."""
    if gpu.is_cpu and asked not in _CPU_PARTITIONS:
        message = f"{asked} divides a GPU; for a cpu node use auto, threads or none"
        raise CannotRun("partition", message)
    if not gpu.is_cpu and asked not in _GPU_PARTITIONS:
        message = f"{asked} divides the cores of a cpu node; for GPUs use auto, mps, green or none"
        raise CannotRun("partition", message)


def move_refusal(gpu: Gpu, execution: Execution) -> str:
    """Return why the engine cannot park and wake models of a unit that runs so, "" if it can."""
    if not gpu.is_cpu:
        return "no GPU engine moves weights yet"
    if execution.num_ranks > 1:
        return f"a unit over {execution.num_ranks} ranks does not move weights yet"
    if execution.partition != "threads":
        return f"partition {execution.partition} has no processes whose weights could be parked"
    return ""


def unshared(lane: str, pipeline_depth: int = 1) -> Execution:
    """Return an execution with one worker for every phase, under any lane as it is."""
    return Execution(lane, "none", _ONE_WORKER, pipeline_depth)


def _alone_on_gpus(tp: int, policy: UnitPolicy) -> Execution:
    depth = _depth(policy, tp)
    lane, is_unproven = _alone(policy.scheduler.lane), tp > 1 and depth > 1
    return Execution(lane, "none", _ONE_WORKER, depth, num_ranks=tp, is_unproven=is_unproven)


def _depth(policy: UnitPolicy, tp: int) -> int:
    """Return the pipeline's depth on one rank, or on ranks that run one job at a time."""
    return policy.pipeline_depth or (2 if tp == 1 else 1)


def _on_cpu(gpu: Gpu, tp: int, num_models: int, policy: UnitPolicy) -> Execution:
    """Return two workers if the lane can use them, each on half of a rank's threads or on all.

    With adbs and one model, return one: it keeps all cores busy alone, and prompts beside its
    decodes would read the weights twice (measured: 1.2 times the tokens/s in one forward pass).
    """
    lane = policy.scheduler.lane
    depth = _depth(policy, tp)
    num_threads = (policy.num_threads or gpu.num_sms) // tp
    is_shared = (
        policy.partition != "none"
        and num_threads > 1
        and lane in SHARING_LANES
        and (lane != "adbs" or num_models > 1)
    )
    if not is_shared:
        partition = "threads" if tp == 1 else "none"
        partition = partition if policy.partition == "auto" else policy.partition
        return Execution(_alone(lane), partition, _ONE_WORKER, depth, num_ranks=tp)
    workers = tuple(WorkerSpec(worker_id, (0.5, 1.0)) for worker_id in (0, 1))
    may_unshare = policy.scheduler.may_unshare and lane == "adbs"
    return Execution(lane, "threads", workers, depth, may_unshare, num_ranks=tp)


def _gpu_workers(num_models: int, most_decodes: int) -> tuple[WorkerSpec, ...]:
    """Return one worker for prefills (and mixed jobs without sharing), others for decodes."""
    shares = _PREFILL_SHARES_ALONE if num_models == 1 else _PREFILL_SHARES
    prefill = WorkerSpec(0, shares, frozenset({Phase.PREFILL, Phase.MIXED}))
    decodes = (
        WorkerSpec(1 + index, _DECODE_SHARES, frozenset({Phase.DECODE}))
        for index in range(min(num_models, most_decodes))
    )
    return (prefill, *decodes)


def _alone(lane: str) -> str:
    """Return the lane of a unit with one worker: without sharing, adbs becomes `mixed`."""
    return "mixed" if lane == "adbs" else lane


def scheduler_of(execution: Execution, policy: UnitPolicy, token_budget: int) -> SchedulerSpec:
    """Return the scheduler's specification of a unit that runs so."""
    return replace(
        policy.scheduler,
        lane=execution.lane,
        may_unshare=execution.may_unshare,
        token_budget=token_budget,
        pipeline_depth=execution.pipeline_depth,
    )
