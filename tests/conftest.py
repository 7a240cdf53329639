"""What every test process needs before torch, tokenizers or Ray are imported."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

from tests.amounts import THOROUGH

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

# No test is timed: on a busy machine hypothesis's own deadline would fail at random.
settings.register_profile("untimed", deadline=None)
settings.register_profile(THOROUGH, settings.get_profile("untimed"))
settings.load_profile("untimed")

ROOT = Path(__file__).resolve().parent.parent


class _ByFile(LoadFileScheduling):
    """Gives each file to one of pytest-xdist's processes, the files of a package to the same one.

    Tests of a package share what is expensive to start.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        folder = file.rpartition("/")[0]
        return folder if (ROOT / folder / "__init__.py").exists() else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Distribute tests as `--dist loadfile`, but packages whole."""
    return _ByFile(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder of real traces; the test is skipped where it is absent."""
    path = Path(os.environ.get("MUXCLUSTER_DATA", ROOT.parent / "shared" / "data"))
    if not path.is_dir():
        pytest.skip(f"no data folder at {path}: set MUXCLUSTER_DATA")
    return path
