"""Importance ratios and clipping: by differentiating what trainers minimise, in every array library."""

import numpy as np
import pytest

from tests.support.arrays import LIBRARIES
from tests.support.refusals import refuses
from ustat_pg.estimators import RATIOS, clipped_weights, importance_weights

LOGS = np.log(np.array([[2.0, 0.5, 1.3], [0.7, 1.25, 9.0], [1.1, 3.0, 0.2]]))
LENGTHS = np.array([3, 2, 1])
MASK = (np.arange(3) < LENGTHS[:, None]).astype(float)
ADVANTAGES = np.array([1.5, -0.5, 0.0])


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("ratio", RATIOS)
def test_weights_by_hand_in_every_library(ratio, library):
    xp = pytest.importorskip(library)
    expected = np.zeros((3, 3))
    for i, length in enumerate(LENGTHS):
        each = np.exp(LOGS[i, :length])
        expected[i, :length] = {
            "none": np.ones(length),
            "token": each,
            "prefix": [each[: t + 1].prod() for t in range(length)],
            "sequence": np.full(length, each.prod()),
            "gspo": np.full(length, each.prod() ** (1 / length)),
        }[ratio]
    result = importance_weights(xp.asarray(LOGS), xp.asarray(MASK), ratio=ratio)
    assert isinstance(result, type(xp.asarray(LOGS)))
    assert np.asarray(result) == pytest.approx(expected, abs=1e-14)
    clipped = clipped_weights(result, xp.asarray(ADVANTAGES), low=0.2, high=0.28)
    far = ((expected > 1.28) & (ADVANTAGES > 0)[:, None]) | (
        (expected < 0.8) & (ADVANTAGES < 0)[:, None]
    )
    assert np.asarray(clipped) == pytest.approx(np.where(far, 0.0, expected), abs=1e-14)


@pytest.mark.parametrize(("ratio", "share"), [("token", 1), ("sequence", 1), ("gspo", LENGTHS)])
def test_they_are_the_gradient_of_the_clipped_surrogate(ratio, share):
    """GSPO's ratio has 1/|y| of each token's logarithm."""
    torch = pytest.importorskip("torch")
    logs, mask = torch.tensor(LOGS, requires_grad=True), torch.tensor(MASK)
    advantages = torch.tensor(ADVANTAGES)[:, None]
    inside = logs * mask
    ratios = {
        "token": inside.exp(),
        "sequence": inside.sum(-1, keepdim=True).exp(),
        "gspo": (inside.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)).exp(),
    }[ratio]
    held = torch.clamp(ratios, 0.8, 1.28)
    (gradient,) = torch.autograd.grad(
        torch.minimum(ratios * advantages, held * advantages).sum(), logs
    )
    weights = clipped_weights(
        importance_weights(torch.tensor(LOGS), mask, ratio=ratio),
        torch.tensor(ADVANTAGES),
        low=0.2,
        high=0.28,
    )
    expected = gradient.numpy() * np.broadcast_to(share, 3)[:, None]
    assert (weights * advantages).numpy() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("ratio", RATIOS)
def test_without_a_mask_all_are_tokens_and_of_none_there_is_no_weight(ratio):
    whole = importance_weights(LOGS, np.ones((3, 3)), ratio=ratio)
    assert np.array_equal(importance_weights(LOGS, ratio=ratio), whole)
    mask = MASK * [[1.0], [0.0], [1.0]]
    weights = importance_weights(LOGS, mask, ratio=ratio)
    assert not weights[1].any()
    assert np.array_equal(weights[[0, 2]], importance_weights(LOGS, MASK, ratio=ratio)[[0, 2]])
    # One ε is both; ratios at an end are kept.
    ends = np.array([[0.75, 1.25, 0.74, 1.26]] * 2)
    clipped = clipped_weights(ends, np.array([1.0, -1.0]), low=0.25)
    assert clipped.tolist() == [[0.75, 1.25, 0.74, 0.0], [0.75, 1.25, 0.0, 1.26]]


def test_what_is_refused():
    refuses("ratio 'geometric' is unknown", importance_weights, LOGS, ratio="geometric")
    refuses(r"mask has shape \(3,\)", importance_weights, LOGS, MASK[0])
    refuses("the last axis must be tokens", importance_weights, np.array(1.0))
    weights = importance_weights(LOGS, MASK)
    refuses("weights have shape", clipped_weights, weights, ADVANTAGES[:2])
    refuses("low is -0.1", clipped_weights, weights, ADVANTAGES, low=-0.1)
