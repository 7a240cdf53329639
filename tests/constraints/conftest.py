"""Vocabularies of two families of tokenizers."""

from collections.abc import Callable
from pathlib import Path

import pytest

from muxcluster.constraints.matching import Matching, TokenMasks
from muxcluster.constraints.rows import MaskModel
from muxcluster.constraints.vocabulary import Vocabulary, load_vocabulary
from tests.text.conftest import KINDS, save

END_TOKENS = {"bytes": (1,), "metaspace": (2,)}
MORE_LOGITS = 37  # entries of the logits that the tokenizer does not have


@pytest.fixture(scope="session")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], MaskModel]:
    """kind -> a model in a directory with just its text side."""

    def make(kind: str) -> MaskModel:
        path: Path = tmp_path_factory.mktemp(kind)
        fast = KINDS[kind]()
        save(fast, path)
        size = fast.get_vocab_size(with_added_tokens=True) + MORE_LOGITS
        return MaskModel(kind, str(path), size, END_TOKENS[kind])

    return make


@pytest.fixture(scope="session", params=KINDS)
def model(request: pytest.FixtureRequest, model_of: Callable[[str], MaskModel]) -> MaskModel:
    """A model of each kind."""
    return model_of(request.param)


@pytest.fixture(scope="session")
def vocabulary(model: MaskModel) -> Vocabulary:
    """Its vocabulary."""
    return load_vocabulary(model)


@pytest.fixture(scope="session")
def masks(vocabulary: Vocabulary) -> TokenMasks:
    """Its grammar engine."""
    return TokenMasks(vocabulary)


@pytest.fixture
def matching(model: MaskModel, masks: TokenMasks) -> Matching:
    """Without rows or grammars."""
    return Matching({model.name: masks})
