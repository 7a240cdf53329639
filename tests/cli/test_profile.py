"""`muxcluster profile`: real jobs of a tiny model, the file it writes, and what it refuses."""

import contextlib
import io
import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from muxcluster.cli import main as entry
from muxcluster.cli import profile as profile_command
from muxcluster.cli.profiling import subjects
from muxcluster.cli.profiling.subjects import GPU_SHARES
from muxcluster.config.load import load_config
from muxcluster.config.planner_input import nodes_of
from muxcluster.core.unitspec import UnitSpec
from muxcluster.demo.models import build_model
from muxcluster.engine.profile import device as profiling_device
from muxcluster.engine.profile.grid import Grid
from muxcluster.engine.profile.model import Profiled
from muxcluster.engine.profile.pairs import PairPoint
from muxcluster.placement.cost import Cell, Pair, Profile, cost_for
from muxcluster.placement.cost.measured import MeasuredCost
from muxcluster.placement.hardware import cpu, local_cores
from muxcluster.placement.shapes.shape import ModelShape
from tests.amounts import slow
from tests.engine.live_units import children, wait_until_gone, workers_of

ROOT = Path(__file__).resolve().parents[2]
TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "vocab_size": 512,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
}
ONE_CORE = "cluster: {nodes: [{name: n, gpu: cpu, cores: 1}]}\n"
MODELS = "models:\n- {name: tiny, path: tiny, load_format: dummy}\n"
BATCHES, LENGTHS, REPEATS = (1, 4), (16, 64), 3
LONE_CELLS = (
    Cell("prefill", 1, 1.0, 1, 128, (0.1,)),
    Cell("decode", 1, 1.0, 1, 128, (0.1,)),
)


def write_config(folder: Path, text: str = MODELS + ONE_CORE) -> Path:
    """muxcluster.yaml and, beside it, a model directory with just its config.json."""
    (folder / "tiny").mkdir(exist_ok=True)
    (folder / "tiny" / "config.json").write_text(json.dumps(TINY))
    file = folder / "muxcluster.yaml"
    file.write_text(text)
    return file


@dataclass(frozen=True)
class Ran:
    """What one run of the command printed and wrote."""

    code: int
    out: str
    err: str
    file: Path


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A small grid with one length beyond the model's context."""
    folder = tmp_path_factory.mktemp("profile")
    file = folder / "profile.json"
    arguments = ["profile", str(write_config(folder)), "--out", str(file), "--json"]
    arguments += ["--batches", "4,1", "--lengths", "16,64,257", "--repeats", str(REPEATS)]
    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        code = entry.run(arguments)
    return Ran(code, out.getvalue(), err.getvalue(), file)


@pytest.mark.slow
def test_the_file_has_every_cell_asked_for_with_all_repeats(ran: Ran) -> None:
    assert ran.code == 0, ran.err
    profile = Profile.read(ran.file)
    (model,) = profile.models
    assert (profile.gpu, profile.itemsize, model.name) == ("cpu", 4, "tiny")
    assert model.shape == ModelShape.from_hf_config(TINY)
    assert profile.machine.endswith(", 1 threads")
    found = {(cell.phase, cell.share, cell.batch, cell.tokens) for cell in model.cells}
    assert found == {
        (phase, 1.0, batch, tokens)
        for phase in ("prefill", "decode")
        for batch in BATCHES
        for tokens in LENGTHS
    }
    assert len(model.cells) == len(found)
    assert all(len(cell.seconds) == REPEATS for cell in model.cells)


@pytest.mark.slow
def test_json_is_the_profile_alone_and_the_rest_is_on_standard_error(ran: Ran) -> None:
    assert json.loads(ran.out) == json.loads(ran.file.read_text())
    assert "by the cost model" in ran.err
    assert "8 cells of 3 runs" in ran.err
    assert "4 left out" in ran.err
    assert [path.name for path in ran.file.parent.iterdir() if "profile" in path.name] == [
        ran.file.name
    ]


