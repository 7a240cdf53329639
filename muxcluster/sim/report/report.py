"""What one simulated case amounts to, as a value that goes to JSON and back."""

from pydantic import BaseModel, ConfigDict

Number = float | None
"""None where there is nothing to measure."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SpreadReport(_Frozen):
    """Seconds over the requests that finished. quantiles: at 0, 1, .. 100 %, [] without any."""

    count: int
    mean: Number
    p50: Number
    p90: Number
    p99: Number
    quantiles: tuple[float, ...]


class GroupReport(_Frozen):
    """One model's requests, or all of them: those that arrived in the window, or what came in it.

    offered_per_s: arrivals. requests_per_s, tokens_per_s: requests that ended well and output
    tokens that came, inside the window. served_share: requests_per_s over offered_per_s.
    finished_share: of the arrivals, those that finished before the simulation stopped. num_refused:
    too long for their model or its memory. attainment: by SLO scale, share of the arrivals whose
    latency is at most scale times what they take alone. target_attainment: share within the
    configured TTFT and TPOT, over models that have such targets. time_s: mean time account.
    """

    num_requests: int
    num_refused: int
    offered_per_s: float
    requests_per_s: float
    tokens_per_s: float
    served_share: Number
    finished_share: Number
    ttft: SpreadReport
    tpot: SpreadReport
    latency: SpreadReport
    normalised: SpreadReport
    attainment: dict[str, Number]
    target_attainment: Number
    time_s: dict[str, Number]


class InteractiveReport(_Frozen):
    """Interactive requests that arrived in the window; requests_per_s and output_tokens_per_s are
    what came in it.

    Spreads are of those that finished; normalised: latency per output token. ttft_attainment,
    tpot_attainment, attainment: of all that arrived, those that finished within the TTFT target,
    the (mean) TPOT target, both; a model without targets is always within them.
    """

    num_requests: int
    offered_per_s: float
    requests_per_s: float
    output_tokens_per_s: float
    finished_share: Number
    ttft: SpreadReport
    tpot: SpreadReport
    normalised: SpreadReport
    ttft_attainment: Number
    tpot_attainment: Number
    attainment: Number


class BatchReport(_Frozen):
    """The batch class: num_requests came in num_waves; the others are what ended, or which prompt
    and output tokens were computed, in the window."""

    num_requests: int
    num_waves: int
    requests_per_s: float
    tokens_per_s: float
    output_tokens_per_s: float
    latency: SpreadReport


class SharingReport(_Frozen):
    """Totals of the schedulers, to the end of the simulation: see core's ModelStats."""

    num_lent_columns: int
    num_saved_slots: int
    num_restored_slots: int
    num_recomputed_tokens: int
    num_preemptions: int


class ClassesReport(_Frozen):
    """Interactive and batch requests of all models, apart."""

    interactive: InteractiveReport
    batch: BatchReport
    sharing: SharingReport


class FairnessReport(_Frozen):
    """Of `use` over offered rate: max_over_min is None where a model got nothing."""

    max_over_min: Number
    jain: float
    least_share: float
    least_model: str


class UseReport(_Frozen):
    """Means over the window. sm: of the SMs of the plan's GPUs. kv: of the memory of all pools.

    times_s: ends of the spans of kv_over_time: by model, share of the pools that it holds.
    kv_fairness: of that share over rate (MuxServe §3.2).
    """

    sm: float
    kv: float
    times_s: tuple[float, ...]
    kv_over_time: dict[str, tuple[float, ...]]
    kv_fairness: FairnessReport | None


class CaseReport(_Frozen):
    """One system under one load. units: a line each. wall_s: what the simulation itself took.

    worst_model: the one of least attainment at `slo_scale`, then of least served share. classes:
    None where they were not asked for.
    """

    system: str
    rate_scale: float
    seed: int
    duration_s: float
    slo_scale: float
    units: tuple[str, ...]
    total: GroupReport
    models: dict[str, GroupReport]
    fairness: FairnessReport | None
    worst_model: str | None
    use: UseReport
    num_jobs: int
    wall_s: float
    classes: ClassesReport | None = None
