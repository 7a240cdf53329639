"""`muxcluster place --what-if`: the changes it knows, their effect, their refusals."""

import pytest

from muxcluster.config.load import load_config
from muxcluster.config.planner_input import nodes_of, problem
from muxcluster.config.what_if import changed
from muxcluster.core.errors import ConfigError
from muxcluster.placement.plan import Plan
from muxcluster.placement.shapes.known import SHAPES
from tests.cli.calls import call, refusal


def demands_after(path: str, *changes: str):
    config = load_config(path)
    for change in changes:
        config = changed(config, change)
    return {each.name: each for each in problem(config, nodes_of(config)).demands}


def test_a_known_shape_is_added(small) -> None:
    new = demands_after(small(), "add:mistral-7b,rate=2,prompt=10,output=20,weight=3")["mistral-7b"]
    assert new.shape is SHAPES["mistral-7b"]
    assert (new.rate, new.prompt_tokens, new.output_tokens, new.weight) == (2, 10, 20, 3)
    assert new.max_model_len == SHAPES["mistral-7b"].max_position


def test_a_name_with_a_shape_is_added(small) -> None:
    new = demands_after(small(), "add:mine, shape=opt-13b, max_model_len=512, max_seqs=3")["mine"]
    assert (new.shape, new.max_model_len, new.max_seqs) == (SHAPES["opt-13b"], 512, 3)


def test_a_model_that_is_there_is_added_as_another(small) -> None:
    after = demands_after(small(), "add:chat,rate=1", "add:chat")
    assert after["chat"].rate == 4
    first, second = after["chat-2"], after["chat-3"]
    assert (first.shape, first.max_model_len, first.ttft_s) == (SHAPES["llama-2-7b"], 2048, 0.4)
    assert (first.rate, second.rate) == (1.0, 1.0)


def test_the_other_changes(small) -> None:
    path = small()
    assert set(demands_after(path, "remove:rare")) == {"chat", "code"}
    assert demands_after(path, "rate:chat=5")["chat"].rate == 5
    assert demands_after(path, "rate:chat=x2")["chat"].rate == 8
    assert demands_after(path, "rate:chat=x2", "rate:chat=x0.5")["chat"].rate == 4
    assert demands_after(path, "rate:chat=5")["chat"].backlog is None
    backlog = demands_after(path, "batch:chat=86.4e6", "rate:chat=x2")["chat"].backlog
    assert (backlog.tokens_per_s, backlog.prompt_tokens) == (pytest.approx(1000.0), 161)
    assert demands_after(path, "batch:chat=1e6", "batch:chat=0")["chat"].backlog is None
    assert demands_after(path, "residency:rare=on-demand")["rare"].residency == "on-demand"
    rounded = demands_after(path, "kv_dtype:chat=int8", "quantize:chat=int4")["chat"]
    assert (rounded.shape.kv_dtype, rounded.shape.weights.kind) == ("int8", "int4")
    assert rounded.kv_bytes_per_token == 2 * 32 * 32 * (128 + 4)
    assert (
        demands_after(path, "kv_dtype:chat=int8", "kv_dtype:chat=auto")["chat"]
        == (demands_after(path)["chat"])
    )
    config = changed(load_config(path), "gpus:a=4")
    assert [node.num_gpus for node in nodes_of(config)] == [4]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("", "expected add:NAME"),
        ("add", "expected add:NAME"),
        ("add:", "expected add:NAME"),
        ("drop:chat", "expected add:NAME"),
        ("batch:chat", "expected batch:NAME=2e9"),
        ("batch:chat=-1", "tokens_per_day: input should be greater"),
        ("batch:chatt=1e6", "did you mean chat?"),
        ("residency:chat", "expected residency:NAME=VALUE"),
        ("kv_dtype:chat=fp8", "did you mean fp8_e4m3?"),
        ("residency:chat=on-demnd", "did you mean on-demand?"),
        ("residency:chatt=auto", "did you mean chat?"),
        ("add:llama-2-7", "did you mean llama-2-70b or llama-2-7b?"),
        ("add:chatt", "did you mean chat?"),
        ("add:x,shape=nonsense", "unknown shape"),
        ("add:x", "no known shape or model"),
        ("add:opt-13b,rat=2", "did you mean rate?"),
        ("add:opt-13b,rate", "KEY=VALUE"),
        ("add:opt-13b,rate=fast", "rate='fast' is no number"),
        ("add:opt-13b,rate=0", "rate: "),
        ("add:opt-13b,rate=-1", "greater than 0"),
        ("add:opt-13b,rate=nan", "rate: "),
        ("add:opt-13b,rate=1e999", "rate: "),
        ("add:opt-13b,max_seqs=1.5", "no whole number"),
        ("add:opt-13b,max_model_len=99999", "more than 2048"),
        ("add: ,rate=2", "needs a name"),
        ("add:a b,shape=opt-13b", "name: "),
        ("remove:cat", "did you mean chat?"),
        ("rate:chat", "expected rate:NAME=5"),
        ("rate:chat=", "no number"),
        ("rate:chat=x", "no number"),
        ("rate:chat=0", "greater than 0"),
        ("rate:nobody=1", "no model 'nobody'"),
        ("gpus:a", "expected gpus:NODE=4"),
        ("gpus:b=4", "no node 'b'"),
        ("gpus:a=many", "no whole number"),
        ("gpus:a=-1", "greater than or equal to 1"),
        ("gpus:a=0", "no node would be left"),
        ("gpus:a=99999999999", "less than or equal to"),
    ],
)
def test_refusals(small, change, says) -> None:
    with pytest.raises(ConfigError) as caught:
        changed(load_config(small()), change)
    assert says in str(caught.value)
    assert str(caught.value).startswith("--what-if")
    assert "\n" not in str(caught.value)


def test_the_last_model_stays(small) -> None:
    config = changed(changed(load_config(small()), "remove:chat"), "remove:code")
    with pytest.raises(ConfigError, match="no model would be left"):
        changed(config, "remove:rare")


def test_the_difference_is_printed_and_nothing_is_written(capsys, small, tmp_path) -> None:
    before = sorted(tmp_path.iterdir())
    path = small()
    code, out, err = call(capsys, "place", path, "--what-if", "add:opt-13b,rate=0.5")
    assert (code, err) == (0, "")
    assert "5.05 -> 5.55 req/s (+0.50)" in out
    assert "new: opt-13b on " in out
    assert sorted(tmp_path.iterdir()) == [*before, tmp_path / "small.yaml"]


def test_a_model_taken_away(capsys, small) -> None:
    _, out, _ = call(capsys, "place", small(), "--what-if", "remove:rare")
    assert "remove: rare" in out
    assert "5.05 -> 5.00 req/s" in out


def test_losers_of_a_smaller_cluster_are_named(capsys, small) -> None:
    path = small(gpus=2, rate=35.0)
    _, out, _ = call(capsys, "place", path, "--what-if", "gpus:a=1")
    assert "loses: chat " in out
    assert "close: " in out


def test_json_is_the_new_plan(capsys, small) -> None:
    _, out, _ = call(capsys, "place", small(), "--what-if", "rate:chat=x2", "--json")
    assert Plan.model_validate_json(out).throughput == pytest.approx(9.05)


def test_a_change_that_does_not_fit(capsys, small) -> None:
    err = refusal(capsys, "place", small(gpus=1), "--what-if", "add:llama-2-70b")
    assert "llama-2-70b does not fit" in err
    assert "GiB missing" in err
