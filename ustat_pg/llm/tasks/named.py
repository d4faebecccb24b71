"""Named tasks: prompts of this library, of ``datasets``, or of a file, with their verifiers.

``datasets`` and ``math-verify`` are imported only when they are used; the rest needs only NumPy.
"""

from __future__ import annotations

import functools
import inspect
import threading
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ...execution.memory import refused
from ...files.reading import regular
from ...validation import InputError, argument, integer, one_of
from ..prompts import Prompt, Task, Text, Verifier, load_verifier
from ..rollouts.stored import lines
from .options import options

T = TypeVar("T")

_LONGEST = 256
"""The default number of tokens of a completion."""

SETTINGS = Path(__file__).with_name("settings.toml")
"""Tasks with measured pass rates of models."""

INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."


def jsonl_task(path: str | Path, verifier: str | Verifier) -> Task:
    """Your own task: a JSONL file of prompts and a verifier.

    Arguments:
        path: file with one object per line: ``prompt`` (text, or a list of messages), optionally ``id``, and
            columns for the verifier.
        verifier: ``module:function``, ``file.py:function`` or a function, with the signature of
            TRL's reward functions.
    """
    path = Path(path)
    function = load_verifier(verifier)
    prompts = []
    for position, (place, row) in enumerate(lines(path)):
        if "prompt" not in row:
            raise InputError(
                f"{place}, has no prompt: it has {sorted(row)}; every line must be "
                'an object like {"prompt": "...", "answer": "..."}'
            )
        columns = {name: value for name, value in row.items() if name not in ("prompt", "id")}
        try:
            name = position if row.get("id") is None else row["id"]
            prompts.append(Prompt(str(name), row["prompt"], columns))
        except InputError as error:
            raise InputError(f"{place}: {error}") from None
    return Task(path.stem, tuple(prompts), function, _LONGEST)


