"""Request metrics under vLLM's names, in a registry of their own."""

import time
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram

from muxcluster.core.events import FinishReason
from muxcluster.core.served import ServedModel
from muxcluster.http.calls.call import Call
from muxcluster.http.metrics.recent import RecentRequests

LABELS = ("model_name", "engine")
UNKNOWN_MODEL = ""  # `model_name` label of requests that were refused unread
ENGINE = "0"  # `engine` label of what is measured here and not in a unit

_SECONDS = (2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0)
TTFT_BUCKETS = (*_TTFT, *_SECONDS, 160.0, 640.0, 2560.0)
_ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0)
ITL_BUCKETS = (*_ITL, *_SECONDS)
_PHASE = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0)
PHASE_BUCKETS = (*_PHASE, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)
LENGTH = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
CHOICES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)

HISTOGRAMS = {
    "time_to_first_token_seconds": ("Time to the first token.", TTFT_BUCKETS),
    "inter_token_latency_seconds": ("Time between tokens.", ITL_BUCKETS),
    "request_time_per_output_token_seconds": ("Mean time per token after the first.", ITL_BUCKETS),
    "e2e_request_latency_seconds": ("Arrival to last token.", PHASE_BUCKETS),
    "request_queue_time_seconds": ("Arrival at the unit to first launch.", PHASE_BUCKETS),
    "request_prefill_time_seconds": ("First launch to first token.", PHASE_BUCKETS),
    "request_decode_time_seconds": ("First token to last.", PHASE_BUCKETS),
    "request_inference_time_seconds": ("First launch to last token.", PHASE_BUCKETS),
    "request_prompt_tokens": ("Prompt tokens of a request.", LENGTH),
    "request_generation_tokens": ("Output tokens of a request.", LENGTH),
    "request_prefill_kv_computed_tokens": ("Prompt tokens not found in the cache.", LENGTH),
    "request_params_max_tokens": ("max_tokens of a request.", LENGTH),
    "request_params_n": ("n of a call.", CHOICES),
    "request_num_preemptions": ("Preemptions of a request.", (0.0, *CHOICES)),
}
OUR_HISTOGRAMS = {
    "request_preempted_seconds": ("Waiting after preemptions.", TTFT_BUCKETS),
    "request_restore_seconds": ("Recomputing what a preemption or fault lost.", TTFT_BUCKETS),
    "request_recovery_seconds": ("Waiting for a lost unit's successor.", TTFT_BUCKETS),
    "request_waking_seconds": ("Waiting for the model's weights to be resident.", TTFT_BUCKETS),
    "request_mask_wait_seconds": ("Decode jobs' waits for what a constraint allows.", TTFT_BUCKETS),
    "request_framework_seconds": ("End to end, less all that units account for.", TTFT_BUCKETS),
}
COUNTERS = {
    "prompt_tokens": "Prompt tokens of finished and running requests.",
    "generation_tokens": "Output tokens.",
    "prompt_tokens_cached": "Prompt tokens taken from the prefix cache.",
    "admission_rejections": "Requests refused because the server was full or not ready.",
}
OUR_COUNTERS = {
    "request_recoveries": "Times that a request lost its unit and went on in another.",
}
# of NotReady: the request was refused; with `replica_lost` it failed
REJECTED_CODES = frozenset(
    {"model_loading", "no_capacity", "server_shutting_down", "model_parked", "model_held"}
)


class Metrics:
    """The request metrics of one application.

    num_live: requests now in the engine. recent: those that ended last.
    """

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.num_live = 0
        self.recent = RecentRequests()
        self.histograms = {
            name: Histogram(f"{prefix}:{name}", text, LABELS, buckets=buckets, registry=registry)
            for prefix, families in (("vllm", HISTOGRAMS), ("muxcluster", OUR_HISTOGRAMS))
            for name, (text, buckets) in families.items()
        }
        self.counters = {
            name: Counter(f"{prefix}:{name}", text, LABELS, registry=registry)
            for prefix, families in (("vllm", COUNTERS), ("muxcluster", OUR_COUNTERS))
            for name, text in families.items()
        }
        self.success = Counter(
            "vllm:request_success",
            "Requests that ended, by reason.",
            (*LABELS, "finished_reason"),
            registry=registry,
        )
        self.http_requests = Counter(
            "http_requests",
            "HTTP requests by route, method and status class.",
            ("handler", "method", "status"),
            registry=registry,
        )
        self.key_failures = Counter(
            "muxcluster:key_counter_failures",
            "Requests or reports of use that the counter of the keys' limits did not take.",
            ("reason",),
            registry=registry,
        )
        self.http_seconds = Histogram(
            "http_request_duration_seconds",
            "Time to the end of the response.",
            ("handler", "method"),
            registry=registry,
        )

    def declare(self, models: Iterable[ServedModel]) -> None:
        """Create the models' series at zero, so that rates are right from the start.

        They stay when a model is removed: counters must not fall, and the model may come back.
        """
        for model in models:
            for family in (*self.counters.values(), *self.histograms.values()):
                family.labels(model.name, ENGINE)
            for reason in FinishReason:
                self.success.labels(model.name, ENGINE, reason.value)

    def count(self, name: str, model: str, amount: float = 1) -> None:
        """Add to a counter of COUNTERS or OUR_COUNTERS."""
        self.counters[name].labels(model, ENGINE).inc(amount)

    def refused_unread(self) -> None:
        """Count a call that was refused before its model was known."""
        self.count("admission_rejections", UNKNOWN_MODEL)
        self.recent.refuse(UNKNOWN_MODEL, 1, time.monotonic())

    def refused_head(self, status: int) -> None:
        """Count a request that was refused before its head was complete."""
        self.http_requests.labels("none", "OTHER", f"{status // 100}xx").inc()

    def key_failed(self, reason: str) -> None:
        """Count what the counter of the keys' limits did not take, by `KeyRing`'s reasons."""
        self.key_failures.labels(reason).inc()

    def observe(self, name: str, model: str, value: float) -> None:
        """Add a value to a histogram of HISTOGRAMS or OUR_HISTOGRAMS."""
        self.histograms[name].labels(model, ENGINE).observe(value)

    def call_started(self, call: Call) -> None:
        """Count a checked call that goes to the engine."""
        self.observe("request_params_n", call.model.served.name, call.n)
