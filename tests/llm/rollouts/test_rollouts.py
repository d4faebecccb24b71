"""Rollouts: drawn from the model itself, stored, resumed, read."""

import dataclasses
import json
import math
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from tests.support.commands import jsonl
from tests.support.models import fresh, random_model, save_tiny
from tests.support.refusals import refuses
from ustat_pg.execution.memory import ChunkWarning
from ustat_pg.llm.models import generation
from ustat_pg.llm.models.loading import LanguageModel, load_model
from ustat_pg.llm.prompts import Prompt, Task, load_verifier
from ustat_pg.llm.rollouts.files import load_rewards, load_rollouts
from ustat_pg.llm.rollouts.stored import VerifierWarning, sample
from ustat_pg.llm.tasks.named import load_task


def even(prompts, completions, **columns):
    """1 where the number of characters is even."""
    return [float(len(completion) % 2 == 0) for completion in completions]


def task_of(texts=("1+1=", "2 + 3 =", "7"), verifier=even, length=6, **columns):
    prompts = tuple(Prompt(f"p{i}", text, dict(columns)) for i, text in enumerate(texts))
    return Task("sums", prompts, verifier, length)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Sixteen tokens, so that the end-of-text token is often drawn."""
    folder, words = tmp_path_factory.mktemp("small"), "0123456789+= -"
    return load_model(save_tiny(folder, characters=words, hidden_size=8, seed=3, std=0.6))


@pytest.fixture
def store(tmp_path):
    return tmp_path / "pool.jsonl"


def of_other_weights(model):
    other = fresh(model)
    with torch.no_grad():
        other.model.model.norm.weight += 0.1
    return other


def probabilities(model, ids):
    """The model's next-token distribution after some tokens."""
    with torch.no_grad():
        logits = model.model(torch.tensor([ids])).logits[0, -1].double()
    return torch.softmax(logits, dim=-1).numpy()


def draws_its_completions(model, rollouts, seed, length):
    """Every token is where the model's distribution function passes the token's own uniform number.

    Token by token without a cache, one completion at a time.
    """
    draws = generation.uniforms(seed, rollouts.prompt.id, range(len(rollouts.texts)), length)
    for ids, us in zip(rollouts.completion_ids, draws, strict=True):
        context = list(rollouts.prompt_ids)
        for token, u in zip(ids, us, strict=False):
            sums = np.cumsum(probabilities(model, context))
            assert token == np.searchsorted(sums, u * sums[-1], side="right")
            context.append(token)


def test_tokens_are_the_inverse_distribution_function(tiny, small):
    """Tokens come from uniform numbers, so they have the model's probabilities."""
    for model, texts in ((tiny, ["ab = ", "x"]), (small, ["1+1=", "7"])):
        for rollouts in sample(model, task_of(texts, length=5), 16, seed=2):
            draws_its_completions(model, rollouts, 2, 5)


def test_completions_end_with_the_end_of_text_token(small):
    many = sample(small, task_of(length=3), 700, seed=11)
    end, drawn = 1, [ids for rollouts in many for ids in rollouts.completion_ids]
    assert {1, 2, 3} == {len(ids) for ids in drawn}
    for ids in drawn:
        assert end not in ids[:-1]
        assert len(ids) == 3 or ids[-1] == end
    # The pad token is drawn like any other and is not taken for padding.
    assert any(0 in ids[:-1] for ids in drawn)
    texts = [text for rollouts in many for text in rollouts.texts]
    assert texts == small.tokenizer.batch_decode(drawn, skip_special_tokens=True)


def pools(rollouts):
    return {r.prompt.id: (r.prompt_ids, r.completion_ids, r.rewards.tolist()) for r in rollouts}


def test_order_batches_and_number_change_nothing(small):
    task = task_of()
    whole = sample(small, task, 8, seed=1)
    for batch in (1, 3, 8, 16):
        assert pools(sample(small, task, 8, seed=1, batch=batch)) == pools(whole)
    backwards = dataclasses.replace(task, prompts=task.prompts[::-1])
    assert [r.prompt.id for r in sample(small, backwards, 8, seed=1)] == ["p2", "p1", "p0"]
    assert pools(sample(small, backwards, 8, seed=1)) == pools(whole)
    fewer = sample(small, task, 5, seed=1)
    assert all(f.completion_ids == w.completion_ids[:5] for f, w in zip(fewer, whole, strict=True))
    assert pools(sample(small, task, 8, seed=2)) != pools(whole)
    assert len({ids for r in whole for ids in r.completion_ids}) > 15


