"""Sources of options: files, commands and configs, read into names and texts. Nothing in them runs."""

from __future__ import annotations

import ast
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from ..reading import json_value, read_json, read_pickle, read_text, read_yaml
from ..validation import InputError, needed
from .records import as_text, catalogue, flat

Named = list[tuple[str, str]]
"""Options by the names that are written, those that hold last; "" where no value is."""


@dataclass
class Source:
    """What a file, a command or a config says.

    Arguments:
        title: what messages call it.
        named: its options.
        runs: the commands that it runs and the modules that it imports.
        missing: the parents that it names and that are not there.
        unread: the options whose values only running it would say.
        text: where it may say which releases it installs.
    """

    title: str
    named: Named = field(default_factory=list)
    runs: str = ""
    missing: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    text: str = ""

    def then(self, other: Source) -> Source:
        """Both, the options of the other holding before one's own."""
        return Source(
            self.title or other.title,
            [*self.named, *other.named],
            f"{self.runs}\n{other.runs}",
            [*self.missing, *other.missing],
            [*self.unread, *other.unread],
            f"{self.text}\n{other.text}",
        )

    def asked(self, package: str) -> list[tuple[str, str]]:
        """The clauses on a package's release, ``("==", "0.19.1")``, in commands, requirements and a script's
        own ``# /// script``.
        """
        text = _METADATA.sub(lambda block: re.sub("(?m)^# ?", "", block[0]), self.text)
        name = re.sub("[-_]", "[-_.]", package)
        wanted = rf"(?i)(?<![\w./-]){name}(?:\[[^\]]*\])?((?:\s*,?\s*{_CLAUSE.pattern})+)"
        found = re.finditer(wanted, re.sub(r"(?m)(^|\s)#.*$", "", text))
        return [pair for match in found for pair in _CLAUSE.findall(match[1])]


def is_file(word: str) -> bool:
    """Whether a word is read as a file: it is there, or ends like one and is no option."""
    if "=" in word:
        return is_there(word)
    return word.endswith(tuple(_READERS)) or (bool(re.search("[./]", word)) and is_there(word))


def is_there(word: str) -> bool:
    """Whether a word is the name of something that is there."""
    try:
        return Path(word).exists()
    except OSError:  # A name that is too long.
        return False


def of_file(path: Path) -> Source:
    """The options of a file, or of a Hydra run's folder.

    Raises:
        InputError: it cannot be read, or is none of the kinds that are.
    """
    if path.is_dir():
        places = [path / ".hydra" / "config.yaml", path / "config.yaml"]
        found = [place for place in places if place.is_file()]
        if not found:
            raise InputError(f"{path}: Is a directory, without the .hydra/config.yaml of a run")
        path = found[0]
    source = _READERS.get(path.suffix, _of_script)(path)
    if path.suffix in (*_YAML, ".toml"):
        source.text = read_text(path)
    # As Weights & Biases puts it beside a run's config.yaml.
    beside = path.with_name("requirements.txt")
    if beside.is_file():
        source.text += f"\n{read_text(beside, MOST_CODE)}"
    return source


def of_config(config: Any) -> Source:
    """The options of a mapping, of a config that has them as attributes, or of a trainer that has such."""
    if not isinstance(config, Mapping):
        args = getattr(config, "args", None)
        try:
            config = vars(config if not hasattr(args, "__dict__") else args)
        except TypeError:
            raise InputError(
                f"SPEC is {config!r}: it must be a text, a mapping of options, or a config"
            ) from None
    return Source("SPEC", _of_sections("SPEC", config))


# ------------------------------------------------------------------------------------------- shells


