"""Tasks of Reasoning Gym, by name and options: procedural questions with their own scorers.

The text of a task is ``NAME,option=value,...`` with options of the data set of this name (default: ``size``
500 and ``seed`` 0) and those of :class:`Asked`. An entry is a function of the data set's options and its
number. The verifier makes it again, so columns are plain text and numbers.

A scorer gets an answer, which must be cut from the completion by one of the rules in :data:`CUTS`. A chat
ends its turn, but plain text continues with a new question. So by default the whole completion of a chat
counts, and the first line of plain text. If all right answers are numbers, the last number of that part
counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from typing import Any

from ...execution.memory import refused
from ...validation import InputError, integer, nearest, one_of
from ..prompts import Prompt, Task, Text, short
from .options import options

_NUMBER = re.compile(r"(?:(?<!\w)-)?(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?")
_FAR = 10**6
"""The distance between the seeds of questions and of worked examples, because entry i of seed s is entry 0 of
seed s + i.
"""
_PROSE = 10
"""Additional tokens for a chat's answer if no example shows how to answer."""
_UNKNOWN = 256
"""The tokens of an answer if the data set has no right answer."""


def _line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "").strip()


def _number(text: str) -> str:
    return next(reversed(_NUMBER.findall(text)), "").replace(",", "")


CUTS: dict[str, Callable[[str], str]] = {
    "text": str.strip,
    "line": _line,
    "number": _number,
    "line-number": lambda text: _number(_line(text)),
}
"""The rules that cut the answer from a completion: the whole text, the first line that is not empty, the last
number, or the last number of that line.
"""

_BY_DEFAULT = {
    (True, False): "text",
    (True, True): "number",
    (False, False): "line",
    (False, True): "line-number",
}
"""The default rule by chat or plain text, and by whether answers are numbers."""


@dataclass(frozen=True)
class Asked:
    r"""The options that convert entries to prompts and rewards.

    Attributes:
        shots: number of worked examples before each question, the first ones of one list that differ from the
            question.
        chat: prompts as messages, and examples as turns; else plain text.
        template: text of the prompt, with fields ``{question}`` and those of the entry's metadata, such as
            ``{expression}`` of chain_sum; ``\n`` is a new line (default: ``{question}`` in a chat and
            ``Question: {question}\nAnswer:`` in plain text).
        answer: one of :data:`CUTS` (default: by the kind of prompts and answers).
        graded: whether rewards are the scorer's marks; if not, 1 for full marks and 0 for less.
        max_new_tokens: longest completion (default: the number of characters of the longest right answer plus
            2, or plus 10 in a chat without examples).
    """

    shots: int = 0
    chat: bool = True
    template: str = ""
    answer: str = ""
    graded: bool = False
    max_new_tokens: int = 0

    def text(self, entry: dict[str, Any]) -> str:
        """The requirements of an entry."""
        template = self.template or ("{question}" if self.chat else "Question: {question}\nAnswer:")
        fields = {**entry["metadata"], "question": entry["question"].strip()}
        try:
            return template.replace("\\n", "\n").format(**fields)
        except (LookupError, ValueError, AttributeError, TypeError) as error:
            raise InputError(
                f"template is {template!r}: {error}; its fields are {', '.join(map(str, fields))}"
            ) from None

    def prompt(self, text: str, examples: Sequence[tuple[str, str]]) -> Text:
        """A question after examples and their answers."""
        if self.chat:
            turns = [turn for example in examples for turn in zip(_ROLES, example, strict=True)]
            turns.append((_ROLES[0], text))
            return [{"role": role, "content": content} for role, content in turns]
        gap = "\n\n" if "\n" in text else "\n"
        return "".join(f"{question} {answer}{gap}" for question, answer in examples) + text


_ROLES = ("user", "assistant")


