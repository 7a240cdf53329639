"""Images of chats: parts, sizes, decoding and their places in a prompt."""

import base64
import io
import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin
from transformers.image_transforms import convert_to_rgb
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from muxcluster.core.errors import InvalidValue, LoadError, RequestError
from muxcluster.core.inputs.images.rules import ImageLimits, ImageRules, read_image_rules
from muxcluster.text.images.decoding import Picture, decoded
from muxcluster.text.images.placing import placed
from muxcluster.text.validation.images import ImagePart, ImageParts
from muxcluster.text.validation.prompts import chat_messages
from tests.amounts import examples

RULES = ImageRules(token_id=9)
LIMITS = ImageLimits(most=3, most_bytes=100_000, most_pixels=90_000)
PIXEL = "data:image/png;base64,AAAA"


def file_of(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=form, **options)
    return buffer.getvalue()


def noise(height: int, width: int, mode: str = "RGB") -> Image.Image:
    rng = np.random.default_rng(height * width)
    pixels = rng.integers(0, 256, (height, width, len(mode)), dtype=np.uint8)
    return Image.frombytes(mode, (width, height), pixels.tobytes())


def decode(data: bytes, limits: ImageLimits = LIMITS) -> Picture:
    return decoded(ImagePart(base64.b64encode(data).decode(), "part"), RULES, limits)


@given(
    height=st.integers(1, 5000),
    width=st.integers(1, 5000),
    least=st.sampled_from([56 * 56, 4 * 28 * 28]),
    most=st.sampled_from([28 * 28 * 1280, 12_845_056, 100 * 28 * 28]),
)
@settings(max_examples=examples(200, 5000), deadline=None)
def test_sizes_are_those_of_the_library(height: int, width: int, least: int, most: int) -> None:
    rules = ImageRules(token_id=0, least_pixels=least, most_pixels=most)
    try:
        expected = smart_resize(height, width, 28, least, most)
    except ValueError:
        with pytest.raises(ValueError, match="200 times"):
            rules.size_of(height, width)
        return
    assert rules.size_of(height, width) == expected


