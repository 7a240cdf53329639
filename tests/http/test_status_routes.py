"""Health, keys, tokenising and metrics."""

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from muxcluster import __version__
from muxcluster.core.errors import ModelNotFound, NotReady, Overloaded
from muxcluster.core.events import Finished, FinishReason, TokenDelta
from muxcluster.core.served import JobRecord, UnitStats
from muxcluster.http.app import create_app
from muxcluster.http.settings import ApiSettings
from muxcluster.router.backend import RoutedBackend

TEXT = {"model": "tiny", "prompt": "hi"}


def test_health_and_ready_are_apart(http, backend):
    assert http.get("/health").status_code == http.get("/ready").status_code == 200
    backend.is_ready = False
    assert http.get("/health").status_code == 200
    answer = http.get("/ready")
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    backend.is_ready, backend.is_healthy = True, False
    assert http.get("/health").status_code == http.get("/ready").status_code == 503
    assert http.post("/ping").status_code == 503


def test_version_and_load(http):
    assert http.get("/version").json() == {"version": __version__}
    assert http.get("/load").json() == {"server_load": 0}


def references(value):
    """Every $ref in a JSON document."""
    if isinstance(value, list):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return
    for key, item in value.items():
        if key == "$ref":
            yield item
        else:
            yield from references(item)


def test_document_describes_the_bodies(http):
    document = http.get("/openapi.json").json()
    found = set(references(document))
    assert "#/components/schemas/ChatBody" in found
    for reference in found:
        name = reference.removeprefix("#/components/schemas/")
        assert name in document["components"]["schemas"]


def test_api_key(backend, says):
    says("ok")
    with TestClient(create_app(backend, ApiSettings(api_key="secret"))) as http:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
            answer = http.post("/v1/completions", json=TEXT, headers=headers)
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
        for path in ("/metrics", "/v1/models", "/openapi.json", "/nothing"):
            assert http.get(path).status_code == 401
        for path in ("/health", "/ping", "/ready"):
            assert http.get(path).status_code == 200
        assert backend.requests == []
        good = {"Authorization": "Bearer secret"}
        assert http.post("/v1/completions", json=TEXT, headers=good).status_code == 200


def test_request_id_is_made_or_kept(http):
    assert http.get("/health", headers={"X-Request-Id": "mine"}).headers["x-request-id"] == "mine"
    made = {http.get("/health").headers["x-request-id"] for _ in range(2)}
    assert len(made) == 2
    strange = http.get("/health", headers={"X-Request-Id": "a b"}).headers["x-request-id"]
    assert strange != "a b"


def test_tokenize_is_what_chat_sends(http, backend, says):
    says("ok")
    messages = [{"role": "user", "content": "hello"}]
    count = http.post("/tokenize", json={"model": "tiny", "messages": messages}).json()
    http.post("/v1/chat/completions", json={"model": "tiny", "messages": messages})
    assert count["tokens"] == backend.requests[0].prompt_tokens.tolist()
    assert count["count"] == len(count["tokens"])
    assert count["max_model_len"] == 256


def test_tokenize_and_back(http):
    body = {"prompt": "hello 🦊", "return_token_strs": True}
    answer = http.post("/tokenize", json=body).json()
    assert len(answer["token_strs"]) == answer["count"]
    back = http.post("/detokenize", json={"model": "tiny", "tokens": answer["tokens"]})
    assert back.json() == {"prompt": "hello 🦊"}
    assert http.post("/tokenize", json={"model": "tiny"}).status_code == 400
    bad = http.post("/detokenize", json={"tokens": [10**8]}).json()
    assert bad["error"]["param"] == "tokens"


def test_long_prompts_are_tokenised_alike(backend, says):
    says("ok")
    with TestClient(create_app(backend, ApiSettings(inline_chars=0))) as http:
        assert http.post("/v1/completions", json=TEXT).status_code == 200
    with TestClient(create_app(backend, ApiSettings())) as http:
        assert http.post("/v1/completions", json=TEXT).status_code == 200
    first, second = backend.requests
    assert first.prompt_tokens.tolist() == second.prompt_tokens.tolist()


