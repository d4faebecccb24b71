"""Tasks of Reasoning Gym: prompts, worked examples, the cut of an answer, and what is refused."""

import json
import pickle
from fractions import Fraction

import pytest

from tests.support.refusals import refuses
from ustat_pg.llm.prompts import VerifierError, source_digest, verified_by
from ustat_pg.llm.tasks.named import load_task, settings
from ustat_pg.llm.tasks.reasoning import CUTS

SUMS = "reasoning-gym:chain_sum,max_terms=2,max_digits=1,size=30"
PLAIN = f"{SUMS},chat=no,template={{expression}} ="


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("\n 12 apples\n13", {"line": "12 apples", "line-number": "12", "number": "13"}),
        ("1,234.50 is it.", {"text": "1,234.50 is it.", "number": "1234.50"}),
        ("5-3 = -2", {"number": "-2", "line-number": "-2"}),
        ("so 5-3", {"number": "3"}),
        ("\u00a3195 or x2", {"number": "195"}),
        (" \n", {"line": "", "text": "", "number": "", "line-number": ""}),
    ],
)
def test_an_answer_is_cut_from_a_completion(text, cut):
    assert {name: CUTS[name](text) for name in cut} == cut


gym = pytest.importorskip("reasoning_gym")


def test_prompts_are_the_data_sets_own_in_a_chat_or_in_plain_text():
    entries = gym.create_dataset("chain_sum", max_terms=2, max_digits=1, size=30, seed=0)
    chat, plain = load_task(SUMS), load_task(PLAIN)
    for entry, said, text in zip(entries, chat.prompts, plain.prompts, strict=True):
        assert said.text == [{"role": "user", "content": entry["question"]}]
        assert text.text == f"{entry['metadata']['expression']} ="
        assert said.columns["answer"] == text.columns["answer"] == entry["answer"]
    asked = load_task(f"{SUMS},chat=no").prompts[0].text
    assert asked == f"Question: {entries[0]['question']}\nAnswer:"
    assert load_task(f"{SUMS},seed=1").prompts[0].text == chat.prompts[1].text
    # Two characters of an answer, and in a chat a few words about it.
    assert (plain.max_new_tokens, chat.max_new_tokens) == (4, 12)
    assert load_task(f"{SUMS},max_new_tokens=7").max_new_tokens == 7
    assert load_task(SUMS, max_new_tokens=9).max_new_tokens == 9


def test_worked_examples_are_right_and_never_the_question_itself():
    """The same questions whatever the examples, in lines or in turns; fewer examples begin more."""
    sums, plain = (text.replace("size=30", "size=150") for text in (SUMS, PLAIN))
    bare, few, many = (load_task(plain, shots=shots or None) for shots in (0, 2, 8))
    turns = load_task(f"{sums},shots=2,template={{expression}} =")
    for question, two, eight, chat in zip(
        *(task.prompts for task in (bare, few, many, turns)), strict=True
    ):
        *shown, asked = eight.text.split("\n")
        assert asked == question.text
        assert len(set(shown)) == 8
        for line in shown:
            left, right = line.split(" =")
            assert eval(left) == int(right)
            assert f"{left} =" != asked
        assert two.text == "\n".join([*shown[:2], asked])
        contents = [turn["content"] for turn in chat.text]
        assert (
            "\n".join([f"{contents[0]} {contents[1]}", f"{contents[2]} {contents[3]}", contents[4]])
            == two.text
        )
        assert [turn["role"] for turn in chat.text] == ["user", "assistant"] * 2 + ["user"]
        assert two.columns == question.columns
    assert load_task(f"{plain},shots=8").name == many.name != few.name
    # Some prompt is one of the examples that others are shown.
    assert len({prompt.text.rpartition("\n")[0] for prompt in many.prompts}) > 1
    blocks = load_task(f"{sums},chat=no", shots=1).prompts[0].text
    assert blocks.count("\n\n") == 1


def test_rewards_are_full_marks_or_the_marks_themselves():
    """A first line counts in plain text, the last number of all in a chat; half marks are no success."""
    chat, plain = load_task(SUMS), load_task(PLAIN)
    right = plain.prompts[1].columns["answer"]
    given = [f" {right}\n9 + 9 = 18", f"It is {right}.", f"99\n{right}", "", "none", f"{right}.0"]
    assert plain.rewards(plain.prompts[1], given).tolist() == [1, 1, 0, 0, 0, 1]
    assert chat.rewards(chat.prompts[1], given).tolist() == [0, 1, 1, 0, 0, 1]
    partial = load_task(f"{PLAIN},answer=line"), load_task(f"{PLAIN},answer=line,graded=yes")
    marks = [task.rewards(task.prompts[1], [f"x{right}", right])[0] for task in partial]
    assert marks == [0, 0.5]


