"""Seconds of embedding images: learnt by model and share, and apart from what the tokens take."""

from dataclasses import replace

import numpy as np
import pytest

from muxcluster.core.inputs.images.prompt_image import PromptImage
from muxcluster.core.job import Job, JobResult
from muxcluster.core.unitspec import UnitSpec
from muxcluster.scheduling.steptime.images import ImageTimes
from tests.scheduling.rig import Rig, model_spec, request, unit_spec

TOWER_S = 0.5
NO_PIXELS = np.empty((0, 0, 3), dtype=np.uint8)


def image(start: int) -> PromptImage:
    return PromptImage(start, (2, 4), b"x" * 32, NO_PIXELS)


def test_nothing_is_predicted_before_an_image_was_embedded() -> None:
    assert ImageTimes().seconds("a", 1.0, 100) == 0.0


def test_they_grow_with_tokens_and_come_near_what_is_seen() -> None:
    times = ImageTimes()
    times.observe("a", 0.5, 10, 1.0)
    assert times.seconds("a", 0.5, 20) == pytest.approx(2.0)
    assert times.seconds("a", 1.0, 20) == pytest.approx(1.0)
    assert times.seconds("b", 0.5, 20) == 0.0
    for _ in range(30):
        times.observe("a", 0.5, 10, 3.0)
    assert times.seconds("a", 0.5, 10) == pytest.approx(3.0, rel=0.01)


class TowerRig(Rig):
    """Jobs in which an image begins take longer, and say by how much."""

    def __init__(self, spec: UnitSpec) -> None:
        super().__init__(spec)
        run = self.memory.run

        def with_images(job: Job) -> JobResult:
            num_tokens = self.begun(job)
            return replace(run(job), image_tokens=num_tokens, image_s=TOWER_S * (num_tokens > 0))

        self.memory.run = with_images

    def seconds(self, job: Job) -> float:
        return super().seconds(job) + TOWER_S * (self.begun(job) > 0)

    def begun(self, job: Job) -> int:
        """Tokens of images whose first ones are in the job."""
        rows, table = job.rows, self.scheduler._models[job.model].running
        return sum(
            each.num_tokens
            for row, start, count in zip(rows.table_rows, rows.starts, rows.counts, strict=True)
            for each in table.at(int(row)).request.images
            if start <= each.start < start + count
        )


def test_they_are_not_taken_for_the_time_of_tokens() -> None:
    """Prompts with and without images: what is learnt of tokens is the same."""
    learnt = []
    for has_images in (False, True):
        spec = unit_spec([model_spec("a", max_model_len=200)], lane="mixed", packing="hybrid")
        rig = TowerRig(spec)
        images = {"images": (image(4),)} if has_images else {}
        for number in range(12):
            rig.add(request(f"{number}", "a", 20, 3, **images))
            rig.run()
        times = rig.scheduler._times.of("a", rig.jobs[-1].share)
        learnt.append(times.prefill_s(20, 200))
        assert times.image_s(8) == pytest.approx(TOWER_S if has_images else 0.0)
    assert learnt[0] > 0
    assert learnt[1] == pytest.approx(learnt[0], rel=1e-3)