@pytest.mark.slow
def test_the_cost_model_predicts_what_was_measured(ran: Ran) -> None:
    profile = Profile.read(ran.file)
    (model,) = profile.models
    cost = cost_for(cpu(1, 2**34), 4, [profile])
    assert isinstance(cost, MeasuredCost)
    for cell in model.cells:
        predict = cost.prefill_s if cell.phase == "prefill" else cost.decode_s
        predicted = predict(model.shape, 1, cell.share, cell.batch, cell.tokens)
        assert min(cell.seconds) / 3 < predicted < 3 * max(cell.seconds), cell
    other = replace(model.shape, num_layers=7)
    job = (other, 1, 1.0, 2, 64)
    assert cost.decode_s(*job) == cost.roofline.decode_s(*job) > 0


def test_the_table_has_medians_in_milliseconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "profile.json"
    out.write_text("of an earlier run")
    nodes = ONE_CORE.replace("]}", "], profiles: [not-there-yet.json]}")
    policy = "policy: {partition: none, objective: fewest-gpus}\n"
    other = "- {name: other, path: tiny}\n"
    models = MODELS.replace("dummy}", "dummy, rate: 1.0e+9}") + other
    config = write_config(tmp_path, models + policy + nodes)
    grid = ["--batches", "2", "--lengths", "8", "--quick", "--models", "tiny"]
    assert entry.run(["profile", str(config), "--out", str(out), *grid]) == 0
    lines = capsys.readouterr().out.splitlines()
    (model,) = Profile.read(out).models
    medians = [f"{1e3 * statistics.median(cell.seconds):.2f}" for cell in model.cells]
    assert lines[0].split() == ["tiny"]
    assert lines[1].split() == ["share", "batch", "tokens", "prefill", "ms", "decode", "ms"]
    assert lines[2].split() == ["100%", "2", "8", *medians]
    assert [len(cell.seconds) for cell in model.cells] == [1, 1]


SHAPE_ONLY = "models: [{name: big, shape: llama-2-7b}]\n"
TWO_DTYPES = MODELS + "- {name: half, path: tiny, load_format: dummy, dtype: bfloat16}\n"


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        (MODELS, ["--models", "tinny"], "models: no model 'tinny'; did you mean tiny?"),
        (MODELS, ["--out", "{folder}/none/p.json"], "none/p.json: cannot be written: No such"),
        (MODELS, ["--out", "{folder}/tiny"], "tiny: cannot be written: is a directory"),
        (MODELS, ["--batches", "1,,2"], "--batches: '1,,2' is no list of positive numbers"),
        (MODELS, ["--lengths", "0"], "--lengths: '0' is no list"),
        (MODELS, ["--lengths", "many"], "--lengths: 'many' is no list"),
        (MODELS, ["--shares", "nan"], "--shares: 'nan' is no list"),
        (MODELS, ["--shares", "1.5"], "--shares: 1.5 of 1 cores is no number of threads"),
        (MODELS, ["--shares", "0.3"], "--shares: 0.3 of 1 cores is no number of threads"),
        (MODELS, ["--repeats", "0"], "--repeats"),
        (MODELS, ["--lengths", "300"], "models[0]: tiny can run no batch and length asked for"),
        (MODELS, ["--batches", "65"], "models[0]: tiny can run no batch"),
        (SHAPE_ONLY, [], "models[0].path: missing: big has a shape only"),
        (TWO_DTYPES, [], "models: their dtypes differ in size: profile them apart"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    text: str,
    options: list[str],
    says: str,
) -> None:
    config = write_config(tmp_path, text + ONE_CORE)
    options = [option.format(folder=tmp_path) for option in options]
    code = entry.run(["profile", str(config), "--out", str(tmp_path / "out.json"), *options])
    shown = capsys.readouterr()
    assert (code, shown.out) == (2, "")
    assert shown.err.count("\n") == 1
    assert says in shown.err
    assert {path.name for path in tmp_path.iterdir()} == {"tiny", "muxcluster.yaml"}


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        (
            "[{name: n, gpu: cpu}, {name: g, gpus: 1, gpu: L4}]",
            "cluster.nodes[1].gpu: L4, after cpu: profile measures one kind of node",
        ),
        (
            "[{name: g, gpus: 1, gpu: L4}]",
            "cluster.nodes[0].gpu: L4, but this machine has no GPU: run profile on node g",
        ),
        ("[{name: n, gpu: cpu, cores: 4096}]", "cluster.nodes[0].cores: 4096, but this machine"),
    ],
)
def test_nodes_that_are_not_here_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], nodes: str, says: str
) -> None:
    config = write_config(tmp_path, MODELS + f"cluster: {{nodes: {nodes}}}\n")
    assert entry.run(["profile", str(config), "--json"]) == 2
    assert says in capsys.readouterr().err