def test_request_fields_reach_the_engine(http, backend, says):
    says("ok")
    fields = {
        "service_tier": "flex",
        "slo": {"ttft": 0.5, "tpot": 0.1},
        "priority": -3,
        "cache_salt": "tenant",
        "request_id": "r1",
        "top_k": 0,
        "logit_bias": {"5": -3},
        "min_tokens": 1,
        "ignore_eos": True,
    }
    assert http.post("/v1/completions", json=TEXT | fields).json()["id"] == "cmpl-r1"
    request = backend.requests[0]
    assert request.service_class == "batch"
    assert (request.slo.ttft_s, request.slo.tpot_s) == (0.5, 0.1)
    assert (request.priority, request.cache_salt, request.cacheable) == (-3, "tenant", True)
    assert request.sampling.top_k is None
    assert request.sampling.logit_bias == ((5, -3.0),)
    assert (request.sampling.min_tokens, request.sampling.ignore_eos) == (1, True)
    assert request.sampling.max_tokens == 16
    assert http.post("/v1/completions", json=TEXT).status_code == 200
    assert backend.requests[1].sampling.seed != request.sampling.seed


def test_time_limit_is_a_408_and_aborts(http, backend, says):
    says("hello world")
    backend.most_deltas = 0
    headers = {"X-Request-Timeout-Seconds": "1"}
    answer = http.post("/v1/completions", json=TEXT, headers=headers)
    assert answer.status_code == 408
    assert answer.json()["error"]["code"] == "request_timeout"
    assert len(backend.aborted) == 1


def test_poison_request_says_not_to_retry(http, backend):
    end = Finished("r", FinishReason.ERROR, code="poison_request", message="twice")
    backend.first = TokenDelta(finished=end)
    answer = http.post("/v1/completions", json=TEXT)
    assert answer.status_code == 500
    assert answer.headers["x-should-retry"] == "false"
    assert answer.json()["error"]["code"] == "poison_request"


def test_an_engine_error_that_is_nobodys_fault_may_be_retried(http, backend):
    backend.first = TokenDelta(finished=Finished("r", FinishReason.ERROR, message="unit failed"))
    answer = http.post("/v1/completions", json=TEXT)
    assert answer.status_code == 500
    assert "x-should-retry" not in answer.headers
    assert answer.json()["error"]["code"] == "internal_error"


def test_unexpected_error_hides_its_text(backend, says):
    says("ok")
    backend.error = ZeroDivisionError("secret detail")
    with TestClient(create_app(backend), raise_server_exceptions=False) as http:
        answer = http.post("/v1/completions", json=TEXT)
    assert answer.status_code == 500
    assert "secret detail" not in answer.text
    assert answer.headers["x-request-id"]
    assert answer.json()["error"]["code"] == "internal_error"


def samples(http):
    """{(name, label values in order of label name, engine left out): value} of the scrape."""
    families = list(text_string_to_metric_families(http.get("/metrics").text))
    values = {}
    for family in families:
        for sample in family.samples:
            labels = dict(sorted(sample.labels.items()))
            labels.pop("engine", None)
            values[sample.name, *labels.values()] = sample.value
    return values


