"""The keys of muxcluster.yaml, their types, ranges and defaults (DESIGN.md §8)."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from muxcluster.core.inputs.api_key import checked_key


def _checked_path(text: str) -> str:
    """Raises ValueError for text that no path can be."""
    if not text or "\0" in text or len(text) > _LONGEST_PATH:
        raise ValueError(f"a path has 1 to {_LONGEST_PATH} characters, none of them NUL")
    try:
        Path(text).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{Path(text).parts[0]} is no user's folder") from error
    return text


_LONGEST_PATH = 4096
Name = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][\w.:/-]*$")]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Amount = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
"""Rates, weights and GiB: more than any cluster has, and far from what overflows in sums."""
Tokens = Annotated[float, Field(ge=1, le=1e8, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Key = Annotated[str, AfterValidator(checked_key)]
PathText = Annotated[str, AfterValidator(_checked_path)]
Port = Annotated[int, Field(ge=0, le=65535)]


class Section(BaseModel):
    """Frozen, strict (no text for numbers), no unknown keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class SloSection(Section):
    """Latency targets in seconds: first token, each further token."""

    ttft: Positive
    tpot: Positive


class ModelSection(Section):
    """One model. path: Hugging Face directory, relative to the file; or shape, to plan without it.

    rate: expected requests/s; prompt_tokens, output_tokens: their mean lengths. weight: worth of a
    request where policy.objective is "weighted". dtype: "auto" is float32 on CPU and the model's
    own on GPUs. load_format: "dummy" makes random weights from `seed`. max_model_len: longest
    prompt plus output, by default the model's own. max_seqs: most sequences that hold KV at once.
    backend: "paged" (our attention in place of the model's), "dense" (the model's own attention and
    cache, any kind that transformers loads) or "auto": paged where the model allows it.
    trust_remote_code: code in the model's directory may run, with all rights of the server.
    """

    name: Name
    path: PathText | None = None
    shape: str | None = None
    rate: Amount = 1.0
    weight: Amount = 1.0
    prompt_tokens: Tokens = 161.0
    output_tokens: Tokens = 338.0
    slo: SloSection | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    load_format: Literal["auto", "dummy"] = "auto"
    seed: Seed = 0
    max_model_len: Count | None = None
    max_seqs: Count = 64
    backend: Literal["auto", "paged", "dense"] = "auto"
    trust_remote_code: bool = False

    @model_validator(mode="after")
    def _has_one_source(self) -> "ModelSection":
        if (self.path is None) == (self.shape is None):
            raise ValueError("give either path (a Hugging Face directory) or shape (to plan only)")
        return self


class NodeSection(Section):
    """A node with `gpus` equal ones of kind `gpu`; "cpu" is all cores of a machine, as one.

    cores, memory_gb: of a cpu node; by default those of this machine.
    """

    name: Name
    gpus: Annotated[int, Field(ge=1, le=1024)] = 1
    gpu: str
    cores: Count | None = None
    memory_gb: Amount | None = None

    @model_validator(mode="after")
    def _cpu_is_one(self) -> "NodeSection":
        if self.gpu == "cpu" and self.gpus != 1:
            raise ValueError("a cpu node counts as one GPU: gpus must be 1")
        if self.gpu != "cpu" and (self.cores is not None or self.memory_gb is not None):
            raise ValueError("cores and memory_gb describe a cpu node only")
        return self


def _listed(value: object) -> object:
    if value == "auto":
        return None
    if not isinstance(value, list) or not value:
        raise ValueError("give a list of nodes, or auto")
    return value


class ClusterSection(Section):
    """The hardware: nodes as listed; `auto` (None), the default, is what Ray says for `up`, and
    this machine's cores for every other command.

    engine: "cpu" runs every unit on its node's cores while Ray still hands out the GPUs of the
    plan, so that a cluster can be tried with GPUs that are only declared (`ray start --num-gpus`).
    profiles: measurements that the planner predicts from, relative to the file: those of
    `muxcluster profile`, or the table that MuxServe publishes.
    """

    nodes: Annotated[list[NodeSection] | None, BeforeValidator(_listed)] = None
    engine: Literal["auto", "cpu"] = "auto"
    profiles: list[PathText] = []

    def listed(self) -> list[NodeSection]:
        """The nodes of the file; this machine where it lists none."""
        return [NodeSection(name="local", gpu="cpu")] if self.nodes is None else self.nodes


