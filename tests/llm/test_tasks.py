"""Tasks: verifiers, prompts of one's own, GSM8K and MATH from local files."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading

import numpy as np
import pytest

from ustat_pg.llm.tasks import (
    Prompt,
    Task,
    VerifierError,
    gsm8k,
    jsonl_task,
    load_task,
    load_verifier,
    mathematics,
)
from ustat_pg.validation import InputError

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
    assert seen == {
        "p": ["1 + 1 ="] * 2,
        "c": ["x", "y"],
        "i": [[1, 2], [3]],
        "a": ["2", "2"],
        "k": {"level": [3, 3]},
    }


def test_messages_get_messages():
    def verifier(prompts, completions, **kwargs):
        assert prompts == [MESSAGES] * 2
        return [float(c[0]["content"] == "2" and c[0]["role"] == "assistant") for c in completions]

    assert rewards_of(verifier, ("2", "3"), text=MESSAGES).tolist() == [1.0, 0.0]


def test_a_verifier_may_take_less_or_be_async_or_return_arrays():
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
        ([1, None], "None as reward 1"),
        ([1, "1"], "'1' as reward 1"),
        ([math.nan, 1], "nan as reward 0"),
        ([1, math.inf], "inf as reward 1"),
        ([1], "1 rewards for 2 completions"),
        ([1, 0, 1], "3 rewards for 2 completions"),
        (None, "gave None"),
        ("10", "gave '10'"),
        (1.0, "gave 1.0"),
        ([[1], [0]], r"\[1\] as reward 0"),
        ([1j, 0], "1j as reward 0"),
    ],
)
def test_rewards_that_are_no_numbers_are_refused_with_the_prompt(returned, said):
    with pytest.raises(InputError, match=said) as caught:
        rewards_of(lambda **k: returned)
    assert "'p1'" in str(caught.value)
    assert not isinstance(caught.value, VerifierError)


def test_a_verifier_that_raises_names_the_prompt():
    with pytest.raises(VerifierError, match="ZeroDivisionError at prompt 'p1': division by zero"):
        rewards_of(lambda **k: 1 / 0)
    with pytest.raises(MemoryError):
        rewards_of(lambda **k: (_ for _ in ()).throw(MemoryError()))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("", "x"), "non-empty string"),
        ((1, "x"), "non-empty string"),
        (("a", ""), "empty"),
        (("a", 3), "'a' is 3"),
        (("a", []), r"'a' is \[\]"),
        (("a", [{"role": "user"}]), "messages like"),
        (("a", "x", {"completions": 1}), "named 'completions'"),
    ],
)
def test_prompts_that_are_none_are_refused(arguments, said):
    with pytest.raises(InputError, match=said):
        Prompt(*arguments)


def test_tasks_that_are_none_are_refused():
    prompt = Prompt("a", "x")
    for arguments, said in (
        (("t", (), print, 1), "no prompts"),
        (("t", (prompt, prompt), print, 1), "two prompts"),
        (("t", (prompt,), print, 0), "max_new_tokens is 0"),
        (("t", (prompt,), "print", 1), "must be a function"),
    ):
        with pytest.raises(InputError, match=said):
            Task(*arguments)


def lines(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_jsonl_file_with_a_verifier_by_name(tmp_path, monkeypatch):
    """By module in the current folder, and by file."""
    (tmp_path / "my_rewards_h.py").write_text(
        "def exact(prompts, completions, answer, **columns):\n"
        "    return [float(c == a) for c, a in zip(completions, answer)]\n"
        "class Judge:\n    exact = staticmethod(exact)\n"
        "text = 'no function'\n"
    )
    path = lines(
        tmp_path / "sums.jsonl",
        {"prompt": "1 + 1 =", "answer": "2"},
        {"prompt": MESSAGES, "answer": "2", "id": 7},
        {"prompt": "2 + 2 =", "answer": "4", "id": "last"},
    )
    monkeypatch.chdir(tmp_path)
    for name in (
        "my_rewards_h:exact",
        "my_rewards_h:Judge.exact",
        f"{tmp_path}/my_rewards_h.py:exact",
    ):
        task = load_task(str(path), verifier=name, max_new_tokens=5)
        assert (task.name, task.max_new_tokens) == ("sums", 5)
        assert [p.id for p in task.prompts] == ["0", "7", "last"]
        assert task.prompts[1].text == MESSAGES
        assert task.rewards(task.prompts[2], ["4", "2"]).tolist() == [1, 0]
    assert len(jsonl_task(path, "my_rewards_h:exact", limit=2).prompts) == 2
    with pytest.raises(InputError, match="is a str"):
        load_verifier("my_rewards_h:text")
    with pytest.raises(InputError, match="has no 'wrong'"):
        load_verifier("my_rewards_h:wrong")
    (tmp_path / "broken_h.py").write_text("import nothing_of_this_name_h\n")
    with pytest.raises(InputError, match=r"broken_h:f.*nothing_of_this_name_h"):
        load_verifier("broken_h:f")


@pytest.mark.parametrize(
    "name", ["exact", ":exact", "module:", "", "no_such_module_h:f", "no.py:f"]
)
def test_verifiers_that_are_none_are_refused(name):
    with pytest.raises(InputError, match="the verifier"):
        load_verifier(name)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "line 1, is not JSON"),
        ('{"prompt": "a"}\n\n[1]', "line 3, is \\[1\\]"),
        ('{"question": "a"}', r"line 1, has no prompt: it has \['question'\]"),
        ('{"prompt": 3}', "line 1: prompt '0' is 3"),
        ('{"prompt": "a", "id": 1.5}', "id of a prompt is 1.5"),
        ('{"prompt": "a", "completions": []}', "named 'completions'"),
        ("", "no prompts"),
    ],
)
def test_files_of_prompts_that_are_none_are_refused(tmp_path, text, said):
    path = tmp_path / "p.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        jsonl_task(path, "math:fsum")


def test_names_of_tasks_that_are_none_are_refused(tmp_path):
    for spec, options, said in (
        ("arithmetics", {}, "must be arithmetic, gsm8k, math"),
        ("arithmetic:seeds=1", {}, "no option 'seeds=1'"),
        ("arithmetic:seed=x", {}, "seed of the task 'arithmetic' is 'x'"),
        ("arithmetic:chat=true", {}, "must be yes or no"),
        ("arithmetic", {"verifier": "math:fsum"}, "has its own"),
        (f"{tmp_path}/p.jsonl", {}, "have no verifier"),
        (f"{tmp_path}/p.jsonl", {"verifier": "math:fsum"}, "cannot be read"),
    ):
        with pytest.raises(InputError, match=said):
            load_task(spec, **options)


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
            path = lines(tmp_path / "data.jsonl", *rows)
        elif kind == "parquet":
            path = tmp_path / "data.parquet"
            data.to_parquet(path)
        elif kind == "saved":
            data.save_to_disk(path)
        elif kind == "splits":
            datasets.DatasetDict(
                {"train": data.select([0]), "test": data.select([1, 0])}
            ).save_to_disk(path)
        elif kind == "repository":
            # As a copy of a repository of the hub: data files in a folder, split by their names.
            path.mkdir()
            data.to_parquet(path / "test-00000-of-00001.parquet")
        return path

    return write


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "saved", "repository"])
def test_gsm8k_from_local_files(dataset_files, kind):
    task = gsm8k(dataset_files(GSM8K, kind))
    assert [p.columns["gold"] for p in task.prompts] == ["5", "1001"]
    assert task.prompts[0].text[0]["content"].startswith("Two and three?\n")
    given = ["so 5", r"\boxed{5}", "#### 5", "6", "", "The answer is 5.0"]
    assert task.rewards(task.prompts[0], given).tolist() == [1, 1, 1, 0, 0, 1]
    given = ["1001", "1,001", r"\boxed{1{,}001}", "1,01", "1002"]
    assert task.rewards(task.prompts[1], given).tolist() == [1, 1, 1, 0, 0]


def test_splits_limits_and_plain_text(dataset_files):
    path = dataset_files(GSM8K, "splits")
    assert [p.columns["gold"] for p in gsm8k(path).prompts] == ["1001", "5"]
    task = load_task(f"gsm8k:source={path},split=train,chat=no", max_new_tokens=7)
    assert (len(task.prompts), task.max_new_tokens, task.name) == (1, 7, "gsm8k/train")
    assert task.prompts[0].text.endswith("\nAnswer:")
    assert len(load_task(f"gsm8k:source={path}", limit=1).prompts) == 1
    with pytest.raises(InputError, match=r"no split 'dev': it has \['test', 'train'\]"):
        gsm8k(path, "dev")


@pytest.mark.parametrize("kind", ["jsonl", "saved"])
def test_math_from_local_files(dataset_files, kind):
    task = mathematics(dataset_files(MATH, kind))
    assert [p.columns["gold"] for p in task.prompts] == [r"\frac{1}{2}", "[0, 1)"]
    given = [r"\boxed{0.5}", r"$\frac{2}{4}$", r"\boxed{\frac12}", r"\boxed{2}", "no idea"]
    assert task.rewards(task.prompts[0], given).tolist() == [1, 1, 1, 0, 0]
    given = [r"\boxed{[0,1)}", r"\boxed{(0,1)}"]
    assert task.rewards(task.prompts[1], given).tolist() == [1, 0]


def test_an_answer_column_comes_before_the_solution(dataset_files):
    rows = [{"problem": "?", "answer": "7", "solution": r"\boxed{8}"}]
    assert mathematics(dataset_files(rows, "jsonl")).prompts[0].columns["gold"] == "7"


def test_the_right_answer_comes_first_for_the_checker(dataset_files):
    """math-verify takes an interval for the right relation, and not the other way round."""
    task = mathematics(dataset_files([{"problem": "?", "answer": "1<x<2"}], "jsonl"))
    assert task.rewards(task.prompts[0], [r"\boxed{(1,2)}", r"\boxed{(1,3)}"]).tolist() == [1, 0]
    task = mathematics(dataset_files([{"problem": "?", "answer": "(1,2)"}], "parquet"))
    assert task.rewards(task.prompts[0], [r"\boxed{1<x<2}", r"\boxed{(1,2)}"]).tolist() == [0, 1]


def test_the_checker_works_in_a_thread_too(dataset_files):
    """math-verify's time limit is a signal, which only the main thread can have."""
    task = gsm8k(dataset_files(GSM8K, "jsonl"))
    found = []
    thread = threading.Thread(
        target=lambda: found.append(task.rewards(task.prompts[0], ["5", "4"]).tolist())
    )
    thread.start()
    thread.join()
    assert found == [[1, 0]]


