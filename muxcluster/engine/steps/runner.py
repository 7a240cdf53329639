"""All models of a unit in this process: weights, shared memory, and the execution of jobs."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from muxcluster.constraints.process.client import MaskClient
from muxcluster.core.backends import ModelBackend, as_loaded, paged_backend
from muxcluster.core.errors import LoadError
from muxcluster.core.job import Job, JobResult, Phase
from muxcluster.core.unitspec import ModelSpec, UnitSpec
from muxcluster.engine.adapters.weights import read_adapters
from muxcluster.engine.decoders.adapted import check_calls, linear_sizes, with_adapters
from muxcluster.engine.decoders.kernel_fusing import forward_on_gpu, packed_decoder
from muxcluster.engine.decoders.torch_fusing import fuse, fuse_checked, is_fusible
from muxcluster.engine.dense.encoder import Encoder
from muxcluster.engine.dense.model import DenseModel
from muxcluster.engine.dense.slab import Slab, slab_for
from muxcluster.engine.forward.attention import LayerCall
from muxcluster.engine.forward.paged_forward import TokenForward
from muxcluster.engine.forward.prefix_rows import Reordered, side_by_side
from muxcluster.engine.load.backends import load
from muxcluster.engine.load.division.group import RankGroup
from muxcluster.engine.load.division.part import Part
from muxcluster.engine.load.packing_cpu import pack_linears
from muxcluster.engine.load.paged_loading import load_model
from muxcluster.engine.load.parity import NotTheSame
from muxcluster.engine.load.tensor_loading import whole_and_parts
from muxcluster.engine.memory.arena import Arena
from muxcluster.engine.memory.copies import UnitCopies
from muxcluster.engine.sampling.results import Pending, Ready
from muxcluster.engine.states.forward import stateful_forward
from muxcluster.engine.steps.device.captures import Capture, capture_for
from muxcluster.engine.steps.device.warm_up import prompt_steps, token_steps
from muxcluster.engine.steps.model_runner import ModelRunner
from muxcluster.engine.steps.pending_job import PendingJob
from muxcluster.engine.steps.pieces import PieceThreads, cut
from muxcluster.engine.vision.loading import plain_forward

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class UnitMemory:
    """What the runners of a unit share."""

    forwards: Mapping[str, TokenForward | Slab | Encoder]  # by model name
    arena: Arena

    @property
    def backends(self) -> tuple[ModelBackend, ...]:
        """How the models run, in order."""
        states = {name: self.arena.model(name).num_state_columns for name in self.forwards}
        return _backends(self.forwards, states)


@dataclass(frozen=True, slots=True)
class Earlier:
    """What an earlier load of a model on the CPU has shown."""

    fused_calls: Sequence[LayerCall] | None  # of its layers, if it runs fused


class UnitRunner:
    """Loads the unit's models and runs its jobs, one at a time.

    On the CPU a process may fork after construction: children share weights, pool, tables and
    histories, but each has its own sampling parameters (see `Admission`).
    """

    def __init__(
        self,
        spec: UnitSpec,
        memory: UnitMemory | None = None,
        capture: Capture | None = None,
        group: RankGroup | None = None,
    ) -> None:
        """Load the models and allocate, or use `memory`, loaded here or in another process.

        Jobs of models that `memory` lacks cannot run here; jobs may copy slots of theirs.

        capture: how decode steps are recorded; None: chosen for the device. group: of the ranks
        that the models are divided over, which run the same jobs in one order. Raises LoadError
        naming the file of a model that cannot be loaded.
        """
        self._spec = spec
        self._workers = {worker.worker_id: worker for worker in spec.workers}
        self._device = torch.device(spec.device)
        capture = capture or capture_for(self._device)
        self._group = group
        self._is_cpu = self._device.type == "cpu"
        self._use_device()
        self.memory = memory or self._all_loaded()
        models, self.arena = self.memory.forwards, self.memory.arena
        self._copies = UnitCopies(spec, self.arena)
        self._pieces = PieceThreads()
        masks = None
        if spec.mask_address:
            masks = MaskClient(spec.mask_address, joins=spec.joins_forced)
        self._models = {
            model.name: ModelRunner(
                model,
                models[model.name],
                self.arena.pool,
                self.arena.model(model.name),
                capture,
                masks,
            )
            for model in spec.models
            if model.name in models
        }

    @property
    def backends(self) -> tuple[ModelBackend, ...]:
        """How the models run, in order."""
        return self.memory.backends

    def execute(self, job: Job) -> JobResult:
        return self.launch(job).result()

    @torch.inference_mode()
    def launch(self, job: Job) -> PendingJob:
        """Make the job's copies, apply its admissions and table entries, run its rows, sample.

        Sampled tokens are in the history afterwards, so a following job may continue from them: on
        a GPU it may be launched on the same stream before this one's result was read. A job with
        copies has ended on return.
        """
        started = time.monotonic()
        self._use_device()
        self._use_share(job.share)
        if job.copies:
            self._copies.run(job.copies)
        model = self._models[job.model]
        for admission in job.admissions:
            model.admit(admission)
        model.write_tables(job.tables)
        pending = self._run(model, job)
        if job.copies:
            pending = Ready(pending.result())
            self._copies.settle()
        return PendingJob(job, started, pending)

    def waits(self, job: Job) -> bool:
        return bool(job.copies) or self._models[job.model].waits(job.rows)

    @torch.inference_mode()
    def warm_up(self, worker_id: int) -> None:
        """Compile the kernels that jobs of `worker_id` can need, by steps that touch no sequence.

        Other runners of this process, at other shares too, need not do it again.
        """
        self._use_device()
        worker, policy = self._workers[worker_id], self._spec.scheduler
        for model in self._spec.models:
            most = min(model.num_rows, max(policy.max_decode_rows, policy.token_budget))
            shares = policy.shared_prefix_tokens > 0 and model.prefix_caching
            steps = token_steps(most, shares=shares)
            if not worker.phases <= {Phase.DECODE}:
                steps = [*prompt_steps(most, model.max_model_len), *steps]
            self._models[model.name].warm_up(steps)

    @torch.inference_mode()
    def record(self, worker_id: int, share: float = 1.0) -> None:
        """Record the likeliest decode steps of all models for the calling thread's stream.

        share: of the SMs that it has. Does nothing if `worker_id` has no decode jobs: the steps in
        which a worker of mixed jobs decodes are recorded when they are met.
        """
        self._use_device()
        worker = self._workers[worker_id]
        if Phase.DECODE not in worker.phases:
            return
        for model in self._spec.models:
            if model.embedding_size:
                continue  # it never decodes
            most = min(model.max_seqs, self._spec.scheduler.max_decode_rows)
            self._models[model.name].record(most, share / worker.shares[-1])

    @torch.inference_mode()
    def record_next(self) -> bool:
        """Record one more decode step that was met; return whether there was one.

        For the calling thread's stream, when it is idle.
        """
        self._use_device()
        return any(model.record_next() for model in self._models.values())

    def _run(self, model: ModelRunner, job: Job) -> Pending:
        """Run the rows at once, or in pieces side by side if that is faster on the CPU."""
        threads = self._threads(job.share)
        rows, order = side_by_side(job.rows)
        pieces = cut(rows, threads if model.is_fused else 1)
        if len(pieces) == 1:
            phases = self._workers[job.worker_id].phases
            is_recorded = job.phase is not Phase.PREFILL or Phase.DECODE in phases
            pending = model.launch(rows, job.max_steps, is_recorded=is_recorded)
        else:
            work = partial(model.run, num_steps=job.max_steps)
            pending = Ready(self._pieces.run(work, rows, pieces, threads))
        return pending if order is None else Reordered(pending, order, rows.samples)

    def _all_loaded(self) -> UnitMemory:
        """Load all models, then allocate the pool without the blocks that models borrow from it."""
        forwards = {
            model.name: load_forward(model, self._spec, self._group) for model in self._spec.models
        }
        states = {model.name: model.state_columns for model in self._spec.models}
        return UnitMemory(forwards, Arena(as_loaded(self._spec, _backends(forwards, states))))

    def _use_device(self) -> None:
        # Triton launches on that one, wherever the tensors are, and a new thread begins with the
        # first.
        if self._device.type == "cuda" and self._device.index is not None:
            torch.cuda.set_device(self._device)

    def _use_share(self, share: float) -> None:
        """Set torch's threads: an SM share of a CPU is a number of threads."""
        threads = self._threads(share)
        if self._is_cpu and torch.get_num_threads() != threads:
            torch.set_num_threads(threads)

    def _threads(self, share: float) -> int:
        return max(1, round(share * self._spec.num_threads))


