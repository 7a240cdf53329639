"""The keys of muxcluster.yaml, their types, ranges and defaults (design.md §8)."""

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
from muxcluster.core.inputs.web_url import HttpAddress
from muxcluster.core.kvshape import KvDtype


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
# Limit of a backlog: a thousand GPUs do less in a day.
BatchTokens = Annotated[float, Field(ge=1, le=1e15, allow_inf_nan=False)]
DAY_S = 86_400.0
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Key = Annotated[str, AfterValidator(checked_key)]
PathText = Annotated[str, AfterValidator(_checked_path)]
Port = Annotated[int, Field(ge=0, le=65535)]


class Section(BaseModel):
    """A frozen, strict section (no text for numbers) without unknown keys.

    The text below a field is its description in docs/reference/config.md.
    """

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True
    )


class SloSection(Section):
    """Latency targets in seconds."""

    ttft: Positive
    """Arrival to first token."""
    tpot: Positive
    """Mean time of each further token."""


class BacklogSection(Section):
    """Batch work that the planner places beside the model's interactive requests."""

    tokens_per_day: BatchTokens | None = None
    """Prompt and output tokens of a day's batch jobs, day after day."""
    queue_tokens: BatchTokens | None = None
    """Prompt and output tokens that wait now; give this or `tokens_per_day`."""
    due_s: Positive = DAY_S
    """Seconds in which `queue_tokens` are to be done; the window of `/v1/batches` by default."""
    prompt_tokens: Tokens | None = None
    """Mean length of a batch prompt; by default that of the model's requests."""
    output_tokens: Tokens | None = None
    """Mean length of a batch output; by default that of the model's requests."""

    @model_validator(mode="after")
    def _has_one_amount(self) -> "BacklogSection":
        if (self.tokens_per_day is None) == (self.queue_tokens is None):
            raise ValueError("give either tokens_per_day or queue_tokens (with due_s)")
        if self.queue_tokens is None and self.due_s != DAY_S:
            raise ValueError("due_s is of queue_tokens, which is missing")
        return self

    @property
    def tokens_per_s(self) -> float:
        """Prompt and output tokens a second that do it in time."""
        if self.tokens_per_day is not None:
            return self.tokens_per_day / DAY_S
        return (self.queue_tokens or 0.0) / self.due_s


class AdapterSection(Section):
    """A LoRA adapter in PEFT's format."""

    name: Name
    """The OpenAI model id; no other model or adapter has it."""
    path: PathText
    """Directory with adapter_config.json and adapter_model.safetensors, relative to the file."""


class AdapterPlacesSection(Section):
    """Room for LoRA adapters that are loaded while the model is served."""

    count: Annotated[int, Field(ge=1, le=512)]
    """How many of them may be in running requests at a time; requests of more wait. Any number may
    be loaded."""
    rank: Annotated[int, Field(ge=1, le=512)] = 16
    """Their highest rank; memory is kept for `count` adapters of this rank of all linears."""


