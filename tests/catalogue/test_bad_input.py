"""Files that hold no options: each gets one line, exit code 2, and no time to speak of."""

import gc
import json
import os
import time
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

import pytest

from ustat_pg.cli import main

pytest.importorskip("omegaconf")

ENDINGS = ("py", "ipynb", "yaml", "yml", "json", "toml", "bin", "pt", "pkl")

BYTES = {
    "nothing": b"",
    "a binary": bytes(range(256)) * 64,
    "zeros": bytes(100),
    "another encoding": "num_generations = 4 # \xe9\n".encode("latin-1"),
    "UTF-16": "num_generations = 4\n".encode("utf-16"),
    "10 MB of zeros": bytes(10 * 2**20),
    "10 MB of lines": b"a: 1\n" * (2 * 2**20),
    "10 MB in one line": b"x" * (10 * 2**20),
}

CALL = "GRPOConfig(num_generations=4)\n"

TEXTS = {
    "many configs": (
        "run.py",
        "".join(f"GRPOConfig(num_generations={i})\n" for i in range(2, 3_500)),
    ),
    "a program that makes much": ("run.py", "x = [1, 2]\nif x:\n    y = {'a': 1}\n" * 3_000),
    "a long sum": ("run.py", "x = 1" + "+1" * 50_000),
    "a long path": ("run.py", "x = a" + ".a" * 50_000),
    "deep loops": (
        "run.py",
        "".join(" " * i + "for x in y:\n" for i in range(99)) + " " * 99 + "n = 4",
    ),
    "deep tries": (
        "run.py",
        "".join(" " * i + "try:\n" for i in range(20))
        + " " * 20
        + "n = 4\n"
        + "".join(" " * i + "except E: n = 5\n" for i in range(19, -1, -1)),
    ),
    "calls of calls": (
        "run.py",
        "\n".join(f"def f{i}():\n  f{i + 1}()\n  f{i + 1}()\n  f{i + 1}()" for i in range(30))
        + "\nf0()\n",
    ),
    "many options of JSON": ("run.json", json.dumps({str(i): i for i in range(700_000)})),
    "deep JSON": ("run.json", "[" * 100_000),
    "deep objects": ("run.json", '{"a":' * 5_000 + "1" + "}" * 5_000),
    "deep YAML": ("run.yaml", "[" * 20_000),
    "deep sections": ("run.yaml", "\n".join(" " * i + "a:" for i in range(300))),
    "a bomb of aliases": (
        "run.yaml",
        "a: &a [x,x,x,x,x,x,x,x,x]\n"
        + "\n".join(
            f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]" for i in range(9)
        ),
    ),
    "an alias of itself": ("run.yaml", "a: &a [*a]\n"),
    "deep TOML": ("run.toml", "a = " + "[" * 20_000),
    "deep tables": ("run.toml", "a = " + "{b=" * 2_000 + "1" + "}" * 2_000),
    "a name of many parts": ("run.toml", "[" + ".".join(["a"] * 5_000) + "]\nx = 1\n"),
    "many options of TOML": ("run.toml", "\n".join(f"a{i} = {i}" for i in range(200_000))),
}

CODE = {"cell_type": "code"}
NOTEBOOKS = {
    "none": {},
    "null": {"cells": None},
    "a number": {"cells": 3},
    "numbers": {"cells": [1]},
    "a text": {"cells": "code"},
    "an object": {"cells": {"a": 1}},
    "no list": [],
    "no cell": {"cells": []},
    "only text": {"cells": [{"cell_type": "markdown", "source": "x"}]},
    "no source": {"cells": [CODE]},
    "no type": {"cells": [{"source": "x"}]},
    "a list for a type": {"cells": [{"cell_type": [1], "source": "x"}]},
    "a number for a source": {"cells": [{**CODE, "source": 3}]},
    "numbers for a source": {"cells": [{**CODE, "source": [1]}]},
    "null for a source": {"cells": [{**CODE, "source": None}]},
    "an object for a source": {"cells": [{**CODE, "source": {"a": 1}}]},
    "a zero": {"cells": [{**CODE, "source": "x = 1\0"}]},
    "half a character": {"cells": [{**CODE, "source": "x = '\ud800'"}]},
    "10 MB of code": {"cells": [{**CODE, "source": "x=1\n" * (5 * 2**19)}]},
}

PLACES = ("a folder", "a pipe", "a device", "a loop of links", "nothing")


@pytest.fixture(autouse=True)
def _own_garbage():
    """What other tests have left is not searched for garbage in these tests' time."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module", autouse=True)
def _loaded(tmp_path_factory):
    """Modules are loaded before time is taken."""
    for name, text in {
        "run.py": CALL,
        "run.yaml": "a: 1",
        "run.json": "{",
        "run.toml": "=",
    }.items():
        path = tmp_path_factory.mktemp("loaded") / name
        path.write_text(text)
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            main(["explain", str(path)])


def one_line(capsys, path):
    """The message: one line, in less than a second; the same holds where the framework is named."""
    for words in ([str(path)], ["trl", str(path)]):
        began = time.process_time()
        assert main(["explain", *words]) == 2
        assert time.process_time() - began < 1
        out, line = capsys.readouterr()
        assert out == ""
        assert line.startswith("ustat-pg: ")
        assert line.count("\n") == 1
        assert len(line) < 400
    return line


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("content", BYTES.values(), ids=BYTES.keys())
def test_bytes_that_are_no_options(tmp_path, capsys, ending, content):
    path = tmp_path / f"run.{ending}"
    path.write_bytes(content)
    assert path.name in one_line(capsys, path)


@pytest.mark.parametrize(("name", "text"), TEXTS.values(), ids=TEXTS.keys())
def test_texts_that_would_take_long(written, capsys, name, text):
    one_line(capsys, written(name, text))


@pytest.mark.parametrize("cells", NOTEBOOKS.values(), ids=NOTEBOOKS.keys())
def test_notebooks_without_code(written, capsys, cells):
    one_line(capsys, written("run.ipynb", json.dumps(cells)))


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("kind", PLACES)
def test_places_that_are_no_files(tmp_path, capsys, ending, kind):
    path = tmp_path / f"run.{ending}"
    if kind == "a folder":
        path.mkdir()
    elif kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a device":
        path.symlink_to("/dev/zero")
    elif kind == "a loop of links":
        path.symlink_to(path)
    one_line(capsys, path)
