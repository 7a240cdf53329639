"""Bad configuration gets one line with file, line, key and the nearest valid name."""

import re
from pathlib import Path

import pytest

from muxcluster.config.load import load_config
from muxcluster.config.planner_input import nodes_of, problem
from muxcluster.core.errors import ConfigError, LoadError
from muxcluster.placement.hardware import GPUS
from muxcluster.placement.shapes.known import SHAPES

GOOD = """
models:
  - name: a
    path: tiny
    rate: 2
    slo: {ttft: 0.4, tpot: 0.2}
  - name: b
    shape: llama-2-7b
cluster:
  nodes:
    - {name: n, gpus: 4, gpu: A100-80GB}
policy: {scheduler: adbs, partition: auto, block_tokens: 16}
"""


def test_a_good_file(write, model_directory) -> None:
    directory = model_directory("tiny")
    config = load_config(write(GOOD))
    assert [model.name for model in config.models] == ["a", "b"]
    first = config.models[0]
    assert first.path == directory
    assert (first.max_model_len, first.facts.eos_token_ids) == (2048, (2,))
    assert (first.section.rate, first.section.slo.ttft) == (2.0, 0.4)
    assert config.models[1].path is None
    assert config.cluster.nodes[0].gpus == 4
    assert (config.policy.block_tokens, config.server.port) == (16, 8000)


def test_batch_work_of_a_model(write, model_directory) -> None:
    model_directory("tiny")

    def backlog(text: str):
        config = load_config(write(GOOD.replace("rate: 2", f"batch: {text}")))
        return problem(config, nodes_of(config)).demands[0].backlog

    daily = backlog("{tokens_per_day: 86.4e6, output_tokens: 50}")
    assert (daily.tokens_per_s, daily.prompt_tokens, daily.output_tokens) == (1000.0, 161.0, 50.0)
    assert daily.rate == pytest.approx(1000 / 211)
    assert backlog("{queue_tokens: 1e6, due_s: 500}").tokens_per_s == 2000.0
    assert backlog("{queue_tokens: 864e5}").tokens_per_s == 1000.0
    config = load_config(write(GOOD))
    assert all(each.backlog is None for each in problem(config, nodes_of(config)).demands)


def test_what_the_planner_is_told_of_weights_and_constraints(write, model_directory) -> None:
    model_directory("tiny")

    def first(text: str):
        config = load_config(write(GOOD.replace("rate: 2", text)))
        return problem(config, nodes_of(config)).demands[0]

    found = first("quantize: int8\n    constrained_share: 0.25")
    assert found.shape.weights is not None
    assert (found.is_rounded, found.constrained_share) == (True, 0.25)
    assert (first("rate: 2").is_rounded, first("rate: 2").constrained_share) == (False, 0.0)
    with pytest.raises(ConfigError, match="constrained_share"):
        first("constrained_share: 1.5")


def test_batches_are_kept_beside_the_file(write, model_directory, tmp_path) -> None:
    model_directory("tiny")
    assert load_config(write(GOOD)).batch_directory == tmp_path / "muxcluster-batches"
    for given, expected in (("jobs", tmp_path / "jobs"), ("/srv/jobs", Path("/srv/jobs"))):
        config = load_config(write(f"{GOOD}batch: {{directory: {given}, max_lines: 5}}"))
        assert (config.batch_directory, config.batch.max_lines) == (expected, 5)
    with pytest.raises(ConfigError, match=r"batch.max_line\b.*max_line"):
        load_config(write(f"{GOOD}batch: {{max_line: 5}}"))


def test_names_as_cuda_and_hugging_face_spell_them(write, model_directory) -> None:
    model_directory("tiny")
    text = GOOD.replace("A100-80GB", "NVIDIA A100-SXM4-80GB")
    config = load_config(write(text.replace("llama-2-7b", "meta-llama/Llama-2-7b-hf")))
    assert config.models[1].facts.shape is SHAPES["llama-2-7b"]
    assert nodes_of(config)[0].gpu is GPUS["A100-80GB"]


def refusal(write, text: str) -> ConfigError:
    file = write(text)
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    message = str(caught.value)
    assert message.startswith(str(file))
    assert "\n" not in message
    return caught.value


