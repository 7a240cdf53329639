"""Plot of planning time against the number of models."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt


def draw(points: Sequence[tuple[int, float, float]], path: Path) -> None:
    """points: (models, seconds of the search, seconds with the bound), ascending."""
    models, search_s, total_s = zip(*points, strict=True)
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    axes.loglog(models, search_s, marker="o", label="greedy plan")
    axes.loglog(models, total_s, marker="s", label="plan and proven bound")
    axes.set_xticks(models, [f"{each:,}" for each in models], minor=False)
    axes.set_xticks([], minor=True)
    seconds = [each for each in (1, 2, 5, 10, 20, 50, 100) if each <= 2 * max(total_s)]
    axes.set_yticks(seconds, map(str, seconds))
    axes.set_yticks([], minor=True)
    axes.set_xlabel("models (on about as many GPUs)")
    axes.set_ylabel("seconds")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.savefig(path)
    plt.close(figure)