class SpeculationSection(Section):
    """Guesses of the next output tokens, several of which one step checks."""

    method: Literal["ngram"]
    """`ngram`: what followed a request's last tokens where they occur in its prompt and output
    before (prompt lookup)."""
    num_speculative_tokens: Annotated[int, Field(ge=1, le=64)] = 4
    """Most tokens that are guessed of a request at once."""
    prompt_lookup_max: Annotated[int, Field(ge=1, le=64)] = 4
    """Of a request's last tokens, so many are looked for at most; the longest match counts."""
    prompt_lookup_min: Annotated[int, Field(ge=1, le=64)] = 2
    """Nothing is guessed where fewer are found."""
    when: Literal["gains", "always"] = "gains"
    """`gains`: only while it is measured to make more tokens a second at the load of the moment;
    `always` is for comparison."""
    acceptance: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Part of the guesses that are right, which `simulate` counts on; nothing else reads it."""

    @model_validator(mode="after")
    def _has_matches(self) -> "SpeculationSection":
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ValueError("prompt_lookup_min is more than prompt_lookup_max")
        return self


class ModelSection(Section):
    """One model."""

    name: Name
    """The OpenAI model id."""
    path: PathText | None = None
    """Hugging Face directory, relative to the file, or id: `org/name` or `org/name@revision`, from
    the hub's cache and, where it is missing there, from the hub (HF_HOME, HF_TOKEN, HF_HUB_OFFLINE
    as everywhere). On several hosts each of them needs the directory at the same path. Give this or
    `shape`."""
    shape: str | None = None
    """A known shape such as `llama-2-7b`, to plan and to simulate without weights."""
    rate: Amount = 1.0
    """Expected requests/s. Start value of planner and quotas; the scheduler then measures."""
    weight: Amount = 1.0
    """Worth of a request if `policy.objective` is `weighted`."""
    prompt_tokens: Tokens = 161.0
    """Mean length of a prompt; start value, as `rate`."""
    output_tokens: Tokens = 338.0
    """Mean length of an output; start value, as `rate`."""
    batch: BacklogSection | None = None
    """Batch work that is expected beside these requests; planning alone reads it."""
    constrained_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Part of the requests whose output is constrained (JSON schemas, enforced tool calls,
    grammars): planner and simulator count what their steps wait for masks."""
    slo: SloSection | None = None
    """Latency targets; a request may bring its own (`slo` in its body)."""
    residency: Literal["always", "auto", "on-demand"] = "always"
    """Where the model's weights are: `always` on its unit's devices; `auto`: there from the start
    as far as there is room, and parked while others need it; `on-demand`: parked until the first
    request. Where a unit has room for all of its models at once, none is parked."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """`auto` is float32 on CPU and the model's own on GPUs."""
    quantize: Literal["none", "int8", "int4", "fp8"] = "none"
    """Quantises the linears of an ordinary checkpoint when it is loaded: `int8` (a scale a row;
    inputs are rounded to 8 bits, too), `int4` (scale and zero point for 128 inputs), `fp8` (e4m3, a
    scale a row). A checkpoint that is quantised is served as it is."""
    kv_dtype: KvDtype = "auto"
    """How keys and values are stored: `auto` in the model's dtype; `int8` with a scale for each
    token and KV head, in four bytes beside them; `fp8_e4m3` without a scale, values beyond 448 cut.
    Models of different kinds share a unit's blocks. Attention computes in the model's dtype. The
    dense backend and models with states keep theirs, and refuse others."""
    load_format: Literal["auto", "dummy"] = "auto"
    """`dummy` makes random weights from `seed`."""
    seed: Seed = 0
    """Of the weights of `load_format: dummy`."""
    max_model_len: Count | None = None
    """Longest prompt plus output; by default the model's own."""
    max_seqs: Count = 64
    """Most interactive requests that hold KV at once. Batch requests have rows beside these, so
    that a decode job can be full (`policy.max_decode_rows`); fewer where `policy.kv_gb` holds less,
    and half a GiB of block tables at most."""
    backend: Literal["auto", "paged", "dense"] = "auto"
    """`paged` (our attention in place of the model's), `dense` (the model's own attention and
    cache, any kind that transformers loads), `auto`: paged where the model allows it."""
    tool_format: Literal[
        "auto",
        "hermes",
        "qwen3_coder",
        "llama3",
        "mistral",
        "deepseek",
        "harmony",
        "json",
        "none",
    ] = "auto"
    """How the model writes tool calls: `auto` takes the format of its chat template; `json` is for
    models whose template knows no tools (they are then described in a system message); with `none`,
    `tools` get 400."""
    reasoning: Literal["auto", "think", "mistral", "seed", "harmony", "none"] = "auto"
    """Tags around what the model writes before its answer, which chat answers return as
    `reasoning_content`: `think` (`<think>`), `mistral` (`[THINK]`), `seed` (`<seed:think>`),
    `harmony` (gpt-oss: the channel `analysis`); `auto` takes those of its chat template or
    vocabulary; with `none`, all of the output is content."""
    task: Literal["auto", "generate", "embed", "score"] = "auto"
    """What the model answers with: `generate` is text, `embed` a vector (`/v1/embeddings`), `score`
    a number for two texts (`/v1/rerank`); `auto` is `embed` for a directory of
    sentence-transformers, with a `modules.json`, `score` for an encoder with a classifier, else
    `generate`."""
    trust_remote_code: bool = False
    """Code in the model's directory may run, with all rights of the server."""
    adapters: list[AdapterSection] = []
    """LoRA adapters of this model, each served as a model of its own, in the same jobs and the same
    KV pool."""
    adapter_places: AdapterPlacesSection | None = None
    """Lets LoRA adapters come and go while the model is served (`/v1/load_lora_adapter`, with
    `server.adapter_folders`). By default none may come."""
    speculation: SpeculationSection | None = None
    """Speculative decoding: without this section there is none. Outputs stay as they are. The model
    must run on the paged backend."""

    @model_validator(mode="after")
    def _has_one_source(self) -> "ModelSection":
        if (self.path is None) == (self.shape is None):
            raise ValueError("give either path (a Hugging Face directory) or shape (to plan only)")
        return self


