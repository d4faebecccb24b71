"""The paper calculation of what scoring takes, tiny; a device that is too small is said."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks import llm_plan
from ustat_pg.llm.scores import Scores


def test_a_model_of_all_layers_takes_what_is_said_of_it():
    """Layers and vocabulary add up: the whole model is measured too."""
    (width,) = llm_plan.TINY.values()
    whole = Scores(width.model(), memory=2**40)
    whole._checked = True
    whole.require(llm_plan.PROMPT, 8)
    (each,) = whole.room.found.values()
    name, parameters, _, gigabytes, *_ = llm_plan.row("tiny", width, 8, 10**9, 4)
    assert (name, parameters) == ("tiny", f"{whole.d / 1e9:.2f}")
    assert float(gigabytes) == pytest.approx(each / 1e9, abs=0.005)
    small = 2 * whole.d + each
    with pytest.raises(SystemExit, match="does not fit beside its sums"):
        llm_plan.row("tiny", width, 8, small, 4)


def test_the_command_prints_a_plan(capsys):
    assert llm_plan.main(["--quick"]) == 0
    assert "| tiny" in capsys.readouterr().out


@pytest.mark.parametrize("name", llm_plan.WIDTHS)
def test_the_widths_are_those_of_the_models(name):
    billions = float(name.partition("-")[2].rstrip("B"))
    assert llm_plan.WIDTHS[name].parameters() / 1e9 == pytest.approx(billions, rel=0.09)
