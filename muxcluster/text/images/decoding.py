"""Decodes images that clients send, and makes them as large as a model wants them."""

import base64
import binascii
import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from muxcluster.core.errors import InvalidValue
from muxcluster.core.inputs.images.prompt_image import content_digest
from muxcluster.core.inputs.images.rules import ImageLimits, ImageRules
from muxcluster.text.validation.images import ImagePart

_FORMATS = ("PNG", "JPEG", "WEBP")
_STILL = frozenset({"JPEG", "MPO"})  # MPO: a JPEG with more pictures behind it, as cameras make it
# Each scan of a progressive JPEG goes over all of the image, however few bytes it has. Other
# formats may have these bytes anywhere.
_SCAN, _MOST_SCANS = b"\xff\xda", 64


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """An image in the size that a model sees."""

    pixels: NDArray[np.uint8]  # [height, width, 3], RGB
    grid: tuple[int, int]  # height and width in tokens
    digest: bytes  # 32 bytes, as `PromptImage.digest`

    @property
    def num_tokens(self) -> int:
        height, width = self.grid
        return height * width


def decoded(part: ImagePart, rules: ImageRules, limits: ImageLimits) -> Picture:
    """Return the image of `part`, turned as its EXIF data say, on white where it is transparent.

    Takes memory of `limits.most_pixels` at most. Raises InvalidValue naming the part's URL.
    """
    try:
        data = base64.b64decode(part.data, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidValue(f"{part.param} is not base64", part.param) from None
    if len(data) > limits.most_bytes:
        message = f"{part.param}: an image may have {limits.most_bytes:,} bytes"
        raise InvalidValue(message, part.param)
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            _check(image, part.param, limits)
            if image.format in _STILL and data.count(_SCAN) > _MOST_SCANS:
                message = f"{part.param} has more than {_MOST_SCANS} scans"
                raise InvalidValue(message, part.param)
            whole = _on_white(ImageOps.exif_transpose(image))
    except InvalidValue:
        raise
    except Exception as error:  # Pillow raises whatever broken data lead to
        message = f"{part.param} is no whole PNG, JPEG or WebP image"
        raise InvalidValue(message, part.param) from error
    try:
        height, width = rules.size_of(whole.height, whole.width)
    except ValueError as error:
        raise InvalidValue(f"{part.param}: {error}", part.param) from None
    sized = whole.resize((width, height), resample=Image.Resampling(rules.resample))
    pixels = np.array(sized, dtype=np.uint8)
    side = rules.token_pixels
    return Picture(pixels, (height // side, width // side), content_digest(pixels))


def _check(image: Image.Image, param: str, limits: ImageLimits) -> None:
    """Raise InvalidValue for an image, of which only the head was read, that is not decoded."""
    if image.width * image.height > limits.most_pixels:
        message = f"{param} has {image.width} x {image.height} pixels, of {limits.most_pixels:,}"
        raise InvalidValue(f"{message} that an image may have", param)
    if image.format not in _STILL and getattr(image, "n_frames", 1) > 1:
        raise InvalidValue(f"{param} is animated: only still images are read", param)


def _on_white(image: Image.Image) -> Image.Image:
    """Return the image in RGB, as transformers' `convert_to_rgb` makes it."""
    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return image.convert("RGB")
    clear = image.convert("RGBA")
    white = Image.new("RGBA", clear.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, clear).convert("RGB")
