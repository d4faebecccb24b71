"""The commands of a shell script with their words, as far as these are certain; nothing is run.

A script is parsed with the grammar of tree-sitter, and its statements are followed as a shell would follow
them, without arguments and with no variable set from outside. A condition that only the run knows is followed
in both ways, and what they leave different is unknown from there on. Files are read only if the script
sources or runs them.
"""

from __future__ import annotations

import os
import re
import shlex
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import dropwhile, takewhile
from pathlib import Path

from tree_sitter import Language, Node, Parser

from ..files.reading import read_text
from ..validation import InputError
from .shell_words import MANY, MOST_TEXT, State, Unclosed, Value, Words, among, masked
from .sources import ABOVE

MOST_SCRIPT = 2**20
"""Size of the largest script that is read, in bytes."""

_MOST_STEPS = 5_000
"""The most statements of a script that are followed, those of loops each time."""

_MOST_COMMANDS = 300
"""The most commands of a script that are noted."""

_MOST_NESTED = 60
"""The deepest nesting of statements, functions and scripts."""

SCRIPTS = (".sh", ".env", ".bash", ".slurm")
"""Endings of scripts that other scripts run."""


@dataclass
class Command:
    """A command that a script would run.

    Arguments:
        words: its program and arguments; what only the run knows is in them as the script writes it, with
            its ``$``.
        lists: the words again, for each way in which they may go on.
        path, line: its place.
        caller: the line of the script that was asked for which leads to it.
        folders: where the files that it names may be.
        broken: whether it could not be parsed wholly.
        sure: whether each of the lists is certainly run, as in the rounds of a loop.
        more: words of which only the run knows which options they give.
    """

    words: list[str]
    lists: list[list[str]]
    path: Path | None
    line: int
    caller: int
    folders: list[Path] = field(default_factory=list)
    broken: bool = False
    sure: bool = True
    more: list[str] = field(default_factory=list)

    def rounds(self) -> list[Command]:
        """The command as it is run each time; itself if its words are not certain."""
        if not self.sure:
            return [self]
        return [replace(self, words=words, lists=[words]) for words in self.lists]


def commands_of(path: Path) -> list[list[str]]:
    """The words of each command of a script, in order."""
    return [command.words for command in read(read_text(path, MOST_SCRIPT), str(path), path)]


def read(text: str, title: str, path: Path | None = None) -> list[Command]:
    """The commands of a script's text, in order.

    Arguments:
        text: the script.
        title: its name in messages.
        path: its file, if it is one.

    Raises:
        InputError: it sources itself, its loops take too many steps, or it is nested too deeply.
    """
    zero = "" if path is None else str(path.absolute())
    shell = _Shell(State(path, zero))
    try:
        shell.script(text)
    except InputError as error:
        raise InputError(f"{title}: {error}") from None
    except RecursionError:
        raise InputError(f"{title}: it is nested too deeply") from None
    return [*shell.commands.values()]


@cache
def _parser() -> Parser:
    import tree_sitter_bash

    return Parser(Language(tree_sitter_bash.language()))


def _unparsed(node: Node) -> Node | None:
    """The first part that the grammar does not have."""
    while node.has_error and not (node.type == "ERROR" or node.is_missing):
        wrong = [child for child in node.children if child.has_error or child.is_missing]
        if not wrong:
            return node
        node = wrong[0]
    return node if node.has_error or node.is_missing else None


class _Code:
    """A script's text, and its statements as the grammar finds them without quotes and expansions."""

    def __init__(self, text: str) -> None:
        self.whole = text.encode()
        self.root = _parser().parse(masked(text).encode()).root_node
        self.ends = [match.start() for match in re.finditer(b"\n", self.whole)]

    def line(self, node: Node) -> int:
        return bisect_left(self.ends, node.start_byte) + 1


