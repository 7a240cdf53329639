"""A model for both APIs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.http.apis.calling import make_thinking_model
from tests.http.tool_models import ScriptedModel, served


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_thinking_model(tmp_path_factory.mktemp("models") / "thinking")


@pytest.fixture(scope="module")
def model(directory: Path) -> Iterator[ScriptedModel]:
    """It says what it is told, over real HTTP."""
    with served(directory) as model:
        yield model
