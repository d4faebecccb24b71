"""A tiny random language model that stands in for a real one."""

from __future__ import annotations

import pytest

from tests.support.models import save_tiny


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """A Hugging Face folder: a tiny random Qwen2 with a character tokenizer, pad and eos tokens."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    torch.set_num_threads(1)
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def tiny(tiny_folder):
    """The same model, loaded."""
    from ustat_pg.llm.models import load_model

    return load_model(str(tiny_folder))
