"""Files are put in their places; what is no file there stays what it is."""

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from muxcluster.cli import profile
from muxcluster.placement.cost import Profile, ProfiledModel
from muxcluster.placement.shapes.shape import ModelShape
from muxcluster.workload.files.put import put
from muxcluster.workload.files.streams import new_text
from tests.cli.test_profile import LONE_CELLS, TINY


def by_put(place: Path) -> str:
    made = place.with_name("made")
    made.write_text("a line\n")
    put(made, place)
    return "a line\n"


def by_new_text(place: Path) -> str:
    with new_text(place) as text:
        text.write("a line\n")
    return "a line\n"


def by_profile(place: Path) -> str:
    model = ProfiledModel("tiny", ModelShape.from_hf_config(TINY), LONE_CELLS, (), ())
    measured = Profile(gpu="cpu", itemsize=4, machine="here", models=(model,), pairs=())
    profile._write(measured, place)
    return measured.to_json(indent=2) + "\n"


WAYS = [by_put, by_new_text, by_profile]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_there", [False, True])
def test_a_file_is_replaced(tmp_path: Path, way: Callable[[Path], str], is_there: bool) -> None:
    place = tmp_path / "place"
    if is_there:
        place.write_text("of before")
    text = way(place)
    assert place.read_text() == text
    assert list(tmp_path.iterdir()) == [place]


@pytest.mark.parametrize("way", WAYS)
def test_a_pipe_is_written_to_and_stays(tmp_path: Path, way: Callable[[Path], str]) -> None:
    """As /dev/null does, which root would have replaced by a file."""
    place = tmp_path / "place"
    os.mkfifo(place)
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(place.read_text()), daemon=True)
    reader.start()
    text = way(place)
    assert stat.S_ISFIFO(place.lstat().st_mode)
    reader.join(60.0)
    assert found == [text]
    assert list(tmp_path.iterdir()) == [place]


def test_a_folder_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    with pytest.raises(IsADirectoryError):
        by_put(place)