@pytest.mark.parametrize(
    ("old", "new", "key", "says"),
    [
        ("rate: 2", "rat: 2", "models[0].rat", "did you mean rate?"),
        ("policy:", "polcy:", "polcy", "did you mean policy?"),
        ("ttft: 0.4", "tfft: 0.4", "models[0].slo.tfft", "did you mean ttft?"),
        ("gpus: 4", "gpu_count: 4", "cluster.nodes[0].gpu_count", "unknown key"),
        ("block_tokens: 16", "block_token: 16", "policy.block_token", "block_tokens?"),
        ("rate: 2", "rate: two", "models[0].rate", "number, not 'two'"),
        ("rate: 2", "rate: '2'", "models[0].rate", "number"),
        ("rate: 2", "rate: true", "models[0].rate", "number"),
        ("rate: 2", "rate: -1", "models[0].rate", "greater than 0"),
        ("rate: 2", "rate: .nan", "models[0].rate", "finite"),
        ("rate: 2", "max_seqs: 1.5", "models[0].max_seqs", "integer"),
        ("rate: 2", "max_model_len: 4096", "models[0].max_model_len", "2048"),
        ("rate: 2", "shape: llama-2-7b", "models[0]", "either path"),
        ("shape: llama-2-7b", "rate: 1", "models[1]", "either path"),
        ("shape: llama-2-7b", "shape: llama2-7b", "models[1].shape", "did you mean llama-2-7b?"),
        ("path: tiny", "path: tinny", "models[0].path", "did you mean tiny?"),
        ("path: tiny", "path: .", "models[0].path", "no config.json"),
        ("name: b", "name: a", "models[1].name", "already the name of models[0]"),
        ("name: b", "name: ''", "models[1].name", "at least 1"),
        ("gpu: A100-80GB", "gpu: A100", "cluster.nodes[0].gpu", "did you mean A100-"),
        ("gpus: 4, gpu: A100-80GB", "gpus: 4, gpu: cpu", "cluster.nodes[0]", "must be 1"),
        ("gpus: 4", "cores: 4", "cluster.nodes[0]", "cpu node only"),
        ("adbs", "adsb", "policy.scheduler", "'adsb'; did you mean adbs?"),
        ("adbs", "fastest", "policy.scheduler", "; valid: adbs, mixed, round-robin, temporal"),
        ("scheduler: adbs", "packing: hybird", "policy.packing", "did you mean hybrid?"),
        ("scheduler: adbs", "packing: fifo", "policy.packing", "fcfs, hybrid, priority, round-r"),
        ("scheduler: adbs", "packing: 1", "policy.packing", "'hybrid'"),
        ("scheduler: adbs", "host_memory_gb: 1", "policy.host_memory_gb", "host_memory_gib?"),
        ("scheduler: adbs", "host_memory_gib: -1", "policy.host_memory_gib", "0"),
        ("scheduler: adbs", "host_memory_gib: .inf", "policy.host_memory_gib", "finite"),
        ("block_tokens: 16", "block_tokens: 12", "policy.block_tokens", "multiple of 8"),
        ("models:", "model:", "model", "did you mean models?"),
        ("rate: 2", "kv_dtype: fp8", "models[0].kv_dtype", "did you mean fp8_e4m3?"),
        ("rate: 2", "batch: {}", "models[0].batch", "either tokens_per_day or queue_tokens"),
        (
            "rate: 2",
            "batch: {tokens_per_day: 1e6, queue_tokens: 1e6}",
            "models[0].batch",
            "either tokens_per_day or queue_tokens",
        ),
        (
            "rate: 2",
            "batch: {tokens_per_day: 1e6, due_s: 60}",
            "models[0].batch",
            "due_s is of queue_tokens",
        ),
        (
            "rate: 2",
            "batch: {tokens_per_day: 0}",
            "models[0].batch.tokens_per_day",
            "greater than or equal to 1",
        ),
        (
            "rate: 2",
            "batch: {tokens_a_day: 1e6}",
            "models[0].batch.tokens_a_day",
            "did you mean tokens_per_day?",
        ),
        (
            "rate: 2",
            "batch: {tokens_per_day: 1e6, prompt_tokens: 3000}",
            "models[0].batch.prompt_tokens",
            "longest context is 2048",
        ),
    ],
)
def test_refusals_name_the_key(write, model_directory, old, new, key, says) -> None:
    model_directory("tiny")
    assert old in GOOD
    text = GOOD.replace(old, new, 1)
    error = refusal(write, text)
    assert error.key == key
    assert says in str(error)
    last = re.sub(r"\[\d+\]", "", key).split(".")[-1]
    assert error.line is not None
    assert last in text.splitlines()[error.line - 1] or key.endswith("]")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "expected keys"),
        ("- a", "expected keys"),
        ("models: []", "at least 1"),
        ("models: [{name: a, shape: opt-13b}]\ncluster: {nodes: []}", "or auto"),
        ("models: [{name: a, shape: opt-13b}]\ncluster: {nodes: atuo}", "or auto"),
        ("policy: {}", "models: missing"),
        ("models: [", "not YAML"),
        ("models:\n\t- a", "not YAML"),
        ("models: 1\nmodels: 2", "twice"),
        ("a: !!python/object:os.system {}", "not YAML"),
    ],
)
def test_a_file_that_is_no_configuration(write, text, says) -> None:
    assert says in str(refusal(write, text))