class NodeSection(Section):
    """A node with `gpus` equal GPUs of kind `gpu`."""

    name: Name
    """Any name; plans and reports use it."""
    gpus: Annotated[int, Field(ge=1, le=1024)] = 1
    """GPUs of the node."""
    gpu: str
    """Kind of GPU, such as `A100-80GB`, or `cpu`: all cores of a machine, as one GPU."""
    cores: Count | None = None
    """Of a cpu node; by default those of this machine."""
    memory_gb: Amount | None = None
    """Of a cpu node; by default that of this machine."""

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
    """The hardware."""

    nodes: Annotated[list[NodeSection] | None, BeforeValidator(_listed)] = None
    """A list of nodes, or `auto` (the default): for `up` the nodes that Ray reports, for every
    other command this machine's cores."""
    host_memory_gib: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] | None = None
    """Host memory of a node for weights of models that may be parked (`models[].residency`), an
    equal part for each of its GPUs; by default not limited. Memory for lent KV blocks is
    `policy.host_memory_gib`."""
    engine: Literal["auto", "cpu"] = "auto"
    """`cpu` runs every unit on its node's cores while Ray still assigns the GPUs of the plan, to
    test a cluster whose GPUs are only declared (`ray start --num-gpus 8`)."""
    profiles: list[PathText] = []
    """Measurements that the planner predicts from, relative to the file: those of `muxcluster
    profile`, or the table that MuxServe publishes."""

    def listed(self) -> list[NodeSection]:
        """Return the nodes of the file; this machine if it lists none."""
        return [NodeSection(name="local", gpu="cpu")] if self.nodes is None else self.nodes


