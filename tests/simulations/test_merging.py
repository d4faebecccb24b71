"""What an earlier run of a folder adds to a table: claims of the same code and libraries alone."""

from __future__ import annotations

import pytest
from attrs import evolve

from simulations.__main__ import main
from simulations.evidence.results import load_curves, load_run

WORDS = ["verify", "survivors", "--size", "smoke", "--engine", "exact", "--workers", "1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("merged")
    assert main([*WORDS, "--out", str(folder)]) == 0
    return folder


def test_claims_of_other_versions_are_left_out_and_named(folder, capsys):
    """As if the earlier claim had been another, by this code, and by others."""
    alone = load_run(folder)
    (claim,) = alone.claims
    assert {"numpy", "ustat_pg"} <= alone.run.versions.keys()
    earlier = evolve(
        alone, claims=(evolve(claim, stem="mse"),), draws={"mse": alone.draws["survivors"]}
    )

    def merged(versions):
        written = evolve(earlier, run=evolve(earlier.run, versions=versions))
        (folder / "verdicts.json").write_text(written.json(), encoding="utf-8")
        capsys.readouterr()
        assert main([*WORDS, "--out", str(folder)]) == 0
        return load_run(folder), capsys.readouterr().out

    result, said = merged(alone.run.versions)
    assert [claim.stem for claim in result.claims] == ["mse", "survivors"]
    assert result.draws.keys() == {"mse", "survivors"}
    assert "mse survivors" in result.run.command
    assert "left out" not in said
    assert len(load_curves(folder)) > 0
    result, said = merged(alone.run.versions | {"numpy": "0.0.0"})
    assert [claim.stem for claim in result.claims] == ["survivors"]
    assert result.draws.keys() == {"survivors"}
    assert result.run.versions == alone.run.versions
    assert "earlier rows of this folder are of other code or libraries, and are left out: mse" in (
        said
    )
