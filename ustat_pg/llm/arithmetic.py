"""The paper's synthetic integer arithmetic: five categories, drawn uniformly.

The paper (section 5.1) names the categories and the number of problems, 500; the sizes of the numbers
and the words of the prompts are ours:

================ ===================== =========================================
category         problem               numbers
================ ===================== =========================================
``two-step``     a ± b ± c             from 1 to ``largest`` (99)
``three-step``   a ± b ± c ± d         the same
``multiply``     a * b                 from 2 to ``largest`` and from 2 to 9
``divide``       a / b                 without remainder, b from 2 to 9, quotient from 2 to ``largest``
``parentheses``  a ± (b ± c)           as the first
================ ===================== =========================================

A problem is a function of the seed and its position, so that 500 problems begin with the same 50.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from ..rng import cell_key, words
from ..validation import InputError, integer
from .prompts import Prompt, Task, Text

CATEGORIES = ("two-step", "three-step", "multiply", "divide", "parentheses")

INSTRUCTION = "Solve the arithmetic problem. End with the answer, an integer."

_NUMBER = re.compile(r"(?<![\w.])[-−]?\d[\d,]*(?:\.\d+)?|(?<=[\w.])\d[\d,]*(?:\.\d+)?")

_EXAMPLES = 2**32 - 1
"""The slot from which worked examples are drawn; attempts at questions are slots below it."""


@dataclass(frozen=True)
class Problem:
    """An expression, its value, and the steps that lead there."""

    category: str
    expression: str
    answer: int
    steps: tuple[str, ...]


def _problem(draws: Sequence[int], largest: int, category: str | None = None) -> Problem:
    """The problem of eight random words of 32 bits: the category, four numbers, three signs."""

    def choice(word: int, low: int, high: int) -> int:
        return low + (int(word) * (high - low + 1) >> 32)

    if category is None:
        category = CATEGORIES[choice(draws[0], 0, len(CATEGORIES) - 1)]
    if category in ("multiply", "divide"):
        return worked(category, [choice(draws[1], 2, largest), choice(draws[2], 2, 9)])
    numbers = [choice(word, 1, largest) for word in draws[1:5]]
    return worked(category, numbers, [1 - 2 * choice(word, 0, 1) for word in draws[5:8]])


def worked(category: str, numbers: Sequence[int], signs: Sequence[int] = ()) -> Problem:
    """The problem of a category with these numbers and signs, +1 or -1; surplus ones are ignored.

    >>> worked("parentheses", [5, 1, 3], [-1, -1])
    Problem(category='parentheses', expression='5 - (1 - 3)', answer=7, steps=('1 - 3 = -2', '5 - (-2) = 7'))
    """
    first, second = numbers[:2]
    if category in ("multiply", "divide"):
        product = first * second
        expression, answer = f"{first} * {second}", product
        if category == "divide":
            expression, answer = f"{product} / {second}", first
        return Problem(category, expression, answer, (f"{expression} = {answer}",))
    if category == "parentheses":
        inner = f"{second} {_sign(signs[1])} {numbers[2]}"
        within = second + signs[1] * numbers[2]
        answer = first + signs[0] * within
        shown = f"({within})" if within < 0 else str(within)
        last = f"{first} {_sign(signs[0])} {shown} = {answer}"
        expression = f"{first} {_sign(signs[0])} ({inner})"
        return Problem(category, expression, answer, (f"{inner} = {within}", last))
    terms = 3 if category == "two-step" else 4
    expression, value, steps = str(first), first, []
    for number, sign in zip(numbers[1:terms], signs, strict=False):
        steps.append(f"{value} {_sign(sign)} {number} = {value + sign * number}")
        expression += f" {_sign(sign)} {number}"
        value += sign * number
    return Problem(category, expression, value, tuple(steps))


def _sign(sign: int) -> str:
    return "+" if sign > 0 else "-"


def draw_problems(count: int = 500, *, seed: int = 0, largest: int = 99) -> list[Problem]:
    """Problems drawn independently, each category with probability 1/5.

    >>> [p.expression for p in draw_problems(3)] == [p.expression for p in draw_problems(500)[:3]]
    True
    """
    key = cell_key(seed, "arithmetic")
    rows = words(key, range(integer("problems", count)), 0, 8)
    return [_problem(row.tolist(), integer("largest", largest, 2)) for row in rows]


def worked_examples(
    count: int, questions: Sequence[Problem], *, seed: int = 0, largest: int = 99
) -> list[Problem]:
    """Examples for the prompt, the categories in turn, none of them among the questions."""
    key = cell_key(seed, "arithmetic")
    taken = {question.expression for question in questions}
    chosen: list[Problem] = []
    for row in words(key, range(1000 * max(count, 1)), _EXAMPLES, 8):
        if len(chosen) == count:
            break
        category = CATEGORIES[len(chosen) % len(CATEGORIES)]
        example = _problem(row.tolist(), largest, category)
        if example.expression not in taken:
            chosen.append(example)
            taken.add(example.expression)
    if len(chosen) < count:
        raise InputError(
            f"examples is {count}: numbers up to {largest} make fewer problems besides the questions"
        )
    return chosen


def arithmetic_task(
    *,
    problems: int = 500,
    seed: int = 0,
    examples: int = 0,
    largest: int = 99,
    chat: bool = False,
    max_new_tokens: int = 128,
) -> Task:
    """The paper's synthetic arithmetic as a task.

    The questions depend on the seed and not on the examples, so that zero-shot and in-context
    prompts ask the same. Worked examples are the same in every prompt and none of the questions.

    Arguments:
        largest: the largest number of a sum.
        chat: prompts as messages for an instruct model; else plain text.

    >>> print(arithmetic_task(examples=1).prompts[0].text)  # doctest: +ELLIPSIS
    Solve the arithmetic problem. End with the answer, an integer.
    <BLANKLINE>
    Problem: ...
    Answer: ...
    <BLANKLINE>
    Problem: ...
    Answer:
    """
    questions = draw_problems(problems, seed=seed, largest=largest)
    shown = worked_examples(integer("examples", examples, 0), questions, seed=seed, largest=largest)
    prompts = tuple(
        Prompt(
            f"arithmetic/{seed}/{i}",
            _text(question, shown, chat),
            {"answer": question.answer, "category": question.category},
        )
        for i, question in enumerate(questions)
    )
    return Task("arithmetic", prompts, right_answer, max_new_tokens)


def _text(question: Problem, examples: Sequence[Problem], chat: bool) -> Text:
    blocks = [INSTRUCTION]
    blocks += [
        f"Problem: {example.expression}\nAnswer: {', '.join(example.steps)}. "
        f"The answer is {example.answer}."
        for example in examples
    ]
    if chat:
        content = "\n\n".join([*blocks, f"Problem: {question.expression}"])
        return [{"role": "user", "content": content}]
    return "\n\n".join([*blocks, f"Problem: {question.expression}\nAnswer:"])


def last_integer(text: str) -> int | None:
    """The last number of a text before a further ``Problem:``, if it is whole.

    A sign counts where no letter or digit stands before it, so that ``12-5`` ends with 5. Commas
    between digits are skipped; 7.0 is 7, and 7.5 is no integer.

    >>> [last_integer(t) for t in ("12-5", "x = -1,204.", "7.0", "7.5", "none", "4\\nProblem: 9")]
    [5, -1204, 7, None, None, 4]
    """
    numbers = _NUMBER.findall(text.partition("Problem:")[0])
    if not numbers:
        return None
    value = Decimal(numbers[-1].replace(",", "").replace("−", "-"))
    return int(value) if value == value.to_integral_value() else None


def right_answer(
    prompts: Sequence[Any], completions: Sequence[Any], answer: Sequence[int], **columns: Any
) -> list[float]:
    """1 where the completion's :func:`last_integer` is the answer, else 0.

    >>> right_answer(["1 + 1"] * 2, ["1 + 1 = 2", [{"role": "assistant", "content": "3"}]], [2, 2])
    [1.0, 0.0]
    """
    return [
        float(last_integer(c if isinstance(c, str) else c[-1]["content"]) == a)
        for c, a in zip(completions, answer, strict=True)
    ]
