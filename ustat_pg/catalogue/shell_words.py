"""Words as a shell expands them: quotes, variables, arrays and sums; what only the run knows stays marked."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

from ..validation import InputError

Value = str | list[str] | dict[str, str]
"""The value of a variable: a text, an array, or an array with names."""

Ways = tuple[tuple[str, ...], ...]
"""The lists of words that something unknown may be."""

Piece = tuple[str, int] | None
"""A part of a word and its kind; None ends a field."""

QUOTED, BARE, SPLIT = range(3)
"""The kinds of a piece: quoted; written without quotes; an expansion without quotes, which is split."""

_ONE, _SPLIT, MANY = "\ufdd0\ufdd2\ufdd3"
"""The first characters of marks: as part of one word; split into words; several whole words."""
_MARK = re.compile("([\ufdd0\ufdd2\ufdd3])(\\d+)\ufdd1")

MOST_TEXT = 2**18
"""The longest value of a variable, in characters."""
_MOST_UNKNOWN = 500
"""The most values that only the run knows."""
_MOST_MATCHED = 2**10
"""The longest value on which patterns are tried."""


@dataclass(frozen=True)
class Unknown:
    """What only the run itself knows.

    Arguments:
        text: how the script writes it, with its ``$``.
        unset: whether nothing in the script sets it.
        among: the words that it is among, if the script gives them.
        output: whether it is the output of a program.
    """

    text: str
    unset: bool = False
    among: Ways = ()
    output: bool = False


@dataclass
class State:
    """What a shell knows at one place of a script.

    Arguments:
        path: the script, if it is a file.
        zero: ``$0``.
        variables, exported, functions: those that are set.
        arguments: ``$1`` and so on; None if only the run knows them.
        folder: the working directory; None if only the run knows it.
        flow: the word that ended these commands: exit, return, break or continue.
        exports: whether each assignment exports.
    """

    path: Path | None
    zero: str = ""
    variables: dict[str, Value] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    functions: dict[str, Any] = field(default_factory=dict)
    arguments: list[str] | None = None
    folder: str | None = None
    flow: str = ""
    exports: bool = False

    def copy(self) -> State:
        return replace(
            self,
            variables=dict(self.variables),
            exported=set(self.exported),
            functions=dict(self.functions),
        )


class Unclosed(InputError):
    """A quote or a bracket that nothing closes."""


class Words:
    """The expansion of words in a state; what is unknown becomes a mark, and marks become texts at the end.

    ``soft`` says that a condition was decided by what nothing in the script sets.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.unknowns: dict[Unknown, int] = {}
        self.soft = False

    def output(self, text: str) -> str:
        """The output of commands."""
        raise NotImplementedError

    def unknown(self, text: str, kind: str = _ONE, **how: Any) -> str:
        """A mark for what only the run knows."""
        place = self.unknowns.setdefault(Unknown(text, **how), len(self.unknowns))
        if place > _MOST_UNKNOWN:
            raise InputError(f"only the run knows more than {_MOST_UNKNOWN} of its values")
        return f"{kind}{place}\ufdd1"

    def behind(self, text: str) -> Unknown | None:
        """What a text stands for, if it is one mark."""
        match = _MARK.fullmatch(text)
        return [*self.unknowns][int(match[2])] if match else None

    def said(self, text: str) -> str:
        """A text with its marks as the script writes them."""
        known = [*self.unknowns]
        return _MARK.sub(lambda match: known[int(match[2])].text, text)

    def lists(self, words: Sequence[str]) -> list[list[str]]:
        """The words with their marks as texts, and again for each list that a mark of them may be."""
        known, ways, texts = [*self.unknowns], dict[int, Ways](), [*words]
        for (
            text
        ) in texts:  # What a mark may be can have marks of its own, which are added to the texts.
            for place in (int(match[2]) for match in _MARK.finditer(text)):
                if place not in ways and (among := known[place].among):
                    ways[place] = among
                    texts += [word for way in among for word in way]
        first = {place: among[0] for place, among in ways.items()}
        chosen = [first | {place: way} for place, among in ways.items() for way in among]
        if not chosen:
            return [[self.said(word) for word in words]]
        return [[part for word in words for part in self._as(word, way)] for way in chosen]

    def _as(self, word: str, chosen: dict[int, tuple[str, ...]], depth: int = 0) -> list[str]:
        match = _MARK.fullmatch(word)
        if depth > _DEEPEST:
            return [self.said(word)]
        if match and int(match[2]) in chosen and match[1] != _ONE:
            way = chosen[int(match[2])]
            parts = [*way] if match[1] == MANY else " ".join(way).split()
            return [each for part in parts for each in self._as(part, chosen, depth + 1)]

        def inner(match: re.Match[str]) -> str:
            way = chosen.get(int(match[2]))
            return match[0] if way is None else " ".join(way)

        return [self.said(_MARK.sub(inner, word))]

    # Words and their pieces.

    def fields(self, raw: str) -> list[str]:
        """The words that a written word expands to: none, one or several."""
        return [each for word in _braces(raw) for each in self._fields(self.pieces(word))]

    def one(self, raw: str) -> str:
        """The text of a written word where nothing is split, as in an assignment."""
        return " ".join(_joined(self.pieces(raw)))

    def quoted(self, raw: str) -> str:
        """The text of a heredoc."""
        return " ".join(_joined(self.pieces(raw, within='"', here=True)))

    def pattern(self, raw: str) -> str:
        """A pattern of the shell, with what is quoted in it as letters."""
        return "".join(
            re.sub(r"[][*?]", "[\\g<0>]", text) if kind == QUOTED else text
            for text, kind in filter(None, self.pieces(raw))
        )

    def _fields(self, pieces: Sequence[Piece]) -> list[str]:
        found: list[str] = []
        last: str | None = None
        apart = self.state.variables.get("IFS", " \t\n")
        apart = apart if isinstance(apart, str) else " \t\n"
        for piece in [*pieces, None]:
            if piece is None:
                found += [] if last is None else [last]
                last = None
            elif piece[1] != SPLIT:
                last = (last or "") + piece[0]
            elif piece[0]:
                text = piece[0].replace(_ONE, _SPLIT)
                parts = re.split(f"[{re.escape(apart)}]+", text) if apart else [text]
                if parts[0]:
                    last = (last or "") + parts[0]
                if len(parts) > 1:
                    found += [*([] if last is None else [last]), *parts[1:-1]]
                    last = parts[-1] or None
        return found

    def pieces(self, raw: str, within: str = "", here: bool = False) -> list[Piece]:
        """The pieces of a written word; ``within`` is the quote around it."""
        kind, split = (QUOTED, QUOTED) if within else (BARE, SPLIT)
        found: list[Piece] = []
        place = 0
        while place < len(raw):
            sign, follows = raw[place], raw[place + 1 : place + 2]
            if sign == "\\":
                kept = within and follows not in ("$", "`", "\\", "\n", "" if here else '"')
                text = sign + follows if kept else follows.replace("\n", "")
                found.append((text, QUOTED))
                place += 2
            elif sign == "'" and not within:
                end = _end(raw, place + 1, "'")
                found.append((raw[place + 1 : end], QUOTED))
                place = end + 1
            elif sign == '"' and not here:
                end = _end(raw, place + 1, '"')
                inner = raw[place + 1 : end]
                found += self.pieces(inner, '"') if inner else [("", QUOTED)]
                place = end + 1
            elif sign == "$" and follows in "'\"" and follows and not within:
                end = _end(raw, place + 2, "$'" if follows == "'" else follows)
                inner = raw[place + 2 : end]
                text = _ansi(inner) if follows == "'" else self.one(f'"{inner}"')
                found.append((text, QUOTED))
                place = end + 1
            elif sign == "`":
                end = _end(raw, place + 1, "`")
                inner = raw[place + 1 : end]
                found.append((self.output(re.sub(r"\\([$`\\])", r"\1", inner)), split))
                place = end + 1
            elif sign == "$" and ((follows and follows in "({") or _NAME.match(raw, place + 1)):
                end, parts = self._expansion(raw, place, bool(within))
                found += [
                    part and (part[0], split if part[1] == SPLIT else part[1]) for part in parts
                ]
                place = end
            elif sign in "<>" and follows == "(" and not within:
                end = _end(raw, place + 2, ")")
                found.append((self.unknown("$" + raw[place + 1 : end + 1]), QUOTED))
                place = end + 1
            else:
                plain = _PLAIN.match(raw, place)
                text = plain[0] if plain else sign
                found.append((text, kind))
                place += len(text)
        return found

    def _expansion(self, raw: str, place: int, within: bool) -> tuple[int, list[Piece]]:
        """The end of an expansion that begins with a dollar, and its pieces."""
        if raw.startswith("$((", place) and (end := raw.find("))", place)) > 0:
            end = _end(raw, place + 3, ")")
            number = self.number(raw[place + 3 : end])
            text = self.unknown(raw[place : end + 2]) if number is None else str(number)
            return end + 2, [(text, SPLIT)]
        if raw.startswith("$(", place):
            end = _end(raw, place + 2, ")")
            return end + 1, [(self.output(raw[place + 2 : end]), SPLIT)]
        if raw.startswith("${", place):
            end = _end(raw, place + 2, "}")
            return end + 1, self._parameter(raw[place + 2 : end], within)
        match = _NAME.match(raw, place + 1)
        assert match
        return match.end(), self._parameter(match[0], within)

    # Parameters.

    def value(self, name: str, index: str = "") -> list[str] | None:
        """The values of a parameter; None if nothing in the script sets it."""
        state = self.state
        if name in ("@", "*"):
            return state.arguments
        if name == "#":
            return None if state.arguments is None else [str(len(state.arguments))]
        if name == "0":
            return [state.zero] if state.zero else None
        if name.isdigit():
            given = state.arguments or []
            return [given[int(name) - 1]] if int(name) <= len(given) else None
        if name == "BASH_SOURCE":
            return None if state.path is None else [str(state.path.absolute())]
        if name == "PWD" and state.folder is not None:
            return [state.folder]
        held = state.variables.get(name)
        if held is None or isinstance(held, str):
            return None if held is None else [held]
        if index in ("@", "*"):
            return [*held.values()] if isinstance(held, dict) else held
        if isinstance(held, dict):
            key = self.one(index)
            return [held[key]] if key in held else None
        number = self.number(index or "0")
        if number is None:
            return [self.unknown(f"${{{name}[{index}]}}")]
        if number >= len(held) > 0 and held[-1][0:1] == MANY:
            return [self.unknown(f"${{{name}[{index}]}}")]
        return [held[number]] if -len(held) <= number < len(held) else None

    def assign(self, name: str, value: Value, index: str | None = None, more: bool = False) -> None:
        """Set a variable, or an entry of an array; with ``more`` what is there already is kept before it."""
        variables = self.state.variables
        held = variables.get(name)
        if index is not None and isinstance(value, str):
            if isinstance(held, dict):
                value = {**held, self.one(index): value}
            else:
                entries = [held] if isinstance(held, str) else list(held or [])
                number = self.number(index)
                if number is None or not -len(entries) <= number <= len(entries) + 99:
                    value = [*entries, self.unknown(f"${{{name}[@]}}", MANY)]
                else:
                    entries += [""] * (number + 1 - len(entries))
                    entries[number] = entries[number] * more + value
                    value = entries
        elif more and held is not None:
            if isinstance(held, dict) and isinstance(value, dict):
                value = held | value
            elif isinstance(held, str) and isinstance(value, str):
                value = held + value
            else:
                held = [*held.values()] if isinstance(held, dict) else held
                before = [held] if isinstance(held, str) else held
                value = [*before, *([value] if isinstance(value, str) else value)]
        if sum(map(len, [value] if isinstance(value, str) else value)) > MOST_TEXT:
            raise InputError(f"{name} has more than {MOST_TEXT} characters")
        variables[name] = value
        if self.state.exports:
            self.state.exported.add(name)

    def _parameter(self, text: str, within: bool) -> list[Piece]:
        """The pieces of ``${text}``."""
        match = _PARAMETER.fullmatch(text)
        raw = f"${{{text}}}" if re.search(r"\W", text) and len(text) > 1 else f"${text}"
        if match is None:
            return [(self.unknown(raw), SPLIT)]
        before, name, index, rest = match["before"], match["name"], match["index"], match["rest"]
        many = index in ("@", "*") or name in ("@", "*")
        if before == "#":
            held = self.value(name, index or "")
            if many:
                if held is None and name in ("@", "*"):
                    return [(self.unknown("$#", unset=True), SPLIT)]
                return [(str(len(held or [])), SPLIT)]
            known = held is not None and not _MARK.search(held[0])
            return [(str(len(held[0])) if held and known else self.unknown(raw), SPLIT)]
        if before == "!":
            if many:
                array = self.state.variables.get(name)
                return self._several(
                    [*map(str, array if isinstance(array, dict) else range(len(array or [])))],
                    index or "",
                    within,
                )
            held = self.value(name, index or "")
            if not held or not _WHOLE.fullmatch(held[0]):
                return [(self.unknown(raw), SPLIT)]
            name = held[0]
        held = self.value(name, index or "")
        sign = _SIGN.match(rest)
        if sign and sign[0].lstrip(":") in "-=+?":
            return self._chosen(raw, name, held, sign[0], rest[sign.end() :], many, index, within)
        if held is None:
            if many:
                return []
            if name in self.state.variables:  # An empty array, or an entry that it lacks.
                return [("", SPLIT)]
            return [(self.unknown(raw if before else _plain_name(name), unset=True), SPLIT)]
        if rest:
            held = self._changed(held, raw, rest, many)
        return self._several(held, index or name, within) if many else [(held[0], SPLIT)]

    def _several(self, values: Sequence[str], how: str, within: bool) -> list[Piece]:
        """The pieces of an array: a field for each value, or one field where a star is quoted."""
        if how == "*" and within:
            apart = self.state.variables.get("IFS", " ")
            return [((apart[:1] if isinstance(apart, str) else " ").join(values), SPLIT)]
        kind = QUOTED if within else SPLIT
        pieces: list[Piece] = []
        for value in values:
            pieces += [None, (value, kind)] if pieces else [(value, kind)]
        return pieces

    def _chosen(
        self,
        raw: str,
        name: str,
        held: list[str] | None,
        sign: str,
        rest: str,
        many: bool,
        index: str | None,
        within: bool,
    ) -> list[Piece]:
        """The pieces of ``${name:-rest}`` and its kin."""
        held = None if held is not None and self._is_unset(held) else held
        lacks = not held or (sign[0] == ":" and held == [""])
        if sign[-1] == "+":
            if lacks:
                return [] if many else [("", SPLIT)]
            pieces = self.pieces(rest, '"' if within else "")
            if held and self.behind(held[0]) and len(held) == 1 and sign[0] == ":":
                way = tuple(self._fields(pieces))
                return [(self.unknown(raw, MANY, among=(way, ())), QUOTED)]
            return _unquoted(pieces)
        if not lacks and held is not None:
            return self._several(held, index or name, within) if many else [(held[0], SPLIT)]
        if sign[-1] == "?":
            return [(self.unknown(raw, unset=True), SPLIT)]
        pieces = self.pieces(rest, '"' if within else "")
        if sign[-1] == "=" and _WHOLE.fullmatch(name):
            self.assign(name, " ".join(_joined(pieces)))
        return _unquoted(pieces)

    def _is_unset(self, held: Sequence[str]) -> bool:
        """Whether values are one argument or variable that nothing in the script sets."""
        unknown = self.behind(held[0]) if len(held) == 1 else None
        return unknown is not None and unknown.unset

    def _changed(self, held: Sequence[str], raw: str, rest: str, many: bool) -> list[str]:
        """Values from which a pattern is cut, or in which it is replaced."""
        slices = re.fullmatch(r":\s*([^:]+?)\s*(?::\s*(.+))?", rest, re.DOTALL)
        if slices:
            start = self.number(slices[1])
            size = self.number(slices[2]) if slices[2] else None
            if start is None or (slices[2] and size is None):
                return [self.unknown(raw)]
            values: Sequence[str] = held
            if many:
                start = max(start - 1, 0) if raw[2:3] in "@*" else start
                return [*values[start:]][:size]
            if _MARK.search(values[0]):
                return [self.unknown(raw)]
            return ["".join([*values[0]][start:][:size])]
        match = re.match(r"##?|%%?|//?|\^\^?|,,?", rest)
        if match is None:
            return [self.unknown(raw)] * (len(held) if many else 1)
        sign, rest = match[0], rest[match.end() :]
        changed = _CHANGES[sign[0]]
        result = []
        for value in held:
            try:
                new = None if _MARK.search(value) else changed(self, value, sign, rest)
            except Unclosed:
                new = None
            result.append(self.unknown(raw) if new is None else new)
        return result

    def _cut(self, value: str, sign: str, rest: str) -> str | None:
        pattern = self.pattern(rest)
        if len(value) > _MOST_MATCHED or _MARK.search(pattern):
            return None
        cuts = range(len(value) + 1)
        if sign[0] == "#":
            order = cuts if sign == "#" else reversed(cuts)
            ends = (value[k:] for k in order if fnmatchcase(value[:k], pattern))
        else:
            order = reversed(cuts) if sign == "%" else cuts
            ends = (value[:k] for k in order if fnmatchcase(value[k:], pattern))
        return next(ends, value)

    def _replaced(self, value: str, sign: str, rest: str) -> str | None:
        at = rest[:1] if sign == "/" and rest[:1] in ("#", "%") else ""
        old, _, new = _halves(rest[len(at) :], 0 if at else 1)
        pattern, text = self.pattern(old), self.one(new)
        if not pattern:
            return text + value if at == "#" else value + text if at else value
        if len(value) > _MOST_MATCHED // 4 or _MARK.search(pattern):
            return None
        found, place = "", 0
        while place < len(value):
            ends = reversed(range(place + 1, len(value) + 1))
            fits = at != "#" or place == 0
            end = next(
                (
                    end
                    for end in (ends if fits else ())
                    if fnmatchcase(value[place:end], pattern) and (at != "%" or end == len(value))
                ),
                None,
            )
            if end is None:
                found += value[place]
                place += 1
                continue
            found, place = found + text, end
            if sign == "/":
                break
        return found + value[place:]

    def _cased(self, value: str, sign: str, rest: str) -> str | None:
        if rest:
            return None
        change: Callable[[str], str] = str.upper if sign[0] == "^" else str.lower
        return change(value) if len(sign) == 2 else change(value[:1]) + value[1:]

    # Sums and conditions.

    def number(self, raw: str) -> int | None:
        """The value of a sum; None if only the run knows it, or if it has more than numbers and signs."""
        raw = raw.strip()
        if step := re.fullmatch(r"(\w+)(\+\+|--)|(\+\+|--)(\w+)", raw):
            name, sign = step[1] or step[4], (step[2] or step[3])[0]
            was = self.number(name)
            now = None if was is None else was + (1 if sign == "+" else -1)
            self.assign(name, self.unknown(f"${name}") if now is None else str(now))
            return was if step[1] else now
        if given := re.fullmatch(r"([A-Za-z_]\w*)\s*([-+*/%]?)=(?!=)(.*)", raw, re.DOTALL):
            inner = f"({given[1]}){given[2]}({given[3]})" if given[2] else given[3]
            now = self.number(inner)
            self.assign(given[1], self.unknown(f"${given[1]}") if now is None else str(now))
            return now
        text = self.one(raw)
        for _ in range(_DEEPEST):
            named = _LETTERS.search(text)
            if not named:
                break
            text = _LETTERS.sub(lambda match: f"({(self.value(match[0]) or ['?'])[0]})", text)
            if len(text) > _MOST_MATCHED:
                return None
        text = re.sub(r"\b(\d+)#0*(\w+)\b", r"int('\2', \1)", text)
        text = text.replace("&&", " and ").replace("||", " or ")
        text = re.sub(r"!(?!=)", " not ", text).strip()
        text = re.sub(r"([^?:]+)\?([^?:]+):([^?:]+)", r"(\2) if (\1) else (\3)", text)
        try:
            return _computed(ast.parse(text, mode="eval").body)
        except (SyntaxError, ValueError, ZeroDivisionError, KeyError, RecursionError, MemoryError):
            return None

    def holds(self, raw: str) -> bool | None:
        """Whether ``[ ... ]`` or ``[[ ... ]]`` holds; None if only the run knows."""
        double = raw.startswith("[[")
        inner = raw.removeprefix("[[").removesuffix("]]") if double else raw[1:-1]
        return _Condition(self, [*split(inner)], double).whole()