@pytest.mark.parametrize("kind", ["GPT2", "Llama", "Qwen3"])
def test_other_architectures_with_padding(small, kind):
    """Left padding, caches and positions: a prompt alone gives what it gives beside a longer one."""
    model = random_model(kind, seed=1, vocab_size=16, hidden_size=8, intermediate_size=16, std=0.5)
    language_model = LanguageModel(model, small.tokenizer, kind, "cpu", 64)
    task = task_of(["1", "11 + 22 + 33 ="], length=5)
    together = sample(language_model, task, 6)
    assert pools(sample(language_model, task, 6, batch=6)) == pools(together)
    draws_its_completions(language_model, together[0], 0, 5)


@pytest.mark.parametrize("texts", [["11 + 22 =", "3 ="], ["7"]])
def test_a_prompt_is_read_once_for_all_its_rollouts(small, texts, monkeypatch):
    """Its last token, and those that are drawn, are each completion's own."""
    read, embedding = [], small.model.get_input_embeddings()
    original = type(embedding).forward

    def counted(self, ids):
        read.append(tuple(ids.shape))
        return original(self, ids)

    monkeypatch.setattr(type(embedding), "forward", counted)
    task, width = task_of(texts, length=3), max(map(len, texts))
    sample(small, task, 6)
    once = [(len(texts), width - 1)] if width > 1 else []
    assert read[: len(once) + 1] == [*once, (6 * len(texts), 1)]
    assert {*read[len(once) :]} == {(6 * len(texts), 1)}


SEEN = {"repetition_penalty": 5.0, "suppress_tokens": [3, 4, 5]}
LEAKS = SEEN | {"do_sample": True, "temperature": 0.1, "top_k": 1, "top_p": 0.2}
LEAKS |= {"no_repeat_ngram_size": 1, "num_beams": 2, "num_return_sequences": 2}
LEAKS |= {"min_new_tokens": 6, "forced_eos_token_id": 2}


@pytest.mark.parametrize("lora", [None, 2])
def test_the_models_own_generation_settings_do_not_come_in(small, lora, monkeypatch):
    if lora:
        pytest.importorskip("peft")
    wanted = pools(sample(small, task_of(), 6))
    model = load_model(small.source, lora=lora)
    base = model.model.get_base_model() if lora else model.model
    for leaks in (LEAKS, SEEN):
        settings = transformers.GenerationConfig(eos_token_id=1, pad_token_id=0, **leaks)
        base.generation_config = settings
        assert pools(sample(model, task_of(), 6)) == wanted
        assert base.generation_config is settings
    # The guard is what keeps them out.
    monkeypatch.setattr(generation, "_plain_generation", lambda model: torch.no_grad())
    assert pools(sample(model, task_of(), 6)) != wanted


def test_further_end_tokens_of_the_model_end_a_completion(small):
    model = load_model(small.source)
    model.model.generation_config.eos_token_id = [1, 5]
    for rollout in sample(model, task_of(), 30):
        assert all(not {1, 5} & set(ids[:-1]) for ids in rollout.completion_ids)
        assert any(ids[-1] == 5 for ids in rollout.completion_ids)


def test_a_pad_token_that_is_the_end_of_text_token_too(small):
    """Then padding looks like tokens."""
    model = load_model(small.source, pad_token="<eos>")
    assert model.tokenizer.pad_token_id == model.tokenizer.eos_token_id
    assert pools(sample(model, task_of(), 8)) == pools(sample(small, task_of(), 8))


def test_where_memory_runs_out_fewer_are_taken(small, monkeypatch):
    real = generation._generate

    def limited(language_model, part, length, seed):
        if len(part) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(language_model, part, length, seed)

    wanted = pools(sample(small, task_of(), 5))
    monkeypatch.setattr(generation, "_generate", limited)
    with pytest.warns(ChunkWarning, match="out of memory with (15|7) completions at once"):
        assert pools(sample(small, task_of(), 5)) == wanted