def test_metadata_that_json_has_no_word_for_stay_with_the_data_set():
    """An entry is made again from its number: what is kept and hashed is plain."""
    task = load_task("reasoning-gym:gsm_symbolic,size=40")
    entries = gym.create_dataset("gsm_symbolic", size=40, seed=0)
    held = [value for entry in entries for value in entry["metadata"]["variables"].values()]
    assert any(isinstance(value, Fraction) for value in held)
    for prompt in task.prompts:
        assert json.loads(json.dumps(prompt.columns)) == prompt.columns
        assert task.rewards(prompt, [f"So {prompt.columns['answer']}", "-1"]).tolist() == [1, 0]
    again = pickle.loads(pickle.dumps(task))
    assert again == task
    source = source_digest(task.verifier)
    keys = {
        verified_by(load_task(spec).prompts[0], source)
        for spec in (SUMS, PLAIN, f"{SUMS},seed=3", f"{SUMS},graded=yes", f"{SUMS},answer=text")
    }
    assert len(keys) == 5


def test_another_version_whose_entries_differ_is_told():
    task = load_task(SUMS)
    task.prompts[0].columns["answer"] = "77"
    with pytest.raises(VerifierError, match=r"makes another entry 0 of chain_sum,.*size=30"):
        task.rewards(task.prompts[0], ["77"])


def test_options_are_read_by_the_types_of_the_data_set():
    task = load_task(
        "reasoning-gym:basic_arithmetic,operators=+ *,allow_parentheses=no,allow_negation=no,size=9"
    )
    assert not any(set("-/") & set(prompt.text[0]["content"]) for prompt in task.prompts)
    words = load_task("reasoning-gym:word_sorting,transformation=uppercase,size=3,chat=no").prompts
    assert all(prompt.columns["answer"].isupper() for prompt in words)
    lines = load_task(r"reasoning-gym:chain_sum,template=a\n{expression}").prompts[0]
    assert lines.text[0]["content"].startswith("a\n")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("reasoning-gym:chain_sums", "no data set 'chain_sums' among its .* mean chain_sum"),
        ("reasoning-gym", "no data set '' among its"),
        (f"{SUMS},max_term=3", "no option 'max_term=3', did you mean max_terms?"),
        (f"{SUMS},max_terms=few", "max_terms .* is 'few': it must be a whole number"),
        (f"{SUMS},graded=1", "graded .* is '1': it must be yes or no"),
        (f"{SUMS},min_terms=4", "reasoning_gym refuses chain_sum,.*min_terms=4.*max_terms must be"),
        (f"{SUMS},size=0", "size is 0"),
        (f"{SUMS},seed=-1", "seed is -1"),
        (f"{SUMS},shots=-1", "shots is -1"),
        (f"{SUMS},shots=200", r"shots is 200: .* different questions among 10050"),
        (f"{SUMS},answer=last", "answer 'last' is unknown"),
        (f"{SUMS},template={{term}}", "its fields are .*expression"),
        (
            "reasoning-gym:sudoku,size=2,chat=no",
            "to sudoku/0 does not get full marks .*answer=line",
        ),
        ("reasoning-gym:propositional_logic,size=2,shots=1", "no right answers to show"),
        ("reasoning-gym:composite", "reasoning_gym refuses composite"),
    ],
)
def test_what_is_none_is_one_line(spec, said):
    assert "\n" not in str(refuses(said, load_task, spec))


def test_named_settings_are_tasks_in_which_a_rate_was_measured():
    rows = settings()["smollm2"]
    for name, row in rows.items():
        task = load_task(f"smollm2:{name}")
        assert (task, task.max_new_tokens) == (load_task(row["task"]), row["tokens"])
        assert 0 <= row["rate"] <= 1
    assert (
        load_task("smollm2:ask", shots=2).name == load_task(f"{rows['ask']['task']},shots=2").name
    )
    refuses("setting of smollm2 'asks' is unknown, did you mean ask?", load_task, "smollm2:asks")


def test_shots_and_verifiers_go_with_the_tasks_that_take_them():
    refuses("shots are for tasks reasoning-gym:NAME", load_task, "embedded:short", shots=1)
    refuses("which has its own", load_task, SUMS, verifier="math:fsum")


def test_without_the_package_it_says_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    refuses(r"ustat_pg\[real\]'.*--no-deps reasoning-gym", load_task, SUMS)
