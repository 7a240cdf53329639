"""What a model shows without its weights."""

import os
import shutil
from pathlib import Path

import pytest

from muxcluster.core.errors import LoadError
from muxcluster.engine.decoders.torch_decoder import FusedDecoder
from muxcluster.engine.residency.checking import shown_by
from muxcluster.engine.residency.checks import LoadChecks
from muxcluster.engine.steps.runner import load_forward
from tests.engine.conftest import ModelBuilder
from tests.engine.driver import unit_of
from tests.models import model_spec


@pytest.mark.parametrize("family", ["llama", "opt", "gemma2", "gpt_neox"])
def test_a_paged_model_shows_its_backend(tiny: ModelBuilder, family: str) -> None:
    shown = shown_by(model_spec(tiny(family), "m"))
    assert shown is not None
    assert (shown.backend.model, shown.backend.name) == ("m", "paged")


@pytest.mark.parametrize("family", ["bloom", "mixtral"])
def test_dense_models_and_mixtures_of_experts_must_be_loaded(
    tiny: ModelBuilder, family: str
) -> None:
    assert shown_by(model_spec(tiny(family), "m")) is None


@pytest.fixture
def copied(tiny: ModelBuilder, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny("llama"), tmp_path / "copied"))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_file_that_is_cut_off_or_missing_is_named(copied: Path, name: str) -> None:
    spec = model_spec(copied, "m")
    os.truncate(copied / name, (copied / name).stat().st_size // 2)
    with pytest.raises(LoadError, match=str(copied / name)):
        shown_by(spec)
    (copied / name).unlink()
    with pytest.raises(LoadError, match=str(copied / name)):
        shown_by(spec)


def test_a_model_that_was_checked_is_not_checked_again_unless_its_files_change(
    copied: Path,
) -> None:
    unit = unit_of(copied)
    (spec,) = unit.models
    shown = shown_by(spec)
    assert shown is not None
    checks = LoadChecks([shown.calls])
    assert checks.earlier(0, spec) is None
    first = load_forward(spec, unit)
    checks.record(0, spec, first)
    earlier = checks.earlier(0, spec)
    assert earlier is not None
    later = load_forward(spec, unit, earlier=earlier)
    assert isinstance(first, FusedDecoder)
    assert isinstance(later, FusedDecoder)
    assert [layer.call for layer in later.layers] == [layer.call for layer in first.layers]
    os.utime(copied / "model.safetensors", (1, 1))
    assert checks.earlier(0, spec) is None
