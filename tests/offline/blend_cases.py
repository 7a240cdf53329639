"""Small jobs with output lengths, and what their sub-trees cost counted token by token."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from muxcluster.offline.blend.densities import Work, leaf_work, node_work
from muxcluster.offline.blend.lengths import known_lengths
from muxcluster.offline.prefix.tree import PrefixTree, build_tree
from muxcluster.placement.cost.resources import ResourceModel
from tests.offline.naive import Prompt, few_prompts, prompts_of

MODEL = ResourceModel(token_s=3.0, attention_s=0.5, kv_s=2.0, kv_bytes=10)


@dataclass(frozen=True, slots=True)
class Case:
    """sequences, outputs: by number; the rest by place."""

    sequences: Sequence[Prompt]
    outputs: Sequence[int]
    tree: PrefixTree
    by_place: NDArray[np.float64]
    leaves: Work
    nodes: Work

    def at(self, places: Iterable[int]) -> list[tuple[Prompt, int]]:
        """Prompts and output lengths of the requests at `places`."""
        numbers = [int(self.tree.order[place]) for place in places]
        return [(self.sequences[i], self.outputs[i]) for i in numbers]


def case_of(
    sequences: Sequence[Prompt], outputs: Sequence[int], model: ResourceModel = MODEL
) -> Case:
    """The case of these prompts and output lengths."""
    tree = build_tree(prompts_of(sequences))
    by_place = np.array(outputs, dtype=np.float64)[tree.order]
    leaves = leaf_work(tree, model, known_lengths(by_place))
    return Case(sequences, outputs, tree, by_place, leaves, node_work(tree, model, leaves))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A few prompts with outputs of 1 to 30 tokens."""
    sequences = draw(few_prompts)
    lengths = st.lists(st.integers(1, 30), min_size=len(sequences), max_size=len(sequences))
    return case_of(sequences, draw(lengths))


def cost(requests: Sequence[tuple[Prompt, int]], above: int = 0) -> tuple[float, float]:
    """Compute and memory seconds; each different prefix over `above` tokens computed once."""
    prefixes = {
        prompt[:length] for prompt, _ in requests for length in range(above + 1, len(prompt) + 1)
    }
    # the n-th token attends to n - 1/2 others: the integral, as the model has it
    compute = sum(MODEL.token_s + MODEL.attention_s * (len(p) - 0.5) for p in prefixes)
    compute += sum(MODEL.token_s * output for _, output in requests)
    memory = sum(
        MODEL.kv_s * (len(prompt) + step + 0.5)
        for prompt, output in requests
        for step in range(output)
    )
    return compute, memory
