"""Request metrics under vLLM's names, in a registry of their own (never the global one)."""

import time
from types import TracebackType

from prometheus_client import CollectorRegistry, Counter, Histogram

from muxcluster.api.call import Call
from muxcluster.api.choice import ChoiceDelta
from muxcluster.core.errors import RequestError, Unavailable
from muxcluster.core.events import Finished, FinishReason
from muxcluster.core.served import ServedModel

LABELS = ("model_name", "engine")
ENGINE = "0"
"""`engine` label of what is measured here rather than in a unit."""

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
COUNTERS = {
    "prompt_tokens": "Prompt tokens of finished and running requests.",
    "generation_tokens": "Output tokens.",
    "prompt_tokens_cached": "Prompt tokens taken from the prefix cache.",
    "admission_rejections": "Requests refused because the server was full or not ready.",
}


class Metrics:
    """All request families of one app, and `num_live`, the requests now in the engine."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.num_live = 0
        self.histograms = {
            name: Histogram(f"vllm:{name}", text, LABELS, buckets=buckets, registry=registry)
            for name, (text, buckets) in HISTOGRAMS.items()
        }
        self.counters = {
            name: Counter(f"vllm:{name}", text, LABELS, registry=registry)
            for name, text in COUNTERS.items()
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
        self.http_seconds = Histogram(
            "http_request_duration_seconds",
            "Time to the end of the response.",
            ("handler", "method"),
            registry=registry,
        )

    def declare(self, model: ServedModel) -> None:
        """Makes the model's series exist at zero, so that rates are right from the start."""
        for family in (*self.counters.values(), *self.histograms.values()):
            family.labels(model.name, ENGINE)
        for reason in FinishReason:
            self.success.labels(model.name, ENGINE, reason.value)

    def count(self, name: str, model: str, amount: float = 1) -> None:
        """Adds to a counter of COUNTERS."""
        self.counters[name].labels(model, ENGINE).inc(amount)

    def observe(self, name: str, model: str, value: float) -> None:
        """Adds a value to a histogram of HISTOGRAMS."""
        self.histograms[name].labels(model, ENGINE).observe(value)

    def call_started(self, call: Call) -> None:
        """A checked call goes to the engine."""
        self.observe("request_params_n", call.model.served.name, call.n)

    def request(self, call: Call, index: int) -> "RequestRecord":
        """The measurements of one choice, a context manager around its life."""
        return RequestRecord(self, call, index)


class RequestRecord:
    """Times one request from entering the context to leaving it and counts its one end."""

    def __init__(self, metrics: Metrics, call: Call, index: int) -> None:
        prompt = call.prompt_of(index)
        self._metrics = metrics
        self._model = call.model.served.name
        self._num_prompt = len(prompt.tokens)
        self._max_tokens = prompt.max_tokens
        self._num_output = 0
        self._end: str | None = None

    def __enter__(self) -> "RequestRecord":
        self._started_s = self._latest_s = self._first_s = time.monotonic()
        self._metrics.num_live += 1
        self._metrics.count("prompt_tokens", self._model, self._num_prompt)
        self._observe("request_prompt_tokens", self._num_prompt)
        self._observe("request_params_max_tokens", self._max_tokens)
        return self

    def advance(self, delta: ChoiceDelta, finished: Finished | None) -> None:
        """New tokens, and the end when there is one."""
        if delta.tokens:
            self._count_tokens(len(delta.tokens))
        if finished is not None:
            self._observe_phases(finished)
        if delta.finish_reason is not None:
            self._end = delta.finish_reason

    def _count_tokens(self, num_tokens: int) -> None:
        now_s = time.monotonic()
        if self._num_output == 0:
            self._first_s = now_s
            self._observe("time_to_first_token_seconds", now_s - self._started_s)
        else:
            self._observe("inter_token_latency_seconds", (now_s - self._latest_s) / num_tokens)
        self._latest_s = now_s
        self._num_output += num_tokens
        self._metrics.count("generation_tokens", self._model, num_tokens)

    def _observe_phases(self, end: Finished) -> None:
        self._observe("request_queue_time_seconds", end.queue_s)
        self._observe("request_prefill_time_seconds", end.prefill_s)
        self._observe("request_decode_time_seconds", end.decode_s)
        self._observe("request_inference_time_seconds", end.prefill_s + end.decode_s)
        self._observe("request_num_preemptions", end.num_preemptions)
        computed = self._num_prompt - end.num_cached_tokens
        self._observe("request_prefill_kv_computed_tokens", computed)
        self._metrics.count("prompt_tokens_cached", self._model, end.num_cached_tokens)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._metrics.num_live -= 1
        if self._num_output == 0 and isinstance(error, Unavailable | RequestError):
            self._metrics.count("admission_rejections", self._model)
            return
        if self._end is None:
            failed = isinstance(error, Exception)
            self._end = (FinishReason.ERROR if failed else FinishReason.ABORT).value
        self._metrics.success.labels(self._model, ENGINE, self._end).inc()
        now_s = time.monotonic()
        self._observe("e2e_request_latency_seconds", now_s - self._started_s)
        self._observe("request_generation_tokens", self._num_output)
        if self._num_output > 1:
            mean_s = (self._latest_s - self._first_s) / (self._num_output - 1)
            self._observe("request_time_per_output_token_seconds", mean_s)

    def _observe(self, name: str, value: float) -> None:
        self._metrics.observe(name, self._model, value)
