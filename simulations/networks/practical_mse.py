"""Theorem 12 on networks: a prefix softmax, or a transformer whose parameters all tokens share."""

from __future__ import annotations

from collections.abc import Iterator

from ustat_pg.experiment import Claim, Point

from ..practical_mse import claim_on, points
from ..problems import Suite
from ..problems.batches import batches, one_token_prompts


def claim(suite: Suite) -> Claim:
    """The claim on networks of that kind; graded rewards need no tokens."""
    several = batches(suite.on, suite.generated, suite.seed)
    return claim_on(suite, several, one_token_prompts(suite.on, suite.generated, suite.seed))


def curves(suite: Suite) -> Iterator[Point]:
    """Squared bias and variance against the distance."""
    yield from points(suite.on)
