"""Tasks: verifiers, prompts of one's own, GSM8K and MATH from local files."""

import itertools
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.support.commands import jsonl
from tests.support.refusals import refusals, refuses
from ustat_pg.llm.prompts import Prompt, Task, VerifierError, load_verifier
from ustat_pg.llm.tasks.named import drawn, jsonl_task, load_task, mathematics

MESSAGES = [{"role": "user", "content": "1 + 1 ="}]


def task_of(verifier, text="1 + 1 =", **columns):
    return Task("t", (Prompt("p1", text, columns),), verifier, 8)


def rewards_of(verifier, texts=("a", "b"), **columns):
    task = task_of(verifier, **columns)
    return task.rewards(task.prompts[0], list(texts))


def test_a_verifier_gets_what_trl_gives():
    seen = {}

    def verifier(prompts, completions, completion_ids, answer, **kwargs):
        seen.update(p=prompts, c=completions, i=completion_ids, a=answer, k=kwargs)
        return [1, 0.5]

    task = task_of(verifier, answer="2", level=3)
    result = task.rewards(task.prompts[0], ["x", "y"], [(1, 2), (3,)])
    assert result.tolist() == [1.0, 0.5]
    assert result.dtype == np.float64
    columns = {"a": ["2", "2"], "k": {"level": [3, 3]}}
    assert seen == {"p": ["1 + 1 ="] * 2, "c": ["x", "y"], "i": [[1, 2], [3]]} | columns


def test_a_verifier_may_take_less_or_be_async_or_return_arrays():
    def of_messages(prompts, completions, **kwargs):
        assert prompts == [MESSAGES] * 2
        return [float(c[0]["content"] == "2" and c[0]["role"] == "assistant") for c in completions]

    assert rewards_of(of_messages, ("2", "3"), text=MESSAGES).tolist() == [1.0, 0.0]

    async def slow(completions, **kwargs):
        return [1.0] * len(completions)

    assert rewards_of(lambda completions: [len(c) for c in completions]).tolist() == [1, 1]
    assert rewards_of(slow).tolist() == [1, 1]
    assert rewards_of(lambda **k: np.array([1, 0])).tolist() == [1, 0]
    assert rewards_of(lambda **k: np.array([True, False])).tolist() == [1, 0]
    torch = pytest.importorskip("torch")
    assert rewards_of(lambda **k: torch.tensor([0.5, 1.0])).tolist() == [0.5, 1]


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ([1, None], "None as reward 2 of 2"),
        ([math.nan, 1], "nan as reward 1 of 2"),
        ([1], "1 rewards for 2 completions"),
        ("10", "gave '10'"),
        ([[1], [0]], r"\[1\] as reward 1 of 2"),
    ],
)
def test_rewards_that_are_no_numbers_are_refused_with_the_prompt(returned, said):
    error = refuses(said, rewards_of, lambda **k: returned)
    assert "'p1'" in str(error)
    assert not isinstance(error, VerifierError)


def test_a_verifier_that_raises_names_the_prompt():
    with pytest.raises(VerifierError, match=r"at prompt 'p1' .*ZeroDivisionError: division by"):
        rewards_of(lambda **k: 1 / 0)
    with pytest.raises(MemoryError):
        rewards_of(lambda **k: (_ for _ in ()).throw(MemoryError()))


PROMPT = Prompt("a", "x")


test_prompts_tasks_and_names_that_are_none_are_refused = refusals(
    (Prompt, ("a", [{"role": "user"}]), "messages like"),
    (Prompt, ("a", "x", {"completions": 1}), "named 'completions'"),
    (Task, ("t", (), print, 1), "no prompts"),
    (Task, ("t", (PROMPT, PROMPT), print, 1), "two prompts"),
    (load_verifier, ("exact",), "the verifier"),
    (load_task, ("arithmetics",), "must be gsm8k, math"),
    (load_task, ("embedded:base:seeds=1",), "no option 'seeds=1'"),
    (load_task, ("nowhere/p.jsonl",), "have no verifier"),
    of=lambda call, arguments: call(*arguments),
)