def test_data_sets_that_are_none_are_refused(dataset_files, tmp_path):
    with pytest.raises(InputError, match=r"no answer that can be read"):
        gsm8k(dataset_files([{"question": "?", "answer": "no mark"}], "jsonl"))
    with pytest.raises(InputError, match=r"no text in the column 'problem'"):
        mathematics(dataset_files(GSM8K, "jsonl"))
    (tmp_path / "data.txt").write_text("x")
    with pytest.raises(InputError, match=r"must end in .jsonl"):
        gsm8k(tmp_path / "data.txt")
    (tmp_path / "bad.parquet").write_text("x")
    with pytest.raises(InputError, match="cannot be read"):
        gsm8k(tmp_path / "bad.parquet")


def test_tasks_and_rewards_alone_need_no_torch(tmp_path):
    """Advice from rewards alone runs where the extra is not installed."""
    (tmp_path / "r.json").write_text('{"rewards": [[1, 0, 1, 0]]}')
    code = """if True:
        import sys
        for name in ("torch", "transformers", "datasets", "math_verify", "peft"):
            sys.modules[name] = None
        from ustat_pg.llm.models import load_model
        from ustat_pg.llm.rollouts import load_rewards
        from ustat_pg.llm.tasks import load_task
        from ustat_pg.validation import InputError

        print(len(load_task("arithmetic").prompts), load_rewards(sys.argv[1])[1].shape)
        for load, name in ((load_model, "x"), (load_task, "gsm8k")):
            try:
                load(name)
            except InputError as error:
                print("install ustat_pg[llm]" in str(error))
    """
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "r.json")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split("\n")[:3] == ["500 (1, 4)", "True", "True"], done.stderr


def test_a_right_answer_that_cannot_be_read_is_the_verifiers_error(dataset_files):
    rows = [{"problem": "?", "answer": "}{"}]
    task = mathematics(dataset_files(rows, "jsonl"))
    with pytest.raises(VerifierError, match=r"'math/test/0'.*cannot read"):
        task.rewards(task.prompts[0], ["1"])
