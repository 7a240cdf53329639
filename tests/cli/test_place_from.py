"""`muxcluster place --from plan.json`: what is kept, what moves, which files are refused."""

import json
from pathlib import Path

import pytest

from tests.cli.calls import call, refusal


@pytest.fixture
def planned(capsys, small, tmp_path) -> Path:
    """plan.json of the small file."""
    path = tmp_path / "plan.json"
    assert call(capsys, "place", small(), "--out", str(path))[0] == 0
    return path


def test_nothing_moves_where_nothing_changed(capsys, small, planned) -> None:
    code, out, err = call(capsys, "place", small(), "--from", str(planned))
    assert (code, err) == (0, "")
    assert "keep: nothing moves" in out
    assert "0 load(s) of weights" in out
    again = call(capsys, "place", small(), "--from", str(planned), "--json")[1]
    for unit, before in zip(
        json.loads(again)["units"], json.loads(planned.read_text())["units"], strict=True
    ):
        for model, old in zip(unit.pop("models"), before.pop("models"), strict=True):
            assert model == pytest.approx(old)  # a replica's part of the rate is divided again
        assert unit == before


def test_a_small_change_of_a_rate_moves_nothing(capsys, small, planned) -> None:
    _, out, _ = call(capsys, "place", small(rate=4.2), "--from", str(planned))
    assert "keep: nothing moves" in out


def test_moves_are_named_with_their_weights(capsys, small, planned) -> None:
    """A new model must be loaded; one that is gone, too, is said."""
    path = Path(small())
    text = path.read_text().replace("name: rare, shape: opt-6.7b", "name: new, shape: opt-1.3b")
    path.write_text(text)
    code, out, _ = call(capsys, "place", str(path), "--from", str(planned))
    assert code == 0
    assert "new: new on " in out
    assert "remove: rare" in out
    assert "1 load(s) of weights, 2.4 GiB in all" in out


def test_a_node_that_is_gone_empties_into_the_others(capsys, tmp_path) -> None:
    models = "models:\n" + "".join(
        f"  - {{name: m{number}, shape: opt-6.7b, rate: 1}}\n" for number in range(3)
    )
    nodes = ["{name: a, gpus: 1, gpu: A100-80GB}", "{name: b, gpus: 1, gpu: A100-80GB}"]
    both, one, plan = tmp_path / "both.yaml", tmp_path / "one.yaml", str(tmp_path / "plan.json")
    both.write_text(f"{models}cluster: {{nodes: [{', '.join(nodes)}]}}\n")
    one.write_text(f"{models}cluster: {{nodes: [{nodes[0]}]}}\n")
    assert call(capsys, "place", str(both), "--out", plan)[0] == 0
    gone = [unit for unit in json.loads(Path(plan).read_text())["units"] if unit["node"] == "b"]
    code, out, _ = call(capsys, "place", str(one), "--from", plan)
    assert code == 0
    assert "close: b-0 (b: 0)" in out
    for model in gone[0]["models"]:
        assert f"move: {model['name']} from b-0 (b: 0)" in out


def broken(change):
    """A plan after `change`, as text."""

    def text(plan: dict) -> str:
        change(plan)
        return json.dumps(plan)

    return text


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda plan: "", "not JSON"),
        (lambda plan: "[" * 100_000, "not JSON"),
        (lambda plan: "\x00\xff", "not JSON"),
        (lambda plan: "[]", "expected a JSON object"),
        (lambda plan: "{}", "method: missing"),
        (broken(lambda plan: plan.update(unit=1)), "did you mean units?"),
        (broken(lambda plan: plan["units"][0].update(gpu=[0])), "units[0].gpu: unknown key"),
        (broken(lambda plan: plan["units"][0].update(kv_blocks="many")), "units[0].kv_blocks"),
        (broken(lambda plan: plan["units"][0].update(tp=3, gpus=[0, 1, 2])), "power of two"),
        (broken(lambda plan: plan["units"][0].update(gpus=[])), "0 GPUs for tp"),
        (broken(lambda plan: plan["units"][0].update(models=[])), "has none"),
        (broken(lambda plan: plan.update(units=[])), "has none"),
        (
            broken(lambda plan: plan["units"].append({**plan["units"][0], "id": "again"})),
            "as well",
        ),
        (
            broken(lambda plan: plan["units"].append(plan["units"][0])),
            "as well",
        ),
        (
            broken(lambda plan: plan["units"][0]["models"].append(plan["units"][0]["models"][0])),
            "a model is there twice",
        ),
        (
            broken(lambda plan: [unit.update(node="b") for unit in plan["units"]]),
            "has no node 'b'",
        ),
        (
            broken(
                lambda plan: [
                    model.update(name=f"x-{model['name']}")
                    for unit in plan["units"]
                    for model in unit["models"]
                ]
            ),
            "has no model 'x-",
        ),
    ],
)
def test_refusals(capsys, small, planned, make, says) -> None:
    planned.write_text(make(json.loads(planned.read_text())))
    err = refusal(capsys, "place", small(), "--from", str(planned))
    assert f"{planned}: " in err
    assert says in err


def test_a_folder_is_no_plan(capsys, small, tmp_path) -> None:
    assert "cannot be read" in refusal(capsys, "place", small(), "--from", str(tmp_path))


@pytest.mark.parametrize("method", ["spatial", "memory-greedy", "compat"])
def test_methods_that_cannot_go_on_from_a_plan_say_so(capsys, small, planned, method) -> None:
    err = refusal(capsys, "place", small(), "--from", str(planned), "--method", method)
    assert "--method greedy or exact" in err
