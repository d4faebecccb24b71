"""The ten programs of ``how_to/programs``: each runs alone, in ten lines at most."""

import re

import pytest

from tests.support.commands import ROOT

PAGE = (ROOT / "theory" / "how_to" / "programs.md").read_text("utf-8")
CELLS = r"^## (.*?)\n.*?^```\{code-cell\} ipython3\n(.*?)^```"
PROGRAMS = dict(re.findall(CELLS, PAGE, re.MULTILINE | re.DOTALL))


def test_there_are_ten_of_ten_lines():
    assert len(PROGRAMS) == PAGE.count("{code-cell}") == 10
    lines = {
        title: len([*filter(str.strip, code.splitlines())]) for title, code in PROGRAMS.items()
    }
    assert max(lines.values()) <= 10, lines


@pytest.mark.parametrize("title", PROGRAMS)
def test_a_program_runs_alone(title, capsys):
    for package in ("torch", "matplotlib"):
        if package in PROGRAMS[title]:
            pytest.importorskip(package)
    if "matplotlib" in PROGRAMS[title]:
        import matplotlib

        matplotlib.use("agg")
    # Its last line is an expression, which the page shows.
    exec(compile(PROGRAMS[title], title, "exec"), {"__name__": title})
