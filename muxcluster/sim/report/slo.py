"""Base latencies: seconds that each request takes alone, on GPUs of its own."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muxcluster.placement.cost import Cost, cost_for
from muxcluster.placement.problem import Demand, Node, Problem
from muxcluster.workload.metrics.records import Records

Floats = NDArray[np.float64]
# Most of a mesh's memory for weights: with it LLaMA 7B and 13B get one A100, 30B four and 65B
# eight, the meshes of MuxServe's base latencies.
_FULLEST = 0.4
_PLACES = 96  # lengths at which costs are computed; linear in between


@dataclass(frozen=True, slots=True, eq=False)
class BaseLatency:
    """Full prefill and decode of a single request of one model, all SMs (MuxServe §4.1)."""

    lengths: Floats  # tokens, ascending from 1
    prefill_s: Floats  # of prompts of these lengths
    decoded_s: Floats  # of decoding from a context of 1 token to these lengths

    def seconds(self, prompt_tokens: Floats, output_tokens: Floats) -> Floats:
        """Return [n] seconds; the first output token comes from the prefill."""
        ends = prompt_tokens + np.maximum(output_tokens, 1) - 1
        prefill = np.interp(prompt_tokens, self.lengths, self.prefill_s)
        before, after = (
            np.interp(each, self.lengths, self.decoded_s) for each in (prompt_tokens, ends)
        )
        return np.asarray(prefill + after - before, dtype=np.float64)


def base_latencies(problem: Problem) -> dict[str, BaseLatency]:
    """Return base latencies by model.

    Each is on the fewest of the fastest GPUs with enough memory beside the weights, or on all of a
    node's.
    """
    return {demand.name: _of(demand, problem) for demand in problem.demands}


def base_s(records: Records, bases: Mapping[str, BaseLatency]) -> Floats:
    """Return [n] seconds in the order of the records, for the output of each.

    A request without output counts as one of one token. Raises KeyError for a model without base.
    """
    found = np.empty(len(records))
    for index, name in enumerate(records.models):
        is_its = records.rows["model"] == index
        rows = records.rows[is_its]
        lengths = (rows[column].astype(np.float64) for column in ("prompt_tokens", "output_tokens"))
        found[is_its] = bases[name].seconds(*lengths)
    return found


def _of(demand: Demand, problem: Problem) -> BaseLatency:
    node = max(problem.nodes, key=lambda each: (each.gpu.flops, each.num_gpus))
    cost = cost_for(node.gpu, demand.itemsize, problem.profiles)
    return _measured(cost, demand, _mesh(demand, node))


def _mesh(demand: Demand, node: Node) -> int:
    room = _FULLEST * node.gpu.memory_bytes * node.gpu.usable_share
    tp = 1
    while demand.shape.weight_bytes(demand.itemsize) > room * tp and 2 * tp <= node.num_gpus:
        tp *= 2
    return tp


def _measured(cost: Cost, demand: Demand, tp: int) -> BaseLatency:
    longest = max(2, demand.max_model_len)
    lengths = np.unique(np.rint(np.geomspace(1, longest, _PLACES)))
    shape = demand.shape
    prefill = np.array([cost.prefill_s(shape, tp, 1.0, 1, length) for length in lengths])
    steps = np.array([cost.decode_s(shape, tp, 1.0, 1, length) for length in lengths])
    stretches = np.diff(lengths) * (steps[1:] + steps[:-1]) / 2
    return BaseLatency(lengths, prefill, np.concatenate(([0.0], np.cumsum(stretches))))
