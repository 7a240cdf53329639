"""Which shared prefixes a running batch job holds, and which it still needs."""

from muxcluster.offline.tree import PrefixTree


class LivePrefixes:
    """The nodes of a tree by their requests: open ones hold a node, those to come need it.

    What `lifetimes.prefix_lifetimes` foretells for a sequence, counted while the job runs.
    """

    def __init__(self, tree: PrefixTree) -> None:
        self._parents = tree.parent.tolist()
        self._leaf_nodes = tree.leaf_node.tolist()
        self._num_left = tree.num_leaves.tolist()
        self._num_open: dict[int, int] = {}
        self._needed: set[int] = set()

    @property
    def needed(self) -> frozenset[int]:
        """Nodes of which a request has begun and not all have ended."""
        return frozenset(self._needed)

    def need(self, place: int) -> list[int]:
        """The request at `place` is the next to begin: nodes needed from now on, deepest first."""
        begun = [node for node in self._path(place) if node not in self._needed]
        self._needed.update(begun)
        return begun

    def free(self, place: int) -> list[int]:
        """The request at `place`, told to `need`, is over: nodes that nobody needs any more."""
        done: list[int] = []
        for node in self._path(place):
            self._num_left[node] -= 1
            if self._num_left[node] == 0:
                self._needed.remove(node)
                done.append(node)
        return done

    def open(self, place: int) -> list[int]:
        """The request at `place` runs: nodes that are held for it and for nobody else yet."""
        path = self._path(place)
        for node in path:
            self._num_open[node] = self._num_open.get(node, 0) + 1
        return [node for node in path if self._num_open[node] == 1]

    def close(self, place: int) -> list[int]:
        """The request at `place`, told to `open`, runs no longer: nodes that nobody holds now."""
        closed: list[int] = []
        for node in self._path(place):
            self._num_open[node] -= 1
            if self._num_open[node] == 0:
                del self._num_open[node]
                closed.append(node)
        return closed

    def _path(self, place: int) -> list[int]:
        """Nodes above a leaf, deepest first, without the root, which has no tokens."""
        path: list[int] = []
        node = self._leaf_nodes[place]
        while node:
            path.append(node)
            node = self._parents[node]
        return path
