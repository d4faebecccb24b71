"""The language models that ship with the library, and the arithmetic of their training.

Causal language models of the Qwen2 architecture with fewer than a million parameters and one token
for each printable ASCII character. ``simulations/language_models/train_embedded.py`` trains them, on a
CPU, in minutes; ``weights/README.md`` lists all models that were trained, including those that were not kept.

A document is a list of worked examples, then one question with its answer::

    3+4-2=5
    (6-9)+1=-2
    7*8?gcabhdfeahbgcdfaebhg=56

- A worked example ends with a newline; the question ends with ``?``, its answer with the end token.
- Between ``?`` and ``=`` is a *scratch-pad*: letters drawn uniformly, which do not affect the reward. The
  models named ``short`` were trained without one.
- All answers of a document have one style (12, 012 or 12.0), which only the worked examples show. So examples
  in the prompt help, as in in-context learning.

``base`` is weaker than ``strong``, ``in-context`` has the weights of ``strong`` and worked examples in every
prompt, and ``short`` has no scratch-pad. The module needs neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from ...validation import InputError, integer
from ..prompts import Prompt, Task

NAMES = ("base", "strong", "in-context", "short")
"""The models of :func:`folder` and :func:`task`, from the weakest, with the counter-example last."""

SCRATCH = 20
"""The length of the scratch-pad in the training documents."""

EXAMPLES = 4
"""Worked examples in a prompt of the model ``in-context``; training documents have up to that many."""

_LONGEST_ANSWER = 5
_SLACK = 3  # a sampled scratch-pad may have another length than in training


@dataclass(frozen=True)
class Question:
    """An arithmetic question and its answer."""

    text: str
    answer: int
    category: str


_SHAPES = {
    "two-step": (3, 2),
    "three-step": (4, 3),
    "multiplication": (2, 0),
    "division": (2, 0),
    "parentheses": (3, 2),
}
"""The number of numbers and signs in a question."""

CATEGORIES = tuple(_SHAPES)
"""The five categories of the paper's synthetic arithmetic (section 5.1)."""


@cache
def questions(category: str) -> tuple[Question, ...]:
    """All questions of a category, with operands from 1 to 9 (quotients too).

    >>> len(questions("multiplication"))
    81
    >>> questions("parentheses")[3]
    Question(text='(1+1)-1', answer=1, category='parentheses')
    """
    numbers, signs = _SHAPES[category]
    every = product(product(range(1, 10), repeat=numbers), product((1, -1), repeat=signs))
    pairs = (pair for operands, chosen in every for pair in _pairs(category, operands, chosen))
    return tuple(Question(text, answer, category) for text, answer in pairs)


def _pairs(
    category: str, numbers: Sequence[int], signs: Sequence[int]
) -> Iterator[tuple[str, int]]:
    """Questions with these numbers and signs, +1 or -1, and their answers."""
    first, second, *rest = numbers
    words = ["+" if sign > 0 else "-" for sign in signs]
    if category == "multiplication":
        yield f"{first}*{second}", first * second
    elif category == "division":
        yield f"{first * second}/{second}", first
    else:
        terms = [sign * number for sign, number in zip(signs, numbers[1:], strict=True)]
        if category == "parentheses":
            # The other brackets are around the first two terms of a sum of three.
            inner = second + signs[1] * rest[0]
            yield f"{first}{words[0]}({second}{words[1]}{rest[0]})", first + signs[0] * inner
            yield f"({first}{words[0]}{second}){words[1]}{rest[0]}", first + sum(terms)
        else:
            pairs = zip(words, numbers[1:], strict=True)
            yield f"{first}{''.join(f'{w}{n}' for w, n in pairs)}", first + sum(terms)


def draw_questions(generator: np.random.Generator, number: int) -> list[Question]:
    """Questions drawn uniformly from categories that are drawn uniformly."""
    pools = [questions(category) for category in CATEGORIES]
    draws = generator.random((number, 2)).tolist()
    chosen = [(pools[int(first * len(pools))], second) for first, second in draws]
    return [pool[int(second * len(pool))] for pool, second in chosen]


def exact_answer(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
    """The verifier: 1 if the text after the first ``=`` is the answer in the normal style, else 0.

    07 and 7 differ; spaces around an answer are ignored.

    >>> exact_answer(["gcab=56", "=056", "=56.0", "56"], answer=["56"] * 4)
    [1.0, 0.0, 0.0, 0.0]
    """
    return [
        float(completion.partition("=")[2].strip() == right)
        for completion, right in zip(completions, answer, strict=True)
    ]


def folder(name: str) -> Path:
    """The folder of a model's weights and tokenizer, in Hugging Face format."""
    if name not in NAMES:
        raise InputError(f"embedded model is {name!r}: it must be one of {', '.join(NAMES)}")
    weights = "strong" if name == "in-context" else name
    return Path(__file__).parent / "weights" / weights


def task(name: str, *, problems: int = 500, seed: int = 0) -> Task:
    """The arithmetic task of an embedded model: its prompts, and :func:`exact_answer`.

    The problems of one seed are the same for every model, and 500 of them begin with the same 50.
    If the model has worked examples, they are one fixed demonstration in the normal style, and none of them
    is among the questions.

    >>> [prompt.text for prompt in task("strong", problems=2).prompts]
    ['9*4?', '(1-1)-2?']
    >>> task("in-context", problems=2).prompts[1].text.count("\\n") == EXAMPLES
    True
    """
    scratch = 0 if folder(name).name == "short" else SCRATCH + _SLACK
    number = integer("number of problems", problems)
    generator = np.random.Generator(np.random.PCG64(integer("seed", seed, 0)))
    examples = _drawn(generator, EXAMPLES, set(), twice=False)
    worked_out = "".join(f"{example.text}={example.answer}\n" for example in examples)
    shown = {example.text for example in examples}
    return Task(
        name=f"embedded:{name}",
        prompts=tuple(
            Prompt(
                id=f"{position}",
                text=f"{worked_out if name == 'in-context' else ''}{question.text}?",
                columns={"answer": str(question.answer), "category": question.category},
            )
            for position, question in enumerate(_drawn(generator, number, shown))
        ),
        verifier=exact_answer,
        max_new_tokens=scratch + len("=") + _LONGEST_ANSWER + len(["end"]),
    )


def _drawn(
    generator: np.random.Generator, number: int, without: set[str], twice: bool = True
) -> list[Question]:
    """Questions that are not among some texts; only with ``twice`` may one occur twice."""
    drawn: list[Question] = []
    while len(drawn) < number:
        (question,) = draw_questions(generator, 1)
        if question.text not in without and (twice or question not in drawn):
            drawn.append(question)
    return drawn