class _Shell(Words):
    """A shell that follows statements and notes the commands."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self.commands: dict[tuple[object, ...], Command] = {}
        self.running: tuple[Path, ...] = () if state.path is None else (state.path,)
        self.stack: tuple[object, ...] = ()
        self.steps = 0
        self.line: int | None = None
        self.at = self.row = self.caller = 0
        self.main = self.code = _Code("")
        self.stdin: str | None = None
        self.printed: list[str] | None = None
        self.unsure = 0
        self.left: list[State] = []
        self.files: dict[str, str | None] = {}
        self.locals: list[dict[str, Value | None]] = []
        self.integers: set[str] = set()

    # Scripts and statements.

    def script(self, text: str) -> bool | None:
        """Follow the statements of a text."""
        saved, self.code = self.code, _Code(text)
        wrong = _unparsed(self.code.root) if self.line is None else None
        if wrong is not None:
            raise InputError(f"line {self.code.line(wrong)} cannot be parsed as a shell does")
        self.main = self.code if not saved.whole else self.main
        try:
            return self.body(self.code.root.children)
        finally:
            self.code = saved

    def text(self, node: Node) -> str:
        """A node as it is written."""
        return self.code.whole[node.start_byte : node.end_byte].decode()

    def inner(self, text: str, line: int) -> bool | None:
        """Follow a text that a command of this line runs."""
        saved, saved_stack = self.line, self.stack
        self.line = line if saved is None else saved
        self.stack = (*saved_stack, self.at, text[:80])
        self._deeper()
        try:
            return self.script(text)
        finally:
            self.line, self.stack = saved, saved_stack

    def _deeper(self) -> None:
        if len(self.stack) > _MOST_NESTED:
            raise InputError(f"functions and scripts are nested more than {_MOST_NESTED} deep")

    def body(self, nodes: Iterable[Node]) -> bool | None:
        """Follow statements up to one that ends them."""
        status: bool | None = True
        for node in nodes:
            if node.is_named and node.type != "comment":
                status = self.statement(node)
            if self.state.flow:
                break
        return status

    def statement(self, node: Node) -> bool | None:
        """Follow one statement; its status is None if only the run knows it."""
        self.steps += 1
        self.row = self.code.line(node) if self.line is None else self.line
        if self.code is self.main and not self.locals:
            self.caller = self.row
        if self.steps > _MOST_STEPS:
            raise InputError(f"its loops take more than {_MOST_STEPS:,} steps")
        follow = _STATEMENTS.get(node.type)
        if follow is None:
            self._forget(node)
            return None
        try:
            return follow(self, node)
        except Unclosed:
            self._forget(node)
            return None

    def _forget(self, node: Node) -> None:
        """Take as unknown what a part sets that cannot be parsed; its words count as a command."""
        text = self.text(node)
        for name in re.findall(r"(?m)(?:^|[\s;])([A-Za-z_]\w*)\+?=", text):
            self.state.variables[name] = self.unknown(f"${name}")
        words = text.split()
        if words and node.type in ("ERROR", "command"):
            self.note(words, node, broken=True)

    def either(self, *ways: Callable[[], object]) -> None:
        """Follow each of several ways, of which only the run knows which; what they agree on is known after
        it.
        """
        before, ends = self.state, list[State]()
        self.unsure += 1
        for way in ways:
            self.state = before.copy()
            way()
            ends.append(self.state)
        self.unsure -= 1
        left = [end for end in ends if end.flow != "exit"]
        going = [end for end in left if not end.flow]
        if going:
            self.left += [end for end in left if end.flow]
            self.state = self.merged(going)
        else:
            self.left += left[1:]
            self.state = left[0] if left else ends[0]

    def merged(self, ends: Sequence[State]) -> State:
        """What several states agree on."""
        first = ends[0]
        if len(ends) == 1:
            return first
        names = dict.fromkeys(name for end in ends for name in end.variables)
        for name in names:
            values = [end.variables.get(name) for end in ends]
            if any(value != values[0] for value in values):
                first.variables[name] = among(self, name, values)
        for end in ends[1:]:
            first.exported |= end.exported
            first.functions = end.functions | first.functions
            first.folder = first.folder if first.folder == end.folder else None
            if first.arguments != end.arguments:
                first.arguments = None
        return first

    def apart(self, way: Callable[[], bool | None]) -> bool | None:
        """Follow a way in a shell of its own, which changes nothing here."""
        saved, self.state = self.state, self.state.copy()
        saved_left, self.left = self.left, []
        try:
            return way()
        finally:
            self.state, self.left = saved, saved_left

    def taken(self, way: Callable[[], bool | None]) -> tuple[bool | None, str]:
        """The status and the output of a way."""
        saved, self.printed = self.printed, []
        try:
            status = way()
            return status, "".join(self.printed)
        finally:
            self.printed = saved

    def output(self, text: str) -> str:
        """The output of commands, as far as it is certain."""
        if text.lstrip().startswith("<"):
            return self.unknown(f"$({text})", output=True)
        self.steps += 1
        _, found = self.taken(lambda: self.apart(lambda: self.inner(text, self.row)))
        if _OUTPUT in found:
            return self.unknown(f"$({text})", output=True)
        return found.rstrip("\n")

    def write(self, text: str) -> None:
        """Print a text."""
        if self.printed is not None:
            self.printed.append(_OUTPUT if self.unsure else text)
            if sum(map(len, self.printed)) > MOST_TEXT:
                raise InputError(f"a command prints more than {MOST_TEXT} characters")

    # Kinds of statements.

    def _if(self, node: Node) -> bool | None:
        """Follow the part of an if whose condition holds, or each if only the run knows."""
        rest = [child for child in node.children if child.type in _CLAUSES]
        return self._clauses([node, *rest])

    def _clauses(self, clauses: Sequence[Node]) -> bool | None:
        """Follow the clauses of an if from one on."""
        if not clauses:
            return True
        if clauses[0].type == "else_clause":
            return self.body(clauses[0].children[1:])
        conditions, then = list[Node](), list[Node]()
        part = conditions
        for child in clauses[0].children:
            if child.type == "then":
                part = then
            elif child.type not in ("if", "elif", "fi", *_CLAUSES):
                part.append(child)
        return self._branch(conditions, lambda: self.body(then), lambda: self._clauses(clauses[1:]))

    def _branch(
        self,
        conditions: Sequence[Node],
        then: Callable[[], bool | None],
        otherwise: Callable[[], bool | None],
    ) -> bool | None:
        self.soft = False
        holds = self.body(conditions)
        soft, self.soft = self.soft, False
        if self.state.flow:
            return None
        if holds is None:
            self.either(then, otherwise)
            return None
        return self.passed(then if holds else otherwise, otherwise if holds else then, soft)

    def passed(
        self, way: Callable[[], bool | None], other: Callable[[], bool | None], soft: bool
    ) -> bool | None:
        """Follow a way; or the other where the first ends the script because something is not given: who runs
        the script gives it.
        """
        before = self.state.copy()
        status = way()
        if self.state.flow == "exit" and (soft or status is False):
            self.state = before
            return other()
        return status

    def _case(self, node: Node) -> bool | None:
        """Follow the items of a case that fit, or each if only the run knows."""
        subject = node.child_by_field_name("value")
        text = "" if subject is None else self.one(self.text(subject))
        items = [child for child in node.children if child.type == "case_item"]
        unknown = self.said(text) != text
        ways = list[Callable[[], object]]()
        every = on = False
        for item in items:
            patterns = [self.text(child) for child in item.children_by_field_name("value")]
            heads = len(patterns) and item.children.index(
                next(child for child in item.children if child.type == ")")
            )
            body = item.children[heads + 1 :]
            every |= "*" in patterns
            if unknown:
                ways.append(lambda body=body: self.body(body))  # type: ignore[misc]
            elif on or any(_fits(text, self.pattern(pattern)) for pattern in patterns):
                status, ends = self.body(body), {child.type for child in body}
                on = ";&" in ends
                if self.state.flow or not ends & {";&", ";;&"}:
                    return status
        if unknown:
            self.either(*ways, *([] if every else [lambda: None]))
            return None
        return True

    def _for(self, node: Node) -> bool | None:
        """Follow the body of a loop for each word."""
        name = self.text(node.child_by_field_name("variable") or node)
        written = node.children_by_field_name("value")
        has_list = any(child.type == "in" for child in node.children)
        values = [each for child in written for each in self.fields(self.text(child))]
        if not has_list:
            values = self.state.arguments or []
        (body,) = [child for child in node.children if child.type == "do_group"]
        if node.children[0].type == "select":
            values = [self.unknown(f"${name}", output=True)]
        for value in values:
            unknown = self.behind(value)
            if unknown and (unknown.output or unknown.unset):
                # A list that only the run knows.
                self.state.variables[name] = self.unknown(f"${name}")
                self.either(lambda: self._round(body), lambda: None)
                continue
            self.assign(name, value)
            if not self._round(body):
                break
        return self._ended()

    def _round(self, body: Node) -> bool:
        """Follow the body of a loop once; whether the loop goes on."""
        self.body(child for child in body.children if child.type not in ("do", "done"))
        if self.state.flow == "continue":
            self.state.flow = ""
        return not self.state.flow

    def _ended(self) -> bool | None:
        """Put the ways together in which a loop ends."""
        if self.state.flow == "break":
            self.state.flow = ""
        ends = [end for end in self.left if end.flow in ("break", "continue")]
        self.left = [end for end in self.left if end not in ends]
        for end in ends:
            end.flow = ""
        if ends and not self.state.flow:
            self.state = self.merged([self.state, *ends])
        return True

    def _while(self, node: Node) -> bool | None:
        """Follow the body of a loop while its condition holds; once if only the run knows."""
        (body,) = [child for child in node.children if child.type == "do_group"]
        conditions = node.children[1 : node.children.index(body)]
        until = node.children[0].type == "until"
        while True:
            before = self.state.variables, len(self.left), self.stdin
            self.state.variables = dict(before[0])
            holds = self.body(conditions)
            if holds is None:
                self.either(lambda: self._round(body), lambda: None)
                break
            if holds == until or not self._round(body):
                break
            # It would go on for ever, or until the run knows better.
            if len(self.left) > before[1] or (self.state.variables, self.stdin) == before[::2]:
                break
        return self._ended()

    def _c_for(self, node: Node) -> bool | None:
        """Follow a loop that counts."""
        (body,) = [
            child for child in node.children if child.type in ("do_group", "compound_statement")
        ]
        head = self.text(node).split("((", 1)[1].split("))", 1)[0]
        start, holds, step = [*head.split(";"), "", ""][:3]
        if start.strip():
            self.number(start)
        while True:
            known = self.number(holds) if holds.strip() else None
            if known is None:
                self.either(lambda: self._round(body), lambda: None)
                break
            if not known or not self._round(body):
                break
            self.number(step)
            self.steps += 1
        return self._ended()

    def _list(self, node: Node) -> bool | None:
        """Follow ``a && b`` or ``a || b``."""
        left, sign, right = [child for child in node.children if child.type != "comment"][:3]
        return self._both(lambda: self.statement(left), sign.type, lambda: self.statement(right))

    def _both(
        self, left: Callable[[], bool | None], sign: str, right: Callable[[], bool | None]
    ) -> bool | None:
        status = left()
        if self.state.flow:
            return status
        if status is None:
            self.either(right, lambda: None)
            return None
        return self.passed(right, lambda: True, False) if status == (sign == "&&") else status

    def _pipeline(self, node: Node) -> bool | None:
        """Follow commands of which each reads what the one before it prints."""
        return self.pipe([child for child in node.children if child.is_named], self.stdin)

    def pipe(self, nodes: Sequence[Node], text: str | None) -> bool | None:
        saved, status = self.stdin, None
        for node in nodes:
            self.stdin = text
            way = lambda node=node: self.apart(lambda: self.statement(node))  # noqa: E731
            if node is nodes[-1]:
                status = way()
            else:
                _, text = self.taken(way)
                text = None if _OUTPUT in text else text
        self.stdin = saved
        return status

    def _function(self, node: Node) -> bool | None:
        body = node.child_by_field_name("body")
        if body is not None:
            name = self.text(node.child_by_field_name("name") or node)
            self.state.functions[name] = (body, self.code)
        return True

    def call(self, name: str, arguments: list[str]) -> bool | None:
        """Follow a function with its arguments."""
        saved, stack, left, code = self.state.arguments, self.stack, self.left, self.code
        body, self.code = self.state.functions[name]
        self.state.arguments, self.left = arguments, []
        self.stack = (*stack, self.at, name)
        self._deeper()
        self.locals.append({})
        try:
            status = self.statement(body)
        finally:
            self.stack, self.code = stack, code
            hidden = self.locals.pop()
        ends = [end for end in self.left if end.flow == "return"]
        self.left = [*left, *(end for end in self.left if end not in ends)]
        for end in ends:
            end.flow = ""
        if self.state.flow == "return":
            self.state.flow = ""
        if ends and not self.state.flow:
            self.state = self.merged([self.state, *ends])
        self.state.arguments = saved
        for variable, value in hidden.items():
            if value is None:
                self.state.variables.pop(variable, None)
            else:
                self.state.variables[variable] = value
        return status

    def _group(self, node: Node) -> bool | None:
        if node.children and node.children[0].type == "((":
            number = self.number(self.text(node)[2:-2])
            return None if number is None else number != 0
        return self.body(node.children)

    def _subshell(self, node: Node) -> bool | None:
        return self.apart(lambda: self.body(node.children))

    def _not(self, node: Node) -> bool | None:
        status = self.body(node.children)
        return None if status is None else not status

    def _test(self, node: Node) -> bool | None:
        return self.holds(self.text(node))

    def _assignment(self, node: Node) -> bool | None:
        """Set the variables of an assignment."""
        for child in node.children if node.type == "variable_assignments" else [node]:
            if child.type == "variable_assignment":
                self.set_variable(child)
        return True

    def set_variable(self, node: Node) -> str:
        """Set a variable as an assignment says; its name."""
        target = node.child_by_field_name("name")
        value = node.child_by_field_name("value")
        index = None
        name = self.text(target) if target is not None else ""
        if target is not None and target.type == "subscript":
            name, _, index = name.removesuffix("]").partition("[")
        more = any(child.type == "+=" for child in node.children)
        if value is not None and value.type == "array":
            words = [
                self.text(child)
                for child in value.children
                if child.is_named and child.type != "comment"
            ]
            self.assign(name, self._array(name, words), more=more)
        else:
            text = "" if value is None else self.one(self.text(value))
            if name in self.integers:
                held = (self.value(name) or ["0"])[0]
                number = self.number(f"{held} + ({text})" if more else text)
                text, more = self.unknown(f"${name}") if number is None else str(number), False
            self.assign(name, text, index, more)
        return name

    def _array(self, name: str, words: Sequence[str]) -> Value:
        keyed = [re.fullmatch(r"\[([^]]*)\]=(.*)", word, re.DOTALL) for word in words]
        if all(keyed) and (words or isinstance(self.state.variables.get(name), dict)):
            return {self.one(match[1]): self.one(match[2]) for match in keyed if match}
        return [each for word in words for each in self.fields(word)]

    def _declaration(self, node: Node) -> bool | None:
        """Follow export, declare, local and readonly."""
        how = node.children[0].type
        flags, names = "", list[str]()
        for child in node.children[1:]:
            if child.type == "variable_assignment":
                name = self.text(child.child_by_field_name("name") or child).partition("[")[0]
                self._hide(how, flags, name)
                if "A" in flags:
                    self.state.variables[name] = {}
                self.integers |= {name} if "i" in flags else set()
                names.append(self.set_variable(child))
                if "n" in flags:
                    (of,) = self.value(name) or [""]
                    self.state.variables[name] = self.state.variables.get(
                        of, self.unknown(f"${name}")
                    )
            elif child.is_named and child.type != "comment":
                for word in self.fields(self.text(child)):
                    if word[:1] in "-+":
                        flags += word
                        continue
                    name, equals, value = word.partition("=")
                    self._hide(how, flags, name)
                    if equals:
                        self.assign(name, value)
                    elif "A" in flags:
                        self.assign(name, {})
                    elif "a" in flags:
                        self.state.variables.setdefault(name, [])
                    names.append(name)
        if how == "export" or "x" in flags:
            self.state.exported |= {*names}
        return True

    def _hide(self, how: str, flags: str, name: str) -> None:
        """Remember what a local variable hides."""
        if self.locals and how in ("local", "declare", "typeset") and "g" not in flags:
            self.locals[-1].setdefault(name, self.state.variables.get(name))

    def _unset(self, node: Node) -> bool | None:
        for child in node.children[1:]:
            for word in self.fields(self.text(child)):
                name, entry, index = word.removesuffix("]").partition("[")
                held = self.state.variables.pop(name, None)
                if entry and isinstance(held, list | dict):
                    pairs = held.items() if isinstance(held, dict) else enumerate(held)
                    kept = {str(key): value for key, value in pairs}
                    kept.pop(index, None)
                    self.state.variables[name] = kept
        return True

    def _redirected(self, node: Node) -> bool | None:
        """Follow a statement that reads or writes files."""
        body = node.child_by_field_name("body")
        text, target, chain, behind = self.stdin, None, list[Node](), list[Node]()
        for child in node.children:
            if child.type == "herestring_redirect":
                text = self.one(self.text(child).removeprefix("<<<").strip()) + "\n"
            elif child.type == "heredoc_redirect":
                text = self._heredoc(child)
                chain += child.children
            elif child.type == "file_redirect":
                target = self._target(child) or target
                place, *more = child.children_by_field_name("destination")
                behind += more
                if any(part.type in ("<", "<&") for part in child.children):
                    text = self._input(self.text(place))
        targets = (self._target(child) for child in chain if child.type == "file_redirect")
        target = next(filter(None, targets), target)
        piped = [
            part
            for child in chain
            if child.type == "pipeline"
            for part in child.children
            if part.is_named
        ]
        rest = [*dropwhile(lambda part: part.type not in ("&&", "||"), chain)]
        words = [
            *behind,  # The grammar takes the words behind a redirection as its own.
            *(
                part
                for part in takewhile(lambda part: part.type not in ("&&", "||"), chain)
                if part.type in _WORDS
            ),
        ]

        def first() -> bool | None:
            saved, self.stdin = self.stdin, text
            if body is None:
                status: bool | None = True
            elif body.type == "command":
                status = self.command(body, [self.fields(self.text(word)) for word in words])
            else:
                status = self.statement(body)
            self.stdin = saved
            return status

        def whole() -> bool | None:
            if target is None and not piped:
                return first()
            status, found = self.taken(first)
            if target is not None:
                sign, name = target
                before = self.files.get(name, "") if sign == ">>" else ""
                known = before is not None and _OUTPUT not in found and not self.unsure
                self.files[name] = (before or "") + found if known else None
                return status
            return self.pipe(piped, None if _OUTPUT in found else found)

        if len(rest) > 1:
            return self._both(whole, rest[0].type, lambda: self.statement(rest[1]))
        return whole()

    def _input(self, raw: str) -> str | None:
        """What a command reads from a place; None if only the run knows it."""
        inner = re.fullmatch(r"<\((.*)\)", raw, re.DOTALL)
        text = self.output(inner[1]) if inner else ""
        return f"{text}\n" if inner and self.said(text) == text else None

    def _target(self, node: Node) -> tuple[str, str] | None:
        """The sign and the file of a redirection of what is printed."""
        if not node.children or node.children[0].type == "file_descriptor":
            return None
        sign = node.children[0].type
        place = node.child_by_field_name("destination")
        if sign not in (">", ">>", ">|", "&>", "&>>") or place is None:
            return None
        name = os.path.normpath(self.one(self.text(place)))
        return (">>" if sign.endswith(">>") else ">"), name

    def _heredoc(self, node: Node) -> str:
        """The text of a heredoc."""
        start = next(child for child in node.children if child.type == "heredoc_start")
        bodies = [child for child in node.children if child.type == "heredoc_body"]
        if not bodies:
            return ""
        whole, offset = self.code.whole[node.start_byte : node.end_byte], node.start_byte
        line_end = whole.find(b"\n", start.end_byte - offset)
        ends = [child.start_byte for child in node.children if child.type == "heredoc_end"]
        text = whole[line_end + 1 : (ends[0] if ends else node.end_byte) - offset].decode()
        text = text[: text.rfind("\n") + 1] if ends else text
        if node.children[0].type == "<<-":
            text = re.sub(r"(?m)^\t+", "", text)
        return text if re.search(r"['\"\\]", self.text(start)) else self.quoted(text)

    # Commands.

    def command(self, node: Node, behind: Sequence[Sequence[str]] = ()) -> bool | None:
        """Follow a simple command."""
        words, given = list[str](), list[Node]()
        text = self.stdin
        for child in node.children:
            if child.type == "variable_assignment":
                given.append(child)
            elif child.type == "herestring_redirect":
                text = self.one(self.text(child).removeprefix("<<<").strip()) + "\n"
            elif child.type == "file_redirect":
                text = None if child.children and child.children[0].type == "<" else text
            elif child.is_named and child.type != "comment":
                words += self.fields(self.text(child))
        words += [word for each in behind for word in each]
        if not words:
            for child in given:
                self.set_variable(child)
            return True
        if node.has_error:
            self._forget(node)
            return None
        names = [self.text(child.child_by_field_name("name") or child) for child in given]
        saved = {name: self.state.variables.get(name) for name in names}
        exported, stdin = {*self.state.exported}, self.stdin
        for child in given:
            self.set_variable(child)
        self.state.exported |= {*names}
        self.stdin = text
        self.at = node.start_byte
        try:
            return self.run(words, node)
        finally:
            if text != stdin:
                self.stdin = stdin
            if names:
                self.state.exported = exported
                for name, value in saved.items():
                    self.state.variables.pop(name, None)
                    if value is not None:
                        self.state.variables[name] = value

    def run(self, words: list[str], node: Node) -> bool | None:
        """Follow a command with these words: a function, a word of the shell, a script, or a program."""
        name = words[0]
        if name in self.state.functions:
            return self.call(name, words[1:])
        if name in _BUILTINS:
            return _BUILTINS[name](self, words, node)
        if name in _PRINTING and (found := _PRINTING[name](self, words[1:])) is not None:
            self.write(found)
            return True
        if self._runs_text(words, node):
            return None
        if self.printed is not None:
            self.write(_OUTPUT)
        self.note(words, node)
        return None

    def note(self, words: Sequence[str], node: Node, broken: bool = False) -> None:
        """Note a command; one that a loop repeats may be each of its rounds."""
        lists = self.lists(words)
        sure = not self.unsure and len(lists) == 1
        key = (*self.stack, self.state.path, node.start_byte, node.end_byte)
        if key in self.commands:
            command, known = self.commands[key], self.commands[key].lists
            known += [each for each in lists if each not in known][: _MOST_NESTED - len(known)]
            command.sure &= sure and len(known) < _MOST_NESTED
            return
        if len(self.commands) >= _MOST_COMMANDS:
            raise InputError(f"it runs more than {_MOST_COMMANDS} commands")
        folders = [Path(self.state.folder)] if self.state.folder else []
        folders += [self.state.path.parent] if self.state.path else []
        texts = [self.said(word) for word in words]
        place = self.state.path, self.row, self.caller
        self.commands[key] = Command(texts, lists, *place, folders, broken, sure, self._more(words))

    def _more(self, words: Sequence[str]) -> list[str]:
        """The words that only the run knows and that are no value of an option before them."""
        pairs = zip(["", *words], words, strict=False)
        free = [word for last, word in pairs if "=" in last or not last.startswith("--")]
        return [self.said(word) for word in free if self._is_open(word)]

    def _is_open(self, word: str) -> bool:
        """Whether a word may be any words."""
        behind = self.behind(word)
        if behind is None or behind.unset:
            return False
        return not behind.among or any(
            self._is_open(word) for way in behind.among for each in way for word in each.split()
        )

    def _runs_text(self, words: list[str], node: Node) -> bool:
        """Follow the script or the commands that a program runs; False if it runs none."""
        line = self.code.line(node) if self.line is None else self.line
        programs = [word.rpartition("/")[2] for word in words]
        name = programs[0]
        if name == "env":
            return self._env(words, node)
        if name in _TEXTS and (text := _TEXTS[name](words)):
            return self._new(text, [], None, line)
        starts = [0] if name in (*_SHELLS, *_BATCH) else []
        if name in LAUNCHERS:
            starts = [place for place, word in enumerate(programs) if word in _SHELLS][:1]
        if not starts:
            return words[0].endswith(SCRIPTS) and self._runs_file(words[0], words[1:], line)
        values = _BATCH_VALUES if name in _BATCH else ("-o", "-O", "--rcfile")
        rest, asks = words[starts[0] + 1 :], False
        while rest and rest[0][:1] in ("-", "+") and not asks:
            flag, *rest = rest
            if re.fullmatch("-[a-zA-Z]*c[a-zA-Z]*", flag) and name not in _BATCH:
                return bool(rest) and self._new(rest[0], rest[2:], rest[1:2], line)
            asks = flag in ("-s", "--")
            rest = rest[1:] if flag in values else rest
        rest = rest[rest[:1] == ["--"] :]
        if self.stdin is not None and (not rest or "-s" in words):
            return self._new(self.stdin, rest, None, line)
        return bool(rest) and self._runs_file(rest[0], rest[1:], line)

    def _new(self, text: str, arguments: list[str], zero: Sequence[str] | None, line: int) -> bool:
        """Follow a text in a new shell."""
        self.apart(lambda: self._child(arguments, zero, lambda: self.inner(text, line)))
        return True

    def _env(self, words: list[str], node: Node) -> bool:
        """Follow ``env A=b program``."""
        rest = words[1:]

        def way() -> bool | None:
            while rest and (rest[0][:1] == "-" or "=" in rest[0]):
                name, equals, value = rest.pop(0).partition("=")
                if equals and name[:1] != "-":
                    self.assign(name, value)
                    self.state.exported.add(name)
                elif name in ("-u", "--unset", "-C", "-S") and rest:
                    self.state.variables.pop(rest.pop(0), None)
            return self.run(rest, node) if rest else True

        self.apart(way)
        return True

    def _child(
        self, arguments: list[str], zero: Sequence[str] | None, way: Callable[[], bool | None]
    ) -> bool | None:
        """Follow a way in a new shell, which has the exported variables alone."""
        state = self.state
        state.variables = {
            name: state.variables[name] for name in state.exported if name in state.variables
        }
        state.functions, state.arguments = {}, arguments
        if zero:
            state.zero = zero[0]
        saved, self.locals = self.locals, []
        try:
            return way()
        finally:
            self.locals = saved

    def _runs_file(self, name: str, arguments: list[str], line: int) -> bool:
        """Follow a script that a command runs; False if there is no such script."""
        text = self.files.get(os.path.normpath(name))
        place = self._script(name) if text is None else None
        if text is None and (place is None or place in self.running):
            return False
        if text is None and place is not None:
            text = read_text(place, MOST_SCRIPT)
        assert text is not None
        whole = text

        def way() -> bool | None:
            self.state.path = place or self.state.path
            zero = str(place.absolute()) if place else name
            return self._child(arguments, [zero], lambda: self._file(place, whole, line))

        self.apart(way)
        return True

    def _file(self, place: Path | None, text: str, line: int) -> bool | None:
        """Follow a file's statements, or those of a text that a command of this line wrote as one."""
        saved = self.line, self.stack, self.running
        self.stack = (*self.stack, self.at, place)
        self._deeper()
        if place is not None:
            self.line, self.running = None, (*self.running, place)
        elif self.line is None:
            self.line = line
        try:
            return self.script(text)
        finally:
            self.line, self.stack, self.running = saved

    def _script(self, name: str) -> Path | None:
        """The file that a word names."""
        folder = self.state.path.parent if self.state.path else None
        if folder is None or self.said(name) != name:
            return None
        folders = [Path(self.state.folder)] if self.state.folder else []
        return place_of(name, [*folders, folder])

    def source(self, words: list[str], node: Node) -> bool | None:
        """Follow a script in this shell."""
        if len(words) < 2:
            return True
        text = self.files.get(os.path.normpath(words[1]))
        place = self._script(words[1]) if words[1].endswith(SCRIPTS) else None
        if text is None:
            if place is None:
                return None
            if place in self.running:
                raise InputError(f"{place} sources itself")
            text = read_text(place, MOST_SCRIPT)
        saved, arguments = self.state.path, self.state.arguments
        self.state.path = place or saved
        if words[2:]:
            self.state.arguments = words[2:]
        status = self._file(place, text, self.code.line(node))
        self.state.path, self.state.arguments = saved, arguments
        if self.state.flow == "return":
            self.state.flow = ""
        return status

    # Words of the shell.

    def _evaluate(self, words: list[str], node: Node) -> bool | None:
        line = self.code.line(node)
        return self.inner(" ".join(words[1:]), line)

    def _exec(self, words: list[str], node: Node) -> bool | None:
        rest = [*dropwhile(lambda word: word in ("-a", "-l", "-c"), words[1:])]
        if rest:
            self.run(rest, node)
            self.state.flow = "exit"
        return None

    def _plain(self, words: list[str], node: Node) -> bool | None:
        """Follow the program behind a word that changes nothing else."""
        rest = [*dropwhile(lambda word: word[:1] == "-", words[1:])]
        return self.run(rest, node) if rest else None

    def _xargs(self, words: list[str], node: Node) -> bool | None:
        """Follow a program behind the words that it reads."""
        rest = [*dropwhile(lambda word: word in ("-r", "-t", "--no-run-if-empty"), words[1:])]
        if rest and self.stdin is not None and rest[0][:1] != "-":
            try:
                return self.run([*rest, *shlex.split(self.stdin)], node)
            except ValueError:
                pass
        mark = next((word for word in words if "{}" in word), "")
        read = self.unknown("${}")
        filled = [word.replace("{}", read) for word in words if not word.startswith("-I")]
        self.note(filled if mark else [*words, self.unknown("$(xargs)", output=True)], node)
        return None

    def _flow(self, words: list[str], node: Node) -> bool | None:
        self.state.flow = words[0]
        return {"0": True, None: True}.get(words[1] if words[1:] else None, False)

    def _shift(self, words: list[str], node: Node) -> bool | None:
        count = self.number(words[1]) if words[1:] else 1
        if self.state.arguments is not None:
            self.state.arguments = None if count is None else self.state.arguments[count:]
        return True

    def _set(self, words: list[str], node: Node) -> bool | None:
        if "--" in words:
            self.state.arguments = words[words.index("--") + 1 :]
        for place, word in enumerate(words[1:]):
            if word in ("-a", "+a") or (
                word in ("-o", "+o") and words[place + 2 :][:1] == ["allexport"]
            ):
                self.state.exports = word[0] == "-"
        return True

    def _cd(self, words: list[str], node: Node) -> bool | None:
        name = words[-1] if words[1:] else ""
        absolute = os.path.isabs(name) or self.state.folder
        known = absolute and self.said(name) == name and name[:1] not in ("-", "~", "")
        self.state.folder = (
            os.path.normpath(os.path.join(self.state.folder or "/", name)) if known else None
        )
        return True

    def _read(self, words: list[str], node: Node) -> bool | None:
        """Set the variables of read to the words of a line."""
        text, names = (
            self.stdin,
            [word for word in words[1:] if re.fullmatch(r"[A-Za-z_]\w*", word)],
        )
        if text is not None and names and "" in words and "-d" in words:
            self.assign(names[-1], text.strip())
            self.stdin = ""
            return True
        if text is None or not names or any(word in words for word in ("-d", "-n", "-N", "-u")):
            for name in names:
                self.state.variables[name] = self.unknown(f"${name}")
            return None
        line, end, self.stdin = text.partition("\n")
        apart = self.state.variables.get("IFS", " \t\n")
        signs = apart if isinstance(apart, str) else " "
        flags = "".join(word for word in words[1:] if word[:1] == "-")
        most = -1 if "a" in flags else len(names) - 1
        if signs.strip() or not signs:
            parts = (
                re.split(f"[{re.escape(signs)}]", line, maxsplit=max(most, 0))
                if signs and most
                else [line]
            )
        else:
            parts = line.split(None, most)
        if "a" in flags:
            self.assign(names[-1], parts)
        else:
            for name, part in zip(names, [*parts, *([""] * len(names))], strict=False):
                self.assign(name, part.strip() if not signs.strip() and signs else part)
        return bool(line or end)

    def _mapfile(self, words: list[str], node: Node) -> bool | None:
        names = [word for word in words[1:] if re.fullmatch(r"[A-Za-z_]\w*", word)]
        for name in names[-1:] or ["MAPFILE"]:
            if self.stdin is not None:
                self.assign(name, self.stdin.splitlines())
            else:
                self.assign(name, [self.unknown(f"${{{name}[@]}}", MANY)])
        return True

    def _let(self, words: list[str], node: Node) -> bool | None:
        numbers = [self.number(word) for word in words[1:]]
        return None if None in numbers else bool(numbers and numbers[-1])

    def _bracket(self, words: list[str], node: Node) -> bool | None:
        inner = words[1:-1] if words[0] == "[" else words[1:]
        return self.holds(f"[ {shlex.join(inner)} ]")

    def _printf(self, words: list[str], node: Node) -> bool | None:
        rest, name = words[1:], ""
        if rest[:1] == ["-v"]:
            name, rest = rest[1], rest[2:]
        text = _formatted(rest) if rest else ""
        if name:
            self.assign(name, self.unknown(f"${name}") if text is None else text)
        else:
            self.write(_OUTPUT if text is None else text)
        return True

    def _tee(self, words: list[str], node: Node) -> bool | None:
        self.write(_OUTPUT if self.stdin is None else self.stdin)
        for name in words[1:]:
            self.files[os.path.normpath(name)] = self.stdin
        return True


