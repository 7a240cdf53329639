"""Reading the images of calls: how many at a time, and how large for all choices together."""

import asyncio
import threading

import numpy as np
import pytest

from muxcluster.core.errors import InvalidValue
from muxcluster.core.inputs.images.prompt_image import PromptImage
from muxcluster.core.inputs.images.rules import ImageLimits, ImageRules
from muxcluster.http.calls import pictures
from muxcluster.http.calls.pictures import MOST_AT_ONCE, MOST_BYTES, PictureReader, check_choices
from muxcluster.text.validation.images import ImagePart, ImageParts

RULES = ImageRules(token_id=9)


class Slow:
    """Decodes nothing, until it is told to go on."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.running = self.most = 0
        self._lock = threading.Lock()

    def __call__(self, parts: ImageParts, rules: ImageRules) -> tuple[()]:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        self.goes_on.wait(60)
        with self._lock:
            self.running -= 1
        return ()


def test_a_reader_that_gave_up_keeps_its_place_until_its_thread_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = Slow()
    monkeypatch.setattr(pictures, "pictures_of", slow)
    parts = ImageParts(ImageLimits(1, 1000, 1000))
    parts.found.append(ImagePart("", "part"))

    async def main() -> None:
        reader = PictureReader()
        early = [asyncio.create_task(reader.read(parts, RULES)) for _ in range(MOST_AT_ONCE)]
        while slow.running < MOST_AT_ONCE:
            await asyncio.sleep(0.001)
        for task in early:
            task.cancel()
        await asyncio.gather(*early, return_exceptions=True)
        late = [asyncio.create_task(reader.read(parts, RULES)) for _ in range(2)]
        await asyncio.sleep(0.05)  # a thread that need not wait begins meanwhile
        slow.goes_on.set()
        await asyncio.gather(*late)

    asyncio.run(main())
    assert slow.most == MOST_AT_ONCE


def test_each_choice_has_the_images() -> None:
    image = PromptImage(0, (1, 1), b"x" * 32, np.empty((MOST_BYTES // 12, 4, 1), np.uint8))
    check_choices([image, image], 1)
    check_choices([image], 3)
    check_choices([], 2048)
    for images, n in (([image], 4), ([image, image], 2)):
        with pytest.raises(InvalidValue) as refused:
            check_choices(images, n)
        assert refused.value.param == "n"