def of_commands(text: str, title: str = "SPEC", script: Path | None = None) -> Source:
    """The options of commands, with the variables that stand before them, and of the files they name."""
    variables = {} if script is None else {"0": str(script.absolute())}
    folder = Path() if script is None else script.parent
    named, runs = Named(), list[str]()
    ran: dict[str, None] = {}
    for line in _lines(text, script, variables, (), ran):
        words = [_filled(word, variables) for word in _words(line)]
        if words[:1] == [":"]:
            continue
        while words and (words[0] == "export" or _ASSIGNMENT.match(words[0])):
            name, equals, value = words.pop(0).partition("=")
            if equals:
                variables[name] = value
        named += options_of(words)
        runs.append(" ".join(word for word in words if not _OPTION.match(word)))
    if len(ran) > 1:
        raise InputError(f"{title} runs {' and '.join(ran)}: read one of them")
    options = [
        (name, value)
        for name, value in named
        if (value or name.startswith("--")) and not _CLAUSE.search(f"{name}={value}")
    ]
    own = Source(title, options, "\n".join(runs), text=text)
    held = Source(title)
    for name, value in named:
        # Data alone: a script might name itself.
        asked = plain(name) in FILES and value.endswith(_CONFIGS)
        if asked or (not value and name.endswith(_CONFIGS)):
            word = value if asked else name
            # What the run itself would put before it is a folder.
            place = _place(re.sub(r"^.*[$)][^/]*/", "", word), folder)
            if place or asked:
                held = held.then(of_file(place) if place else Source(title, missing=[word]))
    return held.then(own)


def _lines(
    text: str,
    file: Path | None,
    variables: dict[str, str],
    above: tuple[Path, ...],
    ran: dict[str, None],
) -> Iterator[str]:
    """The lines of commands, sums and names of files worked out, with those of the scripts that they source
    or run; the latter are entered in ``ran``.
    """
    for line in _COMMENT.sub(" ", text.replace("\\\n", " ")).splitlines():
        if file is not None:
            line = _SOURCE.sub(lambda _: str(file.absolute()), line)
        line = _SUM.sub(lambda match: _summed(match[1], variables) or match[0], line)
        worked_out = ""
        while line != worked_out:
            worked_out = line
            line = _RUN.sub(lambda match: _name_of(match[1], variables) or match[0], line)
        words = _words(line) if file and _RUNS.search(line) else []
        before = list(takewhile(lambda word: _ASSIGNMENT.match(word) or word == "exec", words))
        match words[len(before) :]:
            case [("source" | "." | "bash" | "sh") as how, name, *given]:
                place = _place(_filled(name, variables), file.parent) if file else None
            case _:
                place = None
        if not place or place.suffix not in _SCRIPTS or place in above:
            yield line
            continue
        yield shlex.join(word for word in before if word != "exec")
        caller = variables["0"]
        if how in ("bash", "sh"):
            variables["0"] = str(place.absolute())
            ran |= {} if above else {str(place): None}
        inner = read_text(place, MOST_CODE)
        yield from _lines(inner, place, variables, (*above, place), ran)
        variables["0"] = caller
        yield shlex.join(given)


def _name_of(command: str, variables: dict[str, str]) -> str | None:
    """What a command prints that works on the name of a file; None of any other."""
    words = [_filled(word, variables) for word in _words(command)]
    match [word for word in words if word not in ("--", "&>", ">", "/dev/null")]:
        case ["dirname", name]:
            return str(Path(name).parent)
        case ["basename", name, *suffix]:
            return Path(name).name.removesuffix("".join(suffix))
        case ["realpath", name] | ["cd", name, "&&", "pwd"]:
            return os.path.normpath(name)
        case ["echo", name, "|", "sed", *extended, edit] if parts := _EDIT.fullmatch(edit):
            pattern = parts["old"] if extended else re.escape(parts["old"])
            try:
                return re.sub(pattern, lambda _: parts["new"], name, count=1)
            except re.error:
                return None
    return None


def _words(line: str) -> list[str]:
    """The words of a line of a shell, up to a comment, which begins a word."""
    try:
        words = shlex.split(line)
    except ValueError:
        # A quote that goes on over lines holds no options.
        words = line.split()
    return list(takewhile(lambda word: not word.startswith("#"), words))


