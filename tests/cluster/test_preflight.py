"""Damaged weight files are named before anything starts."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from muxcluster.cluster.preflight import check_weights
from muxcluster.core.errors import LoadError
from muxcluster.core.kvshape import KvShape
from muxcluster.core.unitspec import ModelSpec


def _model(path: Path, load_format: str = "auto") -> ModelSpec:
    return ModelSpec("m", str(path), KvShape(1, 1, 64, 4), 100, 64, (0,), load_format=load_format)


@pytest.fixture()
def sharded(tmp_path: Path) -> Path:
    for shard in ("a", "b"):
        save_file({f"{shard}.weight": np.ones((8, 8), np.float32)}, tmp_path / f"{shard}.st")
    index = {"weight_map": {"a.weight": "a.st", "b.weight": "b.st"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


def test_whole_files_pass(sharded: Path, tmp_path: Path) -> None:
    check_weights([_model(sharded)])


def test_a_single_file_passes_whole_and_fails_at_any_truncation(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"w": np.ones((4, 4), np.float32)}, path)
    check_weights([_model(tmp_path)])
    whole = path.read_bytes()
    for length in (0, 4, 20, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(LoadError, match=r"model\.safetensors: truncated or corrupt"):
            check_weights([_model(tmp_path)])


def test_the_damaged_shard_is_named(sharded: Path) -> None:
    (sharded / "b.st").write_bytes(b"\xff" * 64)
    with pytest.raises(LoadError, match=r"b\.st: truncated or corrupt"):
        check_weights([_model(sharded)])


def test_a_missing_shard_or_tensor_is_named(sharded: Path) -> None:
    save_file({"other": np.ones(1, np.float32)}, sharded / "a.st")
    with pytest.raises(LoadError, match=r"a\.st: tensor 'a\.weight' is missing"):
        check_weights([_model(sharded)])
    (sharded / "a.st").unlink()
    with pytest.raises(LoadError, match=r"a\.st: this weight file is missing"):
        check_weights([_model(sharded)])


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": 3}'])
def test_a_broken_index_is_named(sharded: Path, text: str) -> None:
    (sharded / "model.safetensors.index.json").write_text(text)
    with pytest.raises(LoadError, match=r"index\.json: not an index"):
        check_weights([_model(sharded)])


def test_dummy_weights_need_no_file(tmp_path: Path) -> None:
    check_weights([_model(tmp_path, "dummy")])
    with pytest.raises(LoadError, match="missing"):
        check_weights([_model(tmp_path)])
