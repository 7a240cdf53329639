"""Checks the image parts of chat messages, and keeps their data apart from the text."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from muxcluster.core.errors import InvalidValue, MissingParameter, UnsupportedParameter
from muxcluster.core.inputs.clip import plain
from muxcluster.core.inputs.images.rules import ImageLimits

IMAGE_PART = "image_url"
_SCHEME, _ENCODING = "data:", ";base64"
_TYPES = frozenset({"image/png", "image/jpeg", "image/jpg", "image/webp"})
_DETAILS = frozenset({"auto", "high"})  # images are as large as the model takes them
# what chat templates read in place of an image
_IN_TEMPLATE = {"type": "image"}


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image of a chat as it was sent."""

    data: str  # in base64
    param: str  # path of its URL in the request


@dataclass(slots=True)
class ImageParts:
    """Takes the images out of the messages of a chat, in order."""

    limits: ImageLimits
    found: list[ImagePart] = field(default_factory=list)

    def take(self, part: Mapping[str, Any], param: str) -> dict[str, str]:
        """Keep the image of a content part; return what chat templates read in its place.

        param: path of the part. Raises MissingParameter, InvalidValue and UnsupportedParameter,
        naming the field.
        """
        image = part.get(IMAGE_PART)
        param = f"{param}.{IMAGE_PART}"
        if image is None:
            raise MissingParameter(f"missing required field {param}", param)
        if not isinstance(image, Mapping):
            raise InvalidValue(f"{param} must be an object with a url", param)
        detail = image.get("detail")
        if detail is not None and (not isinstance(detail, str) or detail not in _DETAILS):
            message = f"{param}.detail may be auto or high: images are not made smaller"
            raise UnsupportedParameter(message, f"{param}.detail")
        if len(self.found) == self.limits.most:
            raise InvalidValue(f"at most {self.limits.most} images in one request", param)
        data = self._data(image.get("url"), f"{param}.url")
        self.found.append(ImagePart(data, f"{param}.url"))
        return dict(_IN_TEMPLATE)

    def _data(self, url: object, param: str) -> str:
        """Return the base64 of a `data:` URL."""
        if url is None:
            raise MissingParameter(f"missing required field {param}", param)
        if not isinstance(url, str):
            raise InvalidValue(f"{param} must be a string", param)
        if url[: len(_SCHEME)].lower() != _SCHEME:
            message = f"{param} must be a data: URL; nothing is fetched from elsewhere"
            raise InvalidValue(message, param)
        head, comma, data = url[len(_SCHEME) :].partition(",")
        if not comma or not head.lower().endswith(_ENCODING):
            raise InvalidValue(f"{param} must be data:image/…;base64, and the image", param)
        kind = head[: -len(_ENCODING)].lower()
        if kind not in _TYPES:
            raise InvalidValue(f"{param}: {plain(kind)} is not PNG, JPEG or WebP", param)
        most = self.limits.most_bytes
        if len(data) * 3 // 4 > most + 2:  # padding stands for two bytes at most
            raise InvalidValue(f"{param}: an image may have {most:,} bytes", param)
        return data