def place_of(name: str, folders: Sequence[Path]) -> Path | None:
    """A file that another file names: in its folders, in a folder above them, or in the working directory."""
    places = [place for folder in folders for place in (folder, *folder.absolute().parents[:ABOVE])]
    try:
        return next((p / name for p in [*places, Path()] if (p / name).is_file()), None)
    except (OSError, ValueError):  # A name that is too long, or no name.
        return None


def _fits(text: str, pattern: str) -> bool:
    from fnmatch import fnmatchcase

    return len(text) < 2**10 and any(fnmatchcase(text, part) for part in pattern.split("|"))


def _formatted(words: Sequence[str]) -> str | None:
    """The text of printf; None if its format has more than ``%s`` and ``%d``."""
    pattern = words[0].replace("\\n", "\n").replace("\\t", "\t")
    slots = re.findall(r"%[^%]", pattern)
    if any(slot not in ("%s", "%d", "%q") for slot in slots):
        return None
    values, text = [*words[1:]], ""
    while True:
        text += re.sub(r"%[sdq]", lambda _: values.pop(0) if values else "", pattern)
        if not slots or not values:
            return text.replace("%%", "%")


def _echoed(shell: _Shell, words: list[str]) -> str:
    flags = [*takewhile(lambda word: re.fullmatch("-[neE]+", word), words)]
    text = " ".join(words[len(flags) :])
    if any("e" in flag for flag in flags):
        text = text.replace("\\n", "\n").replace("\\t", "\t")
    return text + "\n" * (not any("n" in flag for flag in flags))