class PolicySection(Section):
    """Settings of placement and of the units."""

    scheduler: Literal["adbs", "temporal", "round-robin", "mixed"] = "adbs"
    """The lane: which model runs when, and on which SM share."""
    sharing: Literal["auto", "always"] = "auto"
    """Sharing of the SMs by concurrent jobs, with `adbs`: `auto` (as long as it is measured to
    gain, else `mixed` jobs) or `always`."""
    packing: Literal["hybrid", "priority", "fcfs", "round-robin"] = "priority"
    """Which requests of a model are in a job: `hybrid` (interactive ones by their targets, batch
    ones in the slack, in the same KV blocks), `priority` (class, priority, arrival), `fcfs`
    (arrival alone), `round-robin` (classes in turn)."""
    partition: Literal["auto", "threads", "mps", "green", "none"] = "auto"
    """How prefills and decodes run side by side: `threads` (cpu node: worker processes), `mps`
    (GPU: worker processes with a share of the SMs each, under an MPS daemon of our own), `green`
    (GPU: green contexts in one process per GPU), `none` (one job at a time, one process per GPU).
    `auto` on a GPU takes the first of `mps`, `green`, `none` that its node supports (a unit over
    several GPUs: of `green`, `none`), and logs which and why."""
    objective: Literal["throughput", "weighted", "goodput", "fair", "fewest-gpus"] = "throughput"
    """What `place` maximises: requests/s; the same times the models' weights; those within the SLO;
    the part of its rate that the model served least gets; or the fewest GPUs that meet all
    rates."""
    block_tokens: Annotated[int, Field(ge=8, le=1024, multiple_of=8)] = 16
    """Tokens of a KV block at head_dim 128 in the unit's KV dtype, a multiple of 8; other heads get
    as many as fit into as many bytes. The GPU kernels are compiled and tested for 16, 32 and 64:
    larger blocks make attention loops and tables shorter, but leave more unused slots in each
    sequence's last block; prefixes are shared in whole blocks."""
    token_budget: Count = 2048
    """Most tokens of a prefill job."""
    max_decode_rows: Count = 256
    """Most sequences of a decode job."""
    quota_period_s: Positive = 5.0
    """Seconds between moves of KV quota."""
    foresight: bool = False
    """Where weights move: wake models ahead of requests that past ones let expect (regular clients,
    bursts, times of day), in memory without use."""
    shared_prefix_tokens: Annotated[int, Field(ge=0, le=1_000_000)] = 128
    """Decoding requests that share at least this many cached prompt tokens read them once per step;
    0: never."""
    join_forced_tokens: bool = True
    """CPU units: where a constraint leaves one token at each of several places, such as inside a
    property's name, they are output at once and computed together by the next step; `false`: one a
    step."""
    pipeline_depth: Literal["auto", 1, 2] = "auto"
    """Decode jobs of a worker at a time. `2`: where the same sequences are sure to continue, their
    next step is sent before the last one ends, so that a worker does not wait for the unit;
    requests that arrive meanwhile wait for both. `auto`: 2, but 1 for a unit of several ranks on a
    CPU, or on GPUs whose SMs it does not share."""
    prefix_caching: bool = True
    """Reuse the KV of equal prefixes. Models with states have no prefix cache."""
    kv_gb: Amount | None = None
    """KV pool of a unit in GiB. By default on GPUs all memory that weights and workspace leave, on
    CPUs room for a quarter of `max_seqs` sequences at full length."""
    host_memory_gib: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] | None = None
    """Host memory of a unit for the content of blocks that batch requests lent; by default 16 GiB
    for a GPU, for a cpu unit 1 or the pool's size if that is less. Only `hybrid` uses it."""
    num_threads: Count | None = None
    """CPU threads of an SM share of 1.0; by default all cores."""
    replan: Literal["auto", "off"] = "auto"
    """On a cluster, `auto` moves models when measured rates differ from the planned ones by half
    for long, if the gain is worth the moves; `off` replans only when nodes join or leave."""
    replan_period_s: Positive = 120.0
    """How long rates must differ, and the least time between two such replans."""


class KeySection(Section):
    """A key of a tenant: what it may do, and its limits over the whole cluster."""

    name: Name
    """Shown in logs, usage and errors; the same name keeps its count when its secret changes."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """SHA-256 of the secret, in hexadecimal. The secret itself must be random (`openssl rand -hex
    32`), for a hash does not protect a password that can be guessed."""
    models: Annotated[list[Name], Field(min_length=1)] | None = None
    """Models that it may use; for it, others do not exist. By default all."""
    classes: Annotated[list[Literal["interactive", "batch"]], Field(min_length=1)] = [
        "interactive",
        "batch",
    ]
    """Classes of service that it may ask for."""
    admin: bool = False
    """It may do what `server.admin_key` may."""
    enabled: bool = True
    """`false`: it is refused like an unknown one, and its count is kept."""
    requests_per_minute: Count | None = None
    """Requests in any 60 seconds."""
    tokens_per_minute: Count | None = None
    """Prompt and output tokens of the requests that began in any 60 seconds. While a request runs,
    the most output tokens that it may have are counted."""
    tokens_per_day: Annotated[int, Field(ge=1, le=10**15)] | None = None
    """Prompt and output tokens of a day in UTC."""
    concurrent_requests: Count | None = None
    """Requests open at once, streamed or not."""


def checked_keys(keys: list[KeySection]) -> list[KeySection]:
    """Return `keys`. Raises ValueError where two have one name or one secret."""
    for field in ("name", "sha256"):
        seen: set[str] = set()
        for key in keys:
            value = getattr(key, field)
            if value in seen:
                raise ValueError(f"two keys have the {field} {value:.64}")
            seen.add(value)
    reserved = next((key.name for key in keys if key.name.startswith("server.")), None)
    if reserved is not None:
        raise ValueError(f"{reserved}: names that begin with server. stand for server.api_key …")
    return keys


Keys = Annotated[list[KeySection], AfterValidator(checked_keys)]


class KeysFile(Section):
    """All of the file that `server.keys_file` names."""

    keys: Keys
    """The keys of tenants."""


class TlsSection(Section):
    """The server's certificate and key, files in PEM on every node that listens."""

    cert: PathText
    """The certificate, followed by those between it and its authority. Files that change are used
    within 5 seconds, for new connections."""
    key: PathText
    """Its private key, without a passphrase."""