class _Condition:
    """A condition of a test, read from left to right."""

    def __init__(self, words: Words, raw: list[str], double: bool) -> None:
        self.words, self.double = words, double
        self.raw = raw if double else [each for word in raw for each in self._kept(word)]

    def _kept(self, word: str) -> list[str]:
        fields = self.words.fields(word)
        return [each if each in _TESTS else shlex.quote(each) for each in fields]

    def whole(self) -> bool | None:
        value = self._or()
        return value if not self.raw else None

    def _next(self) -> str:
        return self.raw[0] if self.raw else ""

    def _or(self) -> bool | None:
        value = self._and()
        while self._next() in ("||", "-o"):
            self.raw.pop(0)
            other = self._and()
            value = True if value or other else None if None in (value, other) else False
        return value

    def _and(self) -> bool | None:
        value = self._not()
        while self._next() in ("&&", "-a"):
            self.raw.pop(0)
            other = self._not()
            value = False if False in (value, other) else None if None in (value, other) else True
        return value

    def _not(self) -> bool | None:
        if self._next() == "!":
            self.raw.pop(0)
            value = self._not()
            return None if value is None else not value
        if self._next() == "(":
            self.raw.pop(0)
            value = self._or()
            if self._next() == ")":
                self.raw.pop(0)
            return value
        return self._one()

    def _one(self) -> bool | None:
        rest = [*takewhile(lambda word: word not in ("&&", "||", "-a", "-o", ")"), self.raw)]
        del self.raw[: len(rest)]
        match rest:
            case [str() as sign, word] if re.fullmatch("-[a-zA-Z]", sign):
                return self._unary(sign, word)
            case [left, sign, right]:
                return self._binary(left, sign, right)
            case [word]:
                return self._unary("-n", word)
            case []:
                return False
        return None

    def _unary(self, sign: str, raw: str) -> bool | None:
        words = self.words
        text = words.one(raw)
        if sign == "-v":
            words.soft |= (lacks := words.value(text) is None)
            return not lacks
        if sign not in ("-z", "-n"):
            return None
        unknown = words.behind(text)
        if unknown and unknown.unset:
            words.soft = True
            return sign == "-z"
        if unknown or (_MARK.search(text) and not _MARK.sub("", text)):
            return None
        return (text == "") == (sign == "-z")

    def _binary(self, left: str, sign: str, right: str) -> bool | None:
        words = self.words
        if sign in _NUMBERS:
            numbers = [self._count(raw) for raw in (left, right)]
            return None if None in numbers else bool(_NUMBERS[sign](*numbers))
        first = words.one(left)
        unknown = words.behind(first)
        if sign in ("=", "==", "!="):
            pattern = (
                words.pattern(right)
                if self.double
                else re.sub(r"[][*?]", "[\\g<0>]", words.one(right))
            )
            if unknown and unknown.unset and pattern == "":
                words.soft = True
                return sign != "!="
            if _MARK.search(first + pattern) or len(first) > _MOST_MATCHED:
                return None
            return fnmatchcase(first, pattern) == (sign != "!=")
        if sign == "=~" and not _MARK.search(first):
            pattern = words.one(right)
            simple = _SIMPLE.fullmatch(pattern) and len(re.findall(r"[*+?]", pattern)) < 3
            if simple and len(first) < _MOST_MATCHED:
                return bool(re.search(pattern, first))
        return None

    def _count(self, raw: str) -> int | None:
        text = self.words.one(raw)
        unknown = self.words.behind(text)
        if unknown == Unknown("$#", unset=True):
            self.words.soft = True
            return 0
        return (
            self.words.number(text) if self.double or re.fullmatch(r"\s*-?\d+\s*", text) else None
        )


