"""Prompts and tasks: questions to a model, and the verifier that rewards its answers.

A verifier has the signature of TRL's reward functions: it is called with keyword arguments
``prompts``, ``completions``, ``completion_ids`` if they are known, and every column of the prompt as a list
with one entry for each completion, and returns one number for each. So one function works here and in a TRL
trainer. Verifiers are found by name and identified by the source of the function. Tasks are loaded by
:func:`ustat_pg.llm.tasks.named.load_task`.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import importlib
import importlib.util
import inspect
import json
import math
import operator
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..execution.memory import refused
from ..validation import InputError, frozen, integer

Text = str | list[dict[str, str]]
"""Plain text, or chat messages that the tokenizer's chat template renders."""

Verifier = Callable[..., Sequence[float]]

RESERVED = ("prompt", "prompts", "completion", "completions", "completion_ids")
"""Keyword arguments of verifiers, which columns must not use as names."""


class VerifierError(InputError):
    """A verifier raised an error; the message names the prompt. Other prompts are not affected."""


@dataclass(frozen=True)
class Prompt:
    """A question: an id that is unique in its task, the text, and columns for the verifier."""

    id: str
    text: Text
    columns: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.text or not (isinstance(self.text, str) or _messages(self.text)):
            raise InputError(
                f"prompt {self.id!r} is {short(self.text)}: it must be a non-empty string, or a non-empty "
                "list of messages like {'role': 'user', 'content': '...'}"
            )
        if taken := [name for name in self.columns if name in RESERVED]:
            raise InputError(
                f"prompt {self.id!r} has a column named {taken[0]!r}: the names {RESERVED} are "
                "those that a verifier is called with"
            )


def _messages(text: Any) -> bool:
    return isinstance(text, list) and all(
        isinstance(message, Mapping)
        and isinstance(message.get("role"), str)
        and isinstance(message.get("content"), str)
        for message in text
    )


@dataclass(frozen=True)
class Task:
    """Prompts, their verifier, and the largest number of tokens of an answer.

    >>> def last_word(prompts, completions, answer, **columns):
    ...     return [float(c.split()[-1] == a) for c, a in zip(completions, answer)]
    >>> task = Task("sums", (Prompt("0", "1 + 1 =", {"answer": "2"}),), last_word, 8)
    >>> task.rewards(task.prompts[0], ["that is 2", "it is 3"]).tolist()
    [1.0, 0.0]
    """

    name: str
    prompts: tuple[Prompt, ...]
    verifier: Verifier
    max_new_tokens: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompts", tuple(self.prompts))
        integer("max_new_tokens", self.max_new_tokens)
        if not self.prompts:
            raise InputError(f"task {self.name!r} has no prompts: it must have at least one")
        ids = Counter(prompt.id for prompt in self.prompts)
        name, count = ids.most_common(1)[0]
        if count > 1:
            raise InputError(
                f"two prompts of task {self.name!r} have the id {name!r}: ids must be unique"
            )

    def rewards(
        self,
        prompt: Prompt,
        texts: Sequence[str],
        completion_ids: Sequence[Sequence[int]] | None = None,
    ) -> NDArray[np.float64]:
        """The verifier's rewards of N completions of one of the task's prompts, (N,).

        A prompt of messages gets its completions as messages too, as in TRL. A verifier without ``**columns``
        gets only the arguments that it names.
        """
        count = len(texts)
        arguments: dict[str, list[Any]] = {
            "prompts": [prompt.text] * count,
            "completions": (
                list(texts)
                if isinstance(prompt.text, str)
                else [[{"role": "assistant", "content": text}] for text in texts]
            ),
            **{name: [value] * count for name, value in prompt.columns.items()},
        }
        if completion_ids is not None:
            arguments["completion_ids"] = [list(ids) for ids in completion_ids]
        source = f"the verifier of task {self.name!r}"
        place = f"{source} failed at prompt {prompt.id!r} ({short(prompt.text)})"
        with refused(place, VerifierError):
            result = self.verifier(**_accepted(self.verifier, arguments))
            if inspect.iscoroutine(result):
                result = asyncio.run(result)
        return check_rewards(source, prompt.id, result, count)