TWO_CORES = "cluster: {nodes: [{name: n, gpu: cpu, cores: 2}]}\n"


@pytest.mark.slow
@pytest.mark.skipif(local_cores() < 2, reason="one core has no parts")
def test_models_are_measured_side_by_side_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = MODELS.splitlines()[1].replace("tiny", "other", 1) + "\n"
    config = write_config(tmp_path, MODELS + other + TWO_CORES)
    out = tmp_path / "profile.json"
    grid = ["--batches", "1,2", "--lengths", "8,32", "--repeats", "2"]
    assert entry.run(["profile", str(config), "--out", str(out), *grid]) == 0
    profile = Profile.read(out)
    names = [(pair.prefill.model, pair.decode.model) for pair in profile.pairs]
    assert sorted(names) == sorted((a, b) for a in ("tiny", "other") for b in ("tiny", "other"))
    for pair in profile.pairs:
        assert (pair.prefill.share, pair.prefill.batch, pair.prefill.tokens) == (0.5, 1, 32)
        assert (pair.decode.share, pair.decode.batch, pair.decode.tokens) == (0.5, 2, 32)
        assert min(len(pair.prefill.beside), len(pair.decode.beside)) >= 2
    lines = capsys.readouterr().out.splitlines()
    assert "side by side" in lines[-6]
    assert lines[-1].split()[:4] == ["other", "50%", "other", "50%"]
    node = nodes_of(load_config(config))[0]
    cost = cost_for(node.gpu, 4, [profile])
    assert cost.slowdown([0.5, 0.5]) >= 1.0
    assert entry.run(["profile", str(config), "--out", str(out), *grid, "--alone"]) == 0
    assert Profile.read(out).pairs == ()


@pytest.mark.skipif(local_cores() < 2, reason="two shares need two cores")
@pytest.mark.parametrize("family", slow("bloom", "mamba"))
def test_dense_models_are_profiled_alone_and_side_by_side(tmp_path: Path, family: str) -> None:
    """As `serve` runs them: their padded batches take a part of the pool."""
    path = build_model(tmp_path / "model", family)
    config = tmp_path / "muxcluster.yaml"
    config.write_text(
        f"models: [{{name: dense, path: {path}, max_model_len: 512}}]\n"
        "cluster: {nodes: [{name: n, gpu: cpu, cores: 2}]}\n"
    )
    out = tmp_path / "profile.json"
    grid = ["--batches", "1,4", "--lengths", "32,512", "--repeats", "1"]
    assert entry.run(["profile", str(config), "--out", str(out), *grid]) == 0
    profile = Profile.read(out)
    (model,) = profile.models
    measured = {(cell.share, cell.batch, cell.tokens) for cell in model.cells}
    assert {(share, batch, 32) for share in (0.5, 1.0) for batch in (1, 4)} <= measured
    assert {(0.5, 1, 512), (1.0, 1, 512)} <= measured
    (pair,) = profile.pairs
    assert (pair.prefill.batch, pair.prefill.tokens) == (1, 512)
    assert pair.decode.beside


@pytest.mark.slow
def test_a_dense_model_is_profiled_quickly(tmp_path: Path) -> None:
    """With no axis given, the quick grid is cut to what its padded batches and context hold."""
    path = build_model(tmp_path / "model", "bloom")
    config = tmp_path / "muxcluster.yaml"
    config.write_text(f"models: [{{name: dense, path: {path}, max_model_len: 96}}]\n{ONE_CORE}")
    out = tmp_path / "profile.json"
    arguments = ["profile", str(config), "--out", str(out), "--quick", "--alone"]
    assert entry.run(arguments) == 0
    (model,) = Profile.read(out).models
    quick = profile_command.QUICK
    assert {cell.tokens for cell in model.cells} == {n for n in quick.lengths if n <= 96}
    assert {cell.batch for cell in model.cells} == set(quick.batches)
    assert all(len(cell.seconds) == quick.repeats for cell in model.cells)


