"""`place --known`: every name that is listed can be used, and nothing is planned."""

import json

from muxcluster.placement.hardware import GPUS, gpu_named
from muxcluster.placement.shapes.known import SHAPES, shape_named
from tests.cli.calls import call, refusal


def test_shapes_and_gpus_are_listed(capsys) -> None:
    code, out, err = call(capsys, "place", "--known")
    assert (code, err) == (0, "")
    names = {line.split()[0] for line in out.splitlines() if line.startswith("  ")}
    assert names == {"name", *SHAPES, *GPUS}
    rows = {" ".join(line.split()) for line in out.splitlines()}
    # 6.74e9 parameters in 2 bytes; 32 layers x 2 x 4,096 x 2 bytes
    assert "llama-2-7b 6.74 12.6 512.0 4,096" in rows
    assert "A100-80GB 79.1 2,039 312.0 108 300" in rows


def test_the_same_as_json(capsys) -> None:
    code, out, _ = call(capsys, "place", "--known", "--json")
    found = json.loads(out)
    assert code == 0
    for shape in found["shapes"]:
        assert shape_named(shape["name"]).max_position == shape["context"]
    for gpu in found["gpus"]:
        assert gpu_named(gpu["name"]).num_sms == gpu["sms"]


def test_what_goes_together(capsys, small) -> None:
    assert "--known goes without a configuration" in refusal(capsys, "place", small(), "--known")
    assert "give a configuration, or --known" in refusal(capsys, "place")