def _named(change: Callable[[str, list[str]], str]) -> Callable[[_Shell, list[str]], str | None]:
    """A program that prints a changed name, as long as its last part is known."""

    def printed(shell: _Shell, words: list[str]) -> str | None:
        words = [word for word in words if word not in ("--", "-f", "-m", "-s", "-e", "-P", "-L")]
        known = words and shell.said(words[0].rstrip("/").rpartition("/")[2]) in words[0]
        return change(words[0], words[1:]) + "\n" if known else None

    return printed


def _real(shell: _Shell, words: list[str]) -> str | None:
    names = [word for word in words if word not in ("--", "-f", "-m", "-s", "-e", "-P", "-L")]
    if len(names) != 1:
        return None
    name = names[0]
    if not os.path.isabs(name) and shell.state.folder:
        name = os.path.join(shell.state.folder, name)
    return os.path.normpath(name) + "\n"


def _sed(shell: _Shell, words: list[str]) -> str | None:
    """A replacement in what is read, if it ends at once."""
    text = shell.stdin
    edits = [word for word in words if word not in ("-E", "-r", "-e")]
    match = _EDIT.fullmatch(edits[0]) if len(edits) == 1 else None
    if text is None or match is None or len(text) > 2**10:
        return None
    extended = "-E" in words or "-r" in words
    old = match["old"] if extended else re.escape(match["old"])
    count = 0 if match["all"] else 1
    try:
        return "".join(
            re.sub(old, lambda _: match["new"], line, count=count)
            for line in text.splitlines(keepends=True)
        )
    except re.error:
        return None


