"""Synthetic workloads: arrivals and lengths of each model from its own random numbers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from muxcluster.core.request import ServiceClass
from muxcluster.workload.arrival import Arrival, merged
from muxcluster.workload.lengths import Lengths
from muxcluster.workload.processes import Process
from muxcluster.workload.seeds import rng_for


@dataclass(frozen=True, slots=True)
class Source:
    """Source of one model's requests of one class."""

    model: str
    process: Process
    lengths: Lengths
    service_class: ServiceClass = ServiceClass.INTERACTIVE


def generate(sources: Sequence[Source], seed: int, end_s: float) -> Iterator[Arrival]:
    """Yield all requests before `end_s`, in order of time; 4096 per source are in memory.

    A source's requests depend only on the seed, its model and its class, so adding a model does not
    change the others; ids (model/class letter/number) are unique. Raises ValueError for two sources
    of one model and class or an end that is not above 0.
    """
    names = [(source.model, source.service_class) for source in sources]
    if len(set(names)) < len(names) or not 0 < end_s < np.inf:
        raise ValueError("needs one source a model and class, and an end above 0 s")
    return merged(_arrivals(source, seed, end_s) for source in sources)


def _arrivals(source: Source, seed: int, end_s: float) -> Iterator[Arrival]:
    model, service_class = source.model, source.service_class
    rng = rng_for(seed, "lengths", model, service_class)
    index = 0
    for times in source.process.times(rng_for(seed, "times", model, service_class), end_s):
        prompts, outputs = source.lengths.draw(rng, len(times))
        columns = zip(times.tolist(), prompts.tolist(), outputs.tolist(), strict=True)
        for time_s, prompt, output in columns:
            name = f"{model}/{service_class[0]}/{index}"
            yield Arrival(time_s, name, model, prompt, output, service_class)
            index += 1
