"""Metrics of the units' statistics: vLLM's names where the meaning is the same, else ours."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from muxcluster.core.residency import WeightState
from muxcluster.core.served import JobRecord, ModelStats, UnitStats
from muxcluster.http.metrics.requests import LABELS

ITERATION = tuple(float(2**power) for power in range(15))


def _kv_usage(model: ModelStats) -> float:
    return min(1.0, model.used_blocks / model.quota_blocks) if model.quota_blocks else 0.0


GAUGES: dict[str, tuple[str, Callable[[ModelStats], float]]] = {
    "vllm:num_requests_running": ("Requests that hold KV.", lambda m: m.num_running),
    "vllm:num_requests_waiting": ("Requests that wait for it.", lambda m: m.num_waiting),
    "vllm:kv_cache_usage_perc": ("Share (0 to 1) of the model's quota in use.", _kv_usage),
    "muxcluster:quota_blocks": ("KV blocks the model may hold now.", lambda m: m.quota_blocks),
    "muxcluster:used_blocks": ("KV blocks its requests hold.", lambda m: m.used_blocks),
    "muxcluster:cached_blocks": ("Unreferenced cached KV blocks.", lambda m: m.cached_blocks),
    "muxcluster:batch_blocks": (
        "KV blocks of batch requests beside the quota.",
        lambda m: m.batch_blocks,
    ),
    "muxcluster:lent_requests": (
        "Batch requests that wait to be restored.",
        lambda m: m.num_lent,
    ),
    "muxcluster:step_time_error": (
        "Mean relative error of predicted job times.",
        lambda m: m.step_time_error,
    ),
    "muxcluster:padded_usage_perc": (
        "Share (0 to 1) of its memory that the last padded batch of a dense model took.",
        lambda m: m.padded_usage,
    ),
    "muxcluster:request_rate": (
        "Measured arrivals per second; 0 before the first request.",
        lambda m: m.rate_per_s if m.is_rate_measured else 0.0,
    ),
    "muxcluster:resident_bytes": (
        "Bytes of a rank's memory that the model takes while it is resident; 0: it always is.",
        lambda m: m.resident_bytes,
    ),
    "muxcluster:expected_wait_seconds": (
        "Predicted time until a request that waits for the model's weights could run.",
        lambda m: m.expected_wait_s,
    ),
}
COUNTERS: dict[str, tuple[str, Callable[[ModelStats], float]]] = {
    "vllm:prefix_cache_queries": ("Prompt tokens looked up.", lambda m: m.prefix_queries),
    "vllm:prefix_cache_hits": ("Prompt tokens found.", lambda m: m.prefix_hits),
    "vllm:num_preemptions": ("Preemptions.", lambda m: m.num_preemptions),
    "muxcluster:engine_prompt_tokens": ("Prompt tokens prefilled.", lambda m: m.prompt_tokens),
    "muxcluster:engine_output_tokens": ("Tokens sampled.", lambda m: m.output_tokens),
    "muxcluster:lent_columns": (
        "Columns of KV blocks that batch requests gave up to interactive ones.",
        lambda m: m.num_lent_columns,
    ),
    "muxcluster:saved_slots": (
        "Token slots copied to host memory before they were overwritten.",
        lambda m: m.num_saved_slots,
    ),
    "muxcluster:restored_slots": (
        "Token slots copied back from host memory.",
        lambda m: m.num_restored_slots,
    ),
    "muxcluster:shared_reads": (
        "Tokens whose KV was not read again because a group of rows read it once.",
        lambda m: m.num_shared_reads,
    ),
    "muxcluster:non_finite_requests": (
        "Requests that ended because their logits were NaN or infinite.",
        lambda m: m.num_non_finite,
    ),
    "muxcluster:constrained_requests": (
        "Requests that came with a constraint.",
        lambda m: m.num_constrained,
    ),
    "muxcluster:forced_tokens": (
        "Output tokens that took no step of their own: a constraint left no choice.",
        lambda m: m.num_forced,
    ),
    "vllm:spec_decode_num_drafts": (
        "Times that draft tokens of a request were checked.",
        lambda m: m.num_drafts,
    ),
    "vllm:spec_decode_num_draft_tokens": (
        "Draft tokens that were checked.",
        lambda m: m.num_draft_tokens,
    ),
    "vllm:spec_decode_num_accepted_tokens": (
        "Draft tokens that became output.",
        lambda m: m.num_accepted_tokens,
    ),
    "muxcluster:mask_wait_seconds": (
        "Seconds that jobs waited for what constraints allow.",
        lambda m: m.mask_wait_s,
    ),
    "muxcluster:recomputed_tokens": (
        "Tokens computed again after a preemption or a failed job.",
        lambda m: m.num_recomputed_tokens,
    ),
    "muxcluster:wakes": ("Times that parked weights became resident.", lambda m: m.num_wakes),
    "muxcluster:parks": ("Times that resident weights were parked.", lambda m: m.num_parks),
    "muxcluster:wakes_ahead": (
        "Wakes that no request or order waited for.",
        lambda m: m.num_wakes_ahead,
    ),
    "muxcluster:wakes_ahead_used": (
        "Wakes ahead after which a request came before the model was parked.",
        lambda m: m.num_wakes_ahead_used,
    ),
    "muxcluster:waking_seconds": ("Seconds of all wakes.", lambda m: m.waking_s),
}
# vLLM's sleep states; weights that are on their way count as where they come from.
SLEEP_STATES = {
    "awake": (WeightState.RESIDENT, WeightState.PARKING),
    "weights_offloaded": (WeightState.PARKED, WeightState.WAKING),
    "discard_all": (WeightState.COLD,),
}


class UnitMetrics(Collector):
    """Reads units through `stats`: `observe` counts jobs, each scrape reads the rest."""

    def __init__(
        self, registry: CollectorRegistry, stats: Callable[[], Iterable[UnitStats]]
    ) -> None:
        self._stats = stats
        self._latest: dict[str, UnitStats] = {}
        labels = (*LABELS, "phase")
        self._job_seconds = Counter(
            "muxcluster:job_seconds", "Seconds jobs ran.", labels, registry=registry
        )
        self._jobs = Counter("muxcluster:jobs", "Jobs run.", labels, registry=registry)
        self._share = Gauge(
            "muxcluster:sm_share", "SM share (0 to 1) of the latest job.", labels, registry=registry
        )
        self._iteration = Histogram(
            "vllm:iteration_tokens_total",
            "Tokens of a job.",
            LABELS,
            buckets=ITERATION,
            registry=registry,
        )
        registry.register(self)

    def observe(self) -> None:
        """Count the jobs of new reports. Call it more often than units report.

        Reports of units that are gone are forgotten.
        """
        units = {unit.unit_id: unit for unit in self._stats()}
        before, self._latest = self._latest, units
        for unit_id, unit in units.items():
            known = before.get(unit_id)
            if known is not None and known.now_s == unit.now_s:
                continue
            for job in unit.jobs:
                self._count(unit_id, job)

    def _count(self, unit_id: str, job: JobRecord) -> None:
        self._job_seconds.labels(job.model, unit_id, job.phase).inc(
            max(0.0, job.end_s - job.start_s)
        )
        self._jobs.labels(job.model, unit_id, job.phase).inc()
        self._share.labels(job.model, unit_id, job.phase).set(job.share)
        self._iteration.labels(job.model, unit_id).observe(job.num_tokens)

    def describe(self) -> Iterable[Metric]:
        """Return no samples: registering must not ask the units."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the units' latest state."""
        self.observe()
        units = list(self._latest.values())
        for name, (text, value) in GAUGES.items():
            yield _fill(GaugeMetricFamily(name, text, labels=LABELS), units, value)
        for name, (text, value) in COUNTERS.items():
            yield _fill(CounterMetricFamily(name, text, labels=LABELS), units, value)
        yield _sleep_states(units)
        pool = GaugeMetricFamily(
            "muxcluster:pool_blocks", "KV blocks of a unit.", labels=["engine"]
        )
        free = GaugeMetricFamily("muxcluster:free_blocks", "Free KV blocks.", labels=["engine"])
        shares = GaugeMetricFamily(
            "muxcluster:sm_sharing", "1 where jobs share the SMs, 0 where not.", labels=["engine"]
        )
        gain = GaugeMetricFamily(
            "muxcluster:sm_sharing_gain",
            "Seconds that jobs take one after another over those they take side by side.",
            labels=["engine"],
        )
        for unit in units:
            pool.add_metric([unit.unit_id], unit.num_blocks)
            free.add_metric([unit.unit_id], unit.free_blocks)
            if unit.sharing is not None:
                shares.add_metric([unit.unit_id], unit.sharing.is_on)
                gain.add_metric([unit.unit_id], unit.sharing.gain)
        yield from (pool, free, shares, gain)


def _sleep_states(units: Iterable[UnitStats]) -> Metric:
    family = GaugeMetricFamily(
        "vllm:engine_sleep_state",
        "1 for the state of the model's weights, 0 for the others.",
        labels=[*LABELS, "sleep_state"],
    )
    for unit in units:
        for model in unit.models:
            for name, states in SLEEP_STATES.items():
                family.add_metric([model.name, unit.unit_id, name], model.weights in states)
    return family


def _fill(
    family: GaugeMetricFamily | CounterMetricFamily,
    units: Iterable[UnitStats],
    value: Callable[[ModelStats], float],
) -> Metric:
    for unit in units:
        for model in unit.models:
            family.add_metric([model.name, unit.unit_id], value(model))
    return family