def _translated(shell: _Shell, words: list[str]) -> str | None:
    """What is read, with some letters replaced or taken out."""
    sets = [word.replace("\\n", "\n").replace("\\t", "\t") for word in words]
    if shell.stdin is None or shell.said(shell.stdin) != shell.stdin:
        return None
    classes = {
        "[:upper:]": "".join(map(chr, range(65, 91))),
        "[:lower:]": "".join(map(chr, range(97, 123))),
    }
    sets = [_spread(classes.get(each, each)) for each in sets]
    if len(sets) == 2 and words[0] == "-d":
        return "".join(sign for sign in shell.stdin if sign not in sets[1])
    if len(sets) != 2 or words[0][:1] == "-" or not all(sets):
        return None
    one, other = sets
    return shell.stdin.translate(str.maketrans(one, (other + other[-1] * len(one))[: len(one)]))


def _spread(text: str) -> str:
    """A set of letters with its spans written out."""
    return re.sub(
        r"([A-Za-z0-9])-([A-Za-z0-9])",
        lambda match: "".join(map(chr, range(ord(match[1]), ord(match[2]) + 1))),
        text,
    )


def _sequence(shell: _Shell, words: list[str]) -> str | None:
    numbers = [int(word) for word in words if re.fullmatch(r"-?\d{1,6}", word)]
    if len(numbers) != len(words) or not 0 < len(words) < 4:
        return None
    first, by, last = [(1, 1, *numbers), (numbers[0], 1, *numbers[1:]), (*numbers,)][
        len(numbers) - 1
    ]
    values = range(first, last + (1 if by > 0 else -1), by or 1)[: 2**10]
    return "".join(f"{value}\n" for value in values)


