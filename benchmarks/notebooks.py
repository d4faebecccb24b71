"""Notebooks as they are handed out, each run alone: ``python -m benchmarks.notebooks [NAME...]``.

A new environment has the library from this repository and what runs a notebook, and nothing else. Each
notebook is run in an empty folder of its own. Pages whose front matter says ``needs:`` are left out, unless
they are named: they take packages of gigabytes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import nbformat

ROOT = Path(__file__).resolve().parents[1]

RUN = """\
import sys
import nbformat
from nbclient import NotebookClient
NotebookClient(nbformat.read(sys.argv[1], 4), timeout=1200, kernel_name="python3").execute()
"""


def written(names: Sequence[str], folder: Path) -> list[Path]:
    """The notebooks of pages, all that need nothing but the library unless some are named."""
    sys.path.insert(0, str(ROOT / "theory" / "_ext"))
    notebook = import_module("notebooks").notebook
    files = []
    for path in sorted((ROOT / "theory").rglob("*.md")):
        text, page = path.read_text("utf-8"), str(path.relative_to(ROOT / "theory"))[:-3]
        if "{code-cell}" not in text or (page not in names if names else "\nneeds:" in text):
            continue
        files.append(folder / page.replace("/", "-") / "notebook.ipynb")
        files[-1].parent.mkdir()
        nbformat.write(notebook(text, page), files[-1])
    return files


def installed(folder: Path) -> Path:
    """The Python of a new environment with the library and what runs a notebook."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "-qqq", "--constraint", "constraints.txt"]
    packages = [".[figures,proof]", "nbclient", "ipykernel"]
    subprocess.run([*pip, *packages], cwd=ROOT, check=True)
    return python


def ran(python: Path, file: Path) -> bool:
    """Whether a notebook ran, with a line of it."""
    hidden = {"PYTHONPATH", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR"}
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    command = [str(python), "-W", "ignore", "-c", RUN, str(file)]
    start = monotonic()
    done = subprocess.run(
        command, cwd=file.parent, env=environment, capture_output=True, text=True, check=False
    )
    last = done.stderr.strip().splitlines()[-1:] if done.returncode else ["ran"]
    print(f"{monotonic() - start:6.1f} s  {file.parent.name}: {' '.join(last)}", flush=True)
    return done.returncode == 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.notebooks")
    words = "pages, such as mse or how_to/step (default: all that need nothing but the library)"
    parser.add_argument("pages", nargs="*", metavar="NAME", help=words)
    asked = parser.parse_args(arguments).pages
    with TemporaryDirectory() as place:
        files = written(asked, Path(place))
        python = installed(Path(place) / "environment")
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            right = list(pool.map(partial(ran, python), files))
    print(f"{sum(right)} of {len(right)} notebooks ran with nothing but the library")
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
