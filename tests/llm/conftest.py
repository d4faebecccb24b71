"""A tiny random language model that stands in for a real one."""

import pytest

from tests.support.models import save_tiny
from tests.support.optional import without

collect_ignore = without(
    {
        "torch": "advice/advice_words models/models pool/pool_words",
        "torch transformers": (
            "advice/commands advice/turns pool/looks rollouts/rollouts rollouts/stale scores/scores "
            "scores/scoring trl/vllm_recipe"
        ),
        "torch transformers gguf": "models/gguf",
        "torch trl": (
            "catalogue trl/monitor_alarms trl/monitor_guard trl/noise trl/sweep trl/trl_trainers "
            "trl/two_stage_trainer"
        ),
    }
)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """A Hugging Face folder: a tiny random Qwen2 with a character tokenizer, pad and eos tokens."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def tiny(tiny_folder):
    """The same model, loaded."""
    from ustat_pg.llm.models.loading import load_model

    return load_model(str(tiny_folder))


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """A model of 18 symbols, so that the end token is sampled often and lengths differ."""
    from ustat_pg.llm.models.loading import load_model

    folder = tmp_path_factory.mktemp("models") / "few"
    return load_model(str(save_tiny(folder, characters="0123456789+=abcd")))


@pytest.fixture(scope="session")
def task():
    """Sums of two lengths, each completion rewarded by its letters."""
    from tests.support.trainers import LONGEST, letters
    from ustat_pg.llm.prompts import Prompt, Task

    prompts = tuple(Prompt(f"q{i}", f"{i}+{i + 1}=" * (1 + i % 2), {}) for i in range(8))
    return Task("sums", prompts, letters, LONGEST)


@pytest.fixture
def rows(monkeypatch):
    """The completions that are drawn: (prompt's id, which of its completions)."""
    from ustat_pg.llm.models import generation

    seen, original = [], generation._generate

    def counted(language_model, part, length, seed):
        seen.extend((name, i) for name, _, i in part)
        return original(language_model, part, length, seed)

    monkeypatch.setattr(generation, "_generate", counted)
    return seen


@pytest.fixture
def scored_prompts(monkeypatch):
    """The prompts that are scored, by their tokens."""
    from ustat_pg.llm.scores import Scores

    calls, original = [], Scores.many

    def counted(self, asked, **options):
        listed = list(asked)
        for one, made in zip(listed, original(self, listed, **options), strict=True):
            calls.append(tuple(one.prompt_ids))
            yield made

    monkeypatch.setattr(Scores, "many", counted)
    return calls
