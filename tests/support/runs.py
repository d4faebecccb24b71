"""Records of a run for tests of what reads them."""

from simulations.evidence.results import Provenance, Results

NO_CLAIMS = Results(
    (),
    (),
    {},
    Provenance("", "", "", "smoke", "cpu", "cpu", 0, 1, 1e-3, {}, {}, ()),
)
"""A run of nothing."""