def _accepted(function: Verifier, arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return arguments
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return arguments
    names = {parameter.name for parameter in parameters}
    return {name: value for name, value in arguments.items() if name in names}


def check_rewards(source: str, prompt: str, rewards: Any, count: int | None) -> NDArray[np.float64]:
    """Rewards as finite numbers, (N,), from a list, tuple, array or tensor; ``True`` is 1.

    ``count`` is how many there must be, ``None`` for any number.

    >>> check_rewards("the file", "p7", [1, 0.5, True], 3).tolist()
    [1.0, 0.5, 1.0]
    >>> check_rewards("the file", "p7", [1, "0.5"], 2)
    Traceback (most recent call last):
    ...
    ustat_pg.validation.InputError: the file gave '0.5' as reward 2 of 2 of prompt 'p7': ...
    """
    if isinstance(rewards, (str, bytes, Mapping)) or not hasattr(rewards, "__len__"):
        raise InputError(
            f"{source} gave {short(rewards)} for prompt {prompt!r}: it must give a list of numbers"
        )
    if count is not None and len(rewards) != count:
        raise InputError(
            f"{source} gave {len(rewards)} rewards for {count} completions of prompt {prompt!r}: "
            "it must give one for each"
        )
    values = np.array([_number(reward) for reward in rewards])
    for i in np.flatnonzero(~np.isfinite(values)):
        raise InputError(
            f"{source} gave {short(rewards[i])} as reward {i + 1} of {len(values)} of prompt "
            f"{short(prompt)}: a reward must be a finite number"
        )
    return frozen(values)


def _number(reward: Any) -> float:
    """A reward as a number; NaN where it is none."""
    with suppress(TypeError, ValueError, RuntimeError):
        return math.nan if isinstance(reward, str) else float(reward)
    return math.nan


def short(value: Any, most: int = 60) -> str:
    """The value as Python writes it, cut."""
    text = repr(value)
    return text if len(text) <= most else text[: most - 3] + "..."


def load_verifier(name: str | Verifier) -> Verifier:
    """The function named ``module:function``; a module may also be the path of a ``.py`` file.

    A module is looked for where Python looks, then in the current folder.

    >>> load_verifier("math:fsum").__name__
    'fsum'
    """
    if callable(name):
        return name
    module_name, _, path = str(name).rpartition(":")
    if not module_name or not path:
        raise InputError(
            f"the verifier is {name!r}: it must be named as module:function, for instance "
            "my_rewards:exact_answer or rewards.py:exact_answer"
        )
    with refused(f"the verifier {name!r} cannot be imported"):
        function = operator.attrgetter(path)(_module(module_name))
    if not callable(function):
        raise InputError(
            f"the verifier {name!r} is a {type(function).__name__}: it must be a function"
        )
    return function


class _AsItIs(SourceFileLoader):
    """A loader that reads a file as it is: bytecode that is kept may be of the same second, and older."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _module(name: str) -> Any:
    if name.endswith(".py"):
        # The path separates two files with the same name, and a file from a module with its name.
        path = str(Path(name).resolve())
        spec = importlib.util.spec_from_file_location(path, path, loader=_AsItIs(path, path))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    importlib.invalidate_caches()
    return importlib.import_module(name)


def function_name(function: Any) -> str:
    """A function's module and name; for a module loaded from a file, the file's path."""
    inner = _defined(function)
    return f"{getattr(inner, '__module__', '')}:{getattr(inner, '__qualname__', '')}"


def _defined(function: Any) -> Any:
    """The function or class with the source of a callable."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    function = getattr(function, "__func__", function)
    return function if hasattr(function, "__qualname__") else type(function)


def source_digest(function: Any) -> str:
    """A hash of the file that defines a function; of its name if there is no such file."""
    inner, source = _defined(function), function_name(function).encode()
    # A notebook's functions have a source without a file.
    with suppress(OSError, TypeError):
        source = inspect.getsource(inner).encode()
    with suppress(OSError, TypeError):
        source = Path(inspect.getsourcefile(inner) or "").read_bytes()
    while isinstance(function, functools.partial):
        given = [function.args, function.keywords]
        text = json.dumps(given, default=lambda value: type(value).__qualname__)
        source, function = source + text.encode(), function.func
    return hashlib.blake2b(source, digest_size=16).hexdigest()


def verified_by(prompt: Prompt, source: str) -> str:
    """A hash of everything that determines a prompt's rewards, except its completions."""
    parts = [prompt.text, sorted(prompt.columns.items(), key=lambda item: item[0]), source]
    text = json.dumps(parts, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
