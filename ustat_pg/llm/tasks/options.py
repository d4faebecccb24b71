"""Options in the names of tasks: ``gsm8k:split=train,chat=no``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...validation import InputError, nearest

_KINDS: dict[type, str] = {
    bool: "yes or no",
    **dict.fromkeys((int, type(None)), "a whole number"),
    float: "a number",
}
"""The kind of value that an option needs, by the type of its default."""


def options(task: str, text: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Options ``key=value,...``, converted to the types of their defaults; lists have spaces between items.

    >>> known = {"split": "test", "max_new_tokens": None, "chat": True}
    >>> options("gsm8k", "split=train,max_new_tokens=5,chat=no", known)
    {'split': 'train', 'max_new_tokens': 5, 'chat': False}
    >>> options("a", "chats=no", {"chat": True, "shots": 0})
    Traceback (most recent call last):
    ...
    ustat_pg.validation.InputError: the task 'a' has no option 'chats=no', did you mean chat? options are ...
    """
    read: dict[str, Any] = {}
    for item in filter(None, text.split(",")):
        key, equals, value = item.partition("=")
        if not equals or key not in defaults:
            near = nearest(key, defaults)
            raise InputError(
                f"the task {task!r} has no option {item!r}{f', did you mean {near[0]}?' if near else ':'} "
                "options are " + ", ".join(f"{name}=..." for name in defaults)
            )
        try:
            read[key] = _read(value, defaults[key])
        except (ValueError, TypeError, KeyError):
            kind = _KINDS.get(type(defaults[key]), f"of the kind of {defaults[key]!s}")
            raise InputError(
                f"{key} of the task {task!r} is {value!r}: it must be {kind}"
            ) from None
    return read


def _read(text: str, default: Any) -> Any:
    """The value of an option's text; a whole number if the default is None."""
    if isinstance(default, list | tuple):
        return type(default)(_read(word, default[0]) for word in text.split())
    if isinstance(default, bool):
        return {"yes": True, "no": False}[text]
    return int(text) if default is None else type(default)(text)
