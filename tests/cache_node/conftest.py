"""The model, loaded once."""

import pytest
from kvtrail.cache_node.model import LanguageModel, load_model


@pytest.fixture(scope="session")
def language_model() -> LanguageModel:
    return load_model()
