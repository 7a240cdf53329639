"""`--plot`: a plan as a picture, in detail or, for large clusters, a cell for each GPU."""

from muxcluster.cli.placing.reports import Judged
from muxcluster.cli.views.plot.cells import draw_cells
from muxcluster.cli.views.plot.units import draw_units

MOST_DETAILED = 64  # most GPUs of a cluster that is drawn with every model's name


def picture(judged: Judged, form: str) -> bytes:
    """Return the file's content; form is "svg" or "png"."""
    num_gpus = sum(node.num_gpus for node in judged.problem.nodes)
    draw = draw_units if num_gpus <= MOST_DETAILED else draw_cells
    return draw(judged).content(form)
