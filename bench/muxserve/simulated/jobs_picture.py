"""A picture of the jobs of one mesh, with and without SM sharing."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bench.muxserve.simulated.sms_over_time import sms_over_time
from muxcluster.sim.cases.case import Case, run_case
from muxcluster.sim.core.timeline import JobSpan
from muxcluster.sim.plot.style import STYLE, Colour, model_colours

# When the picture begins, all models having many requests by then; how much of it is shown.
_START_S, _SHOWN_S = 12.0, 0.5
_SIZE_INCHES = (9.0, 4.2)


def draw(cases: Mapping[str, Case], names: Mapping[str, str], path: Path) -> None:
    """Writes the picture, in the format of the file's ending; a row a case, titled by its key.

    cases: of one mesh each. names: what the legend says of each model. Raises OSError.
    """
    with rc_context({**STYLE, "font.size": 10, "hatch.color": "white", "hatch.linewidth": 0.8}):
        figure = Figure(_SIZE_INCHES, facecolor="white", layout="constrained")
        rows = figure.subplots(len(cases), 1, sharex=True, squeeze=False)[:, 0]
        colours = model_colours(names)
        for axes, (title, case) in zip(rows, cases.items(), strict=True):
            sms_over_time(axes, _jobs(case), colours, _START_S, _START_S + _SHOWN_S)
            axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
            axes.set_ylabel("SMs of the 4 GPUs")
        for axes in rows[:-1]:
            axes.set_xlabel("")
        handles = [
            *_models(colours, names),
            Patch(facecolor="#9aa0ab", hatch="////", label="prefill"),
        ]
        handles.append(Patch(facecolor="#9aa0ab", label="decode"))
        figure.legend(
            handles=handles, loc="outside upper center", ncols=len(handles), frameon=False
        )
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=100, metadata=metadata)


def _models(colours: Mapping[str, Colour], names: Mapping[str, str]) -> list[Patch]:
    return [Patch(facecolor=colours[model], label=name) for model, name in names.items()]


def _jobs(case: Case) -> list[JobSpan]:
    """Those around the time that is shown."""
    end_s = _START_S + _SHOWN_S
    spans: list[JobSpan] = []

    def keep(span: JobSpan) -> None:
        if span.end_s > _START_S and span.start_s < end_s:
            spans.append(span)

    run_case(replace(case, duration_s=end_s), keep)
    return spans
