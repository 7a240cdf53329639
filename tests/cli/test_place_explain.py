"""`muxcluster place --explain`: one answer for each place of a model."""

import re

from muxcluster.placement.plan import Plan
from tests.cli.calls import call


def test_load_fit_room_and_other_places(capsys, small) -> None:
    asked = ("--explain", "chat", "--method", "spatial")  # so that there are other places
    code, out, err = call(capsys, "place", small(gpus=4), *asked)
    assert (code, err) == (0, "")
    for word in ("chat is on a-", "load: ", "fit: 12.6 GiB of weights", "room: ", "limit: none"):
        assert word in out
    assert re.search(r"req/s more of it \(up to [\d.]+\)", out)
    assert "if it moved (now 5.05 req/s in all):" in out
    assert re.search(r"A100-80GB\).*: as much in all \(5.05\), load there ", out)
    assert "model   " not in out, "the table is left out"


def test_each_replica_is_explained(capsys, small) -> None:
    path = small(gpus=4, rate=150.0)
    plan = Plan.model_validate_json(call(capsys, "place", path, "--json")[1])
    homes = [unit.id for unit in plan.units if "chat" in {each.name for each in unit.models}]
    assert len(homes) > 1
    out = call(capsys, "place", path, "--explain", "chat")[1]
    assert re.findall(r"^chat is on (\S+)", out, re.MULTILINE) == homes


def test_a_place_that_is_too_small_says_what_is_missing(capsys, tmp_path) -> None:
    path = tmp_path / "mixed.yaml"
    path.write_text(
        "models:\n"
        "  - {name: big, shape: llama-2-13b, rate: 1, max_model_len: 2048}\n"
        "  - {name: tiny, shape: opt-125m, rate: 1}\n"
        "cluster: {nodes: [{name: a, gpus: 1, gpu: A100-80GB}, {name: l, gpus: 1, gpu: L4}]}\n"
    )
    out = call(capsys, "place", str(path), "--explain", "big")[1]
    assert re.search(r"1 x L4\): big does not fit: .* GiB missing", out)


def test_several_models_and_the_plan_after_a_change(capsys, small) -> None:
    asked = ("--explain", "chat", "--explain", "opt-13b", "--what-if", "add:opt-13b")
    _, out, _ = call(capsys, "place", small(), *asked)
    assert "chat is on " in out
    assert "opt-13b is on " in out


def test_many_replicas_and_equal_places_are_counted(capsys, tmp_path) -> None:
    path = tmp_path / "many.yaml"
    path.write_text(
        "models: [{name: a, shape: opt-13b, rate: 10000}]\n"
        "cluster: {nodes: [{name: n, gpus: 16, gpu: A100-80GB}]}\n"
    )
    out = call(capsys, "place", str(path), "--explain", "a", "--time-limit", "0")[1]
    assert out.count("a is on n-") == 5
    assert re.search(r"^and a is on \d+ more units$", out, re.MULTILINE)
    assert re.search(r" and \d+ like it: -", out)