class PolicySection(Section):
    """How models are placed and how units work. scheduler: the lane, which model runs when and
    where. sharing: of the SMs, where `adbs` could: as long as it is measured to gain ("auto"), or
    "always". packing: which of its requests are in a job: by class, priority and arrival
    ("priority"), by arrival alone ("fcfs"), classes in turn ("round-robin"), or interactive ones by
    slack with batch ones beside them in the same KV blocks ("hybrid"). partition: how
    prefills and decodes run side by side: "threads" (of a cpu node: worker processes), "mps" (of a
    GPU: worker processes with a share of its multiprocessors each), "green" (the same with green
    contexts in one process), "none" (everything in the unit's process) or "auto".

    objective: what placement maximises: requests/s; those times their models' weights; those within
    the SLO; or the fewest GPUs that meet all rates. fairness: most by which the served parts of two
    models' rates may differ where they compete (0: max-min fair).

    block_tokens: tokens a KV block holds at head_dim 128 in the unit's KV dtype, a multiple of 8;
    other heads get as many as fit into as many bytes. 16, 32 and 64 are the sizes that the GPU
    kernels are compiled and tested for: larger blocks take fewer instructions and shorter tables,
    and leave more of each sequence's last block unused. token_budget: most tokens of a prefill
    job. max_decode_rows: most sequences of a decode job. quota_period_s: seconds between moves of
    quota. shared_prefix_tokens: requests that decode and have at least so many cached prompt tokens
    in common read these once for all (0: never). pipeline_depth: decode jobs of a worker at a time,
    the second one waiting there for the first to end (2), or one (1); "auto": 2 on a GPU, 1 where a
    unit spans several or has none.
    kv_gb: KV pool of a unit in GiB. host_memory_gib: memory of a unit, beside its pool, for
    what batch requests had in blocks they gave up; by default 16 GiB for a GPU, for a cpu unit 1 or
    the pool's size if that is less. Only "hybrid" takes any. num_threads: of a cpu unit.

    replan: on a cluster, whether models move ("auto") when the rates that are measured leave the
    planned ones for good. replan_period_s: how long they must have, and least time between two such
    replans.
    """

    scheduler: Literal["adbs", "temporal", "round-robin", "mixed"] = "adbs"
    sharing: Literal["auto", "always"] = "auto"
    packing: Literal["hybrid", "priority", "fcfs", "round-robin"] = "priority"
    partition: Literal["auto", "threads", "mps", "green", "none"] = "auto"
    objective: Literal["throughput", "weighted", "goodput", "fewest-gpus"] = "throughput"
    fairness: Annotated[float, Field(ge=0, le=1)] = 0.0
    block_tokens: Annotated[int, Field(ge=8, le=1024, multiple_of=8)] = 16
    token_budget: Count = 2048
    max_decode_rows: Count = 256
    quota_period_s: Positive = 5.0
    shared_prefix_tokens: Annotated[int, Field(ge=0, le=1_000_000)] = 128
    pipeline_depth: Literal["auto", 1, 2] = "auto"
    prefix_caching: bool = True
    kv_gb: Amount | None = None
    host_memory_gib: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] | None = None
    num_threads: Count | None = None
    replan: Literal["auto", "off"] = "auto"
    replan_period_s: Positive = 120.0


class ServerSection(Section):
    """The HTTP side. api_key: bearer token that every route but health asks for. more_keys: others
    that are as good; files and batches belong to the key that made them.

    header_timeout_s: longest that a client may take to send a request's line and headers.
    min_body_bytes_per_s: least pace of a request's body, over every 10 seconds. lenient: unknown
    request fields are dropped, not refused. restart_limit_s: how long a lost unit
    may take to come back before its requests end with an error. max_queued, max_queued_batch:
    requests of one model that may wait for their first token, interactive and batch class; beyond
    that, and beyond max_open_requests in all, clients get 429. max_buffered_bytes: of all open
    requests' bodies. request_log: file that gets a line of JSON per request. ingresses: which nodes
    of a cluster listen at `host` and `port`, all or the head alone.
    """

    host: str = "127.0.0.1"
    port: Port = 8000
    api_key: Key | None = None
    more_keys: list[Key] = []
    max_body_bytes: Count = 32 * 2**20
    header_timeout_s: Positive = 10.0
    min_body_bytes_per_s: Count = 512
    request_timeout_s: Positive = 600.0
    restart_limit_s: Positive = 120.0
    max_queued: Count = 512
    max_queued_batch: Count = 4096
    max_open_requests: Count = 16_384
    max_buffered_bytes: Count = 512 * 2**20
    request_log: PathText | None = None
    lenient: bool = False
    ingresses: Literal["every-node", "head"] = "every-node"


class BatchSection(Section):
    """Batch jobs over HTTP. directory: where their files and their state are kept, on the node that
    runs the head; relative ones start from the file's own directory. It is made when the first file
    comes. max_file_bytes: of an uploaded file. max_lines, max_line_bytes: of a job; a longer line
    fails alone, a longer job whole. max_running: lines of a model that are under way at a time.
    """

    directory: PathText = "muxcluster-batches"
    max_file_bytes: Annotated[int, Field(ge=1, le=2**50)] = 2 * 2**30
    max_lines: Count = 1_000_000
    max_line_bytes: Count = 32 * 2**20
    max_running: Count = 128


class FileSection(Section):
    """All of muxcluster.yaml."""

    models: Annotated[list[ModelSection], Field(min_length=1)]
    cluster: ClusterSection = ClusterSection()
    policy: PolicySection = PolicySection()
    server: ServerSection = ServerSection()
    batch: BatchSection = BatchSection()
