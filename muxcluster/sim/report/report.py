"""The report of one simulated case, as a value that converts to JSON and back."""

from pydantic import BaseModel, ConfigDict

Number = float | None  # None where there is nothing to measure


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SpreadReport(_Frozen):
    """Seconds over the requests that finished."""

    count: int
    mean: Number
    p50: Number
    p90: Number
    p99: Number
    quantiles: tuple[float, ...]  # at 0, 1, … 100 %; empty without requests


class GroupReport(_Frozen):
    """Requests of one model, or of all, that arrived in the window."""

    num_requests: int
    num_refused: int  # too long for their model or its memory
    offered_per_s: float  # arrivals
    requests_per_s: float  # that finished inside the window
    tokens_per_s: float  # output tokens inside the window
    served_share: Number  # requests_per_s over offered_per_s
    finished_share: Number  # of the arrivals, before the simulation stopped
    ttft: SpreadReport
    tpot: SpreadReport
    latency: SpreadReport
    normalised: SpreadReport
    attainment: dict[str, Number]  # by SLO scale: share with at most scale × base latency
    target_attainment: Number  # share within TTFT and TPOT targets, of models that have them
    time_s: dict[str, Number]  # mean time account


class InteractiveReport(_Frozen):
    """Interactive requests that arrived in the window; spreads are of those that finished."""

    num_requests: int
    offered_per_s: float
    requests_per_s: float  # that finished inside the window
    output_tokens_per_s: float  # inside the window
    finished_share: Number
    ttft: SpreadReport
    tpot: SpreadReport
    normalised: SpreadReport  # latency per output token
    # Shares of all arrivals that finished within the TTFT target, the (mean) TPOT target, both; a
    # model without targets is always within them.
    ttft_attainment: Number
    tpot_attainment: Number
    attainment: Number


class BatchReport(_Frozen):
    """Requests of the batch class."""

    num_requests: int
    num_waves: int
    requests_per_s: float  # that ended inside the window
    tokens_per_s: float  # prompt and output tokens computed inside the window
    output_tokens_per_s: float
    latency: SpreadReport


class SharingReport(_Frozen):
    """Totals of the schedulers to the end of the simulation, see `ModelStats`."""

    num_lent_columns: int
    num_saved_slots: int
    num_restored_slots: int
    num_recomputed_tokens: int
    num_preemptions: int


class ClassesReport(_Frozen):
    """Interactive and batch requests of all models."""

    interactive: InteractiveReport
    batch: BatchReport
    sharing: SharingReport


class WakesReport(_Frozen):
    """Wakes of weights, of all units to the end of the simulation."""

    num_wakes: int
    waking_s: float  # seconds of all
    num_ahead: int  # that no request waited for
    num_ahead_used: int  # of these, with a request before the model was parked again


class FairnessReport(_Frozen):
    """Fairness of use over offered rate, see `Fairness`."""

    max_over_min: Number  # None where a model got nothing
    jain: float
    least_share: float
    least_model: str


class UseReport(_Frozen):
    """Means over the window."""

    sm: float  # of the SMs of the plan's GPUs
    sm_idle_beside_waiting: float  # of the same: in no job while work waits for a place
    kv: float  # of the memory of all pools
    times_s: tuple[float, ...]  # ends of the spans of kv_over_time
    kv_over_time: dict[str, tuple[float, ...]]  # share of the pools that each model holds
    kv_fairness: FairnessReport | None  # of that share over rate (MuxServe §3.2)


class CaseReport(_Frozen):
    """One system under one load.

    >>> from muxcluster import load_config, simulate
    >>> config = load_config("examples/small.yaml")
    >>> (report,) = simulate(config, systems=["muxserve"], duration_s=20)
    >>> sorted(report.models)
    ['chat-8b', 'code-7b', 'rare-14b', 'tutor-3b']
    >>> report.total.ttft.p50 < report.total.ttft.p99
    True
    """

    system: str
    rate_scale: float
    seed: int
    duration_s: float
    slo_scale: float
    units: tuple[str, ...]  # one line each
    total: GroupReport
    models: dict[str, GroupReport]
    fairness: FairnessReport | None
    worst_model: str | None  # of least attainment at `slo_scale`, then of least served share
    use: UseReport
    num_jobs: int
    wall_s: float  # of the simulation itself
    classes: ClassesReport | None = None  # None where not requested
    wakes: WakesReport | None = None  # None where all models always are resident
