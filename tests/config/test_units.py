"""From configuration to plan, unit specifications and served models."""

from dataclasses import replace

import pytest

from muxcluster.config.load import Config, load_config
from muxcluster.config.planner_input import nodes_of, problem
from muxcluster.config.planning import plan_for
from muxcluster.config.units import served_models, unit_specs
from muxcluster.core.errors import ConfigError, InfeasiblePlan
from muxcluster.core.job import Phase
from muxcluster.core.request import Slo
from muxcluster.core.unitspec import UnitSpec
from muxcluster.placement.hardware import GPUS
from muxcluster.placement.memory import block_bytes
from muxcluster.placement.plan import Plan
from muxcluster.placement.problem import Demand, Limits, Node

TWO = """
models:
  - {name: a, path: tiny, slo: {ttft: 1, tpot: 0.5}, rate: 3}
  - {name: b, path: wide, max_model_len: 512, max_seqs: 8, load_format: dummy, seed: 4}
cluster: {nodes: [{name: local, gpu: cpu, cores: CORES, memory_gb: 8}]}
policy: {scheduler: LANE, partition: PARTITION}
"""


@pytest.fixture
def specs_of(write, model_directory):
    """(cores, lane, partition) -> specifications of two tiny models."""
    model_directory("tiny")
    model_directory("wide", head_dim=128, vocab_size=640)

    def make(cores=2, lane="adbs", partition="auto") -> tuple[UnitSpec, ...]:
        text = TWO.replace("CORES", str(cores)).replace("LANE", lane)
        config = load_config(write(text.replace("PARTITION", partition)))
        return unit_specs(config, plan_for(config))

    return make


def test_both_models_share_one_unit(specs_of) -> None:
    (unit,) = specs_of()
    assert (unit.unit_id, unit.device, unit.num_threads) == ("local-0", "cpu", 2)
    by_name = {model.name: model for model in unit.models}
    a, b = by_name["a"], by_name["b"]
    assert (a.shape.num_layers, a.shape.num_kv_heads, a.shape.head_dim) == (2, 2, 16)
    assert (a.dtype, a.shape.itemsize, a.slo, a.rate_per_s) == ("float32", 4, Slo(1, 0.5), 3.0)
    assert (b.max_model_len, b.max_seqs, b.load_format, b.seed) == (512, 8, "dummy", 4)
    assert (b.shape.head_dim, b.vocab_size) == (128, 640)
    assert unit.block_bytes == 2 * 128 * 16 * 4
    assert b.shape.block_tokens(unit.block_bytes) == 16