class AdminSection(Section):
    """A port of its own for operators' routes, which are then at no other."""

    host: str = "127.0.0.1"
    """Address to listen on. The routes are `/sleep`, `/wake_up`, `/is_sleeping`, `/pin`, `/unpin`,
    `/v1/load_lora_adapter`, `/v1/unload_lora_adapter`, `/usage`, `/v1/cluster/…`, `/dashboard`,
    `/metrics`, `/status`, `/timeline` and `/load`; they ask for the same keys as without it."""
    port: Annotated[int, Field(ge=1, le=65535)]
    """Port to listen on."""


class StoreSection(Section):
    """Responses of `/v1/responses` that are kept for their clients."""

    directory: PathText = "muxcluster-responses"
    """Where they are, on the head's node; relative paths start from the file's own directory."""
    days: Annotated[int, Field(ge=1, le=3650)] = 30
    """How long each is kept."""
    max_key_bytes: Annotated[int, Field(ge=1, le=2**50)] = 2**30
    """Bytes that the responses of one key may hold together; beyond them its oldest are deleted."""


class ServerSection(Section):
    """Settings of the HTTP server."""

    host: str = "127.0.0.1"
    """Address that HTTP listens on."""
    port: Port = 8000
    """Port that HTTP listens on; 0 takes a free one."""
    tls: TlsSection | None = None
    """Serve HTTPS, at all ports, and nothing else. By default plain HTTP."""
    admin: AdminSection | None = None
    """Operators' routes at a port of their own. By default they are at `port`."""
    api_key: Key | None = None
    """Bearer token of every route but health."""
    more_keys: list[Key] = []
    """Further keys with equal rights; files and batches belong to the key that made them."""
    admin_key: Key | None = None
    """Bearer token that may park, wake and pin models (`/sleep`, `/wake_up`, `/pin`, `/unpin`,
    `/is_sleeping`), load and unload adapters (`adapter_folders`), and all that the others may.
    Without it nobody may."""
    adapter_folders: list[PathText] = []
    """Folders below which `/v1/load_lora_adapter` may find adapters, on every node; relative paths
    start from the file's own directory. By default none may be loaded."""
    keys: Keys | None = None
    """Keys of tenants, with limits. A change is applied by the next `up` or start."""
    keys_file: PathText | None = None
    """YAML file with `keys:` in their stead, relative to the file, on the head's node; it is read
    again when it changes, without a restart. Give this or `keys`."""
    usage_directory: PathText = "muxcluster-usage"
    """Where the use of all keys is kept, on the head's node, if there are keys of tenants; relative
    paths start from the file's own directory."""
    max_body_bytes: Count = 32 * 2**20
    """Largest body of a request."""
    header_timeout_s: Positive = 10.0
    """Longest time for a client to send a request's line and headers; then 408, and the connection
    is closed."""
    min_body_bytes_per_s: Count = 512
    """Minimum rate of a request's body, averaged over every 10 seconds; a slower one gets 408."""
    max_connections: Count = 16_384
    """Open connections of a port. One more closes the one that has had no request for longest;
    where all have one it gets 503. Fewer where the process may not have so many open files."""
    max_connections_per_address: Count | None = None
    """Open connections of a client address (IPv6: of a /64 network); more get 429. By default no
    limit: behind a reverse proxy all clients have one address."""
    request_timeout_s: Positive = 600.0
    """Time limit of a request; a client may ask for less (`X-Request-Timeout-Seconds`)."""
    restart_limit_s: Positive = 120.0
    """How long a lost unit may take to come back before its requests end with an error."""
    max_queued: Count = 512
    """Interactive requests of one model that may wait for their first token; beyond that 429 with
    `Retry-After`."""
    max_queued_batch: Count = 4096
    """The same for requests of the batch class."""
    max_open_requests: Count = 16_384
    """Open HTTP requests; beyond that 429, without reading the body."""
    max_buffered_bytes: Count = 512 * 2**20
    """Memory of all open requests' bodies; beyond that 429, without reading the body."""
    max_images: Count = 16
    """Most images of a request, of models that take some; beside it they have 48 MiB at most in the
    sizes that the model sees, counted for each of its `n` choices."""
    max_image_bytes: Count = 10 * 2**20
    """Largest image as it is sent, without its base64."""
    max_image_pixels: Count = 16 * 2**20
    """Most pixels of an image as it is sent; a larger one is refused before it is decoded."""
    request_log: PathText | None = None
    """File with a line of JSON per request: its id, how it ended, where its time was spent."""
    audit_log: PathText | None = None
    """File with a line of JSON for each thing that an operator does by HTTP, or is refused. By
    default these lines are in the log."""
    otlp_traces_endpoint: str | None = None
    """Where an OpenTelemetry collector takes spans by OTLP over HTTP, usually
    `http://HOST:4318/v1/traces`. Needs `pip install 'muxcluster[otel]'` on every node."""
    log_format: Literal["text", "json"] = "text"
    """Lines of `serve` on standard error, of all its processes: text, or a JSON object each."""
    store: StoreSection | None = None
    """Keeps responses of `/v1/responses` unless a request says `store: false`, so that they can be
    read, deleted, gone on with and made in the background. By default none is kept."""
    lenient: bool = False
    """Unknown request fields are dropped, not answered with 400."""
    ingresses: Literal["every-node", "head"] = "every-node"
    """Nodes of a cluster that listen at `host` and `port`: all, or only the head."""

    @model_validator(mode="after")
    def _check_keys(self) -> "ServerSection":
        if self.admin_key is not None and self.admin_key in (self.api_key, *self.more_keys):
            raise ValueError("admin_key is also api_key or in more_keys: all clients would have it")
        if self.keys is not None and self.keys_file is not None:
            raise ValueError("give either keys or keys_file")
        admin = self.admin
        own = HttpAddress(self.host, self.port)
        if admin is not None and own.overlaps(HttpAddress(admin.host, admin.port)):
            raise ValueError("admin has the same host and port as the server itself")
        return self