def _listed(shell: _Shell, words: list[str]) -> str | None:
    """What ``cat`` prints: what it reads, or a file that the script wrote."""
    if not words or words == ["-"]:
        return shell.stdin
    texts = [shell.files.get(os.path.normpath(word)) for word in words]
    return None if None in texts else "".join(text or "" for text in texts)


def _behind_host(words: list[str]) -> str:
    """The commands that ssh runs: the words behind the host."""
    rest = words[1:]
    while rest and rest[0][:1] == "-":
        rest = rest[2:] if re.fullmatch("-[opilFJLRD]", rest[0]) else rest[1:]
    return " ".join(rest[1:])


def _behind_flag(flag: str) -> Callable[[list[str]], str]:
    """The commands that are the value of an option."""

    def found(words: list[str]) -> str:
        for word, value in zip(words, [*words[1:], ""], strict=True):
            if word == flag:
                return value
            if word.startswith(f"{flag}="):
                return word[len(flag) + 1 :]
        return ""

    return found


def _true(shell: _Shell, words: list[str], node: Node) -> bool | None:
    return True


_PRINTING: Mapping[str, Callable[[_Shell, list[str]], str | None]] = {
    "echo": _echoed,
    "cat": _listed,
    "pwd": lambda shell, words: f"{shell.state.folder}\n" if shell.state.folder else None,
    "dirname": _named(lambda name, _: os.path.dirname(name.rstrip("/")) or "."),
    "basename": _named(
        lambda name, end: os.path.basename(name.rstrip("/")).removesuffix("".join(end))
    ),
    "realpath": _real,
    "readlink": lambda shell, words: _real(shell, words) if words[:1] in (["-f"], ["-m"]) else None,
    "sed": _sed,
    "tr": _translated,
    "seq": _sequence,
    "expr": lambda shell, words: (
        None if (number := shell.number(" ".join(words))) is None else f"{number}\n"
    ),
}
"""Programs whose output is computed."""