def test_the_pool_holds_a_quarter_of_the_longest_sequences(specs_of) -> None:
    (unit,) = specs_of()
    need = 0
    for model in unit.models:
        tokens = model.shape.block_tokens(unit.block_bytes)
        columns = -(-model.max_model_len // tokens)
        need += model.max_seqs // 4 * columns * model.shape.blocks_per_column
    assert unit.num_blocks == need


@pytest.mark.parametrize(
    ("cores", "lane", "partition", "workers", "runs"),
    [
        (2, "adbs", "auto", 2, "adbs"),
        (2, "round-robin", "threads", 2, "round-robin"),
        (2, "mixed", "auto", 1, "mixed"),
        (2, "temporal", "auto", 1, "temporal"),
        (1, "adbs", "auto", 1, "mixed"),
        (2, "adbs", "none", 1, "mixed"),
    ],
)
def test_workers_of_a_lane(specs_of, cores, lane, partition, workers, runs) -> None:
    (unit,) = specs_of(cores, lane, partition)
    assert len(unit.workers) == workers
    assert unit.scheduler.lane == runs
    assert [worker.worker_id for worker in unit.workers] == list(range(workers))
    assert {worker.shares for worker in unit.workers} == {(0.5, 1.0) if workers == 2 else (1.0,)}


@pytest.mark.parametrize(
    ("lane", "workers", "runs"), [("adbs", 1, "mixed"), ("round-robin", 2, "round-robin")]
)
def test_a_model_alone_has_nobody_to_share_with(
    write, model_directory, lane, workers, runs
) -> None:
    model_directory("tiny")
    nodes = "cluster: {nodes: [{name: local, gpu: cpu, cores: 2, memory_gb: 8}]}"
    text = f"models: [{{name: a, path: tiny}}]\n{nodes}\npolicy: {{scheduler: {lane}}}"
    config = load_config(write(text))
    (unit,) = unit_specs(config, plan_for(config))
    assert (len(unit.workers), unit.scheduler.lane) == (workers, runs)


def test_a_model_may_choose_its_backend_and_bring_code(write, model_directory) -> None:
    model_directory("tiny")
    own = "backend: dense, trust_remote_code: true"
    config = load_config(
        write(f"models: [{{name: m, path: tiny}}, {{name: n, path: tiny, {own}}}]")
    )
    (unit,) = unit_specs(config, plan_for(config))
    found = {model.name: (model.backend, model.trust_remote_code) for model in unit.models}
    assert found == {"m": ("auto", False), "n": ("dense", True)}
    with pytest.raises(ConfigError, match="backend"):
        load_config(write("models: [{name: m, path: tiny, backend: thick}]"))


def test_served_models(write, model_directory) -> None:
    directory = model_directory("tiny")
    (served,) = served_models(load_config(write("models: [{name: a, path: tiny}]")))
    assert (served.path, served.vocab_size, served.eos_token_ids) == (str(directory), 512, (2,))
    assert served.max_model_len == 2048
    assert (served.tool_format, served.reasoning) == ("auto", "auto")


def test_how_a_model_writes_calls_and_reasoning(write, model_directory) -> None:
    model_directory("tiny")
    keys = "{name: a, path: tiny, tool_format: hermes, reasoning: none}"
    (served,) = served_models(load_config(write(f"models: [{keys}]")))
    assert (served.tool_format, served.reasoning) == ("hermes", "none")
    with pytest.raises(ConfigError, match=r"models\[0\]\.tool_format"):
        load_config(write("models: [{name: a, path: tiny, tool_format: xml}]"))


def test_this_machine_is_the_default_cluster(write, model_directory) -> None:
    model_directory("tiny")
    for cluster in ("", "cluster: {nodes: auto}"):
        plan = plan_for(load_config(write(f"models: [{{name: a, path: tiny}}]\n{cluster}")))
        assert [(unit.node, unit.gpus) for unit in plan.units] == [("local", (0,))]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("kv_gb: 0.0001", "max_model_len 2048 is larger than the KV pool"),
        ("block_tokens: 8", "fewer than 8 tokens of head_dim 256"),
    ],
)
def test_a_model_that_cannot_fit(write, model_directory, line, says) -> None:
    model_directory("tiny", head_dim=256)
    file = write(f"models: [{{name: a, path: tiny}}]\npolicy: {{{line}}}")
    with pytest.raises(InfeasiblePlan) as caught:
        plan_for(load_config(file))
    message = str(caught.value)
    assert message.startswith(f"{file}: models[0]: a does not fit: ")
    assert says in message
    assert "\n" not in message


def test_weights_larger_than_the_memory_name_the_gigabytes(write) -> None:
    file = write(
        "models: [{name: a, shape: llama-2-7b}]\n"
        "cluster: {nodes: [{name: n, gpu: cpu, memory_gb: 8, cores: 2}]}"
    )
    with pytest.raises(InfeasiblePlan, match=r"a does not fit: .*GiB missing"):
        plan_for(load_config(file))


def test_a_shape_alone_can_be_planned_and_not_served(write) -> None:
    config = load_config(write("models: [{name: a, shape: llama-2-7b}]\ncluster: {nodes: auto}"))
    nodes = (Node("gpu-node", 1, GPUS["A100-80GB"]),)
    plan = plan_for(config, nodes)
    assert plan.units[0].node == "gpu-node"
    with pytest.raises(ConfigError, match=r"models\[0\]\.path: missing"):
        unit_specs(config, plan, nodes)
    with pytest.raises(ConfigError, match=r"models\[0\]\.path: missing"):
        served_models(config)


def test_dtype_and_device_on_a_gpu(write, model_directory) -> None:
    model_directory("tiny")
    file = write(
        "models: [{name: a, path: tiny}]\ncluster: {nodes: [{name: g, gpus: 1, gpu: H100}]}"
    )
    config = load_config(file)
    (unit,) = unit_specs(config, plan_for(config))
    assert (unit.device, unit.partition, unit.models[0].dtype) == ("cuda:0", "none", "bfloat16")
    assert unit.block_bytes == 2 * 128 * 16 * 2


