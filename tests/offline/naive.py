"""Slow and obvious versions of what `muxcluster.offline` computes, as oracles."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations

import numpy as np
from hypothesis import strategies as st

from muxcluster.offline.prefix.prompts import Prompts, token_prompts
from muxcluster.offline.prefix.tree import PrefixTree

Prompt = tuple[int, ...]

few_prompts = st.lists(
    st.lists(st.integers(0, 2), min_size=1, max_size=7).map(tuple), min_size=1, max_size=9
)
"""Small alphabets, so that prefixes are shared, nested and whole prompts repeated."""


def prompts_of(sequences: Sequence[Prompt]) -> Prompts:
    """The sequences as `Prompts`."""
    return token_prompts([np.array(each, dtype=np.int32) for each in sequences])


def shared_prefixes(
    sequences: Sequence[Prompt], granularity: int = 1, own_tokens: int = 0
) -> dict[Prompt, int]:
    """The nodes of the compact tree without its root: prefix and number of prompts below."""
    counts: Counter[Prompt] = Counter()
    for each in sequences:
        most = max(0, len(each) - own_tokens) // granularity
        counts.update(each[: blocks * granularity] for blocks in range(1, most + 1))
    return {
        prefix: count
        for prefix, count in counts.items()
        if count > 1
        and not any(
            counts[other] == count
            for other in counts
            if len(other) == len(prefix) + granularity and other[: len(prefix)] == prefix
        )
    }


def longest_start(sequence: Prompt, prefixes: Iterable[Prompt]) -> Prompt:
    """The longest of `prefixes` that `sequence` starts with; empty if none."""
    return max((p for p in prefixes if sequence[: len(p)] == p), key=len, default=())


def node_prefixes(tree: PrefixTree, sequences: Sequence[Prompt]) -> list[Prompt]:
    """The tokens of each node of `tree`."""
    firsts = tree.order[tree.first].tolist()
    return [
        sequences[first][:depth] for first, depth in zip(firsts, tree.depth.tolist(), strict=True)
    ]


def saved_by(sequences: Sequence[Prompt], prefixes: Sequence[Prompt]) -> int:
    """Tokens saved if each prompt reuses the longest of `prefixes` that it starts with."""
    served = Counter(longest_start(each, prefixes) for each in sequences)
    return sum(len(each) * (served[each] - 1) for each in prefixes)


def best_one_level(sequences: Sequence[Prompt], prefixes: Sequence[Prompt]) -> int:
    """The most that any set of `prefixes` saves."""
    sizes = range(len(prefixes) + 1)
    subsets = chain.from_iterable(combinations(prefixes, size) for size in sizes)
    return max(saved_by(sequences, subset) for subset in subsets)


def best_by_table(tree: PrefixTree) -> int:
    """The same for any tree: a table over nodes and the depth of the nearest choice above."""
    depths, leaves = tree.depth.tolist(), tree.num_leaves.tolist()
    below: list[Counter[int]] = [Counter() for _ in depths]  # the most, by depth of that choice
    for node in range(tree.num_nodes - 1, 0, -1):
        depth, above = depths[node], int(tree.parent[node])
        most = below[node]
        ancestors = [above]
        while ancestors[-1]:
            ancestors.append(int(tree.parent[ancestors[-1]]))
        for d in (depths[each] for each in ancestors):
            chosen = leaves[node] * (depth - d) - depth + most[depth]
            below[above][d] += max(most[d], chosen)
    return below[0][0]


@dataclass(eq=False)
class TrieNode:
    """A node as in the paper's listing; a leaf stands for one request."""

    prefix: Prompt
    tokens: int
    children: list["TrieNode"] = field(default_factory=list)
    is_leaf: bool = False

    def leaves(self) -> int:
        """Requests below."""
        return 1 if self.is_leaf else sum(child.leaves() for child in self.children)


def trie(sequences: Sequence[Prompt]) -> TrieNode:
    """The compact tree of `sequences` as linked nodes."""
    nodes = {(): TrieNode((), 0)}
    for prefix in sorted(shared_prefixes(sequences), key=len):
        above = longest_start(prefix, nodes)
        nodes[prefix] = TrieNode(prefix, len(prefix) - len(above))
        nodes[above].children.append(nodes[prefix])
    for each in sequences:
        above = longest_start(each, nodes)
        nodes[above].children.append(TrieNode(each, len(each) - len(above), is_leaf=True))
    return nodes[()]


def maximize_reuse(node: TrieNode) -> None:
    """BatchLLM's Alg. 1 as it is written down: recursive, changing the tree."""
    for child in list(node.children):
        if child.is_leaf:
            continue
        maximize_reuse(child)
        for grandchild in list(child.children):
            if (
                not grandchild.is_leaf
                and (grandchild.leaves() - 1) * grandchild.tokens > child.tokens
            ):
                child.children.remove(grandchild)
                grandchild.tokens += child.tokens
                node.children.append(grandchild)
        if not child.children:
            node.children.remove(child)


def lru_hits(sequences: Sequence[Prompt], capacity: int) -> Iterator[int]:
    """Tokens found by each prompt in a cache that keeps single tokens by the time of last use."""
    used: dict[Prompt, int] = {}
    for now, each in enumerate(sequences):
        prefixes = [each[: length + 1] for length in range(len(each))]
        found = 0
        while found < len(each) and prefixes[found] in used:
            found += 1
        yield found
        used.update(dict.fromkeys(prefixes, now))
        while len(used) > capacity:
            del used[min(used, key=lambda prefix: (used[prefix], -len(prefix)))]