L4_NODE = "cluster: {nodes: [{name: g, gpus: 1, gpu: L4}]}\npolicy: {partition: none}\n"


def test_on_an_undivided_gpu_the_only_share_is_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[UnitSpec, Grid]] = []

    def fake(spec: UnitSpec, grid: Grid, on_point: object) -> Profiled:
        asked.append((spec, grid))
        return Profiled(LONE_CELLS, spec)

    monkeypatch.setattr(profiling_device, "names", lambda: ("NVIDIA L4", "NVIDIA L4"))
    monkeypatch.setattr(profile_command, "measure", fake)
    config = write_config(tmp_path, MODELS + L4_NODE)
    out = tmp_path / "profile.json"
    assert entry.run(["profile", str(config), "--out", str(out)]) == 0
    profile = Profile.read(out)
    assert (profile.gpu, profile.pairs) == ("L4", ())
    ((spec, grid),) = asked
    assert (spec.device, spec.partition, spec.workers[0].shares) == ("cuda:0", "none", (1.0,))
    assert (grid.shares, grid.batches) == ((1.0,), (1, 8, 32, 128))
    shares = ["--shares", "0.5,1"]
    assert entry.run(["profile", str(config), "--out", str(out), *shares]) == 2
    assert "partition none runs jobs on the whole GPU" in capsys.readouterr().err


@pytest.mark.parametrize(("found", "shares"), [("green", GPU_SHARES), ("none", (1.0,))])
def test_on_a_gpu_the_partition_is_what_the_node_can_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: str, shares: tuple[float, ...]
) -> None:
    asked: list[tuple[UnitSpec, Grid]] = []
    paired: list[PairPoint] = []

    def fake(spec: UnitSpec, grid: Grid, on_point: object) -> Profiled:
        asked.append((spec, grid))
        return Profiled(LONE_CELLS, spec)

    def fake_pairs(
        subjects: object, points: Sequence[PairPoint], repeats: int, on_point: object
    ) -> tuple[Pair, ...]:
        paired.extend(points)
        return ()

    def fake_choice(spec: UnitSpec) -> UnitSpec:
        assert spec.partition == "auto"
        return replace(spec, partition=found)

    monkeypatch.setattr(profiling_device, "names", lambda: ("NVIDIA L4",))
    monkeypatch.setattr(subjects, "settle_partition", fake_choice)
    monkeypatch.setattr(profile_command, "measure", fake)
    monkeypatch.setattr(profile_command, "measured_pairs", fake_pairs)
    nodes = "cluster: {nodes: [{name: g, gpus: 1, gpu: L4}]}\n"
    config = write_config(tmp_path, MODELS + nodes)
    assert entry.run(["profile", str(config), "--out", str(tmp_path / "p.json")]) == 0
    ((spec, grid),) = asked
    assert (spec.partition, spec.workers[0].shares, grid.shares) == (found, shares, shares)
    splits = {(point.prefill.share, point.decode.share) for point in paired}
    assert splits == ({(0.3, 0.7), (0.5, 0.5), (0.7, 0.3)} if found == "green" else set())


def test_a_run_that_would_leave_nothing_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert entry.run(["profile", str(write_config(tmp_path))]) == 2
    assert "give --out FILE, --json or both" in capsys.readouterr().err


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.run(["profile", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Example: muxcluster profile muxcluster.yaml --out profile.json" in shown


@pytest.mark.slow
def test_an_interrupt_leaves_no_file_and_no_process(tmp_path: Path) -> None:
    config, out = write_config(tmp_path), tmp_path / "profile.json"
    command = [sys.executable, "-m", "muxcluster.cli.main", "profile", str(config)]
    command += ["--out", str(out), "--repeats", "1000000", "--lengths", "16", "--batches", "1"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            owner = owner_of(process)
            workers = workers_of(owner, 1)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert err.splitlines()[-1] == "profile: interrupted, nothing is written"
    wait_until_gone([owner, *workers])
    assert not out.exists()


def owner_of(process: subprocess.Popen[str]) -> int:
    """The process id of its memory owner, once there is one."""
    while (owner := children(process.pid).get("mux-owner")) is None:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    return owner
