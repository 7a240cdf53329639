"""Specification of a unit: plain frozen values that travel as JSON."""

from dataclasses import dataclass, replace

from muxcluster.core.inputs.carried import Carried
from muxcluster.core.job import WorkerSpec
from muxcluster.core.kvshape import KvDtype, KvShape
from muxcluster.core.padded import PaddedLimit
from muxcluster.core.request import Slo
from muxcluster.core.residency import Residency

# Packings whose batch sequences lend blocks, so that a unit has host memory for what they held.
LENDING_PACKINGS = frozenset({"hybrid", "additive"})
# Places of a job whose fp32 logits plans count: one a row, and one for each draft token
MOST_LOGIT_PLACES = 256


@dataclass(frozen=True, slots=True)
class AdapterSpec:
    """A LoRA adapter, which makes another model of its base."""

    name: str  # of that model
    path: str  # directory in PEFT's format
    num_bytes: int = 0  # of its weights, of all ranks; 0: not known


@dataclass(frozen=True, slots=True)
class SpeculationSpec:
    """How the next output tokens of a model's requests are guessed, to be checked in one step.

    Prompt lookup (Saxena 2023; `ngram` of vLLM): what followed the last tokens of a request where
    they occur in its prompt and output before.
    """

    num_tokens: int = 4  # most draft tokens of a row in one job
    # longest_match, shortest_match: how many of the last tokens must occur before: as many as do,
    # up to the one, and no fewer than the other
    longest_match: int = 4
    shortest_match: int = 2
    # True: also where drafts are not measured to gain, for comparison and tests
    is_forced: bool = False
    acceptance: float = 0.0  # in a simulator: chance that a draft is right; 0: nothing is guessed


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model of a unit."""

    name: str
    path: str  # Hugging Face directory
    shape: KvShape
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    dtype: str = "float32"  # "float32", "bfloat16" or "float16": of weights, activations and KV
    load_format: str = "auto"  # "auto" (safetensors) or "dummy" (random weights from `seed`)
    seed: int = 0
    # "int8", "int4" or "fp8": the linears of an ordinary checkpoint are quantised when it is loaded
    # (`WeightFormat`); "": weights stay as they are stored, quantised or not
    quantize: str = ""
    # "auto" (in `dtype`), "int8" or "fp8_e4m3": how keys and values are stored; `shape` counts the
    # bytes of these
    kv_dtype: KvDtype = "auto"
    # Most interactive sequences that hold KV at the same time, and rows that batch ones have beside
    # these: batch sequences also take rows that interactive ones leave free
    max_seqs: int = 64
    batch_seqs: int = 0
    prefix_caching: bool = True
    # rate_per_s, mean_prompt_tokens, mean_output_tokens: expectations of the plan; the scheduler
    # starts from them and then measures
    rate_per_s: float = 1.0
    mean_prompt_tokens: float = 161.0
    mean_output_tokens: float = 338.0
    slo: Slo | None = None
    weight_bytes: int = 0  # read by every step, beside the KV; 0: not known
    # "paged" (our attention over the unit's blocks), "dense" (the model's own attention and cache)
    # "encoder" (every token attends to all of its text; nothing is kept), or "auto" (paged where
    # the model allows it, else dense)
    backend: str = "auto"
    trust_remote_code: bool = False  # code in its directory may run
    padded: PaddedLimit | None = None  # of its padded batches, if any; known once it is loaded
    is_positional: bool = True  # its cache is one entry a token; known once it is loaded
    # Its attention takes the tokens of a full block in any order, so both classes share prefixes:
    # paged, without sliding windows; known once it is loaded
    is_unordered: bool = True
    # Tokens of `window_layers`, ascending, see only the last `window` tokens, each itself among
    # them: blocks behind are given back while a sequence runs. Known once it is loaded, before that
    # from its config.json. Other layers see all tokens
    window: int = 0
    window_layers: tuple[int, ...] = ()
    residency: Residency = Residency.ALWAYS
    # What it takes of `UnitSpec.resident_bytes` while it is resident: weights, tables, histories
    resident_bytes: int = 0
    wake_s: float = 0.0  # predicted seconds until parked weights are resident again
    # Numbers of a hidden state of an embedding model, whose requests end with that of their last
    # prompt token and a token that means nothing; 0: the model generates
    embedding_size: int = 0
    # Which last hidden states make the vector: "lasttoken" (decoders), "cls" (the first token's) or
    # "mean" (of all tokens). "score": the vector is what a classifier makes of them. The last three
    # are of the backend "encoder" alone.
    pooling: str = "lasttoken"
    # Models that requests may ask for in its place: its own weights, and what each of these adds
    adapters: tuple[AdapterSpec, ...] = ()
    # adapter_places, adapter_rank: how many other adapters its running rows may have at a time, and
    # their highest rank
    adapter_places: int = 0
    adapter_rank: int = 0
    speculation: SpeculationSpec | None = None  # None: nothing is guessed
    # Columns of blocks that each sequence has before those of its tokens, for the states of layers
    # without keys and values; 0: there are none, or the dense backend keeps them
    state_columns: int = 0

    @property
    def num_rows(self) -> int:
        """Sequences of both classes that may hold KV at the same time."""
        return self.max_seqs + self.batch_seqs


@dataclass(frozen=True, slots=True)
class SchedulerSpec:
    """Names and parameters of the scheduling policies."""

    lane: str = "adbs"  # "adbs", "temporal", "round-robin" or "mixed"
    # "adbs" runs mixed jobs while sharing the SMs is measured to gain less
    may_unshare: bool = False
    # "hybrid" (interactive by targets, batch in their slack), "additive" (the same with the paper's
    # size of a job), "priority" (class, priority, arrival), "fcfs" (arrival alone) or "round-robin"
    # (classes in turn)
    packing: str = "priority"
    # Most tokens of a prefill or mixed job; longer prompts are chunked
    token_budget: int = 2048
    max_decode_rows: int = 256  # most rows of a decode job
    quota_period_s: float = 5.0  # seconds between quota adaptations
    # Rows that decode and read the same cached blocks over at least so many tokens read them once
    # for all; 0: never
    shared_prefix_tokens: int = 128
    # 2: if a decode job is sure to be followed by one of the same sequences, that one is sent to
    # the worker before the first ends (scheduling/pipelining.py); 1: never
    pipeline_depth: int = 1
    # Packing "hybrid": batch work that got into no job for so long is in the next one, and a late
    # interactive request lets those that are still in time go first for so long
    ageing_s: float = 30.0
    # first_rows, more_rows: packing "additive": first size of a job and its growth (BROS Alg. 1)
    first_rows: int = 16
    more_rows: int = 4
    # Packing "hybrid": batch sequences lend blocks to interactive ones, and what is overwritten is
    # saved to host memory; False: they are preempted and recomputed
    shares_blocks: bool = True
    # Packing "hybrid": only slots about to be overwritten are saved, not whole blocks
    saves_lazily: bool = True
    # Where weights do not fit together, whose are resident: "deadline", "foresight" (the same, and
    # models are woken ahead of requests that are expected), or for comparison "swap" (one model at
    # a time) or "static" (those of the start; the others are refused)
    wakes: str = "deadline"
    # CPU units: where the constraint of a request leaves one token at each of several places, these
    # are its output at once, and the next job computes them together; False: one a step
    joins_forced: bool = True


@dataclass(frozen=True, slots=True)
class UnitSpec(Carried):
    """One unit: its models, its KV pool, its workers."""

    unit_id: str
    models: tuple[ModelSpec, ...]
    num_blocks: int  # num_blocks, block_bytes: the pool; one uint8 tensor [num_blocks, block_bytes]
    block_bytes: int
    workers: tuple[WorkerSpec, ...]
    scheduler: SchedulerSpec = SchedulerSpec()
    device: str = "cpu"  # "cpu" or "cuda:N"
    # "none" (in-process), "threads" (CPU child processes), "mps" (child processes that share a
    # GPU), "green" (green contexts in-process), or "auto" on a GPU: which of them is found out
    # where the unit starts
    partition: str = "threads"
    num_threads: int = 2  # CPU threads that an SM share of 1.0 stands for
    # Host memory for checkpoints of preempted sequences, blocks of the same size
    num_host_blocks: int = 0
    host_link: float = 0.0  # bytes/s between it and the pool; 0: not known
    # Ranks that every model is divided over, one process each. With several, whatever counts heads,
    # blocks or bytes (KvShape, num_blocks, num_host_blocks, weight_bytes, host_link) is of one
    # rank; all have the same, and block ids mean the same on each.
    tp: int = 1
    rank_devices: tuple[str, ...] = ()  # of the ranks in order; empty: `device` for all
    # Memory that models may take while they are resident, of one rank; 0: all of them always are
    resident_bytes: int = 0
    # Models of a known kind run on merged matrix products and our own kernels, if a check at load
    # finds the same logits; False (for comparison): on transformers' layers
    fuses_layers: bool = True
    # Unix socket of the process that tells what constraints allow, set where the unit starts;
    # empty: no request with a constraint can run
    mask_address: str = ""

    @property
    def joins_forced(self) -> bool:
        """True if a job may return several tokens of a row whose constraint leaves no choice.

        Only on CPUs: on a GPU the job after it could not be a recorded step.
        """
        return self.scheduler.joins_forced and self.device == "cpu"

    @property
    def mesh_block_bytes(self) -> int:
        """Bytes of a block over all ranks."""
        return self.tp * self.block_bytes

    def of_rank(self, rank: int) -> "UnitSpec":
        """Return what one rank loads and runs: its device, its part of the processor's threads."""
        device = self.rank_devices[rank] if self.rank_devices else self.device
        return replace(self, device=device, num_threads=max(1, self.num_threads // self.tp))