def among(words: Words, name: str, values: Sequence[Value | None]) -> Value:
    """A variable that has one of these values, which only the run knows; None is one that is not set."""
    text = (
        f"${name}" if all(isinstance(value, str | None) for value in values) else f"${{{name}[@]}}"
    )
    if any(isinstance(value, list) for value in values):
        lists = [[value] if isinstance(value, str) else [*(value or ())] for value in values]
        shared = _shared(lists)
        ways = tuple(dict.fromkeys(tuple(each[shared:]) for each in lists))
        return [*lists[0][:shared], words.unknown(text, MANY, among=ways)]
    texts = [value if isinstance(value, str) else "" for value in values]
    letters = zip(*texts, strict=False)
    start = "".join(signs[0] for signs in takewhile(lambda each: len({*each}) == 1, letters))
    if not all(each[len(start) :][:1] in ("", " ") for each in texts):
        start = start[: start.rfind(" ") + 1]
    start = start if start.strip() else ""
    ends = [each[len(start) :] for each in texts]
    if start and all(end[:1].isspace() for end in ends if end):
        start, ends = f"{start} ", [end.lstrip() for end in ends]
    ways = tuple(dict.fromkeys((end,) for end in ends))
    return start + words.unknown(text, among=ways)


def _unquoted(pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces of a default, which is split where nothing quotes it."""
    return [piece and (piece[0], SPLIT if piece[1] == BARE else piece[1]) for piece in pieces]


def _shared(lists: Sequence[Sequence[str]]) -> int:
    """The number of first entries that all lists share."""
    return sum(1 for _ in takewhile(lambda each: len({*each}) == 1, zip(*lists, strict=False)))


def split(text: str) -> Iterator[str]:
    """The written words of a text, with their quotes; parentheses and ``&&`` are words."""
    place = 0
    word = ""
    while place < len(text):
        sign = text[place]
        if sign.isspace():
            if word:
                yield word
            word, place = "", place + 1
            continue
        if not word and (match := re.match(r"&&|\|\||[()]", text[place:])):
            yield match[0]
            place += len(match[0])
            continue
        if word and (sign == ")" or text.startswith(("&&", "||"), place)) and "=~" not in word:
            yield word
            word = ""
            continue
        end = _step(text, place)
        word += text[place:end]
        place = end
    if word:
        yield word


def masked(text: str) -> str:
    """A script of the same size in bytes for a grammar, with commas for quotes and expansions.

    Conditions in ``[[ ]]`` are one word in it, and heredocs have no expansions.
    """
    found, heredocs = list[str](), list[tuple[str, str]]()
    place, commas = 0, ","
    while place < len(text):
        plain = _UNMASKED.match(text, place)
        if plain:
            found.append(plain[0])
            place = plain.end()
            continue
        sign = text[place]
        before = text[place - 1 : place]
        if sign == "\n" and heredocs:
            start, place = place, _behind(text, place, heredocs)
            found.append(re.sub(r"[$`\\]", ",", text[start:place]))
            heredocs = []
            continue
        if sign == "#" and (not before or before in " \t\n;"):
            end = text.find("\n", place)
            end = len(text) if end < 0 else end
            found.append(text[place:end])
        elif match := _HEREDOC.match(text, place):
            heredocs.append((match["word"], match["dash"]))
            found.append(match[0])
            end = match.end()
        elif text.startswith("[[", place) and text[place + 2 : place + 3].isspace():
            end = place + 2
            while end < len(text) and not (text.startswith("]]", end) and text[end - 1].isspace()):
                end = _step(text, end)
            size = len(text[place + 3 : end - 1].encode())
            found.append("[[ " + "," * size + " ]]")
            end += 2
        elif text.startswith("\\\n", place):
            found.append("\\\n" if text[place + 2 :].strip() else " \n")
            end = place + 2
        else:
            if text.startswith("((", place):
                commas = "_"  # A sum, in which a comma is a sign.
            elif text.startswith("))", place):
                commas = ","
            end = _step(text, place)
            if end == place + 1 and text.startswith(("<(", ">("), place):
                end = _end(text, place + 2, ")") + 1
            part = text[place:end]
            size = len(part.encode())
            part = " " if part == "\\" else part
            found.append(part if len(part) == 1 else ("_" if before == "[" else commas) * size)
        place = end
    # The grammar joins a pipeline of three with what follows if its first command writes to a file.
    return _INTO_PIPE.sub(lambda match: " " * len(match[0].encode()), "".join(found))


def _behind(text: str, place: int, heredocs: Sequence[tuple[str, str]]) -> int:
    """The place behind the bodies of heredocs that begin at a line's end."""
    for word, dash in heredocs:
        tabs = r"\t*" * bool(dash)
        pattern = re.compile(rf"\n{tabs}{re.escape(word)}(?=\n|\)|$)")
        end = pattern.search(text, place)
        place = len(text) if end is None else end.end()
    return place


def _step(text: str, place: int) -> int:
    """The place after one sign of a text, or after what a quote or a bracket begins there."""
    sign = text[place]
    if sign == "\\":
        return place + 2
    if sign in "'\"`":
        return _end(text, place + 1, sign) + 1
    if text.startswith(("$(", "${"), place):
        return _end(text, place + 2, ")" if text[place + 1] == "(" else "}") + 1
    if text.startswith("$'", place):
        return _end(text, place + 2, "$'") + 1
    if text.startswith('$"', place):
        return _end(text, place + 2, '"') + 1
    return place + 1


def _end(text: str, place: int, close: str) -> int:
    """The place of what closes a quote or a bracket."""
    nested, heredocs = {")": "(", "}": ""}.get(close), list[tuple[str, str]]()
    start = place
    while place < len(text):
        sign = text[place]
        if close == ")" and sign == "\n" and heredocs:
            place, heredocs = _behind(text, place, heredocs), []
            continue
        if close == ")" and (match := _HEREDOC.match(text, place)):
            heredocs.append((match["word"], match["dash"]))
            place = match.end()
            continue
        if close == ")" and sign == "#" and text[place - 1].isspace():
            end = text.find("\n", place)
            place = len(text) if end < 0 else end
            continue
        if sign == close[-1:]:
            return place
        if close in ("'", "$'", "`"):
            place += 2 if sign == "\\" and close != "'" else 1
        elif close == '"' and sign == "'":
            place += 1
        elif nested and sign == nested:
            place = _end(text, place + 1, close) + 1
        elif close == "}" and sign == "'" and "'" not in text[place + 1 :]:
            place += 1
        else:
            place = _step(text, place)
    line = text.count("\n", 0, start) + 1
    raise Unclosed(
        f"line {line}: nothing closes what begins with {text[max(start - 2, 0) : start + 30]!r}"
    )


def _halves(text: str, first: int) -> tuple[str, str, str]:
    """A text before and after its first bare slash from a place on."""
    place = 0
    while place < len(text):
        if text[place] == "/" and place >= first:
            return text[:place], "/", text[place + 1 :]
        place = _step(text, place)
    return text, "", ""


def _braces(raw: str) -> list[str]:
    """The words of a brace expansion."""
    if "{" not in raw or len(raw) > MOST_TEXT:
        return [raw]
    place = 0
    while place < len(raw):
        if raw[place] == "{":
            try:
                parts, end = _brace(raw, place + 1)
            except Unclosed:
                return [raw]
            if parts:
                before, after = raw[:place], _braces(raw[end + 1 :])
                inner = [each for part in parts for each in _braces(part)]
                return [before + part + last for part in inner for last in after][:_MOST_MATCHED]
        place = _step(raw, place)
    return [raw]


def _brace(raw: str, place: int) -> tuple[list[str], int]:
    """The parts of a brace and its end; no parts if it is not to be expanded."""
    commas, start, depth = [place - 1], place, 0
    while place < len(raw) and (depth or raw[place] != "}"):
        depth += {"{": 1, "}": -1}.get(raw[place], 0)
        if raw[place] == "," and not depth:
            commas.append(place)
        place = _step(raw, place)
    if place >= len(raw):
        return [], place
    inner = raw[start:place]
    if span := re.fullmatch(r"(-?\d{1,6})\.\.(-?\d{1,6})(?:\.\.(-?\d{1,6}))?", inner):
        first, last, by = int(span[1]), int(span[2]), abs(int(span[3] or 1)) or 1
        by = by if last >= first else -by
        numbers = range(first, last + (1 if by > 0 else -1), by)
        return [str(number) for number in numbers[:_MOST_MATCHED]], place
    if any(sign in inner for sign in " \t\n") or len(commas) == 1:
        return [], place
    return [raw[one + 1 : two] for one, two in pairwise([*commas, place])], place


def _joined(pieces: Sequence[Piece]) -> Iterator[str]:
    """The fields of pieces where nothing is split."""
    text = ""
    for piece in pieces:
        if piece is None:
            yield text
            text = ""
        else:
            text += piece[0]
    yield text


def _ansi(text: str) -> str:
    """The text of ``$'...'``."""
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), text)