def test_a_jsonl_file_with_a_verifier_by_name(tmp_path, monkeypatch):
    """By module in the current folder, and by file."""
    (tmp_path / "my_rewards_h.py").write_text(
        "def exact(prompts, completions, answer, **columns):\n"
        "    return [float(c == a) for c, a in zip(completions, answer)]\n"
        "class Judge:\n    exact = staticmethod(exact)\n"
    )
    path = jsonl(
        tmp_path / "sums.jsonl",
        {"prompt": "1 + 1 =", "answer": "2"},
        {"prompt": MESSAGES, "answer": "2", "id": 7},
        {"prompt": "2 + 2 =", "answer": "4", "id": "last"},
    )
    monkeypatch.chdir(tmp_path)
    module = "my_rewards_h"
    for name in (f"{module}:exact", f"{module}:Judge.exact", f"{tmp_path}/{module}.py:exact"):
        task = load_task(str(path), verifier=name, max_new_tokens=5)
        assert (task.name, task.max_new_tokens) == ("sums", 5)
        assert [p.id for p in task.prompts] == ["0", "7", "last"]
        assert task.prompts[1].text == MESSAGES
        assert task.rewards(task.prompts[2], ["4", "2"]).tolist() == [1, 0]
    assert len(load_task(str(path), verifier="my_rewards_h:exact", limit=2).prompts) == 2
    refuses("has no attribute 'wrong'", load_verifier, "my_rewards_h:wrong")
    (tmp_path / "broken_h.py").write_text("import nothing_of_this_name_h\n")
    refuses(r"broken_h:f.*nothing_of_this_name_h", load_verifier, "broken_h:f")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "line 1: not JSON"),
        ('{"question": "a"}', r"line 1, has no prompt: it has \['question'\]"),
        ("", "no prompts"),
    ],
)
def test_files_of_prompts_that_are_none_are_refused(tmp_path, text, said):
    path = tmp_path / "p.jsonl"
    path.write_text(text)
    refuses(said, jsonl_task, path, "math:fsum")


GSM8K = [
    {"question": "Two and three?", "answer": "2 + 3 = <<2+3=5>>5\n#### 5"},
    {"question": "A thousand and one?", "answer": "So it is.\n#### 1,001"},
]
MATH = [
    {"problem": "Half?", "solution": r"It is $\boxed{\frac{1}{2}}$.", "level": "Level 1"},
    {"problem": "Interval?", "solution": r"Not \boxed{0} but \boxed{[0, 1)}."},
]


@pytest.fixture
def dataset_files(tmp_path, monkeypatch):
    """The same rows as JSONL, parquet, a saved data set, and one with splits."""
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("math_verify")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()

    def write(rows, kind):
        data = datasets.Dataset.from_list(rows)
        path = tmp_path / f"{kind}-data"
        if kind == "jsonl":
            path = jsonl(tmp_path / "data.jsonl", *rows)
        elif kind == "parquet":
            path = tmp_path / "data.parquet"
            data.to_parquet(path)
        elif kind == "saved":
            data.save_to_disk(path)
        elif kind == "splits":
            splits = {"train": data.select([0]), "test": data.select([1, 0])}
            datasets.DatasetDict(splits).save_to_disk(path)
        elif kind == "repository":
            # As a copy of a repository of the hub: data files in a folder, split by their names.
            path.mkdir()
            data.to_parquet(path / "test-00000-of-00001.parquet")
        return path

    return write


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "repository"])
def test_gsm8k_from_local_files(dataset_files, kind):
    task = mathematics("gsm8k", dataset_files(GSM8K, kind))
    assert [p.columns["gold"] for p in task.prompts] == ["5", "1001"]
    assert task.prompts[0].text[0]["content"].startswith("Two and three?\n")
    given = ["so 5", r"\boxed{5}", "#### 5", "6", "", "The answer is 5.0"]
    assert task.rewards(task.prompts[0], given).tolist() == [1, 1, 1, 0, 0, 1]
    given = ["1001", "1,001", r"\boxed{1{,}001}", "1,01", "1002"]
    assert task.rewards(task.prompts[1], given).tolist() == [1, 1, 1, 0, 0]


