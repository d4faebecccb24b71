"""Texts that begin with the answer and leave out what does not fit."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..display import shown
from ..validation import argument

MOST_LINES = 40
"""The most lines of a text that is not whole."""

_CLOSING = 3
"""The lines that are kept for the sentence on what was left out."""

_WIDTH, _LEAST = 100, 40
"""The most characters of a printed line, and the fewest on a narrow terminal."""


@dataclass(frozen=True)
class Part:
    """A part of a text; its sentences are wrapped when it is printed.

    Arguments:
        title: its first line, if it has one.
        sentences: its sentences, or other blocks of lines that stay together.
        what: what it is about, for a text that leaves it out.
        needed: whether no text leaves it out.
        brief: whether it belongs to the text that is not whole, as far as there is room.
        divisible: whether some of its sentences may be left out.
    """

    title: str
    sentences: Sequence[str]
    what: str = ""
    needed: bool = False
    brief: bool = False
    divisible: bool = True

    def __str__(self) -> str:
        blocks = (self.title, *self.sentences) if self.title else self.sentences
        return "\n".join(wrapped(line) for block in blocks for line in block.split("\n"))

    @property
    def length(self) -> int:
        """The number of its printed lines, with the empty line before the next part."""
        return str(self).count("\n") + 2

    def within(self, room: int) -> Part:
        """The part with the sentences for which there is room."""
        if self.length <= room:
            return self
        kept = list[str]()
        for sentence in self.sentences if self.brief and self.divisible else ():
            if replace(self, sentences=[*kept, sentence]).length <= room:
                kept.append(sentence)
        return replace(self, sentences=kept)


def fitted(parts: Iterable[Part], whole: bool) -> str:
    """The text of the parts: of all, or of those that fit into :data:`MOST_LINES` lines and a sentence that
    names the others.
    """
    parts = [part for part in parts if part.sentences]
    if whole:
        return "\n\n".join(map(str, parts))
    room = MOST_LINES - _CLOSING - sum(part.length for part in parts if part.needed)
    kept, left = list[Part](), list[str]()
    for part in parts:
        short = part
        if not part.needed:
            short = part.within(room if part.brief else 0)
            room -= short.length if short.sentences else 0
        if short.sentences:
            kept.append(short)
        if others := len(part.sentences) - len(short.sentences):
            left.append(f"{others} more on {part.what}" if short.sentences else part.what)
    more = f"More with {argument('all')}: {', '.join(left)}."
    return "\n\n".join([*map(str, kept), *[wrapped(more)] * bool(left)])


def wrapped(line: str) -> str:
    """The line, wrapped to the width of the terminal, or of a page."""
    width = max(min(_WIDTH, shown.width() or _WIDTH), _LEAST)
    if len(line) <= width:
        return line
    indent = line[: len(line) - len(line.lstrip())]
    wrapper = textwrap.TextWrapper(width, subsequent_indent=indent, break_long_words=False)
    wrapper.break_on_hyphens = False
    return wrapper.fill(line)
