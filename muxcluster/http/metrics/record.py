"""The metrics of one request, from its arrival to its end."""

import time
from types import TracebackType

from muxcluster.core.errors import NotReady, Overloaded, RequestError
from muxcluster.core.events import Finished, FinishReason
from muxcluster.http.calls.account import EngineTime
from muxcluster.http.calls.call import Call
from muxcluster.http.calls.choice import TOOL_CALLS, ChoiceDelta
from muxcluster.http.metrics import request_log, spans
from muxcluster.http.metrics.recent import REJECTED, EndedRequest
from muxcluster.http.metrics.requests import ENGINE, REJECTED_CODES, Metrics

# metric of each part of a request's time; all parts but the first sum to it
PART_HISTOGRAMS = {
    "total_s": "e2e_request_latency_seconds",
    "queue_s": "request_queue_time_seconds",
    "prefill_s": "request_prefill_time_seconds",
    "decode_s": "request_decode_time_seconds",
    "preempted_s": "request_preempted_seconds",
    "restore_s": "request_restore_seconds",
    "recovery_s": "request_recovery_seconds",
    "waking_s": "request_waking_seconds",
    "mask_wait_s": "request_mask_wait_seconds",
    "framework_s": "request_framework_seconds",
}
TIMER_S = 0.001  # timers may fire this much early