@pytest.mark.parametrize(
    ("image", "form"),
    [
        (noise(80, 60), "PNG"),
        (noise(80, 60), "JPEG"),
        (noise(80, 60), "WEBP"),
        (noise(60, 80, "L"), "PNG"),
        (noise(60, 80, "RGBA"), "PNG"),
        (noise(60, 80, "RGBA"), "WEBP"),
        (noise(60, 80, "CMYK"), "JPEG"),
        (noise(60, 80, "LA"), "PNG"),
        (noise(60, 80).convert("P"), "PNG"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.mode,
)
def test_pixels_are_those_of_the_librarys_conversion(image: Image.Image, form: str) -> None:
    data = file_of(image, form)
    read = Image.open(io.BytesIO(data))
    rgb = Image.fromarray(convert_to_rgb(read, return_numpy=True))
    height, width = smart_resize(read.height, read.width)
    found = decode(data)
    np.testing.assert_array_equal(found.pixels, np.array(rgb.resize((width, height), 3)))
    assert found.grid == (height // 28, width // 28)


def test_it_is_turned_as_the_camera_was_held() -> None:
    image = noise(84, 56)
    exif = Image.Exif()
    exif[0x0112] = 6  # turn it clockwise
    turned = decode(file_of(image, exif=exif))
    assert turned.grid == (2, 3)
    plain = decode(file_of(image.transpose(Image.Transpose.ROTATE_270)))
    assert turned.digest == plain.digest


def bomb(width: int, height: int) -> bytes:
    """A PNG that says it is large."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IEND", b"")


def animated(form: str) -> bytes:
    frames = [noise(30, 30), noise(30, 31).resize((30, 30))]
    return file_of(frames[0], form, save_all=True, append_images=frames[1:])


def scanned() -> bytes:
    """A JPEG that has far more scans than an encoder makes."""
    data = file_of(noise(40, 40), "JPEG", progressive=True)
    start = data.index(b"\xff\xda")
    return data[:-2] + data[start:-2] * 20 + data[-2:]


def texts() -> bytes:
    """A PNG with more compressed text than it has pixels."""
    info = PngImagePlugin.PngInfo()
    info.add_text("a", "x" * 2_000_000, zip=True)
    return file_of(noise(30, 30), pnginfo=info)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no whole"),
        (b"hello", "no whole"),
        (file_of(noise(60, 60))[:-400], "no whole"),
        (file_of(noise(60, 60), "JPEG")[:200], "no whole"),
        (file_of(noise(60, 60), "BMP"), "no whole"),
        (file_of(noise(60, 60), "GIF"), "no whole"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "no whole"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "no whole"),
        (file_of(noise(400, 300)), "may have 100,000 bytes"),
        (bomb(301, 300), "301 x 300 pixels"),
        (bomb(30_000, 30_000), "pixels|no whole"),
        (bomb(2**31 - 1, 2**31 - 1), "pixels|no whole"),
        (bomb(0, 5), "no whole"),
        (file_of(noise(1, 300)), "200 times"),
        (animated("PNG"), "animated"),
        (animated("WEBP"), "animated"),
        (scanned(), "scans"),
        (texts(), "no whole"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{len(value)}",
)
def test_hostile_images_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(InvalidValue, match=reason) as refused:
        decode(data)
    assert refused.value.param == "part"


@pytest.mark.parametrize("form", ["PNG", "WEBP"])
def test_bytes_that_begin_a_scan_of_a_jpeg_are_no_scans_elsewhere(form: str) -> None:
    """As compressed data of a few megabytes have them by chance."""
    exif = Image.Exif()
    exif[0x9286] = b"\xff\xda" * 65  # a comment
    data = file_of(noise(56, 84), form, exif=exif)
    assert data.count(b"\xff\xda") > 64
    assert decode(data).grid == (2, 3)


@given(data=st.binary(max_size=300), start=st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"RIFF"]))
@settings(max_examples=examples(60, 2000), deadline=None)
def test_no_bytes_raise_anything_else(data: bytes, start: bytes) -> None:
    with pytest.raises(InvalidValue):
        decode(start + data)


@pytest.mark.parametrize("data", ["AAA", "A===", "AA AA", "é", "AAAA\n", "AA-_"])
def test_what_is_not_base64_is_refused(data: str) -> None:
    with pytest.raises(InvalidValue):
        decoded(ImagePart(data, "part"), RULES, LIMITS)


def user(*parts: object) -> list[dict[str, object]]:
    return [{"role": "user", "content": list(parts)}]


def image_part(url: object = PIXEL, **more: object) -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": url, **more}}


def test_messages_keep_the_order_of_texts_and_images() -> None:
    parts = ImageParts(LIMITS)
    hello, bye = {"type": "text", "text": "hello"}, {"type": "text", "text": "bye"}
    messages = user(hello, image_part(detail="auto"), bye) + user(hello, bye) + user(image_part())
    found = chat_messages(messages, parts)
    assert [message["content"] for message in found] == [
        [hello, {"type": "image"}, bye],
        "hello\nbye",
        [{"type": "image"}],
    ]
    assert [part.param for part in parts.found] == [
        "messages[0].content[1].image_url.url",
        "messages[2].content[0].image_url.url",
    ]


PART = "messages[0].content[0]"
URL = f"{PART}.image_url.url"


@pytest.mark.parametrize(
    ("part", "code", "param"),
    [
        ({"type": "image_url"}, "missing_required_parameter", f"{PART}.image_url"),
        ({"type": "image_url", "image_url": PIXEL}, "invalid_value", f"{PART}.image_url"),
        (image_part(None), "missing_required_parameter", URL),
        (image_part(5), "invalid_value", URL),
        (image_part("https://example.org/a.png"), "invalid_value", URL),
        (image_part("http://127.0.0.1:8000/metrics"), "invalid_value", URL),
        (image_part("file:///etc/passwd"), "invalid_value", URL),
        (image_part("data:image/png,AAAA"), "invalid_value", URL),
        (image_part("data:image/svg+xml;base64,AAAA"), "invalid_value", URL),
        (image_part("data:text/html;base64,AAAA"), "invalid_value", URL),
        (image_part("data:;base64,AAAA"), "invalid_value", URL),
        (image_part("data:image/png;base64"), "invalid_value", URL),
        (image_part("data:image/png;base64," + "A" * 140_000), "invalid_value", URL),
        (image_part(detail="low"), "unsupported_parameter", f"{PART}.image_url.detail"),
        (image_part(detail=["low"]), "unsupported_parameter", f"{PART}.image_url.detail"),
        (image_part(detail=5), "unsupported_parameter", f"{PART}.image_url.detail"),
        ({"type": "input_audio"}, "unsupported_parameter", f"{PART}.type"),
        ({"type": "video_url"}, "unsupported_parameter", f"{PART}.type"),
    ],
)
def test_parts_that_cannot_be_read(part: dict[str, object], code: str, param: str) -> None:
    with pytest.raises(RequestError) as refused:
        chat_messages(user(part), ImageParts(LIMITS))
    assert (refused.value.code, refused.value.param) == (code, param)


def test_too_many_images() -> None:
    with pytest.raises(InvalidValue, match="at most 3 images"):
        chat_messages(user(*[image_part()] * 4), ImageParts(LIMITS))


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_images_are_the_users(role: str) -> None:
    messages = [{"role": role, "content": [image_part()]}]
    with pytest.raises(RequestError, match="messages of the user"):
        chat_messages(messages, ImageParts(LIMITS))


def picture(height: int, width: int) -> Picture:
    return Picture(np.zeros((28 * height, 28 * width, 3), np.uint8), (height, width), b"x" * 32)


def test_tokens_take_the_places_of_images() -> None:
    tokens = np.array([1, 9, 2, 9], dtype=np.int32)
    whole, images = placed(tokens, [picture(1, 2), picture(2, 2)], 9)
    assert whole.tolist() == [1, 9, 9, 2, 9, 9, 9, 9]
    assert whole.dtype == np.int32
    assert [(image.start, image.end, image.grid) for image in images] == [
        (1, 3, (1, 2)),
        (4, 8, (2, 2)),
    ]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_mark_of_an_image_in_a_text_is_refused(count: int) -> None:
    """Else a text could move the images, or stand for one that is not there."""
    tokens = np.array([1, 9, 2, 9], dtype=np.int32)
    with pytest.raises(InvalidValue, match="own mark"):
        placed(tokens, [picture(1, 1)] * count, 9)


FILES = {
    "config.json": {"image_token_id": 9},
    "preprocessor_config.json": {"min_pixels": 784, "max_pixels": 78_400, "patch_size": 14},
}


def rules_of(folder: Path, **changed: object) -> ImageRules:
    for name, content in {**FILES, **changed}.items():
        if content is not None:
            (folder / name).write_text(json.dumps(content))
    return read_image_rules(folder)


def test_rules_of_files(tmp_path: Path) -> None:
    rules = rules_of(tmp_path)
    assert (rules.token_id, rules.least_pixels, rules.most_pixels) == (9, 784, 78_400)


def test_rules_of_a_processors_file(tmp_path: Path) -> None:
    """As transformers 5 saves it."""
    part = {"size": {"shortest_edge": 784, "longest_edge": 1568}, "merge_size": 2}
    changed = {"preprocessor_config.json": None, "processor_config.json": {"image_processor": part}}
    rules = rules_of(tmp_path, **changed)
    assert (rules.least_pixels, rules.most_pixels) == (784, 1568)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"config.json": {}}, "image_token_id"),
        ({"config.json": {"image_token_id": True}}, "image_token_id"),
        ({"preprocessor_config.json": None}, "no such file"),
        ({"preprocessor_config.json": {"do_resize": False}}, "do_resize"),
        ({"preprocessor_config.json": {"patch_size": 0}}, "patch_size"),
        ({"preprocessor_config.json": {"size": 5}}, "size is 5"),
        ({"preprocessor_config.json": {"image_mean": [1, 2]}}, "image_mean"),
        ({"preprocessor_config.json": {"rescale_factor": "x"}}, "rescale_factor"),
        ({"preprocessor_config.json": {"min_pixels": 9, "max_pixels": 8}}, "least pixels"),
    ],
)
def test_files_that_cannot_be_followed(
    tmp_path: Path, changed: dict[str, object], reason: str
) -> None:
    with pytest.raises(LoadError, match=reason):
        rules_of(tmp_path, **changed)
