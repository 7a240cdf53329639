"""Names under which files hold a model's weights, where the model has other names for them.

transformers merges the matrices of all experts of a layer; files have one for each expert.
"""

from collections.abc import Iterator, Mapping

# Parts of names: in the model, in older files.
_RENAMED = (("", ""), (".mlp.", ".block_sparse_moe."), ("lm_head.", "embed_out."))

# For each merged weight, spellings of the matrices of one expert that lie one below the other.
_MERGED: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "gate_up_proj": (("gate_proj", "up_proj"), ("w1", "w3")),
    "down_proj": (("down_proj",), ("w2",)),
}


def spellings(name: str) -> Iterator[str]:
    """Yield the names that a weight may have in a file."""
    for here, there in _RENAMED:
        if here in name:
            yield name.replace(here, there)


def expert_spellings(name: str) -> Iterator[tuple[str, ...]]:
    """Yield the names that the matrices of a merged weight may have in a file.

    Each is a pattern with one place for the number of the expert; a weight that is not merged has
    none.
    """
    owner, _, leaf = name.rpartition(".")
    if not owner.endswith(".experts"):
        return
    for matrices in _MERGED.get(leaf, ()):
        for place in spellings(owner):
            yield tuple(f"{place}.{{}}.{matrix}.weight" for matrix in matrices)
