"""Advantages over turns under :func:`assert_unbiased`: what passes, what fails and what is said of it."""

import numpy as np
import pytest

from tests.support.advantages import failure
from tests.support.refusals import refusals
from ustat_pg.estimators import TURN_SCHEMES, turns
from ustat_pg.problems import load_episodes
from ustat_pg.testing import assert_unbiased

UNBIASED = ("episode", "to-go", "pooled")


def of(scheme, **options):
    def advantages(rewards, reached):
        return turns(rewards, reached, scheme, **options)

    return advantages


@pytest.mark.parametrize("scheme", UNBIASED)
def test_baselines_of_other_episodes_pass(scheme):
    assert_unbiased(of(scheme), turns=True)


def test_a_rescaled_rate_is_allowed_where_it_is_asked_for():
    assert_unbiased(of("episode-mean"), turns=True, up_to_scale=True)


DRAW, SCALED = np.random.default_rng(0), {"up_to_scale": True}


@pytest.mark.parametrize(
    ("function", "options", "said"),
    [
        *(
            (of(s), {}, f"of the scheme '{s}': it climbs ")
            for s in TURN_SCHEMES
            if s not in UNBIASED
        ),
        (of("to-go", lone="zero"), {}, "'to-go' with lone turns dropped"),
        (of("to-go", ddof=0), {}, "must not depend on the output's own episode"),
        (of("to-go-mean"), SCALED, "biased over turns"),
        (lambda z, m: -of("episode")(z, m), SCALED, "biased over turns"),
        (lambda z, m: DRAW.normal(size=z.shape), {}, "is random or remembers earlier calls"),
        (lambda z, m: z[..., 0], {}, "returned shape"),
    ],
)
def test_what_is_biased_or_no_advantage_is_named(function, options, said):
    assert said in failure(assert_unbiased, function, turns=True, **options)


def test_states_are_given_where_they_are_asked_for():
    def by_state(rewards, reached, states):
        return turns(rewards, reached, "to-go", states=states)

    def own_visits(rewards, reached, states):
        """Less the mean over all other visits of the state, the own episode's too."""
        n, size, length = rewards.shape
        to_go = np.cumsum(rewards[..., ::-1], axis=-1)[..., ::-1].reshape(n, -1)
        flat = states.reshape(n, -1)
        same = (flat[:, :, None] == flat[:, None]) & ~np.eye(size * length, dtype=bool)
        count = np.maximum(same.sum(axis=2), 1)
        return (to_go - (same * to_go[:, None]).sum(axis=2) / count).reshape(rewards.shape)

    inputs = ("rewards", "reached", "states")
    assert_unbiased(by_state, turns=True, inputs=inputs)
    with pytest.raises(AssertionError, match="on problem 'walk'"):
        assert_unbiased(own_visits, turns=load_walk(), inputs=inputs)


def load_walk():
    return {"walk": load_episodes("ustat:walk")}


def torch_returns_to_go(rewards, reached):
    """What tensors alone can do."""
    to_go = rewards.flip(-1).cumsum(-1).flip(-1)
    others = reached.sum(dim=-2, keepdim=True) - reached
    mean = (to_go.sum(dim=-2, keepdim=True) - to_go) / others.clamp(min=1)
    return (to_go - mean) * reached


def test_torch_functions_are_recognised():
    torch = pytest.importorskip("torch")
    assert_unbiased(torch_returns_to_go, turns=True)
    assert_unbiased(torch_returns_to_go, turns=True, array=torch.tensor)


def test_single_precision_is_allowed_where_it_is_asked_for():
    torch = pytest.importorskip("torch")
    options = {"turns": load_walk(), "array": lambda z: torch.tensor(z, dtype=torch.float32)}
    with pytest.raises(AssertionError, match="rtol=1e-05 allows for that"):
        assert_unbiased(torch_returns_to_go, **options)
    assert_unbiased(torch_returns_to_go, **options, rtol=1e-5)


def test_a_biased_torch_function_is_named_with_what_it_climbs():
    torch = pytest.importorskip("torch")

    def mean_of_all(rewards, reached):
        to_go = torch.flip(torch.cumsum(torch.flip(rewards, [-1]), -1), [-1])
        count = torch.clamp(reached.sum(dim=-2, keepdim=True), min=1)
        return (to_go - to_go.sum(dim=-2, keepdim=True) / count) * reached

    with pytest.raises(AssertionError, match="that of the scheme 'to-go-mean'"):
        assert_unbiased(mean_of_all, turns=True)


def test_another_array_library_is_one_that_is_named():
    strict = pytest.importorskip("array_api_strict")
    assert_unbiased(of("to-go"), turns=True, array=strict.asarray)


def test_one_group_at_a_time_is_a_layout():
    def of_group(rewards, reached):
        assert rewards.ndim == 2
        return turns(rewards, reached, "episode")

    with pytest.raises(AssertionError) as caught:
        assert_unbiased(of_group, turns=True)
    assert "does it take one group at a time? layout='group'" in caught.value.__notes__[0]
    assert_unbiased(of_group, turns=True, layout="group")


def test_what_the_function_raises_is_raised_with_how_it_was_called():
    def raising(rewards, reached):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        assert_unbiased(raising, turns=True)
    assert (
        "raised by raising, called with ndarray (10, 2, 2), ndarray (10, 2, 2)"
        in (caught.value.__notes__[0])
    )


test_bad_input_is_refused = refusals(
    ({"turns": 3}, "turns is 3: it must be True, or problems with turns"),
    ({"turns": []}, "turns has no problem"),
    ({"turns": ["tool"]}, "it must be an EpisodeProblem"),
    ({"inputs": ("rewards", "states")}, "it must hold 'rewards' and 'reached'"),
    ({"plan": "3+2 if mixed"}, "leave out problems, plan, batch_size and"),
    ({"layout": "minibatch"}, "leave out problems, plan, batch_size and"),
    ({"group_size": 1}, "group size"),
    of=lambda change: assert_unbiased(of("to-go"), **{"turns": True} | change),
)