def load_forward(
    spec: ModelSpec,
    unit: UnitSpec,
    group: RankGroup | None = None,
    earlier: Earlier | None = None,
) -> TokenForward | Slab | Encoder:
    """Load one model of `unit` and prepare it for its device. Raises LoadError as `load`.

    earlier: what loading the same files has shown; it is not checked again.
    """
    is_checked = earlier is not None
    model = load(spec, unit.device, group, is_checked=is_checked)
    has_adapters = bool(spec.adapters or spec.adapter_places)
    if has_adapters and isinstance(model, Encoder | DenseModel):
        raise LoadError(Path(spec.path, "config.json"), "its adapters need the paged backend")
    if spec.speculation is not None and isinstance(model, Encoder | DenseModel):
        raise LoadError(Path(spec.path, "config.json"), "speculation needs the paged backend")
    if spec.state_columns and (has_adapters or spec.speculation is not None):
        refused = "adapters" if has_adapters else "speculation"
        raise LoadError(Path(spec.path, "config.json"), f"a model with states has no {refused}")
    if isinstance(model, Encoder):
        return model
    if isinstance(model, DenseModel):
        return slab_for(model, spec, unit)
    if not has_adapters:
        return _plain_forward(model, spec, unit, group, earlier)
    whole: nn.Module = model
    parts: Mapping[str, Part] = {}
    if group is not None:
        whole, parts = whole_and_parts(spec, group)
    adapters, sizes = read_adapters(whole, spec, unit.device, parts), linear_sizes(model)
    plain = _plain_forward(model, spec, unit, group, earlier)
    forward = with_adapters(plain, adapters, sizes)
    if earlier is None:
        check_calls(forward, spec)
    return forward


