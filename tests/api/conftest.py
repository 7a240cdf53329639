"""A folder with one tiny model and its configuration."""

from pathlib import Path

import pytest
import yaml

from muxcluster.demo.models import build_model
from tests.conftest import ROOT

NAME = "tiny-llama"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As the examples of docstrings expect: muxcluster.yaml and examples/."""
    made = tmp_path_factory.mktemp("api")
    build_model(made / NAME, "llama", seed=1)
    models = [{"name": NAME, "path": NAME, "max_model_len": 256}]
    (made / "muxcluster.yaml").write_text(yaml.safe_dump({"models": models}))
    (made / "examples").symlink_to(ROOT / "examples")
    return made
