"""Decodes the images of calls on threads, a few at a time."""

import asyncio
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from muxcluster.core.errors import InvalidValue
from muxcluster.core.inputs.images.prompt_image import PromptImage
from muxcluster.core.inputs.images.rules import ImageRules
from muxcluster.text.images.decoding import Picture, decoded
from muxcluster.text.validation.images import ImageParts

MOST_AT_ONCE = 2  # requests whose images are decoded: an image takes a hundred megabytes meanwhile
# Of a request's images in the sizes that the model sees, for all of its choices together: messages
# between nodes have 64 MiB at most
MOST_BYTES = 48 * 2**20


class PictureReader:
    """Decodes images for one event loop."""

    def __init__(self) -> None:
        # its own: who stops waiting does not end the thread, which keeps its place until it is done
        self._threads = ThreadPoolExecutor(MOST_AT_ONCE, "pictures")

    async def read(self, parts: ImageParts | None, rules: ImageRules | None) -> Sequence[Picture]:
        """Return the images of a chat, in order; none for a model that takes none (both None).

        Raises InvalidValue naming the part at fault.
        """
        if parts is None or rules is None or not parts.found:
            return ()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, pictures_of, parts, rules)


def pictures_of(parts: ImageParts, rules: ImageRules) -> Sequence[Picture]:
    """Return the images of a chat; takes long. Raises InvalidValue naming the part at fault."""
    found: list[Picture] = []
    num_bytes = 0
    for part in parts.found:
        picture = decoded(part, rules, parts.limits)
        num_bytes += picture.pixels.nbytes
        if num_bytes > MOST_BYTES:
            message = f"the images of a request take more than {MOST_BYTES:,} bytes when decoded"
            raise InvalidValue(message, part.param)
        found.append(picture)
    return found


def check_choices(images: Iterable[PromptImage], num_choices: int) -> None:
    """Raise InvalidValue, naming `n`, if the images are too large for so many choices.

    Each choice is a request to the engine with images of its own.
    """
    num_bytes = sum(image.pixels.nbytes for image in images)
    if num_bytes * num_choices > MOST_BYTES:
        message = (
            f"the images of a request take {num_bytes:,} bytes for each of its {num_choices} "
            f"choices when decoded, more than {MOST_BYTES:,} together"
        )
        raise InvalidValue(message, "n")