def _rows(source: str | Path, config: str | None, split: str) -> list[dict[str, Any]]:
    """The rows of a data set from the hub, or from a local file or folder."""
    with refused(f"{source} needs pip install 'ustat_pg[llm]', or use a .jsonl file"):
        import datasets
    path = Path(source).expanduser()
    kinds = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}
    local = path.exists()
    if local and not path.is_dir():
        regular(path)
        if path.suffix not in kinds:
            raise InputError(f"{path} is not a known data file: it must end in {', '.join(kinds)}")
    text = (
        f"the data set {path} cannot be read"
        if local
        else (
            f"the data set {str(source)!r} cannot be had from the hub; without a network give a local "
            "path: a .jsonl, .json, .parquet or .csv file, a folder of save_to_disk, or a copy made by "
            f"`hf download --repo-type dataset {source} --local-dir FOLDER`"
        )
    )
    with refused(text):
        if path.is_file():
            data = datasets.load_dataset(kinds[path.suffix], data_files=str(path), split="train")
        elif (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
            data = datasets.load_from_disk(str(path))
        elif local:
            data = datasets.load_dataset(str(path), split=split)
        else:
            data = datasets.load_dataset(str(source), config, split=split)
    if isinstance(data, datasets.DatasetDict):
        if split not in data:
            raise InputError(f"{path} has no split {split!r}: it has {sorted(data)}")
        data = data[split]
    return [dict(row) for row in data]


def _gsm8k_answer(row: Mapping[str, Any]) -> str | None:
    _, mark, answer = str(row.get("answer", "")).rpartition("####")
    return answer.strip().replace(",", "") or None if mark else None


def _math_answer(row: Mapping[str, Any]) -> str | None:
    answer = row.get("answer")
    return str(answer) if answer not in (None, "") else _boxed(str(row.get("solution", "")))


@dataclass(frozen=True)
class _DataSet:
    """A source of questions with answers: the columns of a row, and the length of answers."""

    source: str
    config: str | None
    question: str
    gold: Callable[[Mapping[str, Any]], str | None]
    longest: int


_DATA = {
    "gsm8k": _DataSet("openai/gsm8k", "main", "question", _gsm8k_answer, 512),
    "math": _DataSet("HuggingFaceH4/MATH-500", None, "problem", _math_answer, 1024),
}


def mathematics(
    name: str,
    source: str | Path = "",
    split: str = "test",
    *,
    chat: bool = True,
    max_new_tokens: int | None = None,
) -> Task:
    r"""GSM8K or MATH, checked by math-verify, with the right answer in the column ``gold``.

    Arguments:
        name: ``gsm8k`` (Cobbe et al. 2021), with answers after ``####``; or ``math`` (Hendrycks et al. 2021),
            with answers in a column or in the last ``\boxed{}`` of the solution.
        source: a hub id; a local .jsonl, .json, .parquet or .csv file with columns ``question`` or
            ``problem``, and ``answer`` or ``solution``; a folder written by ``save_to_disk``; or a copy of
            the hub's repository (default: the data set on the hub).
        split: split to use, if there are splits.
        chat: prompts as messages for an instruct model; else plain text.
        max_new_tokens: longest completion (default: 512 or 1024).
    """
    data = _DATA[name]
    whole = f"{name}/{split}"
    rows = _rows(source or data.source, data.config, split)
    prompts = []
    for i, row in enumerate(rows):
        if not isinstance(row.get(data.question), str):
            raise InputError(
                f"row {i} of {whole} has no text in the column {data.question!r}: it has {sorted(row)}"
            )
        answer = data.gold(row)
        if answer is None:
            raise InputError(
                f"row {i} of {whole} has no answer that can be read: its columns are {sorted(row)}"
            )
        content = f"{row[data.question].strip()}\n{INSTRUCTION}"
        text: Text = [{"role": "user", "content": content}] if chat else f"{content}\nAnswer:"
        prompts.append(Prompt(f"{whole}/{i}", text, {"gold": answer}))
    longest = data.longest if max_new_tokens is None else max_new_tokens
    return Task(whole, tuple(prompts), math_answer, longest)


def _boxed(text: str) -> str | None:
    r"""The content of the last ``\boxed{}`` of a solution, braces balanced.

    >>> _boxed(r"so \boxed{1} or rather \boxed{\frac{1}{2}}.")
    '\\frac{1}{2}'
    """
    _, mark, rest = text.rpartition("\\boxed{")
    depth = 1
    for i, character in enumerate(rest if mark else ""):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return rest[:i]
    return None


@functools.lru_cache(maxsize=4096)
def _parsed_gold(gold: str, timeout: int | None) -> tuple[Any, ...]:
    from math_verify import parse

    return tuple(parse(f"\\boxed{{{gold}}}", parsing_timeout=timeout))


def math_answer(
    prompts: Sequence[Any], completions: Sequence[Any], gold: Sequence[str], **columns: Any
) -> list[float]:
    r"""The reward: 1 if math-verify finds the completion's answer equal to the right one, else 0.

    Completions are texts, or lists of messages of which the last counts; right answers (``gold``) are in
    LaTeX. math-verify limits its time by a signal, which works only in the main thread; in another thread it
    has no limit.
    """
    with refused("this task needs pip install 'ustat_pg[llm]'"):
        from math_verify import parse, verify
    timeout = 5 if threading.current_thread() is threading.main_thread() else None
    rewards = []
    for completion, answer in zip(completions, gold, strict=True):
        text = completion if isinstance(completion, str) else completion[-1]["content"]
        right = _parsed_gold(answer, timeout)
        if not right:
            raise ValueError(f"math-verify cannot read the right answer {answer!r}")
        given = parse(text, parsing_timeout=timeout)
        rewards.append(float(verify(list(right), given, timeout_seconds=timeout)))
    return rewards


def load_task(
    spec: str,
    *,
    verifier: str | Verifier | None = None,
    max_new_tokens: int | None = None,
    limit: int | None = None,
    shots: int | None = None,
) -> Task:
    """The task that a command line names.

    Arguments:
        spec: a name with options, as ``gsm8k:split=train``, ``math:source=FOLDER,chat=no``,
            ``reasoning-gym:chain_sum,max_terms=2`` (:mod:`ustat_pg.llm.tasks.reasoning`) or ``embedded:NAME``
            (a model that ships with the library); ``smollm2:NAME``, of :func:`settings`; or the path of a
            ``.jsonl`` file.
        verifier: ``module:function``, for a ``.jsonl`` file only.
        max_new_tokens: longest completion, if it differs from the task's own.
        limit: number of prompts; the first ones are used.
        shots: worked examples in each prompt of a task of reasoning-gym.

    >>> load_task("embedded:short:problems=2").prompts[0].text
    '9*4?'
    """
    name, _, rest = spec.partition(":")
    if (known := settings().get(name)) is not None:
        spec = known[one_of(f"setting of {name}", rest, known)]["task"]
        name, _, rest = spec.partition(":")
    local = spec.endswith(".jsonl")
    if local and verifier is None:
        raise InputError(
            f"the prompts {spec} have no verifier: give one, "
            f"{argument('verifier', repr('my_rewards:exact_answer'))}"
        )
    if not local and verifier is not None:
        raise InputError(
            f"a verifier is given for the task {name!r}, which has its own: it goes with a "
            ".jsonl file of prompts"
        )
    if shots is not None and name != "reasoning-gym":
        raise InputError(f"shots are for tasks reasoning-gym:NAME, and the task is {spec!r}")
    if local:
        task = jsonl_task(spec, verifier or "")
    elif name in _DATA:
        task = mathematics(name, **options(name, rest, _defaults(mathematics)))
    elif name == "embedded":
        from ..models import embedded

        model, _, rest = rest.partition(":")
        make = functools.partial(embedded.task, model)
        task = make(**options(name, rest, _defaults(make)))
    elif name == "reasoning-gym":
        from . import reasoning

        kind, _, rest = rest.partition(",")
        task = reasoning.task(kind, rest, shots)
    else:
        raise InputError(
            f"the task is {spec!r}: it must be gsm8k, math, reasoning-gym:NAME, embedded:NAME or the path of "
            "a .jsonl file"
        )
    first = task.prompts[: None if limit is None else integer("limit", limit)]
    longest = task.max_new_tokens if max_new_tokens is None else max_new_tokens
    return replace(task, prompts=first, max_new_tokens=longest)


@functools.cache
def settings() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """Settings by model and name: the task, its longest answer in ``tokens``, and measured rates.

    ``rate`` is the pass rate over ``prompts`` of ``samples`` each, ``rate_se`` its standard error over
    prompts; ``silent`` the share of prompts whose rewards were all equal, ``middle`` that of prompts with a
    rate from 0.2 to 0.8.
    """
    return tomllib.loads(SETTINGS.read_text(encoding="utf-8"))


def drawn(items: Sequence[T], limit: int | None, seed: int = 0) -> list[T]:
    """A random sample of the prompts or rollouts; with one seed a larger sample contains a smaller one.

    Files are often sorted by difficulty or subject, so their first lines are not a fair sample. If the limit
    is None or larger than the number, all are returned in their order.

    >>> drawn("abcdef", 2), drawn("abcdef", 3), drawn("abc", None)
    (['d', 'c'], ['d', 'c', 'f'], ['a', 'b', 'c'])
    """
    if limit is None or integer("limit", limit) >= len(items):
        return list(items)
    return [items[i] for i in np.random.default_rng(seed).permutation(len(items))[:limit]]


def _defaults(function: Callable[..., Task]) -> dict[str, Any]:
    """The defaults of a function's arguments, for arguments with a default."""
    parameters = inspect.signature(function).parameters
    return {n: p.default for n, p in parameters.items() if p.default is not p.empty}
