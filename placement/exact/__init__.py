"""How far from the best: a proven bound, and set partition over (mesh, models) columns."""

from placement.exact.relaxation import upper_bound

__all__ = ["upper_bound"]
