"""Safe reading of others' files: they cannot run code, fill the memory or block."""

from __future__ import annotations

import gzip
import json
import pickle
import pickletools
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO, TextIOWrapper
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..validation import InputError

MOST_BYTES = 2**28
"""The largest size in bytes of a text, and of arrays with a compression above :data:`MOST_PACKED`."""

MOST_PACKED = 100
"""The largest compression ratio of an archive above :data:`MOST_BYTES`."""

MOST_OPTIONS = 2**18
"""The largest size of a file of options in bytes; PyYAML needs ten seconds for a megabyte."""

MOST_NODES = 50_000
"""The most values of a YAML file, with repetitions by aliases counted each time."""

MOST_NESTED = 64
"""The deepest nesting of lists and objects, because parsers use recursion."""

_STEERING = (
    *range(32),
    *range(127, 160),
    0x061C,
    0x200E,
    0x200F,
    *range(0x2028, 0x202F),
    *range(0x2066, 0x206A),
)
_ESCAPES = {code: ascii(chr(code))[1:-1] for code in _STEERING if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    r"""The text with control characters written as escapes, so that it cannot control a terminal.

    >>> printable("\x1b[2J")
    '\\x1b[2J'
    """
    return text.translate(_ESCAPES)


def regular(path: Path, most: float = float("inf")) -> Path:
    """The path, after a check that the file can be opened without blocking.

    Arguments:
        path: the file.
        most: the largest size, in bytes.

    >>> regular(Path("no.json"))
    Traceback (most recent call last):
    ...
    ustat_pg.validation.InputError: no.json: No such file or directory
    """
    try:
        size = path.stat().st_size
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {getattr(error, 'strerror', error)}") from None
    if not path.is_file():
        raise InputError(f"{path}: {'Is a directory' if path.is_dir() else 'it must be a file'}")
    if size > most:
        raise InputError(f"{path}: it has {size} bytes: at most {most} are read")
    return path


def kind(path: Path) -> str:
    """The ending of a file's name that gives its format, without ``.gz``.

    >>> kind(Path("log.jsonl.gz")), kind(Path("log.csv"))
    ('.jsonl', '.csv')
    """
    return Path(path.stem).suffix if path.suffix == ".gz" else path.suffix


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """The text of a UTF-8 file, with or without byte order mark; a ``.gz`` file is unpacked.

    A compressed file may end anywhere, for example while it is written; its available part is read.

    Arguments:
        path: the file.
        most: the largest size, in bytes.
    """
    try:
        if path.suffix != ".gz":
            return regular(path, most).read_text(encoding="utf-8-sig")
        return TextIOWrapper(BytesIO(_unpacked(regular(path), most)), encoding="utf-8-sig").read()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None


def _unpacked(path: Path, most: int) -> bytes:
    most = min(most, max(MOST_BYTES, MOST_PACKED * path.stat().st_size))
    data = bytearray()
    with gzip.open(path) as file:
        try:
            while len(data) <= most and (part := file.read1(2**20)):
                data += part
        except EOFError:
            # The last character may be incomplete.
            return data.decode(errors="ignore").encode()
        except zlib.error as error:
            raise InputError(f"{path}: not packed by gzip: {error}") from None
    if len(data) > most:
        raise InputError(f"{path}: it unpacks to more than {most} bytes")
    return bytes(data)


def json_value(text: str, place: str | Path) -> Any:
    """Value of a JSON text.

    Arguments:
        text: the text.
        place: its place, for messages.

    >>> json_value('{"rewards": [1, 0], "rewards": []}', "a.json")
    Traceback (most recent call last):
    ...
    ustat_pg.validation.InputError: a.json: 'rewards' occurs twice in one object
    """
    with _one_refusal(place, "JSON"):
        _refuse_half(text)
        value = json.loads(text, object_pairs_hook=_once)
        if _may_be_odd(text):
            _refuse_odd(value)
        # A count comes first for speed: long lists are common, deep ones are not.
        if text.count("[") + text.count("{") > MOST_NESTED:
            _refuse_deep(value)
    return value


def read_json(path: Path) -> Any:
    """Value of a JSON file."""
    return json_value(read_text(path), path)


def read_yaml(path: Path) -> Any:
    """The value of a YAML file, with plain types only."""
    import yaml

    class Bounded(yaml.SafeLoader):
        """PyYAML's safe loader with a bound on values, because a few hundred bytes of aliases can give
        billions of values.
        """

        nodes = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            before, repeated = self.nodes, self.check_event(yaml.AliasEvent)
            node = super().compose_node(parent, index)
            # A value that contains itself has no count yet.
            self.nodes += getattr(node, "weight", MOST_NODES + 1) if repeated else 1
            if self.nodes > MOST_NODES:
                raise InputError(f"it stands for more than {MOST_NODES} values")
            if not repeated:
                node.weight = self.nodes - before
            return node

        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            _once((str(key.value), None) for key, _ in node.value)
            return node

    text = read_text(path, MOST_OPTIONS)
    with _one_refusal(path, "YAML"):
        value = yaml.load(text, Bounded)
        _refuse_deep(value)
        # Options are mostly names of files.
        _refuse_odd(value, "\0")
    return value


class _Inert(dict[Any, Any]):
    """An object of a pickle without its class; it has the attributes and runs no code from the file."""

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __new__(cls, *given: Any, **more: Any) -> _Inert:
        inert = super().__new__(cls)
        inert.given, inert.state = given, {}
        return inert

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        self.state = state

    given: tuple[Any, ...]
    state: Any


class _Inertly(pickle.Unpickler):
    """Python's unpickler with no class or function but :class:`_Inert`."""

    def find_class(self, module: str, name: str) -> Any:
        return type(name, (_Inert,), {})

    def persistent_load(self, pid: Any) -> None:
        """There are no arrays: a reference to one gives None."""


def read_pickle(path: Path) -> dict[str, Any]:
    """The plain attributes of the object in a pickle, or in torch's archive of a pickle, without importing or
    running code.

    Only texts, numbers, booleans and None are kept; an Enum is replaced by its value.
    """
    with _one_refusal(path, "a pickle"):
        if zipfile.is_zipfile(regular(path, MOST_OPTIONS)):
            with zipfile.ZipFile(path) as archive:
                (member,) = (m for m in archive.infolist() if m.filename.endswith("/data.pkl"))
                if member.file_size > MOST_OPTIONS:
                    raise InputError(f"it unpacks to {member.file_size} bytes")
                data = archive.read(member)
        else:
            data = path.read_bytes()
        # An unpickler allocates memory up to the place at which a value is stored.
        if any(
            op.name in ("PUT", "LONG_BINPUT") and int(place or 0) > len(data)
            for op, place, _ in pickletools.genops(data)
        ):
            raise InputError("it remembers a value at a place beyond its own length")
        value = _Inertly(BytesIO(data)).load()
        state = value.state if isinstance(value, _Inert) else value
        if not isinstance(state, dict):
            raise InputError("it must hold one object, or options by name")
        plain = {
            name: part.given[0] if isinstance(part, _Inert) and len(part.given) == 1 else part
            for name, part in state.items()
        }
        kinds = str | int | float | None
        options = {str(name): part for name, part in plain.items() if isinstance(part, kinds)}
        # Whole numbers of thousands of digits cannot be printed, and are refused here.
        repr(options)
        return options


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an ``.npz`` file by name, without pickles."""
    most = max(MOST_BYTES, MOST_PACKED * regular(path).stat().st_size)
    with _one_refusal(path, "a readable archive"), zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if (total := sum(member.file_size for member in members)) > most:
            raise InputError(f"it unpacks to {total} bytes: at most {most} are read")
        return _once(
            (member.filename.removesuffix(".npy"), _array(archive, member)) for member in members
        )


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    """One array, if its header declares the right size, because NumPy allocates memory before it reads."""
    form = np.lib.format
    with archive.open(member) as file:
        headers = {(1, 0): form.read_array_header_1_0, (2, 0): form.read_array_header_2_0}
        shape, _, dtype = headers[form.read_magic(file)](file)
        if prod(shape) * dtype.itemsize != member.file_size - file.tell():
            raise InputError(f"{member.filename} does not have the size that it declares")
    with archive.open(member) as file:
        array: NDArray[Any] = form.read_array(file, allow_pickle=False)
        return array


@contextmanager
def _one_refusal(place: str | Path, form: str) -> Iterator[None]:
    """Convert any error of a parser to one InputError that names the place."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
    except RecursionError:
        raise InputError(f"{place}: not {form}: nested too deeply") from None
    except Exception as error:
        # PyYAML raises many kinds of errors, and so do zipfile, zlib and NumPy for damaged archives.
        raise InputError(f"{place}: not {form}: {(str(error) or 'bad').splitlines()[0]}") from None


def _once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """An object, after a check that each key occurs once."""
    pairs = list(pairs)
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise InputError(f"{name!r} occurs twice in one object")
    return mapping


_HALF = 155
"""A number beyond double precision has this many digits in a row."""


def _may_be_odd(text: str) -> bool:
    """Whether JSON may stand for what :func:`_refuse_odd` refuses; it runs on every line, so it is fast."""
    return any(mark in text for mark in (r"\ud", r"\uD")) or any(
        text[start : start + _HALF].isdigit() for start in range(0, len(text), _HALF)
    )


def _refuse_half(text: str) -> None:
    """Raise an error for text that UTF-8 cannot encode, because it has half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{text[error.start]!r} is half a character, so this is not UTF-8"
        ) from None


def _refuse_odd(value: Any, never: str = "") -> None:
    """Raise an error for text that is not Unicode or has forbidden characters, and for too large integers."""
    ahead = [value]
    while ahead:
        part = ahead.pop()
        if isinstance(part, dict):
            ahead += [*part, *part.values()]
        elif isinstance(part, list | tuple | set):
            ahead += part
        elif isinstance(part, str):
            _refuse_half(part)
            if found := set(part) & set(never):
                raise InputError(f"{part!r} holds {min(found)!r}, which no name does")
        elif isinstance(part, int) and abs(part) >= 2**1024:
            raise InputError("it contains a number beyond double precision")


def _refuse_deep(value: Any) -> None:
    level: list[Any] = [[value]]
    for _ in range(MOST_NESTED + 1):
        level = [
            part
            for whole in level
            for part in (whole.values() if isinstance(whole, dict) else whole)
            if isinstance(part, (list, dict))
        ]
        if not level:
            return
    raise InputError(f"nested more than {MOST_NESTED} deep")