def _plain_name(name: str) -> str:
    return f"${name}" if len(name) == 1 or not name.isdigit() else f"${{{name}}}"


def _computed(node: ast.expr) -> int:
    """The value of a sum of whole numbers, by the rules of C."""
    match node:
        case ast.BinOp(left, sign, right):
            return _small(_SIGNS[type(sign)](_computed(left), _computed(right)))
        case ast.UnaryOp(ast.USub(), operand):
            return -_computed(operand)
        case ast.UnaryOp(ast.Not(), operand):
            return int(not _computed(operand))
        case ast.BoolOp(ast.And(), values):
            return int(all(map(_computed, values)))
        case ast.BoolOp(ast.Or(), values):
            return int(any(map(_computed, values)))
        case ast.IfExp(test, one, other):
            return _computed(one if _computed(test) else other)
        case ast.Compare(left, [sign], [right]):
            return int(_SIGNS[type(sign)](_computed(left), _computed(right)))
        case ast.Constant(value) if type(value) is int:
            return _small(value)
        case ast.Call(ast.Name("int"), [ast.Constant(digits), ast.Constant(base)]):
            return _small(int(str(digits), int(str(base))))
    raise ValueError


def _small(number: int) -> int:
    if abs(number) >= 2**63:
        raise ValueError
    return number


