"""How a model of Qwen-VL's kind takes images, from the files in its directory, and limits."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muxcluster.core.errors import LoadError
from muxcluster.core.inputs.json_file import read_json_object

# Of OpenAI's CLIP, which the families' processors take where a file has none.
_MEAN = (0.48145466, 0.4578275, 0.40821073)
_STD = (0.26862954, 0.26130258, 0.27577711)
_STEPS = ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb")
_MOST_ASPECT = 200  # as in transformers' `smart_resize`
_MOST_RESAMPLE = 5  # Pillow has no filter of a higher number


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """What a client may send."""

    most: int = 16  # images of a request
    most_bytes: int = 10 * 2**20  # of an image as it is sent, decoded from base64
    most_pixels: int = 16 * 2**20  # of an image as it is sent


@dataclass(frozen=True, slots=True)
class ImageRules:
    """Sizes and numbers of an image processor; `mean` and `std` are of red, green and blue."""

    token_id: int  # stands for an image in a chat, and for each of its parts in a prompt
    patch_size: int = 14  # pixels of a patch's side
    merge_size: int = 2  # patches of a token's side
    temporal_patch_size: int = 2  # frames of a patch; an image is repeated
    least_pixels: int = 56 * 56
    most_pixels: int = 28 * 28 * 1280
    scale: float = 1 / 255  # factor on the pixels, before the mean is taken away
    mean: tuple[float, ...] = _MEAN
    std: tuple[float, ...] = _STD
    resample: int = 3  # Pillow's number of the filter; 3: bicubic

    @property
    def token_pixels(self) -> int:
        """Pixels of a token's side."""
        return self.patch_size * self.merge_size

    def size_of(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width that an image of this one gets, both in whole tokens.

        As `smart_resize` of transformers' Qwen2VLImageProcessor. Raises ValueError for an image
        that is more than 200 times as long as it is wide.
        """
        if max(height, width) > _MOST_ASPECT * min(height, width):
            raise ValueError(f"one side is more than {_MOST_ASPECT} times as long as the other")
        step = self.token_pixels
        rounded = round(height / step) * step, round(width / step) * step
        area = rounded[0] * rounded[1]
        if area > self.most_pixels:
            shrink = math.sqrt(height * width / self.most_pixels)
            return _at_most(height / shrink, step), _at_most(width / shrink, step)
        if area < self.least_pixels:
            grow = math.sqrt(self.least_pixels / (height * width))
            return math.ceil(height * grow / step) * step, math.ceil(width * grow / step) * step
        return rounded


def _at_most(side: float, step: int) -> int:
    return max(step, math.floor(side / step) * step)


def read_image_rules(directory: Path) -> ImageRules:
    """Return the rules in preprocessor_config.json, or in processor_config.json's part for images.

    Raises LoadError, naming the file, if there is neither, if it asks for what is not done here, or
    if config.json does not name the token of images.
    """
    file, content = _processor(directory)
    for step in _STEPS:
        if content.get(step) not in (None, True):
            raise LoadError(file, f"{step} is not true: other image processing is not served")
    size = content.get("size") or {}
    if not isinstance(size, Mapping):
        raise LoadError(file, f"size is {size!r:.80}, expected an object")
    plain = ImageRules(token_id=0)
    area = {
        "least_pixels": content.get("min_pixels") or size.get("shortest_edge"),
        "most_pixels": content.get("max_pixels") or size.get("longest_edge"),
    }
    names = ("patch_size", "merge_size", "temporal_patch_size", "resample")
    found = {**area, **{name: content.get(name) for name in names}}
    numbers = {
        name: _integer(getattr(plain, name) if value is None else value, name, file)
        for name, value in found.items()
    }
    if numbers["resample"] > _MOST_RESAMPLE:
        raise LoadError(file, f"resample is {numbers['resample']}, which names no filter")
    if numbers["least_pixels"] > numbers["most_pixels"]:
        raise LoadError(file, "least pixels of an image are more than the most")
    scale = content.get("rescale_factor")
    return ImageRules(
        token_id=_token_id(directory),
        scale=_number(plain.scale if scale is None else scale, "rescale_factor", file),
        mean=_colours(content.get("image_mean") or _MEAN, "image_mean", file),
        std=_colours(content.get("image_std") or _STD, "image_std", file),
        **numbers,
    )


def _processor(directory: Path) -> tuple[Path, Mapping[str, Any]]:
    """Return the file about images, and what it says."""
    file = directory / "preprocessor_config.json"
    if file.is_file():
        return file, read_json_object(file)
    file = directory / "processor_config.json"
    if not file.is_file():
        message = "no such file: a model that takes images needs it, or processor_config.json"
        raise LoadError(directory / "preprocessor_config.json", message)
    content = read_json_object(file).get("image_processor")
    if not isinstance(content, Mapping):
        raise LoadError(file, "has no image_processor")
    return file, content


def _token_id(directory: Path) -> int:
    file = directory / "config.json"
    found = read_json_object(file).get("image_token_id")
    if type(found) is not int or not 0 <= found < 2**31:
        raise LoadError(file, f"image_token_id is {found!r:.80}, expected a token")
    return found


def _integer(value: object, name: str, file: Path) -> int:
    if type(value) is not int or not 1 <= value < 2**31:
        raise LoadError(file, f"{name} is {value!r:.80}, expected a positive integer")
    return value


def _number(value: object, name: str, file: Path) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise LoadError(file, f"{name} is {value!r:.80}, expected a number")
    return float(value)


def _colours(value: object, name: str, file: Path) -> tuple[float, ...]:
    if not isinstance(value, list | tuple) or len(value) != 3:
        raise LoadError(file, f"{name} is {value!r:.80}, expected three numbers")
    return tuple(_number(each, name, file) for each in value)
