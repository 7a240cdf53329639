"""What `place` knows by name: shapes of models and kinds of GPUs."""

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from muxcluster.placement.hardware import GIB, GPUS
from muxcluster.placement.shapes.known import SHAPES

_ITEMSIZE = 2  # weights and KV in 16 bits


def known_content() -> dict[str, list[dict[str, Any]]]:
    """Return {"shapes": [...], "gpus": [...]}, in the units of the columns that are shown."""
    shapes = [
        {
            "name": name,
            "params_b": round(shape.num_params / 1e9, 2),
            "weights_gib": round(shape.num_params * _ITEMSIZE / GIB, 1),
            "kv_kib_per_token": round(shape.kv_bytes_per_token(_ITEMSIZE) / 1024, 1),
            "context": shape.max_position,
        }
        for name, shape in SHAPES.items()
    ]
    gpus = [
        {
            "name": name,
            "memory_gib": round(gpu.memory_bytes / GIB, 1),
            "bandwidth_gb_s": round(gpu.bandwidth / 1e9),
            "tflops": round(gpu.flops / 1e12, 1),
            "sms": gpu.num_sms,
            "link_gb_s": round(gpu.link / 1e9),
        }
        for name, gpu in GPUS.items()
    ]
    return {"shapes": shapes, "gpus": gpus}


def known_lines() -> Iterator[Text]:
    """Yield both tables, each below a line that says where its names go."""
    content = known_content()
    yield Text("models[].shape; a Hugging Face id of one of them does too", style="bold")
    yield from _table(content["shapes"])
    yield Text()
    yield Text("cluster.nodes[].gpu; the driver's name does too, or cpu", style="bold")
    yield from _table(content["gpus"])


def _table(rows: list[dict[str, Any]]) -> Iterator[Text]:
    titles = list(rows[0])
    cells = [titles, *([_cell(row[title]) for title in titles] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(titles))]
    for name, *numbers in cells:
        padded = [number.rjust(width) for number, width in zip(numbers, widths[1:], strict=True)]
        yield Text("  ".join((f"  {name.ljust(widths[0])}", *padded)))


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:,}"
