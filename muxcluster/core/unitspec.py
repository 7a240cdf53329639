"""Everything a unit is told before it starts, as plain frozen values that travel as JSON."""

from dataclasses import dataclass

from muxcluster.core.job import WorkerSlot
from muxcluster.core.kvshape import KvShape
from muxcluster.core.padded import PaddedLimit
from muxcluster.core.request import Slo


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model of a unit.

    path: Hugging Face directory. load_format: "auto" (safetensors) or "dummy" (random weights
    from `seed`). dtype: "float32", "bfloat16" or "float16"; weights, activations and KV alike.
    weight_bytes: what a step reads beside the KV; 0: not known.
    backend: "paged" (our attention over the unit's blocks), "dense" (the model's own attention and
    cache) or "auto" (paged where the model allows it). trust_remote_code: code in its directory
    may run. padded: what its padded batches take; None where it has none. is_positional: its cache
    is one entry a token. Both are known once it is loaded.
    max_seqs: slots, that is sequences that may hold KV at the same time.
    rate_per_s, mean_prompt_tokens, mean_output_tokens: expectations of the plan; the scheduler
    starts from them and then measures.
    """

    name: str
    path: str
    shape: KvShape
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    dtype: str = "float32"
    load_format: str = "auto"
    seed: int = 0
    max_seqs: int = 64
    prefix_caching: bool = True
    rate_per_s: float = 1.0
    mean_prompt_tokens: float = 161.0
    mean_output_tokens: float = 338.0
    slo: Slo | None = None
    weight_bytes: int = 0
    backend: str = "auto"
    trust_remote_code: bool = False
    padded: PaddedLimit | None = None
    is_positional: bool = True


@dataclass(frozen=True, slots=True)
class SchedulerSpec:
    """Policies by name and their few numbers.

    lane: "adbs", "temporal", "round-robin" or "mixed". may_unshare: "adbs" turns to mixed jobs as
    long as sharing the SMs is measured to gain less.
    packing: "hybrid" (interactive by targets, batch in their slack), "additive" (the same with the
    paper's size of a job), "priority" (class, priority, arrival), "fcfs" (arrival alone) or
    "round-robin" (classes in turn).
    token_budget: most tokens a prefill or mixed job may process; longer prompts are chunked.
    max_decode_rows: most rows of a decode job. quota_period_s: seconds between quota adaptations.
    shared_prefix_tokens: rows that decode and read the same cached blocks over at least so many
    tokens read them once for all; 0: never.
    pipeline_depth: 2: where a decode job is sure to be followed by one of the same sequences, that
    one is with the worker before it ends (scheduling/lookahead/pipelining.py); 1: never.
    Of packing "hybrid" alone: batch_stretch: by how many times its time batch rows may lengthen a
    job of interactive ones, where targets allow it. ageing_s: batch work that found no job for so
    long is in the next one, and an interactive request that is late lets those that are not go
    first for so long. shares_blocks: batch sequences lend blocks to interactive ones, what is
    overwritten is saved to host memory; else they are preempted and recomputed. saves_lazily: only
    slots about to be overwritten are saved, not all of a block. Of packing "additive" alone:
    first_rows, more_rows: where the size of a job starts and by how much it grows (BROS Alg. 1).
    """

    lane: str = "adbs"
    may_unshare: bool = False
    packing: str = "priority"
    token_budget: int = 2048
    max_decode_rows: int = 256
    quota_period_s: float = 5.0
    shared_prefix_tokens: int = 128
    pipeline_depth: int = 1
    batch_stretch: float = 2.0
    ageing_s: float = 30.0
    first_rows: int = 16
    more_rows: int = 4
    shares_blocks: bool = True
    saves_lazily: bool = True


@dataclass(frozen=True, slots=True)
class UnitSpec:
    """One unit: its models, its KV pool, its workers.

    tp: ranks that every model is divided over, one process each. With several, whatever counts
    heads, blocks or bytes (KvShape, num_blocks, num_host_blocks, weight_bytes, host_link) is of one
    rank; all have the same, and block ids mean the same on each.
    rank_devices: of the ranks in order; empty: `device` for all.

    num_blocks, block_bytes: the pool; one uint8 tensor [num_blocks, block_bytes].
    num_host_blocks: host memory for checkpoints of preempted sequences, blocks of the same size.
    host_link: bytes/s between it and the pool; 0: not known.
    device: "cpu" or "cuda:N". partition: "none" (in-process), "threads" (CPU child processes),
    "mps" (child processes that share a GPU), "green" (green contexts in-process), or "auto" on a
    GPU: which of them is found out where the unit starts.
    num_threads: CPU threads that an SM share of 1.0 stands for.
    fuses_layers: models of a known kind run on merged products and our own kernels, where a check
    at load proves that their logits are the same. False, for comparison: on transformers' layers.
    """

    unit_id: str
    models: tuple[ModelSpec, ...]
    num_blocks: int
    block_bytes: int
    workers: tuple[WorkerSlot, ...]
    scheduler: SchedulerSpec = SchedulerSpec()
    device: str = "cpu"
    partition: str = "threads"
    num_threads: int = 2
    num_host_blocks: int = 0
    host_link: float = 0.0
    tp: int = 1
    rank_devices: tuple[str, ...] = ()
    fuses_layers: bool = True
