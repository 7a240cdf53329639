"""`muxcluster place --plot`: a file that programs can read, with what it must show in it."""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.cli.calls import call, refusal

pytest.importorskip("matplotlib")
PNG = b"\x89PNG\r\n\x1a\n"


def texts(file: Path) -> list[str]:
    """Of an SVG."""
    root = ElementTree.parse(file).getroot()
    return ["".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")]


def test_the_svg_names_nodes_units_and_models(capsys, small, tmp_path) -> None:
    file = tmp_path / "plan.svg"
    code, _, err = call(capsys, "place", small(), "--plot", str(file))
    assert (code, err) == (0, "")
    shown = texts(file)
    for word in ("a: 2 x A100-80GB", "chat", "code", "rare", "load", "memory", "1.00/s"):
        assert word in shown
    assert any(text.startswith("a-0  GPU 0") for text in shown)


def test_equal_plans_give_equal_pictures(capsys, small, tmp_path) -> None:
    files = [tmp_path / "one.svg", tmp_path / "two.svg"]
    for file in files:
        call(capsys, "place", small(), "--plot", str(file))
    assert files[0].read_bytes() == files[1].read_bytes()


def test_an_overload_is_red(capsys, small, tmp_path) -> None:
    calm, full = tmp_path / "calm.svg", tmp_path / "full.svg"
    call(capsys, "place", small(), "--plot", str(calm))
    call(capsys, "place", small(gpus=1, rate=500.0), "--plot", str(full))
    counts = [file.read_text().count("#c8102e") for file in (calm, full)]
    assert counts[0] == 1, "the legend's"
    assert counts[1] > 4


def test_png_and_large_clusters(capsys, tmp_path) -> None:
    config = tmp_path / "large.yaml"
    nodes = ", ".join(f"{{name: n{number}, gpus: 8, gpu: L4}}" for number in range(10))
    config.write_text(
        "models: [{name: big, shape: opt-1.3b, rate: 3}, {name: tiny, shape: opt-125m}]\n"
        f"cluster: {{nodes: [{nodes}]}}\npolicy: {{objective: fewest-gpus}}\n"
    )
    svg, png = tmp_path / "plan.svg", tmp_path / "PLAN.PNG"
    assert call(capsys, "place", str(config), "--plot", str(png))[0] == 0
    assert png.read_bytes().startswith(PNG)
    assert call(capsys, "place", str(config), "--plot", str(svg))[0] == 0
    shown = texts(svg)
    assert all(f"n{number} L4" in shown for number in range(10))
    assert "above 1" in shown


def test_a_name_that_the_font_lacks(capsys, tmp_path) -> None:
    config = tmp_path / "names.yaml"
    config.write_text(
        "models: [{name: a日本, shape: opt-125m}]\n"
        "cluster: {nodes: [{name: n, gpus: 1, gpu: L4}]}\n",
        encoding="utf-8",
    )
    file = tmp_path / "plan.svg"
    assert call(capsys, "place", str(config), "--plot", str(file))[0] == 0
    assert "a日本" in texts(file)


def test_without_matplotlib_the_install_command_is_named(
    capsys, small, tmp_path, monkeypatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("muxcluster.cli.views.plot.plan")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "muxcluster.cli.views.plot.canvas", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    err = refusal(capsys, "place", small(), "--plot", str(tmp_path / "plan.svg"))
    assert "pip install 'muxcluster[plot]'" in err
    assert not (tmp_path / "plan.svg").exists()