_BUILTINS: Mapping[str, Callable[[_Shell, list[str], Node], bool | None]] = {
    ":": _true,
    "true": _true,
    "false": lambda shell, words, node: False,
    **dict.fromkeys(("exit", "return", "break", "continue"), _Shell._flow),
    **dict.fromkeys(
        ("trap", "ulimit", "shopt", "umask", "wait", "sleep", "hash", "alias", "mkdir"), _true
    ),
    **dict.fromkeys(("source", "."), _Shell.source),
    "eval": _Shell._evaluate,
    "exec": _Shell._exec,
    **dict.fromkeys(("command", "builtin", "time", "nohup", "nice", "setsid"), _Shell._plain),
    "shift": _Shell._shift,
    "set": _Shell._set,
    **dict.fromkeys(("cd", "pushd"), _Shell._cd),
    "read": _Shell._read,
    **dict.fromkeys(("mapfile", "readarray"), _Shell._mapfile),
    "let": _Shell._let,
    **dict.fromkeys(("[", "test"), _Shell._bracket),
    "printf": _Shell._printf,
    "xargs": _Shell._xargs,
    "tee": _Shell._tee,
    "getopts": lambda shell, words, node: False,
}
"""Words of the shell, and programs that change nothing here."""

_STATEMENTS: Mapping[str, Callable[[_Shell, Node], bool | None]] = {
    "if_statement": _Shell._if,
    "case_statement": _Shell._case,
    "for_statement": _Shell._for,
    "while_statement": _Shell._while,
    "c_style_for_statement": _Shell._c_for,
    "list": _Shell._list,
    "pipeline": _Shell._pipeline,
    "function_definition": _Shell._function,
    "compound_statement": _Shell._group,
    "do_group": _Shell._group,
    "subshell": _Shell._subshell,
    "negated_command": _Shell._not,
    "test_command": _Shell._test,
    "variable_assignment": _Shell._assignment,
    "variable_assignments": _Shell._assignment,
    "declaration_command": _Shell._declaration,
    "unset_command": _Shell._unset,
    "redirected_statement": _Shell._redirected,
    "command": _Shell.command,
}

