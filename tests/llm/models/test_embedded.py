"""The embedded models: documents and tasks."""

import ast
import re

import pytest

from tests.support.refusals import refuses
from ustat_pg.llm.models import embedded


def value(text: str) -> int:
    """An expression's value by Python's own parser, exact division only."""
    exact = ast.literal_eval if re.fullmatch(r"\d+", text) else eval
    result = exact(text)
    assert result == int(result)
    return int(result)


@pytest.mark.parametrize("category", embedded.CATEGORIES)
def test_answers_are_right(category):
    result = embedded.questions(category)
    for question in result[:: 1 if len(result) < 10_000 else 7]:
        assert value(question.text) == question.answer
    assert len({question.text for question in result}) == len(result)


def test_verifier_rewards_one_string():
    right = embedded.exact_answer(
        ["ab=-12", "=-12 ", "=-12.0", "=-012", "-12", "=", "=-12=3"], ["-12"] * 7
    )
    assert right == [1, 1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("name", embedded.NAMES)
def test_tasks_are_fixed_by_their_seed(name):
    first, again = embedded.task(name, problems=60), embedded.task(name, problems=60)
    assert first.prompts == again.prompts
    assert embedded.task(name, problems=20).prompts == first.prompts[:20]
    assert embedded.task(name, problems=60, seed=1).prompts != first.prompts
    base = embedded.task("base", problems=60)
    assert [p.columns for p in first.prompts] == [p.columns for p in base.prompts]
    for prompt in first.prompts:
        asked = prompt.text.split("\n")[-1].removesuffix("?")
        assert prompt.columns["answer"] == str(value(asked))


@pytest.mark.parametrize("seed", range(3))
def test_worked_examples_show_the_style_and_no_question(seed):
    prompts = embedded.task("in-context", problems=200, seed=seed).prompts
    (shown,) = {tuple(prompt.text.split("\n")[:-1]) for prompt in prompts}
    assert len(shown) == embedded.EXAMPLES
    questions = {line.partition("=")[0] for line in shown}
    assert not questions & {prompt.text.split("\n")[-1].removesuffix("?") for prompt in prompts}
    for line in shown:
        text, _, answer = line.partition("=")
        assert answer == str(value(text))


def test_unknown_names_are_refused():
    for call in (embedded.folder, embedded.task):
        refuses(r"'huge'.*base, strong, in-context, short", call, "huge")
    refuses("number of problems is 0", embedded.task, "base", problems=0)
    refuses("seed is -1", embedded.task, "base", seed=-1)