@pytest.mark.parametrize(
    ("models", "policy", "partition", "workers"),
    [
        (1, "", "none", 1),
        (2, "", "auto", 3),
        (3, "", "auto", 3),
        (1, "partition: mps", "mps", 2),
        (2, "partition: green", "green", 3),
        (2, "partition: none", "none", 1),
        (2, "partition: mps, scheduler: temporal", "none", 1),
    ],
)
def test_workers_of_a_gpu(write, model_directory, models, policy, partition, workers) -> None:
    model_directory("tiny")
    listed = ", ".join(f"{{name: m{i}, path: tiny}}" for i in range(models))
    nodes = "cluster: {nodes: [{name: g, gpus: 1, gpu: H100}]}"
    config = load_config(write(f"models: [{listed}]\n{nodes}\npolicy: {{{policy}}}"))
    (unit,) = unit_specs(config, plan_for(config))
    assert (unit.partition, len(unit.workers)) == (partition, workers)
    if workers > 1:
        prefill, *decodes = unit.workers
        complements = [1.0 - share for share in prefill.shares if share < 1.0]
        for decode in decodes:
            assert all(any(abs(rung - c) < 1e-9 for rung in decode.shares) for c in complements)
        # Un-sharing needs a worker for mixed jobs on the whole card.
        assert Phase.MIXED in prefill.phases
        assert prefill.shares[-1] == 1.0


def test_processes_and_recorded_steps_take_memory_from_the_pool(write, model_directory) -> None:
    model_directory("tiny")
    text = (
        "models: [{name: a, path: tiny}, {name: b, path: tiny}]\n"
        "cluster: {nodes: [{name: g, gpus: 1, gpu: H100}]}\npolicy: {partition: PARTITION}"
    )
    num_bytes = {}
    for partition in ("none", "green", "mps", "mps, kv_gb: 3"):
        config = load_config(write(text.replace("PARTITION", partition)))
        (unit,) = unit_specs(config, plan_for(config))
        num_bytes[partition] = unit.num_blocks * unit.block_bytes
    # In 9 places (a worker of mixed jobs on all SMs, two decode workers at four shares; `none` has
    # one): fp32 logits of both models, what one of them needs beside, and cuBLAS's workspace.
    num_logits = unit.models[0].max_seqs * unit.models[0].vocab_size
    recorded = 8 * (2 * 4 * num_logits + 5 * num_logits + 32 * 2**20)
    missing = num_bytes["none"] - num_bytes["green"]
    assert abs(missing - recorded) < unit.block_bytes
    # 11 workers and an owner, where the planner counts three contexts of half a GiB.
    missing = num_bytes["green"] - num_bytes["mps"]
    assert 9 * 2**29 <= missing < 9 * 2**29 + unit.block_bytes
    assert num_bytes["mps, kv_gb: 3"] == 3 * 2**30


@pytest.mark.parametrize(
    ("gpu", "partition", "says"),
    [("cpu", "mps", "mps divides a GPU"), ("H100", "threads", "threads divides the cores")],
)
def test_a_partition_of_other_hardware_is_refused(
    write, model_directory, gpu, partition, says
) -> None:
    model_directory("tiny")
    nodes = f"cluster: {{nodes: [{{name: g, gpu: {gpu}}}]}}"
    file = write(f"models: [{{name: a, path: tiny}}]\n{nodes}\npolicy: {{partition: {partition}}}")
    config = load_config(file)
    with pytest.raises(ConfigError) as caught:
        unit_specs(config, plan_for(config))
    assert str(caught.value).startswith(f"{file}: policy.partition: {says}")
    assert "\n" not in str(caught.value)


def test_a_plan_of_another_configuration_is_refused(write, model_directory) -> None:
    model_directory("tiny")
    plan = plan_for(load_config(write("models: [{name: a, path: tiny}]")))
    other = load_config(write("models: [{name: b, path: tiny}]"))
    with pytest.raises(ConfigError, match="no model 'a'"):
        unit_specs(other, plan)


