"""Finished files put to where they were asked for."""

import shutil
from pathlib import Path


def put(made: Path, place: Path) -> None:
    """Move the finished file `made` to `place`, replacing a file there at once.

    A device or pipe there, such as /dev/null, stays what it is and is written to. Raises OSError.
    """
    if place.is_file() or not place.exists():
        made.replace(place)
        return
    with made.open("rb") as source, place.open("wb") as target:
        shutil.copyfileobj(source, target)
    made.unlink()