def test_what_cannot_be_sampled_is_refused(small):
    long = task_of(["1", "1+" * 130])
    for options, task, text in (
        ({"rollouts": 3}, task_of(), "rollouts is 3: .* at least 4"),
        ({}, long, "prompt 'p1' has 260 tokens"),
        ({}, task_of(["x"]), "prompt 'p0' has characters"),
    ):
        refuses(text, sample, small, task, **options)


def test_a_store_serves_again_without_sampling(small, tmp_path, rows):
    store = tmp_path / "deep" / "pool.jsonl"
    first = sample(small, task_of(answer=2), 5, store=store)
    assert len(rows) == 15
    written = store.read_bytes()
    again = sample(small, task_of(answer=2), 5, store=store)
    assert len(rows) == 15
    assert pools(again) == pools(first)
    assert [r.texts for r in again] == [r.texts for r in first]
    assert store.read_bytes() == written
    header = json.loads(written.splitlines()[0])
    assert header["config"]["rollouts"] == 5
    assert header["versions"]["torch"] == torch.__version__
    loaded = load_rollouts(store)
    assert pools(loaded) == pools(first)
    assert loaded[0].prompt == first[0].prompt
    more = sample(small, task_of(["1+1=", "2 + 3 =", "7", "8"], answer=2), 5, store=store)
    assert len(rows) == 20
    assert pools(more)["p0"] == pools(first)["p0"]
    # The line of a prompt that was being written is none.
    store.write_bytes(store.read_bytes()[:-9])
    assert pools(load_rollouts(store)) == pools(first)


def test_a_store_of_an_earlier_version_is_read_and_goes_on(tmp_path, rows):
    old = tmp_path / "rollouts.jsonl"
    shutil.copy(Path(__file__).parents[2] / "data" / "pools" / "rollouts.jsonl", old)
    model, task = load_model("embedded:short"), load_task("embedded:short:problems=3")
    read = load_rollouts(old, model)
    assert pools(sample(model, task, 4, seed=2, store=old)) == pools(read)
    assert [r.log_probs for r in sample(model, task, 4, seed=2, store=old)] == [
        r.log_probs for r in read
    ]
    assert rows == []
    assert pools(sample(model, task, 6, seed=2, store=old)) == pools(sample(model, task, 6, seed=2))


class Killed(Exception):
    """Stands for whatever ends a run."""


@pytest.mark.parametrize(("after", "torn"), [(1, None), (2, 40), (4, 1)])
def test_an_interrupted_pool_goes_on(small, rows, after, torn, store):
    texts = ["1+1=", "2 + 3 =", "7", "3-3=", "12"]
    whole = pools(sample(small, task_of(texts), 4, batch=4))
    rows.clear()

    def kill(_, done, total):
        assert total == 5
        if done == after:
            raise Killed

    with pytest.raises(Killed):
        sample(small, task_of(texts), 4, store=store, batch=4, progress=kill)
    assert {name for name, _ in rows} == {f"p{i}" for i in range(after)}
    kept = after
    if torn is not None:
        data = store.read_bytes()
        store.write_bytes(data[:-torn])
        kept -= 1
    rows.clear()
    assert pools(sample(small, task_of(texts), 4, store=store, batch=4)) == whole
    assert {name for name, _ in rows} == {f"p{i}" for i in range(kept, 5)}
    assert pools(load_rollouts(store)) == whole


def test_a_store_of_another_configuration_is_refused(small, tmp_path, store):
    sample(small, task_of(), 4, store=store)
    before = store.read_bytes()
    other = of_other_weights(small)
    for model, task, options, text in (
        (small, task_of(), {"seed": 1}, "seed = 0, and now seed is 1"),
        (small, task_of(length=7), {}, "max_new_tokens = 6"),
        (other, task_of(), {}, "weights = "),
        (small, task_of(["2+2="]), {}, "another prompt 'p0'"),
        (small, task_of(verifier=lambda **k: [1] * 4), {}, "verifier = "),
        (small, dataclasses.replace(task_of(), name="other"), {}, "task = 'sums'"),
    ):
        refuses(text, sample, model, task, **{"rollouts": 4, "store": store} | options)
    assert store.read_bytes() == before
    store.write_bytes(before.replace(b'"prompt_ids"', b'"prompt_ides"'))
    refuses(r"line 2, is damaged .*prompt_ids", sample, small, task_of(), 4, store=store)
    store.write_bytes(before[:400] + b"\x00\n" + before[400:])
    refuses("not JSON", sample, small, task_of(), 4, store=store)