def _power(base: int, exponent: int) -> int:
    if not 0 <= exponent < 64:
        raise ValueError
    return base**exponent


def _quotient(one: int, other: int) -> int:
    whole = abs(one) // abs(other)
    return whole if (one < 0) == (other < 0) else -whole


_SIGNS: dict[type, Callable[[int, int], int]] = {
    ast.Add: int.__add__,
    ast.Sub: int.__sub__,
    ast.Mult: int.__mul__,
    ast.Div: _quotient,
    ast.FloorDiv: _quotient,
    ast.Mod: lambda one, other: one - other * _quotient(one, other),
    ast.Pow: _power,
    ast.LShift: lambda one, other: one * _power(2, other),
    ast.Lt: int.__lt__,
    ast.LtE: int.__le__,
    ast.Gt: int.__gt__,
    ast.GtE: int.__ge__,
    ast.Eq: int.__eq__,
    ast.NotEq: int.__ne__,
}

_NUMBERS: dict[str, Callable[[Any, Any], bool]] = {
    "-eq": lambda one, other: one == other,
    "-ne": lambda one, other: one != other,
    "-lt": lambda one, other: one < other,
    "-le": lambda one, other: one <= other,
    "-gt": lambda one, other: one > other,
    "-ge": lambda one, other: one >= other,
}
_TESTS = {
    "!",
    "(",
    ")",
    "-a",
    "-o",
    "=",
    "==",
    "!=",
    *_NUMBERS,
    *(f"-{x}" for x in "bcdefghknprstuvwxzLNOSG"),
}
"""Words of a test that are no operands."""

