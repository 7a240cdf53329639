"""Files of examples/monitoring: a board and alerts, whose metrics a real server has."""

import json
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import ROOT
from tests.http.fakes import wait_until
from tests.http.live_server import NAME, configured, live_server

FOLDER = ROOT / "examples" / "monitoring"
BOARD = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))
RULES = yaml.safe_load((FOLDER / "rules.yaml").read_text(encoding="utf-8"))
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
ALERT_NAMES = [alert["alert"] for alert in ALERTS]
GUIDE = ROOT / "docs" / "guides" / "monitoring.md"

# of PromQL, what expressions may have beside metrics; `up` is Prometheus's own metric
WORDS = {"sum", "max", "by", "rate", "increase", "histogram_quantile", "and", "up"}
SELECTED = re.compile(r"([a-zA-Z_][\w:]*)\{([^}]*)\}")
GROUPED = re.compile(r"\bby \(([^)]*)\)")

# Metrics that vLLM's own board asks for: examples/online_serving/prometheus_grafana/grafana.json of
# vllm-project/vllm at e88892c9, and names that boards of older versions have.
VLLM_BOARD = (
    *("vllm:e2e_request_latency_seconds_bucket", "vllm:e2e_request_latency_seconds_sum"),
    *("vllm:e2e_request_latency_seconds_count", "vllm:prompt_tokens_total"),
    *("vllm:generation_tokens_total", "vllm:inter_token_latency_seconds_bucket"),
    *("vllm:inter_token_latency_seconds_sum", "vllm:inter_token_latency_seconds_count"),
    *("vllm:num_requests_running", "vllm:num_requests_waiting"),
    *("vllm:time_to_first_token_seconds_bucket", "vllm:time_to_first_token_seconds_sum"),
    *("vllm:time_to_first_token_seconds_count", "vllm:kv_cache_usage_perc"),
    *("vllm:request_prompt_tokens_bucket", "vllm:request_generation_tokens_bucket"),
    *("vllm:request_success_total", "vllm:request_queue_time_seconds_sum"),
    *("vllm:request_prefill_time_seconds_sum", "vllm:request_decode_time_seconds_sum"),
    "vllm:request_max_num_generation_tokens_sum",
    *("vllm:time_per_output_token_seconds_bucket", "vllm:gpu_cache_usage_perc"),
)
NOT_OURS = {
    "vllm:request_max_num_generation_tokens_sum",
    "vllm:time_per_output_token_seconds_bucket",
    "vllm:gpu_cache_usage_perc",
}

Labels = dict[str, set[str]]  # of each metric


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Labels]:
    """Of a server that has answered a request and has had a batch file."""
    file = configured(tmp_path_factory.mktemp("monitored"))
    with live_server(file) as url, httpx.Client(base_url=url, timeout=300) as http:
        body = {"model": NAME, "prompt": "hello", "max_tokens": 4}
        assert http.post("/v1/completions", json=body).status_code == 200
        line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
        files = {"file": ("x.jsonl", json.dumps(line).encode())}
        sent = http.post("/v1/files", files=files, data={"purpose": "batch"})
        assert sent.status_code == 200, sent.text

        def all_there() -> bool:
            text = http.get("/metrics").text
            return "muxcluster:batches " in text and "muxcluster:jobs_total{" in text

        assert wait_until(all_there)
        yield labels_of(http.get("/metrics").text)


def labels_of(text: str) -> Labels:
    found: Labels = defaultdict(set)
    ends = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
    for family in text_string_to_metric_families(text):
        for end in ends[family.type]:
            found[family.name + end]
        for sample in family.samples:
            found[sample.name] |= sample.labels.keys()
    return found


def expressions() -> list[str]:
    panels = BOARD["panels"]
    return [
        *(target["expr"] for panel in panels for target in panel["targets"]),
        *(alert["expr"] for alert in ALERTS),
    ]


def queried(expression: str) -> set[str]:
    """The metrics of an expression; fails for a word that is neither one nor PromQL's."""
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", GROUPED.sub("by", expression))
    words = set(re.findall(r"[a-zA-Z_][\w:]*", bare))
    assert not re.findall(r"[\"'#@]", bare), bare
    return words - WORDS


