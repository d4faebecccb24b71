"""Observers that never stop a training with an error."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch.distributed as distributed

from ..validation import InputError


class Guard:
    """A guard for all code that others call: an error gives one warning and switches the code off.

    Processes that train together switch off together: a process that is off takes part in :meth:`gathered`
        until all processes know.

    Arguments:
        stops: functions to call when it switches off.
        what: what is off then, in words.
    """

    def __init__(self, *stops: Callable[[], Any], what: str = "noise") -> None:
        self._what = what
        self.reason: str | None = None
        """The reason why it is off; None while it is on."""
        self.refused = False
        """Whether it is off because the requested quantity cannot be measured, without a failure."""
        self.over = False
        """Whether all processes know that it is off."""
        self.stops = list(stops)
        """Functions to call when it switches off."""
        self._handles: list[Any] = []

    def __call__(self, act: Callable[..., Any], *given: Any) -> Any:
        """The result of ``act``; None if it fails or the guard is off."""
        return None if self.reason is not None else self.run(act, *given)

    def run(self, act: Callable[..., Any], *given: Any) -> Any:
        """The result of ``act``, which is called even if the guard is off."""
        try:
            return act(*given)
        except Exception as error:
            said, refused = str(error), isinstance(error, InputError)
            self.off(said if refused else f"{type(error).__name__}: {said}", refused)
            return None

    def hang(self, register: Callable[..., Any], act: Callable[..., Any], *given: Any) -> None:
        """Register a hook; it is removed when the guard switches off."""
        self._handles.append(register(partial(self, act, *given)))

    def off(self, reason: str, refused: bool = False) -> None:
        """Remove all hooks, and give the reason the first time."""
        if self.reason is not None:
            return
        self.reason, self.refused = reason, refused
        for stop in [self.remove, *self.stops]:
            self.run(stop)
        warnings.warn(f"{self._what} is off and the training continues: {reason}", stacklevel=2)

    def remove(self) -> None:
        """Remove all hooks."""
        while self._handles:
            self._handles.pop().remove()

    def gathered(self, parts: Any = None) -> list[Any] | None:
        """The ``parts`` of all processes, which must all call this; None if one of them is off."""
        if self.over:
            return None
        everything: list[Any] | None = [(self.reason, parts)]
        if distributed.is_available() and distributed.is_initialized():
            everything = self.run(_exchanged, self.reason, parts)
        reasons = [] if everything is None else [part[0] for part in everything]
        self.over = everything is None or any(reason is not None for reason in reasons)
        for process, reason in enumerate(reasons):
            if reason is not None:
                self.off(f"on process {process}: {reason}")
        return None if self.over or everything is None else [part[1] for part in everything]


def _exchanged(*parts: Any) -> list[Any]:
    everything: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(everything, parts)
    return everything


class Replaced:
    """Replacements of an object's methods, which can be undone.

    Arguments:
        owner: the object.
        methods: replacements by name; names that the object does not have are ignored.
    """

    def __init__(self, owner: Any, methods: dict[str, Callable[..., Any]]) -> None:
        self._owner, self._methods = owner, methods
        self.before = {name: getattr(owner, name) for name in methods if hasattr(owner, name)}
        for name in self.before:
            setattr(owner, name, methods[name])

    def restore(self) -> None:
        """Restore the methods; if somebody wrapped a replacement, it only calls the original from now on."""
        for name, before in self.before.items():
            if getattr(self._owner, name, None) != self._methods[name]:
                continue
            # The method of the class is visible again.
            if getattr(before, "__func__", None) is getattr(type(self._owner), name, None):
                vars(self._owner).pop(name, None)
            else:
                setattr(self._owner, name, before)


class Onlooker:
    """A part of a training loop that runs its own code under a guard."""

    _guard: Guard

    def _safely(self, act: Callable[..., Any], *given: Any) -> Any:
        """The result of ``act``; None if the guard is off."""
        return self._guard(act, *given)
