"""The paper's synthetic arithmetic: categories, determinism, prompts, verifier."""

from __future__ import annotations

import collections
import re

import pytest
import scipy.stats

from ustat_pg.llm.arithmetic import (
    CATEGORIES,
    arithmetic_task,
    draw_problems,
    last_integer,
)

SHAPES = {
    "two-step": r"\d+ [+-] \d+ [+-] \d+",
    "three-step": r"\d+ [+-] \d+ [+-] \d+ [+-] \d+",
    "multiply": r"\d+ \* \d+",
    "divide": r"\d+ / \d+",
    "parentheses": r"\d+ [+-] \(\d+ [+-] \d+\)",
}


def test_answers_steps_and_shapes_are_right():
    """Python's own arithmetic is the judge."""
    for problem in draw_problems(2000, seed=3):
        assert re.fullmatch(SHAPES[problem.category], problem.expression)
        assert eval(problem.expression) == problem.answer
        assert isinstance(problem.answer, int)
        for step in problem.steps:
            left, right = step.split(" = ")
            assert eval(left) == int(right)
        assert int(problem.steps[-1].split(" = ")[1]) == problem.answer


def test_categories_are_uniform():
    counts = collections.Counter(p.category for p in draw_problems(20_000, seed=5))
    assert set(counts) == set(CATEGORIES)
    assert scipy.stats.chisquare(list(counts.values())).pvalue > 1e-3


def test_five_hundred_problems_by_default_deterministic_by_seed():
    task = arithmetic_task()
    assert len(task.prompts) == 500
    assert task == arithmetic_task()
    assert task.prompts[:50] == arithmetic_task(problems=50).prompts
    other = arithmetic_task(seed=1)
    assert sum(a.text == b.text for a, b in zip(task.prompts, other.prompts, strict=True)) < 10


@pytest.mark.parametrize("chat", [False, True])
def test_examples_are_added_to_the_same_questions_and_are_none_of_them(chat):
    plain, shown = arithmetic_task(chat=chat), arithmetic_task(chat=chat, examples=5)
    assert [p.columns for p in plain.prompts] == [p.columns for p in shown.prompts]

    def expressions(prompt):
        text = prompt.text[0]["content"] if chat else prompt.text
        return re.findall(r"Problem: (.*)", text)

    questions = {expressions(p)[0] for p in plain.prompts}
    examples = {tuple(expressions(p)[:-1]) for p in shown.prompts}
    assert len(examples) == 1
    (worked,) = examples
    assert len(set(worked)) == 5
    assert not questions & set(worked)
    shapes = [next(c for c in CATEGORIES if re.fullmatch(SHAPES[c], e)) for e in worked]
    assert shapes == list(CATEGORIES)
    assert [expressions(p)[-1] for p in shown.prompts] == [expressions(p)[0] for p in plain.prompts]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("the answer is -12.", -12),
        ("3 - 5 = −2", -2),
        ("x=-4", -4),
        ("1,234,567", 1234567),
        ("7.00", 7),
        ("", None),
        ("1 then 2\n\nProblem: 9 + 9", 2),
        ("Problem: 4", None),
        ("(5)", 5),
        ("a1", 1),
    ],
)
def test_the_last_integer(text, value):
    assert last_integer(text) == value