def test_metrics(http, backend, says):
    tokens = says("hello world")
    before = samples(http)
    assert before["vllm:request_success_total", "stop", "tiny"] == 0
    for _ in range(2):
        http.post("/v1/completions", json=TEXT | {"max_tokens": 50})
    http.post("/v1/completions", json=TEXT | {"max_tokens": 1})
    backend.error = Overloaded("full")
    assert http.post("/v1/completions", json=TEXT).status_code == 429
    after = samples(http)
    assert after["vllm:request_success_total", "stop", "tiny"] == 2
    assert after["vllm:request_success_total", "length", "tiny"] == 1
    assert after["vllm:admission_rejections_total", "tiny"] == 1
    assert after["vllm:generation_tokens_total", "tiny"] == 2 * (len(tokens) + 1) + 1
    assert after["vllm:prompt_tokens_total", "tiny"] == sum(
        len(request.prompt_tokens) for request in backend.requests
    )
    assert after["vllm:time_to_first_token_seconds_count", "tiny"] == 3
    assert after["vllm:inter_token_latency_seconds_count", "tiny"] == 2 * len(tokens)
    assert after["vllm:e2e_request_latency_seconds_count", "tiny"] == 3
    assert after["vllm:request_queue_time_seconds_sum", "tiny"] == pytest.approx(0.03)
    assert after["vllm:num_requests_running", "tiny"] == 2
    assert after["vllm:num_requests_waiting", "tiny"] == 1
    assert after["vllm:kv_cache_usage_perc", "tiny"] == pytest.approx(0.4)
    assert after["muxcluster:quota_blocks", "tiny"] == 50
    assert after["muxcluster:sm_share", "tiny", "prefill"] == 0.7
    assert after["http_requests_total", "/v1/completions", "POST", "4xx"] == 1


def test_jobs_of_a_report_count_once(http):
    for _ in range(3):
        values = samples(http)
    assert values["muxcluster:jobs_total", "tiny", "prefill"] == 1
    assert values["muxcluster:job_seconds_total", "tiny", "prefill"] == 0.5
    assert values["vllm:iteration_tokens_total_sum", "tiny"] == 64


def test_two_apps_in_a_process_share_no_metric(served, backend, says):
    says("ok")
    with TestClient(create_app(backend)) as one, TestClient(create_app(backend)) as two:
        one.post("/v1/completions", json=TEXT)
        assert samples(one)["vllm:request_success_total", "stop", "tiny"] == 1
        assert samples(two)["vllm:request_success_total", "stop", "tiny"] == 0


class ScriptedUnit:
    """A unit client whose reports are handed out one by one."""

    def __init__(self, reports):
        self.reports = reports

    def stats(self):
        return self.reports.pop(0) if self.reports else None

    async def generate(self, request):
        yield TokenDelta(finished=Finished(request.request_id, FinishReason.LENGTH))


def report(now_s, *job_ids):
    jobs = tuple(JobRecord(i, "tiny", "decode", 0, 1.0, 0, 1, 1, 1) for i in job_ids)
    return UnitStats("u", now_s, 10, 10, (), jobs)


def test_routed_backend_loses_no_job_and_waits_for_every_unit(served):
    unit = ScriptedUnit([None, report(1.0, 1), report(1.0, 1), report(2.0, 2, 3)])
    routed = RoutedBackend([served], {"tiny": unit})
    assert not routed.ready()
    assert routed.ready()
    assert routed.healthy()
    [stats] = routed.stats()
    assert [job.job_id for job in stats.jobs] == [1, 2, 3]
    assert routed.stats()[0].jobs == ()
    routed.drain()
    assert not routed.ready()
    with pytest.raises(NotReady, match="shutting down"):
        routed.generate(None)


def test_routed_backend_is_unhealthy_when_a_unit_falls_silent(served):
    routed = RoutedBackend([served], {"tiny": ScriptedUnit([report(1.0)])}, silence_s=0.0)
    assert routed.healthy() is False


def test_routed_backend_routes_by_model(served, backend):
    routed = RoutedBackend([served], {"other": ScriptedUnit([])})
    with TestClient(create_app(routed)) as http:
        assert http.post("/v1/completions", json=TEXT).status_code == 404
    with pytest.raises(ModelNotFound):
        asyncio.run(anext(create_app(routed).state.service.generate({"model": "x", "prompt": "y"})))