@pytest.mark.parametrize(
    ("policy", "gib"),
    [
        ("packing: hybrid", 16),
        ("packing: hybrid, host_memory_gib: 2.5", 2.5),
        ("packing: hybrid, host_memory_gib: 0", 0),
        ("packing: priority", 0),
        ("packing: priority, host_memory_gib: 2.5", 0),
        ("packing: round-robin", 0),
        ("packing: fcfs", 0),
    ],
)
def test_host_memory_of_a_gpu(write, model_directory, policy, gib) -> None:
    model_directory("tiny")
    nodes = "cluster: {nodes: [{name: g, gpus: 1, gpu: H100}]}"
    config = load_config(write(f"models: [{{name: a, path: tiny}}]\n{nodes}\npolicy: {{{policy}}}"))
    (unit,) = unit_specs(config, plan_for(config))
    assert unit.scheduler.packing in policy
    assert unit.num_host_blocks * unit.block_bytes == gib * 2**30


@pytest.mark.parametrize(
    ("kv_gb", "line", "gib"),
    [(0.25, "", 0.25), (1.5, "", 1), (0.25, ", host_memory_gib: 3", 3)],
    ids=["a small pool", "a large pool", "asked for"],
)
def test_host_memory_of_a_cpu(write, model_directory, kv_gb, line, gib) -> None:
    model_directory("tiny")
    nodes = "cluster: {nodes: [{name: n, gpu: cpu, cores: 2, memory_gb: 8}]}"
    policy = f"policy: {{packing: hybrid, kv_gb: {kv_gb}{line}}}"
    config = load_config(write(f"models: [{{name: a, path: tiny}}]\n{nodes}\n{policy}"))
    (unit,) = unit_specs(config, plan_for(config))
    assert unit.num_blocks * unit.block_bytes == kv_gb * 2**30
    assert unit.num_host_blocks * unit.block_bytes == gib * 2**30


def test_planner_and_engine_mean_the_same_block(specs_of) -> None:
    (unit,) = specs_of()
    demand = Demand("a", None, 1, 1, 1, 1, 1, itemsize=4)
    assert block_bytes([demand], Limits(16)) == unit.block_bytes


TWO_GPUS = """
models: [{name: a, path: tiny, load_format: dummy}]
cluster: {nodes: [{name: n, gpus: 1, gpu: H100}]}
policy: {packing: hybrid, kv_gb: 4, PARTITION}
"""


def on_two_gpus(config: Config) -> Plan:
    """The planner's plan with its one unit moved to GPUs 2 and 3, with two GPUs' blocks."""
    plan = plan_for(config)
    (unit,) = plan.units
    wide = unit.model_copy(update={"tp": 2, "gpus": (2, 3), "kv_blocks": 2 * unit.kv_blocks + 1})
    return plan.model_copy(update={"units": (wide,)})


