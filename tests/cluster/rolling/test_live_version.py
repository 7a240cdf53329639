"""A cluster that changes to another version of muxcluster, and back from what fails, while it
serves: the other version is a copy of this one with another number, and with other messages."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import muxcluster
from muxcluster.core.inputs.carried import WIRE
from tests.cluster.ray_cluster import RayCluster, free_port, write_config
from tests.cluster.rolling.endless import EndlessStreams

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

NAMES = ("llama-a", "qwen-b", "opt-c")
NUM_STREAMS = 64
NUM_TOKENS = 100
LATER = "99.0.0"
# What the later version changed: file, text, and the text in its place.
CHANGES = (
    ("__init__.py", f'__version__ = "{muxcluster.__version__}"', f'__version__ = "{LATER}"'),
    ("core/inputs/carried.py", f"WIRE = {WIRE}", f"WIRE = {WIRE + 1}"),
    ("core/directory.py", '    leaving: str = ""\n', '    later: int = 1\n    leaving: str = ""\n'),
    (
        "core/served.py",
        '    order: str = ""',
        '    later: int = 1\n    order: str = ""',
    ),
    (
        "cluster/units/report.py",
        "    wire: int = WIRE\n",
        "    wire: int = WIRE\n    later: int = 1\n",
    ),
    (
        "cluster/state/desired.py",
        "    serial: int = 0",
        "    later: int = 1\n    serial: int = 0",
    ),
    (
        "http/settings.py",
        "    api_key: str | None = None",
        "    later: int = 1\n    api_key: str | None = None",
    ),
)


@dataclass(frozen=True, slots=True)
class Installed:
    """A cluster whose processes import muxcluster from a folder that `install` exchanges."""

    cluster: RayCluster
    file: Path
    port: int
    folder: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def install(self, version: str) -> None:
        """As `pip install` in place: processes that run keep what they have imported."""
        link = self.folder / "new"
        link.symlink_to(self.folder / version)
        link.rename(self.folder / "installed")

    def pids(self) -> dict[str, set[int]]:
        """Processes of the controller, of ingresses and of units."""
        titles = ("ray::Controller", "ray::ServeReplica:muxcluster:", "ray::UnitHost")
        return {title: self.cluster.pids(title) for title in titles}


def copy_versions(folder: Path) -> None:
    """Put this version and a later one into `folder`."""
    source = Path(muxcluster.__file__).parent
    for version in (muxcluster.__version__, LATER):
        shutil.copytree(
            source, folder / version / "muxcluster", ignore=shutil.ignore_patterns("__pycache__")
        )
    for name, old, new in CHANGES:
        file = folder / LATER / "muxcluster" / name
        text = file.read_text()
        assert text.count(old) == 1, (name, old)
        file.write_text(text.replace(old, new))


@pytest.fixture(scope="module")
def installed(
    model_dirs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installed]:
    folder = tmp_path_factory.mktemp("versions")
    copy_versions(folder)
    port = free_port()
    file = write_config(folder / "muxcluster.yaml", model_dirs, port, replan="off")
    (folder / "installed").symlink_to(folder / muxcluster.__version__)
    cluster = RayCluster(2, {"PYTHONPATH": str(folder / "installed")}, folder)
    try:
        cluster.command("up", str(file), "--yes")
        yield Installed(cluster, file, port, folder)
    finally:
        cluster.close()


def change(file: Path, **sections: Mapping[str, Any]) -> None:
    """Change keys of the configuration's sections."""
    content = yaml.safe_load(file.read_text())
    for name, keys in sections.items():
        content[name] = {**content.get(name, {}), **keys}
    file.write_text(yaml.safe_dump(content))


def steps_in(said: str) -> list[str]:
    """Return the steps in what `up --json` printed, with other lines after it."""
    content, _ = json.JSONDecoder().raw_decode(said[said.index("{") :])
    steps: list[str] = content["steps"]
    return steps


def assert_unharmed(load: EndlessStreams) -> None:
    """Fail if a stream failed, lost a token, or differs from the first of its prompt."""
    assert load.errors == []
    for seen in load.seen:
        assert len(seen.streams) > 1
        assert {(stream.num_tokens, stream.reason) for stream in seen.streams} == {
            (NUM_TOKENS, "length")
        }
        assert len({stream.text for stream in seen.streams}) == 1


def test_other_settings_are_rolled_out_while_all_streams_run(installed: Installed) -> None:
    before = installed.pids()
    change(installed.file, server={"max_queued": 300})
    said = installed.cluster.command("up", str(installed.file), "--dry-run", "--json")
    (step,) = steps_in(said)
    assert "ingresses" in step
    with EndlessStreams(installed.url, NAMES, NUM_STREAMS, NUM_TOKENS) as load:
        load.wait_until_under_way()
        installed.cluster.command("up", str(installed.file), "--yes")
    assert_unharmed(load)
    after = installed.pids()
    assert after["ray::UnitHost"] == before["ray::UnitHost"]
    assert after["ray::Controller"] == before["ray::Controller"]
    ingresses = "ray::ServeReplica:muxcluster:"
    assert after[ingresses] and after[ingresses].isdisjoint(before[ingresses])
    assert "nothing to change" in installed.cluster.command("up", str(installed.file))


def test_settings_that_fail_are_rolled_back(installed: Installed) -> None:
    before, content = installed.pids(), installed.file.read_text()
    change(installed.file, server={"request_log": "/proc/nobody/may/write/here"})
    with EndlessStreams(installed.url, NAMES, NUM_STREAMS, NUM_TOKENS) as load:
        load.wait_until_under_way()
        said = installed.cluster.command("up", str(installed.file), "--yes", code=1)
    assert "rolled back" in said
    assert_unharmed(load)
    assert installed.pids() == before
    installed.file.write_text(content)
    assert "nothing to change" in installed.cluster.command("up", str(installed.file))


def test_another_version_is_rolled_out_while_all_streams_run(installed: Installed) -> None:
    before = installed.pids()
    installed.install(LATER)
    said = installed.cluster.command("up", str(installed.file), "--dry-run", "--json")
    steps = steps_in(said)
    assert [step[:2] for step in steps] == ["1.", "2.", "3."] and LATER in steps[0]
    with EndlessStreams(installed.url, NAMES, NUM_STREAMS, NUM_TOKENS) as load:
        load.wait_until_under_way()
        installed.cluster.command("up", str(installed.file), "--yes")
    assert_unharmed(load)
    after = installed.pids()
    for title, pids in before.items():
        assert after[title] and after[title].isdisjoint(pids), title
    for pid in after["ray::UnitHost"]:
        os.kill(pid, 0)
    assert installed.cluster.status()["healthy"]
    assert "nothing to change" in installed.cluster.command("up", str(installed.file))


def test_an_older_command_does_not_touch_a_node_that_lacks_its_version(
    installed: Installed,
) -> None:
    """The command comes from one folder, and what the nodes have from another."""
    older = {**os.environ, **installed.cluster.env}
    older["PYTHONPATH"] = str(installed.folder / muxcluster.__version__)
    said = installed.cluster.command(
        "up", str(installed.file), "--dry-run", code=1, environment=older
    )
    assert f"install muxcluster {muxcluster.__version__}" in said and LATER in said