@pytest.mark.parametrize("expression", expressions())
def test_every_metric_and_label_is_there(metrics: Labels, expression: str) -> None:
    names = queried(expression)
    assert names <= metrics.keys()
    labels = set().union(*(metrics[name] for name in names))
    for name, selector in SELECTED.findall(expression):
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector):
            assert name == "up" or not metrics[name] or label in metrics[name], label
    for group in GROUPED.findall(expression):
        for label in re.split(r",\s*", group):
            assert label in labels | {"instance"} or not labels, label


def test_the_board_is_whole() -> None:
    panels: list[dict[str, Any]] = BOARD["panels"]
    ids = [panel["id"] for panel in panels]
    assert len(set(ids)) == len(ids)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places)
    variables = {each["name"] for each in BOARD["templating"]["list"]}
    for panel in panels:
        assert panel["title"] and panel["datasource"]["uid"] == "${datasource}"
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(panels)))
    assert used - {"__rate_interval"} <= variables


def test_every_alert_says_what_and_how_bad() -> None:
    assert len(set(ALERT_NAMES)) == len(ALERT_NAMES)
    for alert in ALERTS:
        assert alert.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert alert["labels"].keys() == {"severity"}
        assert alert["labels"]["severity"] in ("warning", "critical")
        assert alert["annotations"].keys() == {"summary", "description"}
        grouped = set(", ".join(GROUPED.findall(alert["expr"])).split(", "))
        for label in re.findall(r"\$labels\.(\w+)", str(alert["annotations"])):
            assert label in grouped | {"instance"}, alert["alert"]
    conditions = re.findall(r'condition="(\w+)"', str(ALERTS))
    assert set(conditions) == {"stalled", "degraded", "overloaded"}


def test_prometheus_reads_the_rules() -> None:
    config = yaml.safe_load((FOLDER / "prometheus.yaml").read_text(encoding="utf-8"))
    assert config["rule_files"] == ["rules.yaml"]
    assert [job["job_name"] for job in config["scrape_configs"]] == ["muxcluster"]
    assert 'up{job="muxcluster"}' in ALERTS[0]["expr"]


def series(text: str, values: str) -> dict[str, str]:
    return {"series": text, "values": values}


def condition(name: str, values: str) -> dict[str, str]:
    return series(f'muxcluster:condition{{condition="{name}",instance="a"}}', values)


def promtool(*arguments: str) -> None:
    subprocess.run(["promtool", *arguments], cwd=FOLDER, check=True, timeout=60)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_no_fault_and_alerts_fire_when_they_should(tmp_path: Path) -> None:
    promtool("check", "rules", "rules.yaml")
    promtool("check", "config", "prometheus.yaml")
    asked = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
    filled = [each.replace("$__rate_interval", "5m").replace("$model", ".*") for each in asked]
    rules = [{"record": f"board:{i}", "expr": each} for i, each in enumerate(filled)]
    board = tmp_path / "board.yaml"
    board.write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": rules}]}))
    promtool("check", "rules", str(board))

    stalled = next(alert for alert in ALERTS if alert["alert"] == "MuxclusterStalled")
    fired = {
        "exp_labels": {**stalled["labels"], "instance": "a"},
        "exp_annotations": stalled["annotations"],
    }
    # stalled from the first minute on, for half a minute before it is told
    times = [("MuxclusterStalled", "1m", []), ("MuxclusterStalled", "2m15s", [fired])]
    times += [("MuxclusterOverloaded", "9m", []), ("MuxclusterAway", "9m", [])]
    case = {
        "interval": "15s",
        "input_series": [
            condition("stalled", "0x4 1x40"),
            condition("overloaded", "0x40"),
            series('up{job="muxcluster",instance="a"}', "1x40"),
        ],
        "alert_rule_test": [
            {"alertname": name, "eval_time": at, "exp_alerts": expected}
            for name, at, expected in times
        ],
    }
    file = tmp_path / "cases.yaml"
    cases = {"rule_files": [str(FOLDER / "rules.yaml")], "evaluation_interval": "15s"}
    file.write_text(yaml.safe_dump({**cases, "tests": [case]}))
    promtool("test", "rules", str(file))


def test_vllms_board_finds_its_metrics_or_the_guide_says_which_are_not_there(
    metrics: Labels,
) -> None:
    assert set(VLLM_BOARD) - metrics.keys() == NOT_OURS
    guide = GUIDE.read_text(encoding="utf-8")
    for name in NOT_OURS:
        base = re.sub("_(sum|bucket)$", "", name)
        assert f"`{base}`" in guide
    assert metrics["vllm:request_success_total"] >= {"model_name", "finished_reason"}
