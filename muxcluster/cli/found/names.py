"""Names of models in the API, from where the models are."""

import os
from pathlib import Path

from muxcluster.config.hub import HubId


def served_name(model: str) -> str:
    """Return the last part of a path or of a Hugging Face id, without its revision."""
    path = Path(os.path.abspath(Path(model).expanduser()))
    found = None if path.exists() else HubId.of(model)
    return path.name if found is None else found.repo.rpartition("/")[2]