class BatchSection(Section):
    """Settings of batch jobs over HTTP."""

    directory: PathText = "muxcluster-batches"
    """Where files and batches are stored, on the node that runs the head; relative paths start from
    the file's own directory. It is created with the first file. One folder per server."""
    max_file_bytes: Annotated[int, Field(ge=1, le=2**50)] = 2 * 2**30
    """Largest uploaded file."""
    max_lines: Count = 1_000_000
    """Most lines of a job; a longer job fails as a whole."""
    max_line_bytes: Count = 32 * 2**20
    """Longest line of a job; a longer one fails alone."""
    max_running: Count = 128
    """Lines of a model without a plan running at a time, on a server; units feed the others."""
    max_key_bytes: Annotated[int, Field(ge=1, le=2**50)] | None = None
    """Bytes that all files of one API key may hold together, results too; beyond them an upload and
    a new job are refused with 403 `storage_quota_exceeded`. A job that was accepted keeps all of
    its results. Without it there is no limit."""


class FileSection(Section):
    """All of muxcluster.yaml."""

    models: Annotated[list[ModelSection], Field(min_length=1)]
    """The models, at least one."""
    cluster: ClusterSection = ClusterSection()
    """The hardware."""
    policy: PolicySection = PolicySection()
    """Placement and units."""
    server: ServerSection = ServerSection()
    """HTTP."""
    batch: BatchSection = BatchSection()
    """Batch jobs over HTTP."""
