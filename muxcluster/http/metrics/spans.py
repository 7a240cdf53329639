"""Spans of ended requests for an OpenTelemetry collector. Off by default.

A choice of a call is a span with vLLM's name and attributes, in the caller's trace where it sent
one (W3C Trace Context); below it is a span for each part of its time.
"""

import atexit
import logging
import threading
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from muxcluster.core.errors import ConfigError
from muxcluster.http.calls.call import Call
from muxcluster.http.metrics.recent import EndedRequest

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer

logger = logging.getLogger(__name__)

SERVICE = "muxcluster"  # unless OpenTelemetry's variables say another
SPAN = "llm_request"
EXPORTER = "opentelemetry.exporter.otlp.proto.http"
# Parts of a request's time in the order in which most requests pass them. How long each took is
# known, not when: they are laid end to end.
PARTS = (
    "queue_s",
    "waking_s",
    "prefill_s",
    "decode_s",
    "mask_wait_s",
    "preempted_s",
    "restore_s",
    "recovery_s",
    "framework_s",
)
LEAST_S = 5e-5  # shorter parts get no span
END_S = 3.0  # a collector that is away holds up the end of a process no longer
_NS = 1e9

_provider: "TracerProvider | None" = None
_tracer: "Tracer | None" = None  # of the provider


def check_installed(where: str) -> None:
    """Raise ConfigError, naming the setting `where`, if the exporter is not installed."""
    try:
        found = find_spec(EXPORTER) is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        message = "the exporter is not installed: pip install 'muxcluster[otel]', on every node"
        raise ConfigError(where, "", message)


def begin(endpoint: str | None) -> None:
    """As `send_to`, if there is an endpoint; without the exporter, say so and send nothing."""
    if endpoint is None:
        return
    try:
        send_to(endpoint)
    except ImportError as error:
        logger.warning("no spans are sent from here: %s (pip install 'muxcluster[otel]')", error)


def is_on() -> bool:
    return _provider is not None


def send_to(endpoint: str) -> None:
    """Send spans from now on, in batches from a thread of its own, to an OTLP endpoint over HTTP.

    What the collector does not take in time is dropped. OpenTelemetry's own variables apply, such
    as OTEL_TRACES_SAMPLER, OTEL_SERVICE_NAME and OTEL_EXPORTER_OTLP_HEADERS. Needs the exporter,
    see `check_installed`.
    """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    global _provider, _tracer
    stop()
    # what the environment says of the service comes first
    resource = Resource({SERVICE_NAME: SERVICE}).merge(OTELResourceDetector().detect())
    resource = Resource.create().merge(resource)
    # at the end of the process, too, nobody waits longer than `stop`
    _provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    atexit.register(stop)
    _provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    _tracer = _provider.get_tracer(SERVICE)


def stop() -> None:
    """Send what waits, for `END_S` at most, and then nothing more. Idempotent."""
    global _provider, _tracer
    if _provider is not None:
        ending = threading.Thread(target=_provider.shutdown, daemon=True)
        ending.start()
        ending.join(END_S)
        _provider = _tracer = None


def write(ended: EndedRequest, call: Call) -> None:
    """Send the spans of one choice of `call`, unless its trace is not recorded.

    A fault of it is logged: no request fails because of its spans.
    """
    if _tracer is None:
        return
    try:
        _write(_tracer, ended, call)
    except Exception:
        logger.exception("a request has no span")


def _write(tracer: "Tracer", ended: EndedRequest, call: Call) -> None:
    from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

    line: Mapping[str, Any] = ended.line
    seconds = {part: max(0.0, line[part]) for part in PARTS}
    start_ns = int(ended.arrived_unix_s * _NS)
    span = tracer.start_span(
        SPAN,
        _caller(call),
        SpanKind.SERVER,
        {key: value for key, value in _attributes(ended, call).items() if value is not None},
        start_time=start_ns,
    )
    if line["error"] is not None:
        span.set_status(Status(StatusCode.ERROR, str(line["error"])))
    if ended.ttft_s is not None:
        span.add_event("first token", timestamp=start_ns + int(ended.ttft_s * _NS))
    inside = set_span_in_context(span)
    at_ns = start_ns
    for part, length_s in seconds.items():
        end_ns = at_ns + int(length_s * _NS)
        if length_s >= LEAST_S:
            tracer.start_span(part.removesuffix("_s"), inside, start_time=at_ns).end(end_ns)
        at_ns = end_ns
    span.end(start_ns + int(line["total_s"] * _NS))


def _caller(call: Call) -> "Context":
    """The span in which the caller asks; without one, none: not that of others in this process."""
    from opentelemetry.context import Context
    from opentelemetry.trace import (
        NonRecordingSpan,
        SpanContext,
        TraceFlags,
        set_span_in_context,
    )

    head = call.head
    if not head.trace_id:
        return Context()
    flags = TraceFlags(TraceFlags.SAMPLED if head.is_sampled else TraceFlags.DEFAULT)
    ids = int(head.trace_id, 16), int(head.parent_span_id, 16)
    return set_span_in_context(NonRecordingSpan(SpanContext(*ids, True, flags)))


def _attributes(ended: EndedRequest, call: Call) -> dict[str, Any]:
    """vLLM's attributes, and ours of what vLLM does not have."""
    line: Mapping[str, Any] = ended.line
    sampling = call.sampling
    return {
        "gen_ai.request.id": ended.request_id,
        "gen_ai.request.n": call.n,
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.response.model": ended.model,
        "gen_ai.usage.prompt_tokens": line["prompt_tokens"],
        "gen_ai.usage.completion_tokens": line["output_tokens"],
        "gen_ai.latency.time_in_queue": line["queue_s"],
        "gen_ai.latency.time_to_first_token": ended.ttft_s,
        "gen_ai.latency.time_in_model_prefill": line["prefill_s"],
        "gen_ai.latency.time_in_model_decode": line["decode_s"],
        "gen_ai.latency.e2e": line["total_s"],
        "muxcluster.class": ended.service_class.value,
        "muxcluster.choice": line["choice"],
        "muxcluster.end": ended.end,
        "muxcluster.cached_tokens": line["cached_tokens"],
        "muxcluster.preemptions": line["preemptions"],
        "muxcluster.recoveries": line["recoveries"],
    }