_CLAUSES = ("elif_clause", "else_clause")

_WORDS = (
    *("word", "string", "raw_string", "concatenation", "simple_expansion", "expansion", "number"),
    *("ansi_c_string", "command_substitution"),
)
"""The nodes of words behind the start of a heredoc."""

_TEXTS: Mapping[str, Callable[[list[str]], str]] = {
    "ssh": _behind_host,
    "sbatch": _behind_flag("--wrap"),
    "su": _behind_flag("-c"),
}
"""Programs that run a text, and the text in their words."""

_SHELLS = ("bash", "sh", "zsh", "dash")
_BATCH = ("sbatch", "qsub", "bsub")
_BATCH_VALUES = ("-N", "-n", "-J", "-A", "-p", "-t", "-o", "-e", "-q", "-c", "-G", "-w", "-d")
LAUNCHERS = (
    *(
        "srun",
        "docker",
        "podman",
        "apptainer",
        "singularity",
        "enroot",
        "kubectl",
        "sudo",
        "timeout",
    ),
    *(
        "ray",
        "stdbuf",
        "xargs",
        "mpirun",
        "mpiexec",
        "conda",
        "uv",
        "poetry",
        "pixi",
        "nsys",
        "numactl",
    ),
    *("tmux", "screen", "script", "parallel", "torchrun", "ionice", "chroot", "bash", "micromamba"),
    *("accelerate", "deepspeed", "env"),
)
"""Programs that run others, a shell among them."""

_OUTPUT = "\ufdd4"
"""What a program prints, which only the run knows."""

_EDIT = re.compile(
    r"s(?P<by>[#/|,])(?P<old>[\w/.()|$^-]*)(?P=by)(?P<new>[\w/.-]*)(?P=by)(?P<all>g?)"
)
"""A replacement by sed without repetition, so it ends at once."""