def test_a_unit_of_two_gpus_is_told_what_one_rank_has(write, model_directory) -> None:
    """A plan counts blocks over all GPUs (placement.plan); a column takes half as many on each."""
    model_directory("tiny")
    config = load_config(write(TWO_GPUS.replace("PARTITION", "partition: auto")))
    (single,) = unit_specs(config, plan_for(config))
    (unit,) = unit_specs(config, on_two_gpus(config))
    assert (unit.tp, unit.rank_devices, unit.device) == (2, ("cuda:2", "cuda:3"), "cuda:2")
    assert (single.tp, single.rank_devices) == (1, ())
    (model,), (whole,) = unit.models, single.models
    assert (whole.shape.num_kv_heads, model.shape.num_kv_heads) == (2, 1)
    assert model.weight_bytes == whole.weight_bytes // 2
    assert unit.num_blocks == single.num_blocks
    columns = [s.num_blocks // s.models[0].shape.blocks_per_column for s in (single, unit)]
    assert columns[1] == 2 * columns[0]
    assert unit.num_host_blocks == single.num_host_blocks // 2
    assert unit.host_link == single.host_link
    assert (unit.partition, len(unit.workers), unit.scheduler.lane) == ("none", 1, "mixed")


@pytest.mark.parametrize(
    ("policy", "partition", "num_workers", "lane", "depth"),
    [
        ("partition: auto", "none", 1, "mixed", 1),  # of one model: it would share with none
        ("partition: green", "green", 2, "adbs", 2),
        ("partition: green, pipeline_depth: 1", "green", 2, "adbs", 1),
        ("partition: none, pipeline_depth: 2", "none", 1, "mixed", 2),
        ("partition: green, scheduler: temporal", "none", 1, "temporal", 1),
    ],
)
def test_how_ranks_run_their_jobs(
    write, model_directory, policy: str, partition: str, num_workers: int, lane: str, depth: int
) -> None:
    model_directory("tiny")
    config = load_config(write(TWO_GPUS.replace("PARTITION", policy)))
    (unit,) = unit_specs(config, on_two_gpus(config))
    assert (unit.partition, len(unit.workers)) == (partition, num_workers)
    assert (unit.scheduler.lane, unit.scheduler.pipeline_depth) == (lane, depth)


@pytest.mark.parametrize(
    ("gpu", "asked", "depth"),
    [("H100", "auto", 2), ("H100", "1", 1), ("cpu", "auto", 2), ("cpu", "1", 1)],
)
def test_depth_of_the_pipeline(write, model_directory, gpu: str, asked: str, depth: int) -> None:
    model_directory("tiny")
    nodes = f"cluster: {{nodes: [{{name: g, gpus: 1, gpu: {gpu}}}]}}"
    policy = f"policy: {{pipeline_depth: {asked}}}"
    config = load_config(write(f"models: [{{name: m, path: tiny}}]\n{nodes}\n{policy}"))
    (unit,) = unit_specs(config, plan_for(config))
    assert unit.scheduler.pipeline_depth == depth


@pytest.mark.parametrize(("policy", "tokens"), [("", 128), ("shared_prefix_tokens: 0", 0)])
def test_tokens_from_which_prefixes_are_shared(
    write, model_directory, policy: str, tokens: int
) -> None:
    model_directory("tiny")
    config = load_config(write(f"models: [{{name: m, path: tiny}}]\npolicy: {{{policy}}}"))
    (unit,) = unit_specs(config, plan_for(config))
    assert unit.scheduler.shared_prefix_tokens == tokens


def test_ranks_share_no_gpu_under_mps(write, model_directory) -> None:
    model_directory("tiny")
    config = load_config(write(TWO_GPUS.replace("PARTITION", "partition: mps")))
    message = r"policy\.partition: a unit over 2 GPUs shares SMs by green contexts: use auto, green"
    with pytest.raises(ConfigError, match=message):
        unit_specs(config, on_two_gpus(config))


def test_heads_that_cannot_be_divided_name_the_model(write, model_directory) -> None:
    model_directory("tiny", num_attention_heads=3, num_key_value_heads=1)
    config = load_config(write(TWO_GPUS.replace("PARTITION", "partition: auto")))
    says = r"models\[0\]: .*3 heads cannot be split over 2 GPUs"
    with pytest.raises(ConfigError, match=says) as caught:
        unit_specs(config, on_two_gpus(config))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("heads", "kv_heads", "each"), [(4, 1, 1), (4, 2, 1), (6, 3, 3)])
def test_kv_heads_that_several_ranks_have(write, model_directory, heads, kv_heads, each) -> None:
    model_directory("tiny", num_attention_heads=heads, num_key_value_heads=kv_heads)
    config = load_config(write(TWO_GPUS.replace("PARTITION", "partition: auto")))
    (unit,) = unit_specs(config, on_two_gpus(config))
    assert unit.models[0].shape.num_kv_heads == each


PARKED = """
models:
  - {name: a, path: tiny, max_seqs: 4, max_model_len: 256}
  - {name: b, path: tiny, max_seqs: 4, max_model_len: 256, residency: auto}
  - {name: c, path: tiny, max_seqs: 4, max_model_len: 256, residency: on-demand}
  - {name: d, path: tiny, max_seqs: 4, max_model_len: 256, residency: on-demand}
cluster: {nodes: [{name: local, NODE}]}
policy: {partition: PARTITION, token_budget: 64}
"""
SMALL_CPU = "gpu: cpu, cores: 2, memory_gb: MEMORY"


@pytest.fixture
def parked(write, model_directory):
    """(node, partition) -> configuration of four models, three of which may be parked."""
    model_directory("tiny", hidden_size=512, intermediate_size=2048)

    def make(node: str, partition: str = "auto") -> Config:
        return load_config(write(PARKED.replace("NODE", node).replace("PARTITION", partition)))

    return make


def smallest_gb(parked, partition: str = "auto") -> float:
    """Return a memory that some models share, found without the planner's help."""
    for step in range(1, 60):
        memory_gb = step * 0.02
        config = parked(SMALL_CPU.replace("MEMORY", f"{memory_gb:.2f}"), partition)
        try:
            plan = plan_for(config)
        except InfeasiblePlan:
            continue
        assert plan.units[0].resident_bytes, "at first, not all can be resident at once"
        return memory_gb
    raise AssertionError("no memory is enough")


