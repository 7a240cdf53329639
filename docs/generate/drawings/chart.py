"""The picture of the README: requests in time against the offered rate."""

from docs.generate.drawings.svg import COLOURS, LINE, Sheet
from docs.generate.records import needed

_LEFT, _RIGHT, _TOP, _BOTTOM = 70.0, 560.0, 66.0, 290.0
_DASHES = ("", "7 4", "2 3")


def thirty_models() -> str:
    """Draw the record of bench/muxserve/thirty_models.py."""
    found = needed("muxserve/thirty_models")
    rows = found["rows"]
    most = max(row["offered_per_s"] for row in rows)
    models, gpus, gpu = found["num_models"], found["num_gpus"], found["gpu"]
    title = f"{models} models on {gpus} {gpu} GPUs: requests in time"
    sheet = Sheet(760, 350, title)
    sheet.text((24, 30), title, 15, bold=True)
    slo = found["slo_scale"]
    sheet.text(
        (24, 48), f"simulated; in time: at most {slo:g} times what the request takes alone", 11
    )
    for share in (0, 25, 50, 75, 100):
        y = _y(share / 100)
        sheet.line(((_LEFT, y), (_RIGHT, y)), "#d9dce2", 0.8)
        sheet.text((_LEFT - 8, y + 4), f"{share} %", 11, "end")
    for rate in range(0, int(most) + 1, 20):
        x = _LEFT + (_RIGHT - _LEFT) * rate / most
        sheet.text((x, _BOTTOM + 18), str(rate), 11, "middle")
    sheet.line(((_LEFT, _BOTTOM), (_RIGHT, _BOTTOM)), LINE, 1)
    sheet.text(((_LEFT + _RIGHT) / 2, _BOTTOM + 40), "requests offered per second", 12, "middle")
    ends = []
    for index, name in enumerate(dict.fromkeys(row["system"] for row in rows)):
        mine = sorted(
            (row["offered_per_s"], row["in_time"]) for row in rows if row["system"] == name
        )
        points = [(_LEFT + (_RIGHT - _LEFT) * rate / most, _y(share)) for rate, share in mine]
        sheet.line(points, COLOURS[index], 2.6 if index == 0 else 2, _DASHES[index % 3])
        for point in points:
            sheet.dot(point, COLOURS[index])
        ends.append((points[-1][1], f"{name}: {mine[-1][1]:.0%}".replace("%", " %"), index))
    _labels(sheet, ends)
    return sheet.svg()


def _y(share: float) -> float:
    return _BOTTOM - (_BOTTOM - _TOP) * share


def _labels(sheet: Sheet, ends: list[tuple[float, str, int]]) -> None:
    """Write the lines' names at their ends, apart from each other."""
    last = -100.0
    for y, words, index in sorted(ends):
        place = max(y + 4, last + 17)
        sheet.text((_RIGHT + 12, place), words, 12.5, fill=COLOURS[index], bold=index == 0)
        last = place