def test_a_store_is_topped_up(small, rows, store):
    """More rollouts than a store has: those that are missing are drawn, and no other."""
    whole = sample(small, task_of(), 7, seed=2)
    rows.clear()
    four = sample(small, task_of(["1+1=", "2 + 3 ="]), 4, seed=2, store=store)
    rows.clear()
    more = sample(small, task_of(), 7, seed=2, store=store)
    kept = {(f"p{x}", i) for x in (0, 1) for i in (4, 5, 6)}
    assert set(rows) == kept | {("p2", i) for i in range(7)}
    assert len(rows) == 13
    assert pools(more) == pools(whole) == pools(load_rollouts(store))
    for one, other in zip(more, whole, strict=True):
        assert one.texts == other.texts
        for own, logs in zip(one.log_probs, other.log_probs, strict=True):
            assert own == pytest.approx(logs, abs=1e-4)
    rows.clear()
    before = store.read_bytes()
    fewer = sample(small, task_of(["1+1=", "2 + 3 ="]), 4, seed=2, store=store)
    assert pools(fewer) == pools(four)
    assert rows == []
    assert store.read_bytes() == before


def test_two_runs_cannot_write_one_store(small, store):
    def second(_, done, total):
        if done == 1:
            refuses("being written by another run", sample, small, task_of(), 4, store=store)

    assert len(sample(small, task_of(), 4, store=store, progress=second)) == 3
    assert len(sample(small, task_of(), 4, store=store)) == 3


FOREIGN = (
    b"first line\nlast line without a newline",
    b'{"prompt": "x"}\n',
    b'{"format": "ustat_pg rollouts 2", "config": {}}\n{"id": "torn',
    b"\n\n",
)


@pytest.mark.parametrize("foreign", FOREIGN)
def test_files_of_others_are_left_as_they_are(small, tmp_path, foreign, store):
    file = tmp_path / "mine.txt"
    file.write_bytes(foreign)
    refuses("is not a store of rollouts", sample, small, task_of(), 4, store=file)
    assert file.read_bytes() == foreign


VERIFIER = """
def reward(prompts, completions, answer, **columns):
    return [float(len(c) % 2 == {parity}) for c in completions]
"""


def from_file(file, **columns):
    return task_of(verifier=load_verifier(f"{file}:reward"), **columns)


