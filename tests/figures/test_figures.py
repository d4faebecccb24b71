"""Figures: drawn from stored results alone, equal byte for byte, and honest where data are missing."""

import contextlib
import io
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from simulations import ON_LANGUAGE_MODELS, STEMS

pytest.importorskip("seaborn")

from figures import data
from figures.__main__ import main, paint
from figures.catalogue import PICTURES
from figures.style import LOOKS
from simulations.evidence.figure import Line
from simulations.evidence.results import load_run
from tests.support.commands import refusal_of
from tests.support.runs import NO_CLAIMS

ROOT = Path(__file__).resolve().parents[2]
NAMES = list(PICTURES)
DAMAGED = "figure,series,prediction,exact,estimate,low,high\nmse,grpo,1,1,1,1,1\n"
LANGUAGE_MODELS = [name for name in NAMES if name.startswith(ON_LANGUAGE_MODELS)]


@pytest.fixture(scope="module")
def run(tmp_path_factory, whole_run, language_model_points, sweep_tables):
    """A run's folder: every curve, the verdicts of one small claim.

    A real run has one kind of problem; points of language models and the tables of a training sweep
    are added to those of bandits.
    """
    folder = tmp_path_factory.mktemp("run")
    document = json.loads((whole_run / "verdicts.json").read_text("utf-8"))
    document["claims"] = [each for each in document["claims"] if each["stem"] == "minibatch"]
    (folder / "verdicts.json").write_text(json.dumps(document))
    frame = pd.read_csv(whole_run / "curves.csv")
    pd.concat([frame, language_model_points]).to_csv(folder / "curves.csv", index=False)
    (folder / "sweep").mkdir()
    for name, table in sweep_tables.items():
        table.to_csv(folder / "sweep" / f"{name}.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def drawn(run, tmp_path_factory):
    """The folder of all figures of the run, and what the command printed."""
    folder = tmp_path_factory.mktemp("drawn")
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main([str(run), "--out", str(folder)]) == 0
    return folder, out.getvalue()


def test_every_figure_is_drawn_with_its_title_and_what_is_seen(drawn):
    folder, out = drawn
    stems = [*STEMS, *ON_LANGUAGE_MODELS]
    owners = [
        max((s for s in stems if name == s or name.startswith(f"{s}_")), key=len)
        for name in NAMES[1:]
    ]
    assert list(dict.fromkeys(owners)) == stems
    assert NAMES[-len(LANGUAGE_MODELS) :] == LANGUAGE_MODELS
    assert "No data" not in out
    for name in NAMES:
        assert f"{name}.svg" in out
        text = (folder / f"{name}.svg").read_text()
        root = ET.fromstring(text)
        space = {"svg": "http://www.w3.org/2000/svg"}
        assert root.find("svg:title", space).text == PICTURES[name].title
        assert root.find("svg:desc", space).text.startswith(PICTURES[name].alt)
        assert len(text) < 300_000
        # Letters are paths; nothing is loaded, and no date or version would change the bytes.
        assert root.find(".//svg:text", space) is None
        assert not re.findall(r"(?:href|src)=\"(?!#)", text)
        assert "dc:date" not in text
        assert "Matplotlib" not in text
        width = float(re.match(r"([\d.]+)pt", root.get("width"))[1]) / 72
        assert width in (pytest.approx(3.4), pytest.approx(7.0))
        assert (folder / f"{name}.png").stat().st_size > 10_000


def test_every_declared_name_is_one_of_the_points(run):
    """A series, panel or coordinate that no point has would be left out without a word."""
    frame = data.curves(run)
    for figure in PICTURES.values():
        points = frame[frame["figure"] == figure.source]
        for panel in figure.panels if figure.draw is None else ():
            own = points if panel.of is None else points[points[figure.by] == panel.of]
            assert own[(panel.x or figure.x).column].notna().any(), (figure.name, panel.title)
            for line in panel.lines or figure.lines:
                line = line if isinstance(line, Line) else Line(line)
                # A figure's lines may be those of some of its panels.
                rows = own if panel.lines else points
                assert line.series in {"", *rows["series"]}, (figure.name, line)
                assert line.look in {"", *LOOKS}, (figure.name, line)
                for column, value in line.at.items():
                    assert value in set(rows[column]), (figure.name, line)
            assert {curve.look for curve in panel.curves} <= LOOKS.keys()


def test_another_process_draws_equal_bytes_and_a_claim_loads_no_matplotlib(run, drawn, tmp_path):
    names = "mse", "limit_law"
    code = (
        "import sys; import figures.catalogue;"
        "print([m for m in sys.modules if m.split('.')[0] in ('matplotlib', 'seaborn', 'torch')]);"
        "from figures.__main__ import main;"
        f"main([{str(run)!r}, *{names}, '--out', {str(tmp_path)!r}])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True,
        env={"PATH": "", "HOME": str(tmp_path), "PYTHONHASHSEED": "1"},
    )  # fmt: skip
    assert done.stdout.splitlines()[0] == "[]"
    for name in names:
        for file in (f"{name}.svg", f"{name}.png"):
            assert (drawn[0] / file).read_bytes() == (tmp_path / file).read_bytes(), file


DRAWN_APART = [name for name, picture in PICTURES.items() if picture.draw is not None]


def test_other_data_give_another_drawing(run, drawn, tmp_path):
    """One that is made of its declarations, as most are, and all that have a program of their own."""
    frame, factor = data.curves(run), 1.1
    document = json.loads((run / "verdicts.json").read_text())
    # Where nothing is measured, the prediction is what a run has found.
    predicted = frame["prediction"].where(frame["estimate"].notna(), frame["prediction"] * factor)
    other = frame.assign(estimate=frame["estimate"] * factor, prediction=predicted)
    other.to_csv(tmp_path / "curves.csv", index=False)
    for check in document["claims"][0]["checks"]:
        check["simulation"]["estimate"] *= factor
    (tmp_path / "verdicts.json").write_text(json.dumps(document))
    (tmp_path / "sweep").mkdir()
    for path in (run / "sweep").iterdir():
        table = pd.read_csv(path)
        table = table.assign(accuracy=table["accuracy"] * factor)
        table.to_csv(tmp_path / "sweep" / path.name, index=False)
    names = ["mse", *DRAWN_APART]
    paint(load_run(tmp_path), tmp_path, tmp_path, names, formats=("svg",))
    for name in names:
        file = f"{name}.svg"
        assert (drawn[0] / file).read_bytes() != (tmp_path / file).read_bytes(), name


def test_a_run_of_one_claim_draws_its_own_and_says_what_is_missing(run, tmp_path, capsys):
    frame = data.curves(run)
    # An enumeration alone has no estimates, and pandas then reads their columns as empty.
    own = frame[frame["figure"].isin(["ratio", "frontier", "map"])].assign(
        estimate=np.nan, low=np.nan, high=np.nan, standard_error=np.nan
    )
    own.dropna(axis="columns", how="all").assign(estimate=np.nan, low=np.nan, high=np.nan).to_csv(
        tmp_path / "curves.csv", index=False
    )
    document = json.loads((run / "verdicts.json").read_text())
    for check in document["claims"][0]["checks"]:
        check["simulation"] = None
    (tmp_path / "verdicts.json").write_text(json.dumps(document))
    assert main([str(tmp_path)]) == 0
    out = capsys.readouterr().out
    there = {"oracle", "optimality_frontier", "optimality_map"}
    missing = ", ".join(name for name in NAMES if name not in there)
    assert f"No data in this run for: {missing}\n" in out
    drawn = {file.stem for file in (tmp_path / "figures").iterdir()}
    assert drawn == there
    assert main([str(tmp_path), "mse"]) == 0
    assert capsys.readouterr().out == "No data in this run for: mse\n"


def test_a_figure_has_the_format_and_the_style_that_are_asked(run, tmp_path, capsys):
    style = tmp_path / "my.mplstyle"
    style.write_text("axes.facecolor: ffeedd\nfigure.figsize: 3.3, 2.2\nlines.linewidth: 1.9\n")
    words = [str(run), "mse", "suboptimality", "--out", str(tmp_path), "--style", str(style)]
    assert main([*words, "--format", "pdf", "--format", "svg"]) == 0
    drawn = [tmp_path / f"{name}.{end}" for name in words[1:3] for end in ("pdf", "svg")]
    assert capsys.readouterr().out == "".join(f"Figure: {file}\n" for file in drawn)
    assert not list(tmp_path.glob("*.png"))
    for pdf, svg in zip(drawn[::2], drawn[1::2], strict=True):
        assert pdf.read_bytes().startswith(b"%PDF")
        text = svg.read_text()
        assert "#ffeedd" in text
        # In points, of which an inch has 72.
        assert 'width="237.6pt" height="158.4pt"' in text
        assert "stroke-width: 1.9" in text
        assert "stroke-width: 1.52" in text
    assert main([str(run), "mse", "--out", str(tmp_path), "--style", "no.mplstyle"]) == 2
    assert "no style of Matplotlib" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("write", "message"),
    [
        ({}, "no finished run"),
        ({"verdicts.json": NO_CLAIMS.json(), "curves.csv": "a,b\n1,2\n"}, "not the curves of a run"),
        ({"verdicts.json": NO_CLAIMS.json(), "curves.csv": DAMAGED}, "not the results that figure mse"),
        ({"verdicts.json": '{"claims": [{}]}'}, "not the results of a run"),
    ],
)  # fmt: skip
def test_what_is_no_run_is_one_line_and_exit_2(write, message, tmp_path, capsys):
    for name, text in write.items():
        (tmp_path / name).write_text(text)
    assert message in refusal_of(capsys, main, tmp_path)


def test_an_unknown_figure_is_refused(run, capsys):
    assert "'mes' is unknown, did you mean mse? choose" in refusal_of(capsys, main, run, "mes")
