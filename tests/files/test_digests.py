"""Digests of arrays address draws: their bytes must never change. Digests of sources follow imports."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from ustat_pg.files.digests import digest, imported, source_digest, sources_of


def test_the_bytes_are_text_then_names_shapes_and_entries():
    arrays = {"theta": [1.0, 2.0], "rewards": np.ones((1, 2))}
    written = b"words" + b"theta(2,)" + np.array([1.0, 2.0], "<f8").tobytes()
    written += b"rewards(1, 2)" + np.ones(2, "<f8").tobytes()
    assert digest("words", arrays) == hashlib.sha256(written).hexdigest()[:16]


def test_an_array_without_a_name_is_its_entries():
    array = np.arange(6.0).reshape(2, 3)
    assert digest(array) == hashlib.sha256(array.tobytes()).hexdigest()[:16]


@pytest.mark.parametrize("array", [np.arange(6).reshape(2, 3), np.arange(6.0).reshape(3, 2).T.T])
def test_types_and_strides_do_not_matter(array):
    assert digest({"a": array}) == digest({"a": np.ascontiguousarray(array, dtype=float)})


def test_shapes_names_and_order_do():
    ones = np.ones(2)
    kinds = [
        {"a": ones, "b": ones},
        {"b": ones, "a": ones},
        {"a": ones},
        {"a": ones[None]},
        {"a": 2 * ones},
    ]
    assert len({digest(kind) for kind in kinds}) == len(kinds)


@pytest.fixture
def package(tmp_path):
    """Modules of a package, each a line; entry and spare import nothing."""
    imported.cache_clear()
    files = {
        "house/__init__.py": "from .spare import x",
        "house/entry.py": "import numpy",
        "house/spare.py": "",
        "house/room/__init__.py": "from .door import x",
        "house/room/door.py": "from ..spare import x",
        "house/room/bed.py": "from .. import spare",
        "house/attic/__init__.py": "",
        "house/attic/__init__.pyi": "from .box import x as x",
        "house/attic/box.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    return tmp_path / "house"


@pytest.mark.parametrize(
    ("line", "added"),
    [
        ("from .spare import x", {"spare.py"}),
        ("from . import spare as other, missing", {"__init__.py", "spare.py"}),
        ("from house.spare import (\n    x,\n    y,\n)", {"spare.py"}),
        ("def f():\n    from .spare import x", {"spare.py"}),
        ("from .room import x", {"room/__init__.py", "room/door.py", "spare.py"}),
        ("from .room import bed", {"room/bed.py", "spare.py"}),
        ("from .attic import x", {"attic/__init__.py", "attic/__init__.pyi", "attic/box.py"}),
        ('import_module(".spare", __package__)', {"spare.py"}),
        (
            'import_module(f".room.{name}", __package__)',
            {"room/__init__.py", "room/door.py", "room/bed.py", "spare.py"},
        ),
        ("import house.spare", {"spare.py"}),
        ("if TYPE_CHECKING:\n    from .spare import x\n", set()),
        ('"""\nfrom .spare import x\n"""', set()),
        ("from math import pi", set()),
    ],
)
def test_an_import_adds_its_file_and_what_that_imports(package, line, added):
    entry = package / "entry.py"
    assert sources_of(entry) == (entry,)
    before = source_digest(entry)
    entry.write_text(line)
    imported.cache_clear()
    names = {file.relative_to(package).as_posix() for file in sources_of(entry)}
    assert names == {"entry.py"} | added
    assert source_digest(entry) != before


def test_a_change_of_what_is_imported_is_another_digest(package):
    assert len(sources_of(package / "room/bed.py")) == 2
    before = source_digest(package / "room/bed.py")
    (package / "spare.py").write_text("x = 2")
    assert source_digest(package / "room/bed.py") != before
