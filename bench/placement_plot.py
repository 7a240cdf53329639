"""Seconds that planning takes, against the number of models."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt


def draw(points: Sequence[tuple[int, float, float]], path: Path) -> None:
    """points: (models, seconds of the search, seconds with the bound), ascending."""
    models, search_s, total_s = zip(*points, strict=True)
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    axes.loglog(models, search_s, marker="o", label="greedy plan")
    axes.loglog(models, total_s, marker="s", label="plan and proven bound")
    axes.set_xlabel("models (on about as many GPUs)")
    axes.set_ylabel("seconds")
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    figure.savefig(path)
    plt.close(figure)
