"""Runner of one model of a unit: make a job's pending writes, run its forwards, sample."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from torch import Tensor

from muxcluster.constraints.process.client import MaskClient
from muxcluster.core.job import Admission, Rows, TableDelta
from muxcluster.core.unitspec import ModelSpec
from muxcluster.engine.adapters.forward import AdaptedForward, RowAdapters
from muxcluster.engine.decoders.torch_decoder import FusedDecoder
from muxcluster.engine.dense.encoder import Encoder, EncoderRows
from muxcluster.engine.dense.rows import DenseRows
from muxcluster.engine.dense.slab import Slab
from muxcluster.engine.dense.store import RowStore
from muxcluster.engine.forward.loaded_model import LoadedModel
from muxcluster.engine.forward.paged_forward import TokenForward
from muxcluster.engine.memory.arena import ModelArena
from muxcluster.engine.sampling.constrained import ConstrainedRows
from muxcluster.engine.sampling.parameters import SequenceSampling
from muxcluster.engine.sampling.prompt_positions import PromptPositions
from muxcluster.engine.sampling.results import Pending, Ready, RowsResult
from muxcluster.engine.states.forward import StatefulForward
from muxcluster.engine.states.rows import StatefulRows
from muxcluster.engine.steps.device.captures import Capture
from muxcluster.engine.steps.device.steps import DeviceSteps
from muxcluster.engine.steps.device.warm_up import WarmUpStep
from muxcluster.engine.steps.host_steps import HostSteps, PagedRows, RowsForward
from muxcluster.engine.vision.forward import VisionForward
from muxcluster.engine.vision.rows import RowImages


class Steps(Protocol):
    """Runs the steps of one model on its device; its methods are those of `ModelRunner`."""

    def admit(self, admission: Admission) -> None: ...

    def write_tables(self, delta: TableDelta) -> None: ...

    def warm_up(self, steps: Sequence[WarmUpStep]) -> None: ...

    def record(self, num_rows: int, share: float) -> None: ...

    def record_next(self) -> bool: ...

    def launch(self, rows: Rows, num_steps: int, *, is_recorded: bool) -> Pending: ...

    def waits(self, rows: Rows) -> bool: ...


class ModelRunner:
    """Runs one model's rows, on the CPU step by step, on a GPU without waiting for it."""

    def __init__(
        self,
        spec: ModelSpec,
        forward: TokenForward | Slab | Encoder,
        pool: Tensor,
        arena: ModelArena,
        capture: Capture | None = None,
        masks: MaskClient | None = None,
    ) -> None:
        """pool: uint8 [num_blocks, block_bytes], shared by all models; arena: this model's part.

        capture: how decode steps are recorded. None: steps run on the CPU or, for an encoder, a
        model with a cache of its own (Slab), one with states or one that takes images, on any
        device, and are waited for. masks: what tells which tokens constraints allow; None: no
        request with one can be admitted.
        """
        self._sampling = SequenceSampling(
            spec.num_rows,
            spec.embedding_size or spec.vocab_size,
            spec.eos_token_ids,
            is_embedding=spec.embedding_size > 0,
        )
        self._prompts = PromptPositions()
        # A step over several tokens of a row is none that was recorded, and a padded one no decode.
        may_join = capture is None and not isinstance(forward, Slab | Encoder)
        self._constrained = ConstrainedRows(spec, arena.history, masks, may_join=may_join)
        self._adapters: RowAdapters | None = None
        own = forward
        if isinstance(forward, AdaptedForward):
            self._adapters, own = RowAdapters(forward, spec.num_rows), forward.plain
        self._images = RowImages(own) if isinstance(own, VisionForward) else None
        self._runs_in_pieces = capture is None and isinstance(own, FusedDecoder)
        self._steps: Steps
        is_waited_for = self._images is not None or isinstance(forward, StatefulForward)
        if capture is not None and not is_waited_for and not isinstance(forward, Slab | Encoder):
            model = LoadedModel(
                spec.name,
                forward,
                pool,
                arena,
                self._sampling,
                self._prompts,
                self._constrained,
                spec.max_seqs,
                self._adapters,
            )
            self._steps = DeviceSteps(model, capture)
            return
        rows: RowsForward
        if isinstance(forward, Encoder):
            rows = EncoderRows(forward, arena, spec.embedding_size)
        elif isinstance(forward, Slab):
            store = RowStore(pool, arena, spec.shape, forward.model.layout)
            rows = DenseRows(forward.model, store, arena, forward.limit)
        elif isinstance(forward, StatefulForward):
            rows = StatefulRows(forward, pool, arena, spec.shape)
        else:
            rows = PagedRows(forward, pool, arena, self._adapters, self._images)
        self._steps = HostSteps(rows, arena, self._sampling, self._prompts, self._constrained)

    @property
    def is_fused(self) -> bool:
        """True if the forward is our own, which several threads may run at a time."""
        return self._runs_in_pieces

    def admit(self, admission: Admission) -> None:
        """Record a row's sampling parameters, side, adapter and images, and tokens if any come."""
        self._sampling.admit(admission.row, admission.sampling, admission.num_prompt_tokens)
        self._prompts.admit(admission)
        self._constrained.admit(admission)
        if self._adapters is not None:
            self._adapters.admit(admission)
        if self._images is not None:
            self._images.admit(admission)
        self._steps.admit(admission)

    def write_tables(self, delta: TableDelta) -> None:
        """Add the delta's blocks to the block tables before the next rows run."""
        self._steps.write_tables(delta)

    def warm_up(self, steps: Sequence[WarmUpStep]) -> None:
        """Run steps that touch no sequence, so that the kernels they need are compiled."""
        self._steps.warm_up(steps)

    def record(self, num_rows: int, share: float) -> None:
        """Record the likeliest decode steps of up to `num_rows` rows for the thread's stream.

        share: as in `decode_graphs.sizes_ahead`.
        """
        self._steps.record(num_rows, share)

    def record_next(self) -> bool:
        """Record one more decode step that was met; return whether there was one.

        It takes some forwards; the calling thread's stream is the one of the steps.
        """
        return self._steps.record_next()

    def launch(self, rows: Rows, num_steps: int, *, is_recorded: bool = True) -> Pending:
        """Give the rows to the device; with `num_steps` > 1 each continues from its sampled token.

        is_recorded: recorded steps may be used, and memory be taken for them. False for prompts
        where nothing decodes: the plan has no memory for recorded steps there.
        Sampled tokens are written to the history before anything that is launched later, so the
        next steps may continue from them unseen. Waits for the device only if a row needs what the
        host computes: constraints, penalties, bias, logprobs.
        """
        assert num_steps == 1 or np.all(rows.samples), "only decode rows take several steps"
        pending = self._steps.launch(rows, num_steps, is_recorded=is_recorded)
        if self._images is None:
            return pending
        num_tokens, seconds = self._images.taken()
        return Ready(replace(pending.result(), image_tokens=num_tokens, image_s=seconds))

    def waits(self, rows: Rows) -> bool:
        """Return whether `launch` returns only when the rows that decode have ended."""
        return self._steps.waits(rows)

    def run(self, rows: Rows, num_steps: int) -> RowsResult:
        """Launch the rows, wait for them and return their result."""
        return self.launch(rows, num_steps).result()