def options_of(words: Iterable[str], switches: Callable[[str], bool] | None = None) -> Named:
    """Options as a shell has them: ``a=b``, ``--a=b``, ``--a b``; one alone has no value."""
    known = _known()
    is_switch = switches or (lambda name: "switch" in known.get(plain(name), ()))
    named: Named = []
    rest = list(words)
    while rest:
        name, equals, text = rest.pop(0).partition("=")
        follows = rest[0] if rest else "--"
        apart = name.startswith("--") and not equals and not re.match("--|.*=", follows)
        if apart and (not is_switch(name) or follows.lower() in ("true", "false")):
            text = rest.pop(0)
            while "list" in known.get(plain(name), ()) and rest and _NUMBER.fullmatch(rest[0]):
                text += f" {rest.pop(0)}"
        named.append((name, text))
    return named


def plain(name: str) -> str:
    """A name as the catalogue has it."""
    return name.lstrip("-+").replace("-", "_")


@cache
def _known() -> dict[str, set[str]]:
    """Which names are of switches and of lists, in any framework."""
    kinds: dict[str, set[str]] = {}
    for framework in catalogue().frameworks.values():
        for name, option in framework.names().items():
            kinds.setdefault(name, set()).update(
                word
                for word, holds in (("switch", option.switch), ("list", option.several))
                if holds
            )
    return kinds


def _filled(word: str, variables: dict[str, str]) -> str:
    """A word with the values that the shell puts for its variables."""

    def value(match: re.Match[str]) -> str:
        name = match["plain"] or match["name"]
        known = variables.get(name) or match["default"]
        if known and match["how"] and match["how"].endswith("="):
            variables[name] = known
        return match[0] if known is None else known

    return _VARIABLE.sub(value, word)