def test_a_cpu_unit_is_told_what_may_be_parked(parked) -> None:
    memory_gb = smallest_gb(parked)
    config = parked(SMALL_CPU.replace("MEMORY", f"{memory_gb:.2f}"))
    (unit,) = unit_specs(config, plan_for(config))
    kinds = {model.name: model.residency.value for model in unit.models}
    assert kinds == {"a": "always", "b": "auto", "c": "on-demand", "d": "on-demand"}
    sizes = {model.name: model.resident_bytes for model in unit.models}
    assert sizes["a"] + max(sizes.values()) <= unit.resident_bytes < sum(sizes.values())
    woken = {model.name: model.wake_s > 0 for model in unit.models}
    assert woken == {"a": False, "b": True, "c": True, "d": True}
    (roomy,) = unit_specs(wide := parked(SMALL_CPU.replace("MEMORY", "8")), plan_for(wide))
    assert roomy.resident_bytes == 0
    assert all(model.resident_bytes == 0 for model in roomy.models)


def test_what_the_engine_cannot_do_is_refused_with_the_reason(parked) -> None:
    memory_gb = smallest_gb(parked, "none")
    config = parked(SMALL_CPU.replace("MEMORY", f"{memory_gb:.2f}"), "none")
    plan = plan_for(config)
    assert plan.units[0].unproven
    with pytest.raises(ConfigError, match="partition none has no processes"):
        unit_specs(config, plan)


def test_a_plan_that_was_made_for_another_residency_is_refused(parked) -> None:
    memory_gb = smallest_gb(parked)
    node = SMALL_CPU.replace("MEMORY", f"{memory_gb:.2f}")
    plan = plan_for(parked(node))
    config = parked(node)
    always = tuple(
        replace(each, section=each.section.model_copy(update={"residency": "always"}))
        for each in config.models
    )
    with pytest.raises(ConfigError, match="no room to wake .*: make a new plan"):
        unit_specs(replace(config, models=always), plan)


def test_a_gpu_unit_that_would_park_models_is_planned_and_refused(write, model_directory) -> None:
    model_directory("tiny")
    text = PARKED.replace("NODE", "gpus: 1, gpu: A100-80GB").replace("PARTITION", "auto")
    config = load_config(write(text))
    plan = plan_for(config)
    assert unit_specs(config, plan)[0].resident_bytes == 0, "tiny models all fit"
    (unit,) = plan.units
    half = unit.model_copy(update={"resident_bytes": 1})
    with pytest.raises(ConfigError, match="no GPU engine moves weights yet"):
        unit_specs(config, plan.model_copy(update={"units": (half,)}))


@pytest.mark.parametrize(
    ("kv_dtype", "slot_bytes", "tokens"),
    [("auto", 512, 16), ("int8", 132, 62), ("fp8_e4m3", 128, 64)],
)
def test_keys_and_values_in_8_bits_are_what_plan_and_unit_count(
    write, model_directory, kv_dtype: str, slot_bytes: int, tokens: int
) -> None:
    """Beside a model that keeps its own: blocks stay as large, and hold more tokens."""
    model_directory("tiny")
    model_directory("wide", head_dim=128, vocab_size=640)
    text = TWO.replace("CORES", "2").replace("LANE", "adbs").replace("PARTITION", "auto")
    config = load_config(write(text.replace("max_seqs: 8", f"max_seqs: 8, kv_dtype: {kv_dtype}")))
    (unit,) = unit_specs(config, plan_for(config))
    by_name = {model.name: model for model in unit.models}
    found = by_name["b"]
    assert (by_name["a"].kv_dtype, found.kv_dtype) == ("auto", kv_dtype)
    assert unit.block_bytes == 2 * 128 * 16 * 4
    assert (found.shape.slot_bytes, found.shape.block_tokens(unit.block_bytes)) == (
        slot_bytes,
        tokens,
    )
    demands = {each.name: each for each in problem(config, nodes_of(config)).demands}
    assert demands["b"].kv_bytes_per_token == found.shape.bytes_per_token == 2 * 2 * 2 * slot_bytes