def _plain_forward(
    model: nn.Module,
    spec: ModelSpec,
    unit: UnitSpec,
    group: RankGroup | None,
    earlier: Earlier | None,
) -> TokenForward:
    """Return the forward of a paged model, prepared for its device."""
    if spec.state_columns:
        if torch.device(unit.device).type == "cpu":
            pack_linears(model)
        return stateful_forward(model, spec, unit.block_bytes)
    if torch.device(unit.device).type != "cpu":
        return forward_on_gpu(model, spec, fuses=unit.fuses_layers)
    if earlier is not None and earlier.fused_calls is not None:
        return fuse_checked(model, spec.max_model_len, earlier.fused_calls)
    if unit.fuses_layers and earlier is None and is_fusible(model):
        make = fuse if group is None else packed_decoder
        try:
            return make(model, spec.max_model_len)
        except NotTheSame as error:
            logger.warning("%s runs unfused: %s", spec.name, error)
            model = load_model(spec, unit.device, group)
    pack_linears(model)
    return plain_forward(model, spec, is_checked=earlier is not None)


def _backends(
    forwards: Mapping[str, TokenForward | Slab | Encoder], state_columns: Mapping[str, int]
) -> tuple[ModelBackend, ...]:
    """Return how the models run. state_columns: of each that is paged, see `ModelSpec`."""
    return tuple(
        each.backend
        if isinstance(each, Slab | Encoder)
        else paged_backend(
            name,
            each.windows,
            is_unordered=not any(each.windows),
            state_columns=state_columns[name],
        )
        for name, each in forwards.items()
    )