def _summed(text: str, variables: Mapping[str, str]) -> str | None:
    """The value of ``$((...))``; None where it is more than whole numbers and signs."""
    text = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda match: variables.get(match[1], match[0]), text)
    try:
        return str(_computed(ast.parse(text.strip(), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, KeyError):
        return None


_SIGNS: dict[type, Callable[[int, int], int]] = {
    ast.Add: int.__add__,
    ast.Sub: int.__sub__,
    ast.Mult: int.__mul__,
    ast.Div: int.__floordiv__,
    ast.Mod: int.__mod__,
}


def _computed(node: ast.expr) -> int:
    if isinstance(node, ast.BinOp):
        return _SIGNS[type(node.op)](_computed(node.left), _computed(node.right))
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < 2**31:
        return node.value
    raise ValueError


# -------------------------------------------------------------------------------------------- files


def _of_sections(title: Any, data: Any) -> Named:
    if isinstance(data, list) and data and all(isinstance(entry, str) for entry in data):
        return options_of(data)  # Hydra's overrides.
    if not isinstance(data, Mapping):
        raise InputError(f"{title}: it must hold options by name")
    return [(str(name), as_text(value)) for name, value in flat(data)]


def _of_data(read: Callable[[Path], Any]) -> Callable[[Path], Source]:
    return lambda path: Source(str(path), _of_sections(path, read(path)))


def _of_script(path: Path) -> Source:
    return of_commands(read_text(path, MOST_CODE), str(path), path)


def _of_toml(path: Path) -> Source:
    text = read_text(path, MOST_CODE)
    try:
        return Source(str(path), _of_sections(path, tomllib.loads(text)))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{path}: not TOML: {error}") from None


def _place(name: str, folder: Path) -> Path | None:
    """A file that is named in another: beside it, in a folder above it, or in the working directory."""
    above = [folder, *folder.absolute().parents[:_ABOVE], Path()]
    return next((place / name for place in above if (place / name).is_file()), None)


def _of_yaml(path: Path) -> Source:
    data = read_yaml(path)
    if not isinstance(data, Mapping) or not ("defaults" in data or "${" in read_text(path)):
        return Source(str(path), _of_sections(path, data))
    with needed(f"{path}, which is made of parts,", "configs"):
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException
    source = Source(str(path))
    parts = [*_parts(path, (path.parent, *_searched(data, path.parent)), source, ())]
    whole: Any = OmegaConf.create()
    try:
        for part in parts:
            for name, section in part.items():
                # NeMo-RL's word for a section that its parents say nothing of.
                if isinstance(section, Mapping) and section.get("_override_"):
                    whole.pop(name, None)
            whole = OmegaConf.merge(whole, OmegaConf.create(part))
    except (OmegaConfBaseException, TypeError, ValueError) as error:
        if "defaults" not in data:  # What it refers to is no option: a workflow's expressions.
            return Source(str(path), _of_sections(path, data))
        raise InputError(f"{path}: its parts do not fit: {' '.join(str(error).split())}") from None
    source.named = [
        (name, _resolved(whole, name, text))
        for name, text in _of_sections(path, OmegaConf.to_container(whole))
    ]
    # What Hydra makes, of the framework's classes or of another's.
    source.runs = "\n".join(text for name, text in source.named if name.endswith("_target_"))
    return source


def _resolved(whole: Any, name: str, text: str) -> str:
    """A value with what it refers to; the text where only the framework can say that."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if not _REFERENCE.fullmatch(text):
        return text
    try:
        return as_text(OmegaConf.select(whole, name))
    except OmegaConfBaseException:
        return text


def _searched(data: Mapping[Any, Any], folder: Path) -> Iterator[Path]:
    """The folders of Hydra's search path, of which only the run itself may know where they begin."""
    hydra = data.get("hydra")
    paths = hydra.get("searchpath") if isinstance(hydra, Mapping) else None
    for word in paths if isinstance(paths, list) else ():
        name = re.sub(r"^file://(.*\}/+)?", "", str(word))
        above = [folder, *folder.absolute().parents[:_ABOVE]]
        yield from [place / name for place in above if (place / name).is_dir()][:1]


def _parts(
    path: Path, roots: tuple[Path, ...], source: Source, above: tuple[Path, ...]
) -> Iterator[Any]:
    """A file's parents, the first of all first, and the file itself where it stands among them."""
    if path in above:
        raise InputError(f"{path}: it is its own parent")
    data = read_yaml(path) or {}
    if not isinstance(data, Mapping):
        raise InputError(f"{path}: it must hold options by name")
    own = {name: value for name, value in data.items() if name != "defaults"}
    entries = data.get("defaults", [])
    entries = entries if isinstance(entries, list) else [entries]
    # Hydra puts a file after its parents unless it says where it stands.
    for entry in entries if "_self_" in entries else [*entries, "_self_"]:
        if entry == "_self_":
            yield own
            continue
        for name, package in _parents(entry):
            beside = name.startswith(".") or name.endswith(_YAML)
            file = name if name.endswith(_YAML) else f"{name}.yaml"
            places = [folder / file for folder in ((path.parent,) if beside else roots)]
            place = next(filter(Path.is_file, places), None)
            if place is None:
                source.missing.append(name)
                continue
            for part in _parts(place, roots, source, (*above, path)):
                for key in reversed(package):
                    part = {key: part}
                yield part


def _parents(entry: Any) -> Iterator[tuple[str, list[str]]]:
    """The files that an entry of ``defaults`` names, and the sections that they fill."""
    if isinstance(entry, str):
        yield entry.partition("@")[0], []
    elif isinstance(entry, Mapping):
        for key, choices in entry.items():
            words = str(key).split()
            group, _, package = words[-1].partition("@")
            if words[0] == "override" or group.startswith("hydra/"):
                continue
            for choice in choices if isinstance(choices, list) else [choices]:
                if choice is not None:
                    section = (package or group.strip("/").replace("/", ".")).split(".")
                    section = [] if package in ("_global_", "_here_") else section
                    yield f"{group.lstrip('/')}/{choice}", section


# ------------------------------------------------------------------------------------------- Python


def _of_python(path: Path) -> Source:
    return _of_code(read_text(path, MOST_CODE), path)


def _of_notebook(path: Path) -> Source:
    cells = json_value(read_text(path), path)
    try:
        texts = ["".join(cell["source"]) for cell in cells["cells"] if cell["cell_type"] == "code"]
    except (KeyError, TypeError):
        raise InputError(f"{path}: not a notebook") from None
    lines = "\n".join(texts).splitlines()
    code = "\n".join("" if line.lstrip()[:1] in "%!" else line for line in lines)
    return replace(_of_code(code, path), text="\n".join(lines))


def _of_code(text: str, path: Path) -> Source:
    """The keyword arguments of the one call of a config class that the catalogue knows."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"{path}: not Python: {error}") from None
    classes = {name for each in catalogue().frameworks.values() for name in each.classes}
    calls, imports, assigned = list[ast.Call](), list[str](), dict[str, list[ast.expr]]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) in classes:
            calls.append(node)
        elif isinstance(node, ast.Import):
            imports += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imports.append(node.module or "")
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr | ast.For):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            value = None if isinstance(node, ast.For | ast.AugAssign) else node.value
            for target in targets:
                if isinstance(target, ast.Name):
                    assigned.setdefault(target.id, []).append(value or ast.Name("unknown"))
    if len(calls) != 1:
        lines = ", ".join(str(call.lineno) for call in calls)
        raise InputError(
            f"{path}: it calls {' or '.join(sorted(classes))} "
            + (f"{len(calls)} times, in lines {lines}: write the options" if calls else "nowhere")
        )
    (call,) = calls
    source = Source(str(path), runs="\n".join([*imports, str(_called(call))]), text=text)
    for keyword in call.keywords:
        value = keyword.value
        if isinstance(value, ast.Name) and len(assigned.get(value.id, ())) == 1:
            (value,) = assigned[value.id]
        try:
            literal = ast.literal_eval(value)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            source.unread.append(keyword.arg or f"**{ast.unparse(value)}")
        else:
            source.named += _of_sections(path, {str(keyword.arg): literal})
    return source


def _called(call: ast.Call) -> str | None:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)


_YAML = (".yaml", ".yml")
_CONFIGS = (*_YAML, ".toml", ".json")

_READERS: dict[str, Callable[[Path], Source]] = {
    **dict.fromkeys(_YAML, _of_yaml),
    ".json": _of_data(read_json),
    ".toml": _of_toml,
    ".sh": _of_script,
    ".py": _of_python,
    ".ipynb": _of_notebook,
    **dict.fromkeys((".bin", ".pt", ".pkl"), _of_data(read_pickle)),
}

MOST_CODE = 2**22
"""Size of the largest script, program or table that is read, in bytes."""

FILES = ("config", "override_config_file")
"""Options of commands that name a file of options."""

_ABOVE = 5
"""Folders above a file in which those that it names are looked for."""

_CLAUSE = re.compile(r"(==|>=|<=|~=|!=|<|>)\s*(v?\d[\w.*+]*)")
_METADATA = re.compile(r"(?m)^# /// script$\s(?:^#(?: .*)?$\s)+^# ///$")
"""A script's own dependencies, in comments (PEP 723)."""

_COMMENT = re.compile("`#[^`]*`")
"""A comment that stands within a command."""

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_OPTION = re.compile(r"-|[\w.+~]*=")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)
_REFERENCE = re.compile(r"\$\{[\w.\[\]]+\}")
_SOURCE = re.compile(r"\$\{?BASH_SOURCE(\[0\])?\}?")
_RUNS = re.compile(r"(^|\s)(source|\.|bash|sh)\s")
_SCRIPTS = (".sh", ".env", ".bash")
"""Endings of the scripts that others run."""
_EDIT = re.compile(r"s(?P<by>[#/|,])(?P<old>[\w/.()|$^-]*)(?P=by)(?P<new>[\w/.-]*)(?P=by)")
"""A replacement by sed that repeats nothing, so that it ends at once."""
_RUN = re.compile(r"\$\(((?:[^()']|'[^']*')*)\)")
_SUM = re.compile(r"\$\(\(([^()]*)\)\)")
_VARIABLE = re.compile(
    r"\$(?:(?P<plain>\w+)|\{(?P<name>\w+)(?:(?P<how>:?[-=])(?P<default>[^}]*))?\})"
)
