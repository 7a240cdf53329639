"""What a server predicts for a job, as lines and as a picture's content."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from muxcluster.cli.batch_server.client import ApiObject
from muxcluster.cli.batch_server.showing import duration_text
from muxcluster.core.errors import Unavailable
from muxcluster.offline.predictor import UseOverTime

_HEADINGS = ("model", "lines", "prompt tokens", "cached", "output tokens", "density", "order", "")


def forecast_lines(found: ApiObject) -> Iterator[str]:
    """Describe the whole job, then each model, then what is wrong with other lines."""
    prompt, cached, output = (found[f"{kind}_tokens"] for kind in ("prompt", "cached", "output"))
    share = f"{cached / prompt:.0%}" if prompt else "none"
    yield (
        f"{found['num_lines']} lines, {duration_text(found['duration_s'])} if nothing else runs: "
        f"{prompt} prompt tokens, {share} of them from the prefix cache, {output} output tokens"
    )
    rows = [_HEADINGS, *(_row(each) for each in found["models"])]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        yield "  ".join((row[0].ljust(widths[0]), *cells)).rstrip()
    for each in found["models"]:
        if each["num_read"] < each["num_lines"]:
            yield f"{each['model']}: predicted on {each['num_read']} of its lines"
        if each["num_known_outputs"] < each["num_read"]:
            yield (
                f"{each['model']}: most output lengths are not known; a line's limit, or the "
                "configured mean, is taken for them"
            )
    for model, count in found["not_predicted"].items():
        yield f"{model}: {count} lines that no unit can run now"
    if found["num_bad"]:
        yield f"{found['num_bad']} lines are no requests:"
        for each in found["bad_lines"]:
            yield f"  line {each['line']}: {each['message']}"


def _row(model: Mapping[str, Any]) -> tuple[str, ...]:
    prompt = model["prompt_tokens"]
    return (
        model["model"],
        str(model["num_lines"]),
        str(prompt),
        f"{model['cached_tokens'] / prompt:.0%}" if prompt else "",
        str(model["output_tokens"]),
        f"{model['density']:.2f}",
        model["order"],
        duration_text(model["duration_s"]),
    )


def uses_of(found: ApiObject) -> dict[str, UseOverTime]:
    """Return the use over time of each model's units by its title.

    Raises Unavailable for an answer of another shape.
    """
    try:
        return {
            f"{model['model']} on {unit['unit']}, order {model['order']}": UseOverTime(
                float(unit["use"]["bin_s"]),
                *(
                    np.array(unit["use"][name], dtype=np.float64)
                    for name in ("compute", "memory", "held")
                ),
            )
            for model in found["models"]
            for unit in model["units"]
        }
    except (KeyError, TypeError, ValueError) as error:
        raise Unavailable(f"the server's plan has no use over time: {error}") from error