def test_a_changed_verifier_verifies_again(small, tmp_path, rows, store, monkeypatch):
    """Within the same second too, in which Python would take the bytecode that it has kept."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "rewards.py"
    file.write_text(VERIFIER.format(parity=0))
    first = sample(small, from_file(file, answer="2"), 4, store=store)
    assert json.loads(store.read_text().splitlines()[0])["config"]["verifier"] == f"{file}:reward"
    file.write_text(VERIFIER.format(parity=1))
    second = sample(small, from_file(file, answer="2"), 4, store=store)
    assert [r.rewards.tolist() for r in second] == [(1 - r.rewards).tolist() for r in first]
    assert pools(load_rollouts(store)) == pools(second)
    written = store.read_bytes()
    assert pools(sample(small, from_file(file, answer="2"), 4, store=store)) == pools(second)
    assert store.read_bytes() == written
    assert len(rows) == 12
    # One that raises leaves nothing of what it gave before.
    file.write_text("def reward(**columns):\n    raise ValueError('broken')\n")
    with pytest.warns(VerifierWarning, match="at 3 of 3"):
        refuses("no prompt has rewards.*broken", sample, small, from_file(file), 4, store=store)
    refuses("has no rewards", load_rollouts, store)
    # The same name in another folder is another verifier.
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / "rewards.py"
    other.write_text(VERIFIER.format(parity=0))
    refuses("verifier = ", sample, small, from_file(other, answer="2"), 4, store=store)
    assert len(rows) == 12


def shortest(prompts, completions, most, **columns):
    return [float(len(c) <= m) for c, m in zip(completions, most, strict=True)]


def test_changed_columns_verify_again(small, rows, store):
    sample(small, task_of(verifier=shortest, most=0), 4, store=store)
    task = task_of(verifier=shortest, most=9)
    result = sample(small, task, 4, store=store)
    assert [r.rewards.tolist() for r in result] == [[1.0] * 4] * 3
    loaded = load_rollouts(store)
    assert pools(loaded) == pools(result)
    assert [r.prompt.columns for r in loaded] == [{"most": 9}] * 3
    assert len(rows) == 12
    # One prompt's gold answer alone: only it is verified.
    prompts = (dataclasses.replace(task.prompts[0], columns={"most": 0}), *task.prompts[1:])
    before = len(store.read_text().splitlines())
    sample(small, dataclasses.replace(task, prompts=prompts), 4, store=store)
    assert len(store.read_text().splitlines()) == before + 1


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_refused(small, value):
    model = fresh(small)
    letter = small.tokenizer("7", add_special_tokens=False)["input_ids"][0]
    head = model.model.get_input_embeddings().weight
    with torch.no_grad():
        head[letter] = value
    text = "token 1 of a completion of prompt 'p0' are not finite"
    refuses(text, sample, model, task_of(["1+1="]), 4)


def test_a_verifier_that_raises_costs_its_prompt_only(small, rows, store):
    broken = {"p1", "p2"}

    def picky(prompts, completions, name, **columns):
        if name[0] in broken:
            raise KeyError(name[0])
        return even(prompts, completions)

    prompts = tuple(dataclasses.replace(p, columns={"name": p.id}) for p in task_of().prompts)
    task = Task("sums", prompts, picky, 6)
    with pytest.warns(
        VerifierWarning, match=r"raised an error at 2 of 3 prompts.*pool.jsonl.*'p1'.*'p2'"
    ):
        first = sample(small, task, 4, store=store)
    assert [r.prompt.id for r in first] == ["p0"]
    assert set(first.failed) == broken
    assert "KeyError" in first.failed["p1"]
    assert (
        "failed at prompt 'p2' ('7'): KeyError"
        in json.loads(store.read_text().splitlines()[3])["error"]
    )
    with pytest.warns(VerifierWarning, match="at 2 of 3"):
        assert [r.prompt.id for r in load_rollouts(store, small, task)] == ["p0"]
    ids, rewards = load_rewards(store)
    assert (ids, rewards.shape) == (("p0",), (1, 4))
    # Mended, they are verified again and not drawn again; the store keeps it.
    broken.remove("p1")
    with pytest.warns(VerifierWarning, match="at 1 of 3"):
        assert [r.prompt.id for r in sample(small, task, 4, store=store)] == ["p0", "p1"]
    broken.clear()
    last = sample(small, task, 4, store=store)
    assert last.failed == {}
    assert len(rows) == 12
    assert pools(load_rollouts(store)) == pools(last) == pools(sample(small, task, 4))


def test_a_users_file_of_texts(small, tmp_path):
    row = {"prompt": "1+1=", "completions": ["2", "3", "", "22"], "rewards": [1, 0, 0, 0.5]}
    path = jsonl(tmp_path / "r.jsonl", row, {**row, "finished": [True, False, True, False]})
    first, second = load_rollouts(path, small)
    assert first.prompt == Prompt("0", "1+1=")
    assert first.completion_ids == ((4, 1), (5, 1), (1,), (4, 4, 1))
    assert second.completion_ids == ((4, 1), (5,), (1,), (4, 4))
    assert first.rewards.tolist() == [1, 0, 0, 0.5]
    assert first.texts == ("2", "3", "", "22")
    assert small.tokenizer.decode(first.prompt_ids) == "1+1="
    # Columns that logs have too make no log of it.
    jsonl(path, row | {"score": 0.5, "output": "2"})
    assert pools(load_rollouts(path, small)) == pools([first])


def test_a_users_file_of_tokens_rewarded_by_the_task(small, tmp_path):
    def exact(prompts, completions, answer, **columns):
        return [float(c == a) for c, a in zip(completions, answer, strict=True)]

    tokens = [[4, 1], [5, 1], [4, 4], [1]]
    path = jsonl(
        tmp_path / "r.jsonl",
        {"prompt": "1+1=", "completion_ids": tokens, "answer": "22", "id": "own"},
        {"completion_ids": tokens, "id": "p0"},
    )
    own, known = load_rollouts(path, small, task_of(verifier=exact, answer="2"))
    assert own.completion_ids == known.completion_ids == ((4, 1), (5, 1), (4, 4), (1,))
    assert own.texts == ("2", "3", "22", "")
    assert (own.rewards.tolist(), known.rewards.tolist()) == ([0, 0, 1, 0], [1, 0, 0, 0])
    assert known.prompt.text == "1+1="


GOOD = {"prompt": "1+1=", "completions": ["2"] * 4, "rewards": [1, 0, 0, 1]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"completions": ["2"] * 3, "rewards": [1] * 3}, "'0' .* has 3 rollouts: .* at least 4"),
        ({"rewards": [1, 0, 0]}, "3 rewards for 4 completions of prompt '0'"),
        ({"rewards": None}, "has no rewards: give them in the file, or a task"),
        ({"completions": None}, "neither completions nor completion_ids"),
        ({"completion_ids": [[4]] * 3 + [[16]]}, "the token 16: .* tokens 0 to 15"),
        ({"completions": ["1" * 300] * 4}, "prompt '0' has 4 tokens"),
        ({"completions": None, "completion_ids": [[4]] * 3 + [[10**200]]}, "tokens 0 to 15"),
        ({"prompt": "1+\ud800="}, "line 1: .* is half a character"),
        ({"completions": ["1"] * 3 + ["\udfff"]}, "line 1: .* is half a character"),
    ],
)
def test_users_files_that_are_none_are_refused(small, tmp_path, change, said):
    path = jsonl(tmp_path / "r.jsonl", GOOD | change)
    refuses(said, load_rollouts, path, small)


def test_further_refusals_of_files(small, tmp_path, store):
    path = tmp_path / "r.jsonl"
    jsonl(path, GOOD)
    refuses("give the model that drew them", load_rollouts, path)
    jsonl(path, {**GOOD, "id": 3}, {**GOOD, "id": "3"})
    refuses(r"line 2: a prompt with the id '3' stood before", load_rollouts, path, small)
    jsonl(path, {"rewards": [1, 0, 1, 0]}, {"prompt": "x"})
    refuses(r"line 2, has no rewards: it has \['prompt'\]", load_rewards, path)
    jsonl(path, {"rewards": [1, 0, 1, 0]}, {"rewards": [1, 0, 1, 0, 1]})
    refuses("prompt '1' .* 5 rewards and prompt '0'", load_rewards, path)
    sample(small, task_of(), 4, store=store)
    refuses("has other weights", load_rollouts, store, of_other_weights(small))


def test_rewards_alone(small, tmp_path, store):
    lists = [[1, 0, 1, 1], [0, 0, 0, True]]
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"rewards": lists, "ids": ["a", "b"]}))
    ids, rewards = load_rewards(path)
    assert ids == ("a", "b")
    assert rewards.tolist() == lists
    other = tmp_path / "other.json"
    for names in ("ab", ["a"], ["a", "b", "c"]):
        other.write_text(json.dumps({"rewards": lists, "ids": names}))
        refuses("one id for each of its lists of rewards", load_rewards, other)
    each = jsonl(tmp_path / "each.jsonl", *({"rewards": row} for row in lists))
    assert load_rewards(each)[1].tolist() == lists
    mine = jsonl(tmp_path / "mine.jsonl", {**GOOD, "id": "x"}, {**GOOD, "id": "y"})
    assert load_rewards(mine)[0] == ("x", "y")
    pool = sample(small, task_of(), 4, store=store)
    ids, rewards = load_rewards(store)
    assert ids == ("p0", "p1", "p2")
    assert np.array_equal(rewards, [r.rewards for r in pool])
