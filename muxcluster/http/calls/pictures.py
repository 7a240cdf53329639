"""Decodes the images of calls on threads, a few at a time."""

import asyncio
from collections.abc import Sequence

from muxcluster.core.errors import InvalidValue
from muxcluster.core.inputs.image_rules import ImageRules
from muxcluster.text.images.decoding import Picture, decoded
from muxcluster.text.validation.images import ImageParts

MOST_AT_ONCE = 2  # requests whose images are decoded: an image takes a hundred megabytes meanwhile
# Of a request's images in the sizes that the model sees: messages between nodes have 64 MiB at most
MOST_BYTES = 48 * 2**20


class PictureReader:
    """Decodes images for one event loop."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(MOST_AT_ONCE)

    async def read(self, parts: ImageParts | None, rules: ImageRules | None) -> Sequence[Picture]:
        """Return the images of a chat, in order; none for a model that takes none (both None).

        Raises InvalidValue naming the part at fault.
        """
        if parts is None or rules is None or not parts.found:
            return ()
        async with self._turns:
            return await asyncio.to_thread(pictures_of, parts, rules)


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
