"""The flow of values through Python code: what each name holds where it is used, if only one value can reach
that place. Nothing is run.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from functools import reduce

from ..validation import InputError
from .objects import Call, Frame, Function, Memory, State
from .scopes import Comprehension, scopes_of
from .values import (
    UNKNOWN,
    Imported,
    Items,
    Literal,
    Method,
    Object,
    Record,
    Repeated,
    Value,
    computed,
    joined,
    same,
    same_names,
    same_objects,
)


class Flow(Memory):
    """The code, followed from its first line to its last, and then each function that nobody in it calls.

    Arguments:
        tree: the code.
        known: the result of a call of something that is not in the code; None if it is not known.
        command: the function behind a decorator.
        is_config: whether a path is that of a config class.
        trained: the arguments of a call of a method that trains, by name; None if it is not one.
    """

    def __init__(
        self,
        tree: ast.Module,
        known: Callable[[Flow, Imported | Method, Call], Value | None],
        command: Callable[[Flow, Function, ast.expr, Frame], Function],
        is_config: Callable[[str], bool],
        trained: Callable[[str, Call], dict[str, Value] | None],
    ) -> None:
        super().__init__()
        self.scopes = scopes_of(tree)
        self.known, self.command = known, command
        self.is_config, self.trained = is_config, trained
        self.configs: dict[ast.Call, list[Object]] = {}
        self.hidden = False
        self.functions: dict[ast.AST, Function] = {}
        self.called: set[ast.AST] = set()
        self.steps = 0
        self.scopes[tree].bound["__name__"] += 1
        self.main = Frame(self.scopes[tree], names={"__name__": Literal("__main__")})
        self.block(tree.body, self.main)
        followed: set[ast.AST] = set()
        while ahead := self.functions.keys() - followed - (self.called - self.away):
            (node, *_) = (each for each in self.functions if each in ahead)
            followed.add(node)
            self.follow(self.functions[node], dict(self.functions[node].given))
        used = {
            node: [made for made in each if made.key in self.given]
            for node, each in self.configs.items()
        }
        if any(used.values()) and not self.hidden:
            # A config that no trainer gets trains nothing.
            self.configs = {node: each for node, each in used.items() if each}

    # Statements

    def block(self, body: Iterable[ast.stmt], frame: Frame) -> bool:
        """Whether the flow ends in these statements."""
        return any(self.statement(each, frame) for each in body)

    def statement(self, node: ast.stmt, frame: Frame) -> bool:
        self._step()
        match node:
            case ast.Assign(targets, value):
                held = self.value(value, frame)
                for target in targets:
                    self.bind(target, held, frame)
            case ast.AnnAssign(target, _, value):
                if value is not None:
                    self.bind(target, self.value(value, frame), frame)
            case ast.AugAssign(target, operator, value):
                self._augment(target, operator, value, frame)
            case ast.Expr(value):
                self.value(value, frame)
            case ast.If(test, body, orelse):
                return self._if(
                    test, lambda: self.block(body, frame), lambda: self.block(orelse, frame), frame
                )
            case ast.For() | ast.AsyncFor() | ast.While():
                return self._loop(node, frame)
            case ast.With(items, body) | ast.AsyncWith(items, body):
                for item in items:
                    self.release(self.value(item.context_expr, frame))
                    if item.optional_vars:
                        self.bind(item.optional_vars, UNKNOWN, frame)
                return self.block(body, frame)
            case ast.Try() | ast.TryStar():
                return self._try(node, frame)
            case ast.Match(subject, cases):
                self.release(self.value(subject, frame))
                runs = [lambda each=each: self._case(each, frame) for each in cases]
                return self._branches(frame, [*runs, lambda: False])
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                frame.names[node.name] = self.define(node, frame)
            case ast.ClassDef():
                frame.names[node.name] = self._class(node, frame)
            case ast.Return(value):
                frame.returned.append(
                    (self.value(value, frame) if value else Literal(None), self.heap)
                )
                return True
            case ast.Raise():
                return True
            case ast.Break() | ast.Continue():
                if frame.loops:
                    frame.loops[-1].append((frame.names, self.heap))
                return True
            case ast.Delete(targets):
                for target in targets:
                    self.bind(target, UNKNOWN, frame)
            case ast.Import(names):
                for name in names:
                    path = name.name if name.asname else name.name.partition(".")[0]
                    frame.names[name.asname or path] = Imported(path)
            case ast.ImportFrom(module, names):
                for name in names:
                    if name.name == "*":
                        frame.names = {}
                    else:
                        path = f"{module or ''}.{name.name}"
                        frame.names[name.asname or name.name] = Imported(path)
            case ast.Assert(test):
                self.value(test, frame)
        return False

    def _step(self) -> None:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise InputError("it has too much code to follow: write the options")

    def _branches(self, frame: Frame, runs: Sequence[Callable[[], bool]]) -> bool:
        """Follow each of several ways from here; what they do not agree on is unknown."""
        names, heap = frame.names, self.heap
        ends = list[State]()
        for run in runs:
            self.steps += (len(names) + len(heap)) // 16
            frame.names, self.heap = dict(names), dict(heap)
            if not run():
                ends.append((frame.names, self.heap))
        self._join(frame, ends or [(names, heap)])
        return not ends

    def _join(self, frame: Frame, states: Sequence[State]) -> None:
        frame.names = reduce(same_names, (names for names, _ in states))
        self.heap = reduce(same_objects, (heap for _, heap in states))

    def _if(
        self, test: ast.expr, then: Callable[[], bool], other: Callable[[], bool], frame: Frame
    ) -> bool:
        held = self.value(test, frame)
        if isinstance(held, Literal) and not held.options:
            return then() if held.value else other()
        return self._branches(frame, [then, other])

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, frame: Frame) -> bool:
        if not isinstance(node, ast.While):
            self.release(self.value(node.iter, frame))

        def body() -> bool:
            if isinstance(node, ast.While):
                self.value(node.test, frame)
            else:
                self.bind(node.target, UNKNOWN, frame)
            return self.block(node.body, frame)

        while True:
            before = frame.names, self.heap
            frame.loops.append([])
            self._branches(frame, [lambda: False, body])
            self._join(frame, [(frame.names, self.heap), *frame.loops.pop()])
            if (frame.names, self.heap) == before:
                break
        return self.block(node.orelse, frame)

    def _try(self, node: ast.Try | ast.TryStar, frame: Frame) -> bool:
        def caught(handler: ast.ExceptHandler) -> bool:
            # The body may have run in part.
            heap = self.heap
            self.block(node.body, frame)
            self.heap = same_objects(heap, self.heap)
            for each in node.body:
                for part in ast.walk(each):
                    if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                        frame.names[part.id] = UNKNOWN
                    elif isinstance(part, ast.alias | ast.FunctionDef | ast.ClassDef):
                        frame.names[getattr(part, "asname", None) or part.name] = UNKNOWN
            if handler.name:
                frame.names[handler.name] = UNKNOWN
            return self.block(handler.body, frame)

        runs = [lambda each=each: caught(each) for each in node.handlers]
        whole = [*node.body, *node.orelse]
        ended = self._branches(frame, [lambda: self.block(whole, frame), *runs])
        return self.block(node.finalbody, frame) or ended

    def _case(self, case: ast.match_case, frame: Frame) -> bool:
        for part in ast.walk(case.pattern):
            for name in (getattr(part, "name", None), getattr(part, "rest", None)):
                if name:
                    frame.names[name] = UNKNOWN
        if case.guard:
            self.value(case.guard, frame)
        return self.block(case.body, frame)

    def _augment(
        self, target: ast.expr, operator: ast.operator, value: ast.expr, frame: Frame
    ) -> None:
        held, more = self._read(target, frame), self.value(value, frame)
        if isinstance(held, Object) and isinstance(operator, ast.BitOr):
            self.update(held, more)
            return
        self.release(held)
        self.bind(target, computed(type(operator), held, more), frame)

    def _read(self, target: ast.expr, frame: Frame) -> Value:
        match target:
            case ast.Name(name):
                return self.lookup(name, frame)
            case ast.Attribute(value, name):
                return self.attribute(self.value(value, frame), name)
            case ast.Subscript(value, key):
                return self.item(self.value(value, frame), self.value(key, frame))
        return UNKNOWN

    # Names

    def bind(self, target: ast.expr, value: Value, frame: Frame) -> None:
        match target:
            case ast.Name(name):
                frame.names[name] = value
            case ast.Tuple(targets) | ast.List(targets):
                parts = self._unpacked(value)
                if len(parts) != len(targets) or any(isinstance(t, ast.Starred) for t in targets):
                    self.release(value)
                    parts = [UNKNOWN] * len(targets)
                for each, part in zip(targets, parts, strict=True):
                    self.bind(each, part, frame)
            case ast.Starred(inner):
                self.bind(inner, UNKNOWN, frame)
            case ast.Attribute(owner, name):
                self.put(self.value(owner, frame), Literal(name), value)
            case ast.Subscript(owner, key):
                self.put(self.value(owner, frame), self.value(key, frame), value)

    def _unpacked(self, value: Value) -> list[Value]:
        if isinstance(value, Items):
            return list(value.parts)
        if isinstance(value, Object):
            record = self.record(value)
            if record.kind == "list" and record.whole:
                return list(record.parts.values())
        return []

    def lookup(self, name: str, frame: Frame | None) -> Value:
        """What a name holds: inside its own scope the value that reaches the place, outside of it the only
        value that is ever assigned.
        """
        inside = True
        while frame:
            scope = frame.scope
            own = inside or not isinstance(scope.node, ast.ClassDef)
            if own and name in scope.bound and name not in scope.declared:
                held = frame.names.get(name, UNKNOWN)
                once = inside or (scope.bound[name] == 1 and not scope.open)
                changed = name in scope.changed and isinstance(held, Object)
                certain = once and not changed and name not in scope.rebound
                return held if certain else UNKNOWN
            inside = inside and frame.inline
            frame = frame.parent
        return Imported(name)

    # Expressions

    def value(self, node: ast.expr, frame: Frame) -> Value:
        """The value of an expression; its parts are followed in any case."""
        self._step()
        match node:
            case ast.Constant(value):
                return Literal(value) if isinstance(value, str | int | float | None) else UNKNOWN
            case ast.Name(name):
                return self.lookup(name, frame)
            case ast.Tuple(parts) | ast.List(parts) | ast.Set(parts):
                values = [self.value(part, frame) for part in parts]
                whole = not any(isinstance(part, ast.Starred) for part in parts)
                if isinstance(node, ast.Tuple) and whole:
                    return Items(tuple(values))
                kind = dict(enumerate(values)) if whole else {}
                return self.make(node, Record("list", kind, whole))
            case ast.Starred(inner) | ast.Await(inner):
                return self.value(inner, frame)
            case ast.Dict(keys, values):
                made = self.make(node, Record("dict"))
                self.change(made, Record("dict"))
                for key, each in zip(keys, values, strict=True):
                    held = self.value(each, frame)
                    if key is None:
                        self.update(made, held)
                    else:
                        self.put(made, self.value(key, frame), held)
                return made
            case ast.UnaryOp(operator, operand):
                return computed(type(operator), self.value(operand, frame))
            case ast.BinOp(left, operator, right):
                sides = self.value(left, frame), self.value(right, frame)
                if isinstance(operator, ast.BitOr) and isinstance(sides[0], Object):
                    made = self.make(node, self.record(sides[0]))
                    self.change(made, self.record(sides[0]))
                    self.update(made, sides[1])
                    return made
                return computed(type(operator), *sides)
            case ast.Compare(left, [operator], [right]):
                return computed(type(operator), self.value(left, frame), self.value(right, frame))
            case ast.BoolOp(operator, values):
                return self._either(values, isinstance(operator, ast.Or), frame)
            case ast.IfExp(test, body, orelse):
                return self._one_of(test, body, orelse, frame)
            case ast.JoinedStr(parts):
                return self._text([self.value(part, frame) for part in parts])
            case ast.FormattedValue(inner, conversion, form):
                held = self.value(inner, frame)
                simple = conversion == -1 and form is None and isinstance(held, Literal)
                return Literal(str(held.value), held.options) if simple else UNKNOWN
            case ast.NamedExpr(ast.Name(name), inner):
                held = self.value(inner, frame)
                around = frame
                while isinstance(around.scope.node, Comprehension) and around.parent:
                    around, held = around.parent, UNKNOWN
                around.names[name] = held
                return held
            case ast.Attribute(owner, name):
                return self.attribute(self.value(owner, frame), name)
            case ast.Subscript(owner, key):
                return self.item(self.value(owner, frame), self.value(key, frame))
            case ast.Lambda():
                return self.define(node, frame)
            case ast.Call():
                return self.call(node, frame)
            case ast.Yield(inner):
                self.release(self.value(inner, frame) if inner else UNKNOWN)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                inner_frame = Frame(self.scopes[node], frame, inline=True)
                over = UNKNOWN
                for loop in node.generators:
                    over = self.value(loop.iter, inner_frame)
                    self.release(over)
                    self.bind(loop.target, UNKNOWN, inner_frame)
                    for test in loop.ifs:
                        self.value(test, inner_frame)
                of = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
                held = [self.value(part, inner_frame) for part in of]
                for each in held:
                    self.release(each)
                every = len(node.generators) == 1 and not node.generators[0].ifs
                count = over.count if every and isinstance(over, Repeated) else UNKNOWN
                ordered = isinstance(node, ast.ListComp | ast.GeneratorExp)
                return Repeated(count, *held) if ordered else UNKNOWN
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self.value(child, frame)
        return UNKNOWN

    def _either(self, values: list[ast.expr], first: bool, frame: Frame) -> Value:
        """The value of ``or``, where the first true one counts, or of ``and``."""
        held = self.value(values[0], frame)
        if len(values) == 1:
            return held
        if isinstance(held, Literal) and bool(held.value) == first:
            return held
        results = list[Value]()

        def rest() -> bool:
            results.append(self._either(values[1:], first, frame))
            return False

        if isinstance(held, Literal):
            rest()
            (value,) = results
            more = held.options
            return (
                Literal(value.value, value.options | more) if isinstance(value, Literal) else value
            )
        self._branches(frame, [lambda: False, rest])
        return UNKNOWN

    def _one_of(self, test: ast.expr, body: ast.expr, other: ast.expr, frame: Frame) -> Value:
        results = list[Value]()

        def follow(node: ast.expr) -> bool:
            results.append(self.value(node, frame))
            return False

        self._if(test, lambda: follow(body), lambda: follow(other), frame)
        return reduce(same, results)

    def _text(self, parts: list[Value]) -> Value:
        texts = [part.value for part in parts if isinstance(part, Literal)]
        whole = len(texts) == len(parts)
        return Literal("".join(texts), joined(*parts)) if whole else UNKNOWN

    # Functions and classes

    def define(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, frame: Frame
    ) -> Value:
        args = node.args
        every = [*args.posonlyargs, *args.args]
        pairs = [*zip(every[len(every) - len(args.defaults) :], args.defaults, strict=True)]
        pairs += [
            (each, default)
            for each, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)
            if default
        ]
        defaults = tuple((each.arg, self.value(default, frame)) for each, default in pairs)
        function = Function(node, frame, defaults)
        for decorator in reversed(getattr(node, "decorator_list", ())):
            function = self.command(self, function, decorator, frame)
        self.functions[node] = function
        return function

    def _class(self, node: ast.ClassDef, frame: Frame) -> Object:
        bases = tuple(self.value(base, frame) for base in node.bases)
        for decorator in node.decorator_list:
            self.value(decorator, frame)
        inner = Frame(self.scopes[node], frame, inline=True)
        self.block(node.body, inner)
        parts, fields = dict[str, Value](), dict[str, None]()
        for base in bases:
            if isinstance(base, Object):
                parts |= self.record(base).parts
                fields |= dict.fromkeys(self.record(base).fields)
        own = [
            each.target.id
            for each in node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        ]
        parts |= {**dict.fromkeys(own, UNKNOWN), **inner.names}
        record = Record("class", parts, True, Items(bases), (*dict.fromkeys((*fields, *own)),))
        made = self.make(node, record)
        self.change(made, record)
        return made

    def call(self, node: ast.Call, frame: Frame) -> Value:
        function = self.value(node.func, frame)
        if isinstance(function, Imported) and function.path in ("exec", "globals", "locals"):
            # Any name may have another value from here on.
            frame.names, self.main.names = {}, {}
        return self.result(function, self.parts(node, frame))

    def parts(self, node: ast.Call, frame: Frame) -> Call:
        values: list[Value] | None = []
        for argument in node.args:
            held = self.value(argument, frame)
            if isinstance(argument, ast.Starred):
                self.release(held)
                values = None
            elif values is not None:
                values.append(held)
        keywords, whole = dict[str, Value](), True
        for keyword in node.keywords:
            held = self.value(keyword.value, frame)
            if keyword.arg:
                keywords[keyword.arg] = held
            elif isinstance(held, Object):
                record = self.record(held)
                whole = whole and record.whole
                keywords |= {str(name): part for name, part in record.parts.items()}
            else:
                whole = False
        return Call(node, values, keywords, whole)

    def result(self, function: Value, call: Call) -> Value:
        """The result of a call."""
        last = call.node.func
        name = last.attr if isinstance(last, ast.Attribute) else getattr(last, "id", "")
        if isinstance(function, Imported):
            name = function.path
        if isinstance(function, Imported | type(UNKNOWN)):
            if self.is_config(name):
                return self._config(call, name, {})
            if isinstance(last, ast.Attribute):
                arguments = self.trained(last.attr, call)
                if arguments is not None:
                    self._config(call, last.attr, arguments)
                    return UNKNOWN
        if isinstance(function, Object) and self.record(function).kind == "class":
            return self.instance(function, call)
        if isinstance(function, Function):
            return self._followed(function, call)
        if isinstance(function, Method) and isinstance(function.function, Function):
            inner = Call(
                call.node,
                None if call.values is None else [function.of, *call.values],
                call.keywords,
                call.whole,
            )
            return self._followed(function.function, inner)
        if isinstance(function, Imported | Method):
            held = self.known(self, function, call)
            if held is not None:
                return held
        if name.endswith("Trainer"):
            given = [call.argument(2, "args", None), call.argument(2, "config", None)]
            self.hidden |= UNKNOWN in given
        for value in (*(call.values or ()), *call.keywords.values(), function):
            self.release(value)
        return UNKNOWN

    def _config(self, call: Call, path: str, defaults: dict[str, Value]) -> Object:
        whole = call.whole and call.values is not None
        parts = {**defaults, **call.keywords}
        record = Record("config", parts, whole, called=path.rpartition(".")[2])
        return self.noted(call, self.make(call.node, record))

    def noted(self, call: Call, made: Object) -> Object:
        """An object, which is listed if it is a config."""
        if self.record(made).kind == "config":
            held = self.configs.setdefault(call.node, [])
            if made not in held:
                held.append(made)
        return made

    def instance(self, of: Object, call: Call) -> Value:
        """A new object of a class of the code."""
        record = self.record(of)
        parts = {
            name: part for name, part in record.parts.items() if not isinstance(part, Function)
        }
        configs = [
            base
            for base in self._bases(of)
            if isinstance(base, Imported) and self.is_config(base.path)
        ]
        if configs:
            return self._config(
                call, configs[0].path, {name: parts[name] for name in record.fields}
            )
        strange = [
            base
            for base in self._bases(of)
            if isinstance(base, type(UNKNOWN))
            or (isinstance(base, Imported) and base.last not in _PLAIN_BASES)
        ]
        if strange or call.values is None or not call.whole:
            for value in (*(call.values or ()), *call.keywords.values()):
                self.release(value)
            return UNKNOWN
        made = self.make(call.node, Record("instance", parts, True, of), of.key)
        inits = [record.parts.get(name) for name in ("__init__", "__post_init__")]
        if not isinstance(inits[0], Function):
            given = {**dict(zip(record.fields, call.values, strict=False)), **call.keywords}
            self.change(made, self.record(made).with_parts(given))
        for function, values in zip(inits, ([made, *call.values], [made]), strict=True):
            if isinstance(function, Function):
                own = call.keywords if len(values) > 1 or function is inits[0] else {}
                self._followed(function, Call(call.node, values, own, True))
        return made

    def _bases(self, of: Object) -> list[Value]:
        found = list[Value]()
        for base in self.record(of).of.parts:
            found += self._bases(base) if isinstance(base, Object) else [base]
        return found

    def _followed(self, function: Function, call: Call) -> Value:
        node = function.node
        if function.hidden or node in self.path or len(self.path) >= MOST_CALLS:
            for value in (*(call.values or ()), *call.keywords.values(), function):
                self.release(value)
            return UNKNOWN
        self.called.add(node)
        names = dict(zip(function.arguments, call.values or (), strict=False)) | call.keywords
        known = call.values is not None and call.whole
        given = {**dict(function.defaults), **dict(function.given)} if known else {}
        if (rest := node.args.kwarg) and known:
            own = {*function.arguments, *(each.arg for each in node.args.kwonlyargs)}
            more = {key: value for key, value in call.keywords.items() if key not in own}
            names[rest.arg] = self.make(call.node, Record("dict", more), rest.arg)
        before, self.path = self.path, (*self.path, call.node, node)
        value = self.follow(function, {**given, **names})
        self.path = before
        return value

    def follow(self, function: Function, names: dict[str, Value]) -> Value:
        """What a function returns for these arguments; others are unknown."""
        node = function.node
        frame = Frame(self.scopes[node], function.frame, dict(names))
        if isinstance(node, ast.Lambda):
            return self.value(node.body, frame)
        if not self.block(node.body, frame):
            frame.returned.append((Literal(None), self.heap))
        if not frame.returned:
            return UNKNOWN
        self.heap = reduce(same_objects, (heap for _, heap in frame.returned))
        return reduce(same, (value for value, _ in frame.returned))


MOST_STEPS = 50_000
"""The most statements and expressions that are followed; it takes half a second."""

MOST_CALLS = 16
"""The most calls within calls that are followed, twice."""

_PLAIN_BASES = ("object", "BaseModel", "ABC", "Protocol", "Generic")
