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
    """Raise ValueError for text that cannot be a path."""
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
# Limit of rates, weights and GiB: beyond any cluster, and far from overflow in sums.
Amount = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Tokens = Annotated[float, Field(ge=1, le=1e8, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Key = Annotated[str, AfterValidator(checked_key)]
PathText = Annotated[str, AfterValidator(_checked_path)]
Port = Annotated[int, Field(ge=0, le=65535)]


class Section(BaseModel):
    """A frozen, strict section (no text for numbers) without unknown keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class SloSection(Section):
    """Latency targets in seconds: first token, each further token."""

    ttft: Positive
    tpot: Positive


class ModelSection(Section):
    """One model."""

    name: Name
    # Hugging Face directory, relative to the file; or shape, to plan without it
    path: PathText | None = None
    shape: str | None = None
    rate: Amount = 1.0  # expected requests/s
    weight: Amount = 1.0  # worth of a request if policy.objective is "weighted"
    prompt_tokens: Tokens = 161.0  # prompt_tokens, output_tokens: their mean lengths
    output_tokens: Tokens = 338.0
    slo: SloSection | None = None
    # "auto" is float32 on CPU and the model's own on GPUs
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    load_format: Literal["auto", "dummy"] = "auto"  # "dummy" makes random weights from `seed`
    seed: Seed = 0
    max_model_len: Count | None = None  # longest prompt plus output, by default the model's own
    max_seqs: Count = 64  # most sequences that hold KV at once
    # "paged" (our attention in place of the model's), "dense" (the model's own attention and cache,
    # any kind that transformers loads) or "auto": paged if the model allows it
    backend: Literal["auto", "paged", "dense"] = "auto"
    # Code in the model's directory may run, with all rights of the server
    trust_remote_code: bool = False

    @model_validator(mode="after")
    def _has_one_source(self) -> "ModelSection":
        if (self.path is None) == (self.shape is None):
            raise ValueError("give either path (a Hugging Face directory) or shape (to plan only)")
        return self


class NodeSection(Section):
    """A node with `gpus` equal GPUs of kind `gpu`; "cpu" is all cores of a machine, as one GPU."""

    name: Name
    gpus: Annotated[int, Field(ge=1, le=1024)] = 1
    gpu: str
    cores: Count | None = None  # cores, memory_gb: of a cpu node; by default those of this machine
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
    """The hardware: listed nodes, or `auto` (None), the default: for `up` the nodes that Ray
    reports, for other commands this machine's cores."""

    nodes: Annotated[list[NodeSection] | None, BeforeValidator(_listed)] = None
    # "cpu" runs every unit on its node's cores while Ray still assigns the GPUs of the plan, to
    # test a cluster whose GPUs are only declared (`ray start --num-gpus`)
    engine: Literal["auto", "cpu"] = "auto"
    # Measurements that the planner predicts from, relative to the file: those of `muxcluster
    # profile`, or the table that MuxServe publishes
    profiles: list[PathText] = []

    def listed(self) -> list[NodeSection]:
        """Return the nodes of the file; this machine if it lists none."""
        return [NodeSection(name="local", gpu="cpu")] if self.nodes is None else self.nodes


class PolicySection(Section):
    """Settings of placement and of the units."""

    # Lane: which model runs when and where
    scheduler: Literal["adbs", "temporal", "round-robin", "mixed"] = "adbs"
    # Sharing of the SMs under `adbs`: while it is measured to gain ("auto"), or "always"
    sharing: Literal["auto", "always"] = "auto"
    # Which of its requests are in a job: by class, priority and arrival ("priority"), by arrival
    # alone ("fcfs"), classes in turn ("round-robin"), or interactive ones by slack with batch ones
    # beside them in the same KV blocks ("hybrid")
    packing: Literal["hybrid", "priority", "fcfs", "round-robin"] = "priority"
    # How prefills and decodes run side by side: "threads" (of a cpu node: worker processes), "mps"
    # (of a GPU: worker processes with a share of its multiprocessors each), "green" (the same with
    # green contexts in one process), "none" (everything in the unit's process) or "auto"
    partition: Literal["auto", "threads", "mps", "green", "none"] = "auto"
    # Objective of placement: requests/s; the same times their models' weights; those within the
    # SLO; or the fewest GPUs that meet all rates
    objective: Literal["throughput", "weighted", "goodput", "fewest-gpus"] = "throughput"
    # Tokens a KV block holds at head_dim 128 in the unit's KV dtype, a multiple of 8; other heads
    # get as many as fit into as many bytes. 16, 32 and 64 are the sizes that the GPU kernels are
    # compiled and tested for: larger blocks need fewer instructions and shorter tables, but leave
    # more of each sequence's last block unused.
    block_tokens: Annotated[int, Field(ge=8, le=1024, multiple_of=8)] = 16
    token_budget: Count = 2048  # most tokens of a prefill job
    max_decode_rows: Count = 256  # most sequences of a decode job
    quota_period_s: Positive = 5.0  # seconds between moves of quota
    # Decoding requests that share at least this many cached prompt tokens read them once for all
    # (0: never)
    shared_prefix_tokens: Annotated[int, Field(ge=0, le=1_000_000)] = 128
    # Decode jobs of a worker at a time: 2 (the second waits there for the first to end) or 1;
    # "auto": 2 on a GPU, 1 if a unit spans several or has none
    pipeline_depth: Literal["auto", 1, 2] = "auto"
    prefix_caching: bool = True
    kv_gb: Amount | None = None  # KV pool of a unit in GiB
    # Host memory of a unit for the content of blocks that batch requests lent; by default 16 GiB
    # for a GPU, for a cpu unit 1 or the pool's size if that is less. Only "hybrid" uses it.
    host_memory_gib: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] | None = None
    num_threads: Count | None = None  # of a cpu unit
    # On a cluster, "auto" moves models when measured rates differ from the planned ones for long
    replan: Literal["auto", "off"] = "auto"
    # How long they must differ, and least time between two such replans
    replan_period_s: Positive = 120.0


class ServerSection(Section):
    """Settings of the HTTP server."""

    host: str = "127.0.0.1"
    port: Port = 8000
    api_key: Key | None = None  # bearer token of every route but health
    # Further keys with equal rights; files and batches belong to the key that made them
    more_keys: list[Key] = []
    max_body_bytes: Count = 32 * 2**20
    # Longest time for a client to send a request's line and headers
    header_timeout_s: Positive = 10.0
    min_body_bytes_per_s: Count = 512  # minimum rate of a request's body, over every 10 seconds
    request_timeout_s: Positive = 600.0
    # Longest absence of a lost unit before its requests end with an error
    restart_limit_s: Positive = 120.0
    # max_queued, max_queued_batch: requests of one model that may wait for their first token,
    # interactive and batch class; beyond that, and beyond max_open_requests in all, clients get 429
    max_queued: Count = 512
    max_queued_batch: Count = 4096
    max_open_requests: Count = 16_384
    max_buffered_bytes: Count = 512 * 2**20  # of all open requests' bodies
    request_log: PathText | None = None  # file with a line of JSON per request
    lenient: bool = False  # unknown request fields are dropped, not refused
    # Nodes of a cluster that listen at `host` and `port`: all, or only the head
    ingresses: Literal["every-node", "head"] = "every-node"


class BatchSection(Section):
    """Settings of batch jobs over HTTP."""

    # Where their files and their state are kept, on the node that runs the head; relative ones
    # start from the file's own directory. It is created with the first file.
    directory: PathText = "muxcluster-batches"
    max_file_bytes: Annotated[int, Field(ge=1, le=2**50)] = 2 * 2**30  # of an uploaded file
    # max_lines, max_line_bytes: of a job; a longer line fails alone, a longer job as a whole
    max_lines: Count = 1_000_000
    max_line_bytes: Count = 32 * 2**20
    max_running: Count = 128  # lines of a model running at a time


class FileSection(Section):
    """All of muxcluster.yaml."""

    models: Annotated[list[ModelSection], Field(min_length=1)]
    cluster: ClusterSection = ClusterSection()
    policy: PolicySection = PolicySection()
    server: ServerSection = ServerSection()
    batch: BatchSection = BatchSection()