def task(kind: str, text: str = "", shots: int | None = None) -> Task:
    """The task of a named data set.

    Arguments:
        kind: the data set, such as ``chain_sum``.
        text: options ``key=value,...`` of the data set and of :class:`Asked`.
        shots: number of worked examples; it replaces the one in the text.

    Raises:
        InputError: a name or option is unknown, the data set does not accept a value, or right answers do not
            get full marks by the rule.
    """
    own = vars(Asked())
    given = options(f"reasoning-gym:{kind}", text, own | _defaults(kind))
    if shots is not None:
        given["shots"] = shots
    asked = Asked(**{name: value for name, value in given.items() if name in own})
    integer("shots", asked.shots, 0)
    size, seed = integer("size", given.get("size", 500)), integer("seed", given.get("seed", 0), 0)
    words = [word for word in text.split(",") if word]
    kept = [word for word in words if word.partition("=")[0] not in (*own, "size", "seed")]
    name = ",".join([kind, *kept])
    data = f"{name},size={size},seed={seed}"
    with refused(f"reasoning_gym refuses {data}"):
        entries = [_entry(data, place) for place in range(size)]
    right = [entry["answer"] for entry in entries]
    known = [answer for answer in right if answer is not None]
    numeric = bool(known) and all(_NUMBER.fullmatch(answer) for answer in known)
    cut = one_of("answer", asked.answer or _BY_DEFAULT[asked.chat, numeric], CUTS)
    examples = _examples(asked, name, seed)
    prompts = []
    for place, (entry, answer) in enumerate(zip(entries, right, strict=True)):
        columns = {"dataset": data, "entry": place, "answer": answer, "cut": cut}
        columns |= {"graded": asked.graded, "made_by": f"reasoning-gym {version('reasoning-gym')}"}
        shown = asked.text(entry)
        others = [example for example in examples if example[0] != shown][: asked.shots]
        prompts.append(Prompt(f"{kind}/{place}", asked.prompt(shown, others), columns))
        if answer is not None and _marks(data, entry, CUTS[cut](answer)) < 1:
            raise InputError(
                f"the right answer {short(answer)} to {kind}/{place} does not get full marks where it is cut "
                f"by answer={cut}: take another of {', '.join(CUTS)}"
            )
    room = 2 if asked.shots or not asked.chat else _PROSE
    longest = max(map(len, known)) + room if known else _UNKNOWN
    settings = [word for word in words if word not in kept and not word.startswith("shots=")]
    settings += [f"shots={asked.shots}"] * (asked.shots > 0)
    whole = ",".join([f"reasoning-gym:{name}", *settings])
    return Task(whole, tuple(prompts), reasoning_gym_score, asked.max_new_tokens or longest)


def reasoning_gym_score(
    completions: Sequence[Any],
    dataset: Sequence[str],
    entry: Sequence[int],
    answer: Sequence[str | None],
    cut: Sequence[str],
    graded: Sequence[bool],
    **columns: Any,
) -> list[float]:
    """The rewards of the data set's own scorer for the answers cut from completions.

    They are 1 for full marks and 0 for less, or the marks themselves if ``graded``. An answer that the scorer
    cannot read gets 0.
    """
    rewards = []
    for completion, data, place, right, rule, marks in zip(
        completions, dataset, entry, answer, cut, graded, strict=True
    ):
        made = _entry(data, place)
        if made["answer"] != right:
            raise ValueError(f"this reasoning_gym makes another entry {place} of {data}")
        text = completion if isinstance(completion, str) else completion[-1]["content"]
        score = _marks(data, made, CUTS[rule](text))
        rewards.append(score if marks else float(score >= 1))
    return rewards


def _marks(data: str, entry: dict[str, Any], answer: str) -> float:
    try:
        return float(_dataset(data).score_answer(answer, entry))
    except Exception:
        # Right answers are scored first, so an error here means that the answer is not of this kind.
        return 0.0


def _examples(asked: Asked, name: str, seed: int) -> list[tuple[str, str]]:
    """Questions and answers, one more than shown, since a prompt does not show its own question."""
    found: dict[str, str] = {}
    tries = 50 * (asked.shots + 1) if asked.shots else 0
    data = f"{name},size={tries},seed={seed + _FAR}"
    for place in range(tries):
        if len(found) > asked.shots:
            break
        entry = _entry(data, place)
        if entry["answer"] is None:
            raise InputError(f"{name} has no right answers to show: leave out shots")
        found.setdefault(asked.text(entry), entry["answer"])
    if len(found) < asked.shots + bool(asked.shots):
        raise InputError(
            f"shots is {asked.shots}: {name} has {len(found)} different questions among {tries}, and needs "
            "one more than shots"
        )
    return list(found.items())


def _defaults(kind: str) -> dict[str, Any]:
    """The options of a data set, and their defaults."""
    with refused(
        "tasks of reasoning-gym need pip install 'ustat_pg[real]', and pip install --no-deps reasoning-gym"
    ):
        from reasoning_gym.factory import DATASETS
    if kind not in DATASETS:
        near = nearest(kind, DATASETS, 3) or nearest(kind, DATASETS, 3, 0.3)
        meant = f"did you mean {', '.join(near)}?" if near else "chain_sum is one"
        raise InputError(
            f"reasoning_gym has no data set {kind!r} among its {len(DATASETS)}: {meant}"
        )
    return dict(vars(DATASETS[kind][1]()))


@lru_cache(maxsize=32)
def _dataset(data: str) -> Any:
    """The data set of a text ``NAME,key=value,...``."""
    from reasoning_gym import create_dataset

    kind, _, text = data.partition(",")
    return create_dataset(kind, **options(f"reasoning-gym:{kind}", text, _defaults(kind)))


@lru_cache(maxsize=2**14)
def _entry(data: str, place: int) -> dict[str, Any]:
    """An entry, whose answer is text or None."""
    entry = dict(_dataset(data)[place])
    return entry | {"answer": None if entry["answer"] is None else str(entry["answer"])}