_CHANGES: dict[str, Callable[[Words, str, str, str], str | None]] = {
    **dict.fromkeys("#%", Words._cut),
    "/": Words._replaced,
    **dict.fromkeys("^,", Words._cased),
}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}
_DEEPEST = 8
"""How deep values that name other values are followed."""

_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_WHOLE = re.compile(r"[A-Za-z_]\w*")
_LETTERS = re.compile(r"(?<![\w\ufdd0\ufdd2\ufdd3])[A-Za-z_]\w*")
_PLAIN = re.compile(r"[\w./:=,+@%-]+|[^\S\n]+")
_PARAMETER = re.compile(
    r"(?P<before>[!#]?)(?P<name>[A-Za-z_]\w*|\d+|[@*#?$!-])(?:\[(?P<index>[^]]*)\])?(?P<rest>.*)",
    re.DOTALL,
)
_UNMASKED = re.compile(r"[^\n'\"`$\\#<>()\[]+")
_INTO_PIPE = re.compile(
    r"(?:(?<=\s)[0-9&])?>{1,2}(?:&[0-9-]|[ \t]*[^\s<>|&;()]+)(?=(?:[^\n;|&]|>&|&>|\\\n){0,400}\|(?!\|))"
)
_HEREDOC = re.compile(r"(?<!<)<<(?P<dash>-?)[ \t]*(?P<quote>['\"\\]?)(?P<word>[A-Za-z_]\w*)['\"]?")
_SIGN = re.compile(r":?[-=+?]")
_SIMPLE = re.compile(r"[\w ^$.+*?/\[\]|-]+")
"""Patterns that take no long time on any text."""