def test_a_missing_file(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: no such file"):
        load_config(tmp_path / "none.yaml")


def test_a_corrupt_config_json_is_named(write, model_directory) -> None:
    directory = model_directory("tiny")
    (directory / "config.json").write_text("{")
    with pytest.raises(LoadError, match=r"config\.json"):
        load_config(write(GOOD))
    (directory / "config.json").write_text("{}")
    with pytest.raises(LoadError, match="hidden_size"):
        load_config(write(GOOD))


@pytest.mark.parametrize(
    ("lengths", "key", "says"),
    [
        ("max_model_len: 400, prompt_tokens: 300", "max_model_len", "400 is too short"),
        ("max_model_len: 400, output_tokens: 390", "max_model_len", "551 tokens a request"),
        ("prompt_tokens: 3000, output_tokens: 1097", "prompt_tokens", "longest context is 4096"),
        ("output_tokens: 4000", "output_tokens", "output_tokens 4000 are 4161 tokens"),
    ],
)
def test_a_demand_longer_than_max_model_len_is_refused_with_both_numbers(
    write, lengths, key, says
) -> None:
    error = refusal(write, f"models:\n  - {{name: a, shape: llama-2-7b, {lengths}}}\n")
    assert error.key == f"models[0].{key}"
    assert says in str(error)
    assert error.line == 2


def test_default_lengths_are_cut_to_a_short_max_model_len(write) -> None:
    config = load_config(write("models:\n  - {name: a, shape: llama-2-7b, max_model_len: 100}\n"))
    (demand,) = problem(config, nodes_of(config)).demands
    assert demand.prompt_tokens + demand.output_tokens == pytest.approx(100)
    assert demand.prompt_tokens / demand.output_tokens == pytest.approx(161 / 338)


def test_latents_are_not_kept_by_the_dense_backend(write) -> None:
    text = "models:\n  - {name: a, shape: deepseek-v2-lite, backend: dense}\n"
    error = refusal(write, text)
    assert error.key == "models[0].backend"
    assert "dense keeps no latents" in str(error)


@pytest.mark.parametrize(
    ("entries", "line", "key", "says"),
    [
        ({}, "backend: dense", "backend", "dense keeps keys and values in the model's dtype"),
        ({"model_type": "diffllama"}, "rate: 1", "kv_dtype", "the dense backend, which this type"),
        ({"head_dim": 18}, "rate: 1", "kv_dtype", "multiple of 4, not 18"),
    ],
)
def test_what_keeps_no_8_bit_keys_and_values_is_refused(
    write, model_directory, entries, line, key, says
) -> None:
    model_directory("tiny", **entries)
    text = GOOD.replace("    rate: 2", f"    kv_dtype: int8\n    {line}")
    error = refusal(write, text)
    assert error.key == f"models[0].{key}"
    assert says in str(error)