class RequestRecord:
    """Measures choice `index` of a call; a context manager that counts its end exactly once."""

    def __init__(self, metrics: Metrics, call: Call, index: int) -> None:
        prompt = call.prompt_of(index)
        self._metrics = metrics
        self._call = call
        self._index = index
        self._model = call.model.served.name
        self._num_prompt = len(prompt.tokens)
        self._max_tokens = prompt.max_tokens
        self._gaps = metrics.histograms["inter_token_latency_seconds"].labels(self._model, ENGINE)
        self._tokens = metrics.counters["generation_tokens"].labels(self._model, ENGINE)
        self._num_output = 0
        self._has_vector = False
        self._num_shown = 0  # output tokens in `usage`, without surplus ones
        self._num_cached = 0
        self._finished: Finished | None = None
        self._end: str | None = None

    def __enter__(self) -> "RequestRecord":
        self._submitted_s = self._latest_s = self._first_s = time.monotonic()
        self._metrics.num_live += 1
        self._metrics.count("prompt_tokens", self._model, self._num_prompt)
        self._observe("request_prompt_tokens", self._num_prompt)
        self._observe("request_params_max_tokens", self._max_tokens)
        return self

    def advance(self, delta: ChoiceDelta, finished: Finished | None) -> None:
        """Count new tokens, and note the end if there is one."""
        self._num_shown, self._num_cached = delta.num_output_tokens, delta.num_cached_tokens
        if delta.tokens:
            self._count_tokens(len(delta.tokens))
        if delta.vector:
            self._has_vector = True
            self._first_s = self._latest_s = time.monotonic()
        if finished is not None:
            self._finished = finished
            self._observe_unit(finished)
        if delta.finish_reason is not None:
            # vLLM's label of both
            is_call = delta.finish_reason == TOOL_CALLS
            self._end = FinishReason.STOP.value if is_call else delta.finish_reason

    def time(self) -> EngineTime:
        """Return the parts of the time so far.

        The unit reports them at its end, for which a stop string does not wait. Then the first
        token, as seen here, divides prefill (with its queue) from decode.
        """
        if self._finished is not None:
            return EngineTime.of(self._finished)
        if self._num_output == 0:
            return EngineTime()
        return EngineTime(
            prefill_s=self._first_s - self._submitted_s, decode_s=self._latest_s - self._first_s
        )

    def _count_tokens(self, num_tokens: int) -> None:
        now_s = time.monotonic()
        if self._num_output == 0:
            self._first_s = now_s
            self._observe("time_to_first_token_seconds", now_s - self._call.head.arrived_s)
        else:
            self._gaps.observe((now_s - self._latest_s) / num_tokens)
        self._latest_s = now_s
        self._num_output += num_tokens
        self._tokens.inc(num_tokens)

    def _observe_unit(self, end: Finished) -> None:
        self._observe("request_num_preemptions", end.num_preemptions)
        computed = self._num_prompt - end.num_cached_tokens
        self._observe("request_prefill_kv_computed_tokens", computed)
        self._metrics.count("prompt_tokens_cached", self._model, end.num_cached_tokens)
        self._metrics.count("request_recoveries", self._model, end.num_recoveries)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._metrics.num_live -= 1
        self._count_for_key(error)
        call, end = self._call, self._end or self._end_by(error)
        times = self.time().within(time.monotonic() - call.head.arrived_s)
        if end == REJECTED:
            self._metrics.count("admission_rejections", self._model)
        else:
            self._observe_end(end, times)
        line = self._line(end, times, error)
        # of the texts of a call that go well, one stands for all
        if not (call.embeds and self._index and self._has_vector):
            ended = self._ended(end, line)
            self._metrics.recent.add(ended)
            if spans.is_on():
                spans.write(ended, call)
        if request_log.is_on():
            request_log.write(line)

    def _count_for_key(self, error: BaseException | None) -> None:
        """Tell the key's meter what `usage` tells the client; nothing of a request that failed
        before its first token."""
        call = self._call
        meter = call.head.meter
        if meter is None or (isinstance(error, Exception) and self._num_output == 0):
            return
        prompt, copy = divmod(self._index, call.n)
        # choices of one prompt compute it once; `usage` takes the first one's word
        num_cached = self._num_cached if copy == 0 else 0
        num_output = 0 if call.embeds else self._num_shown
        meter.count(prompt, self._num_prompt, num_output, num_cached)

    def _end_by(self, error: BaseException | None) -> str:
        """Return how a request without a finish reason ended."""
        if self._num_output == 0 and _is_refusal(error):
            return REJECTED
        # at the time limit requests are cancelled as if the client had left, but they failed
        is_late = time.monotonic() > self._call.deadline_s - TIMER_S
        is_failed = isinstance(error, Exception) or is_late
        return (FinishReason.ERROR if is_failed else FinishReason.ABORT).value

    def _observe_end(self, end: str, times: dict[str, float]) -> None:
        self._metrics.success.labels(self._model, ENGINE, end).inc()
        for part, name in PART_HISTOGRAMS.items():
            self._observe(name, times[part])
        self._observe("request_inference_time_seconds", times["prefill_s"] + times["decode_s"])
        self._observe("request_generation_tokens", self._num_output)
        if (tpot_s := self._tpot_s()) is not None:
            self._observe("request_time_per_output_token_seconds", tpot_s)

    def _tpot_s(self) -> float | None:
        """Return the mean time of a token after the first; None if there is none."""
        if self._num_output < 2:
            return None
        return (self._latest_s - self._first_s) / (self._num_output - 1)

    def _ended(self, end: str, line: dict[str, object]) -> EndedRequest:
        call, now_s = self._call, time.monotonic()
        arrived_s = call.head.arrived_s
        return EndedRequest(
            line=line,
            request_id=call.head.request_id,
            call_id=call.call_id,
            model=self._model,
            service_class=call.service_class,
            end=end,
            arrived_unix_s=time.time() - (now_s - arrived_s),
            ended_s=now_s,
            ttft_s=self._first_s - arrived_s if self._num_output or self._has_vector else None,
            tpot_s=self._tpot_s(),
            slo=call.slo,
            trace_id=call.head.trace_id,
        )

    def _line(
        self, end: str, times: dict[str, float], error: BaseException | None
    ) -> dict[str, object]:
        finished = self._finished
        return {
            "request_id": self._call.head.request_id,
            "id": self._call.call_id,
            "trace_id": self._call.head.trace_id or None,
            "parent_span_id": self._call.head.parent_span_id or None,
            "choice": self._index,
            "model": self._model,
            "class": self._call.service_class.value,
            "end": end,
            "error": str(error) if isinstance(error, Exception) else None,
            "prompt_tokens": self._num_prompt,
            "output_tokens": self._num_output,
            "cached_tokens": finished.num_cached_tokens if finished else 0,
            "preemptions": finished.num_preemptions if finished else 0,
            "recoveries": finished.num_recoveries if finished else 0,
            **{name: round(seconds, 6) for name, seconds in times.items()},
        }

    def _observe(self, name: str, value: float) -> None:
        self._metrics.observe(name, self._model, value)


def _is_refusal(error: BaseException | None) -> bool:
    if isinstance(error, NotReady):
        return error.code in REJECTED_CODES
    return isinstance(error, Overloaded | RequestError)