def test_splits_limits_and_plain_text(dataset_files):
    path = dataset_files(GSM8K, "splits")
    assert [p.columns["gold"] for p in mathematics("gsm8k", path).prompts] == ["1001", "5"]
    task = load_task(f"gsm8k:source={path},split=train,chat=no", max_new_tokens=7)
    assert (len(task.prompts), task.max_new_tokens, task.name) == (1, 7, "gsm8k/train")
    assert task.prompts[0].text.endswith("\nAnswer:")
    assert len(load_task(f"gsm8k:source={path}", limit=1).prompts) == 1
    refuses(r"no split 'dev': it has \['test', 'train'\]", mathematics, "gsm8k", path, "dev")


@pytest.mark.parametrize("kind", ["jsonl", "saved"])
def test_math_from_local_files(dataset_files, kind):
    task = mathematics("math", dataset_files(MATH, kind))
    assert [p.columns["gold"] for p in task.prompts] == [r"\frac{1}{2}", "[0, 1)"]
    given = [r"\boxed{0.5}", r"$\frac{2}{4}$", r"\boxed{\frac12}", r"\boxed{2}", "no idea"]
    assert task.rewards(task.prompts[0], given).tolist() == [1, 1, 1, 0, 0]
    given = [r"\boxed{[0,1)}", r"\boxed{(0,1)}"]
    assert task.rewards(task.prompts[1], given).tolist() == [1, 0]


def test_the_right_answer_comes_first_for_the_checker(dataset_files):
    """math-verify takes an interval for the right relation, and not the other way round."""
    for kind, answer, given, rewards in (
        ("jsonl", "1<x<2", [r"\boxed{(1,2)}", r"\boxed{(1,3)}"], [1, 0]),
        ("parquet", "(1,2)", [r"\boxed{1<x<2}", r"\boxed{(1,2)}"], [0, 1]),
    ):
        task = mathematics("math", dataset_files([{"problem": "?", "answer": answer}], kind))
        assert task.rewards(task.prompts[0], given).tolist() == rewards


def test_the_checker_works_in_a_thread_too(dataset_files):
    """math-verify's time limit is a signal, which only the main thread can have."""
    task = mathematics("gsm8k", dataset_files(GSM8K, "jsonl"))
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(task.rewards, task.prompts[0], ["5", "4"]).result()
    assert result.tolist() == [1, 0]


def test_data_sets_that_are_none_are_refused(dataset_files):
    unmarked = dataset_files([{"question": "?", "answer": "no mark"}], "jsonl")
    refuses("no answer that can be read", mathematics, "gsm8k", unmarked)
    refuses(r"no text in the column 'problem'", mathematics, "math", dataset_files(GSM8K, "jsonl"))


def test_a_right_answer_that_cannot_be_read_is_the_verifiers_error(dataset_files):
    rows = [{"problem": "?", "answer": "}{"}]
    task = mathematics("math", dataset_files(rows, "jsonl"))
    with pytest.raises(VerifierError, match=r"'math/test/0'.*cannot read"):
        task.rewards(task.prompts[0], ["1"])


def test_drawn_prompts_are_a_sample_of_all():
    """A larger limit holds a smaller one."""
    assert {frozenset(drawn("abcd", 2, seed)) for seed in range(60)} == {
        frozenset(pair) for pair in itertools.combinations("abcd", 2)
    }
    assert set(drawn("abcd", 2, 7)) < set(drawn("abcd", 3, 7))
    assert drawn("abcd", 9) == list("abcd")
    refuses("limit is 0", drawn, "abcd", 0)
