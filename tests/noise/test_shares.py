"""φ from micro-batches whose completions are not told apart, against every outcome and its probability."""

import itertools
import math
from fractions import Fraction as F

import numpy as np
import pytest

from ustat_pg.noise.estimate import Sums, estimate_noise, step_sums
from ustat_pg.noise.shares import shared
from ustat_pg.predictions import paired_constants

RATES = np.array([0.25, 0.6])
ALONG = np.array([[[1.0, 0.5], [2.0, -1.0]], [[0.3, 0.8], [1.5, 1.0]]])
"""What failures and successes of each prompt have for scores, up to a factor that makes their mean 0."""
WON, LOST = (1 - RATES)[:, None] * ALONG[:, 1], -RATES[:, None] * ALONG[:, 1]
TOLD = {
    "single": (3, [[i] for i in range(6)]),
    "two thirds": (3, [[0, 1, 8], [2, 3, 4], [5, 6, 7]]),
    "dealt beside another": (3, [[0, 3], [1, 4], [2, 5], [6, 7], [8]]),
    "anyhow": (4, [[0, 1, 4], [2, 5, 6], [3], [7]]),
}
UNTOLD = {
    "whole": (3, [[0, 1, 2], [3, 4, 5]]),
    "halves": (4, [[0, 1, 4, 5], [2, 3, 6, 7]]),
    "dealt alone": (4, [[0, 4], [1, 5], [2, 6], [3, 7]]),
}


def every_step(size, parts, noise=0.7):
    """Sums of every step of groups of two prompts, drawn one by one, with probabilities; α, β, γ and φ.

    A score has a part of its own, of mean 0, beside that of its reward.
    """
    sums, weights, alpha, beta, gamma = [], [], 0.0, 0.0, 0.0
    groups = sum(map(len, parts)) // size
    places = np.repeat(np.arange(groups), size)
    for prompts in itertools.product(range(2), repeat=groups):
        of = np.array(prompts)[places]
        for z in itertools.product((0, 1), repeat=len(of)):
            z = np.array(z)
            p = RATES[of]
            weight = np.prod(np.where(z == 1, p, 1 - p)) / 2**groups
            mean = np.bincount(places, z)[places] / size
            a = (z - mean) * size / (size - 1)
            v = a[:, None] * np.where(z[:, None] == 1, WON[of], LOST[of])
            # A part of its own has no product with another's: it is on the diagonal alone.
            own = np.square(a * noise * (1 + of + 2 * z))
            products = v @ v.T + np.diag(own)
            member = np.array([np.isin(np.arange(len(of)), part) for part in parts], dtype=float)
            sums.append(
                step_sums(
                    member @ products @ member.T,
                    [places[part] for part in parts],
                    [a[part] for part in parts],
                    leave_one_out=True,
                )
            )
            weights.append(weight)
            alpha += weight * products[0, 0]
            beta += weight * products[0, 1]
            gamma += weight * products[0, -1]
    norms = [
        np.square(s).sum(axis=1) + np.square(noise * (1 + np.arange(2) + 2 * z))
        for z, s in enumerate((LOST, WON))
    ]
    trace = (1 - RATES) * norms[0] + RATES * norms[1]
    phi = float((RATES * (1 - RATES) * trace).mean())
    return np.average(sums, axis=0, weights=weights), alpha, beta, gamma, phi


@pytest.mark.parametrize("layout", TOLD)
def test_constants_are_those_of_enumeration(layout):
    """φ/τ is not 1, and products of completions, within groups and between, have a part in what is fitted."""
    size, parts = TOLD[layout]
    sums, alpha, beta, gamma, phi = every_step(size, parts)
    own = Sums.of(sums)
    assert shared(own.phi, np.float64(alpha), own.completions) == pytest.approx(phi, rel=1e-9)
    tau = alpha - phi / (size - 1)
    assert phi / tau != pytest.approx(1, abs=0.02)
    if layout == "two thirds":
        # Any two of three micro-batches share as much: β and γ are one number.
        return
    estimate = estimate_noise(np.stack([sums, sums]), leave_one_out=True, phi_over_tau=None)
    wanted = paired_constants(alpha, beta, gamma, size, phi / tau)
    got = [getattr(estimate, name).value for name in ("c1", "c2", "c3")]
    np.testing.assert_allclose(got, wanted, rtol=1e-9)
    assert estimate.phi_over_tau == pytest.approx(phi / tau, rel=1e-9)
    if layout != "single":
        bare = own.phi.copy()
        for first in (0, 15):
            # The gram matrix without κ and λ.
            bare[first + 1 : first + 9] = 0.0
        assert shared(bare, np.float64(alpha), own.completions) != pytest.approx(phi, rel=1e-3)


@pytest.mark.parametrize("layout", UNTOLD)
def test_what_no_pair_tells_is_not_known(layout):
    size, parts = UNTOLD[layout]
    rng, places = np.random.default_rng(2), np.arange(2 * size) // size
    rows, given = rng.normal(size=(2, 20, 2 * size, 9))
    sums = [
        step_sums(
            h @ h.T,
            [places[part] for part in parts],
            [a[part] for part in parts],
            leave_one_out=True,
        )
        for h, a in (
            (np.array([row[part].sum(axis=0) for part in parts]), one[:, 0])
            for row, one in zip(rows, given, strict=True)
        )
    ]
    assert math.isnan(
        shared(Sums.of(np.mean(sums, axis=0)).phi, np.float64(1.0), np.float64(2 * size))
    )


def test_groups_of_two_have_assumption_twos_ratio():
    rows = np.random.default_rng(0).normal(size=(12, 4, 5))
    names = [np.array([0]), np.array([0]), np.array([1]), np.array([1])]
    given = [np.array([each]) for each in (1.0, -1.0, 1.0, -1.0)]
    sums = np.array([step_sums(h @ h.T, names, given, leave_one_out=True) for h in rows])
    found = estimate_noise(sums, leave_one_out=True, phi_over_tau=None)
    assert found.phi_over_tau == 1.0
    assert found.c3 == estimate_noise(sums, leave_one_out=True).c3


def test_constants_that_no_layout_tells_are_missing():
    """Whole groups in micro-batches: c2, c3 and G* are not known, signal and noise are."""
    rng = np.random.default_rng(1)
    names = [np.repeat([0, 1], 2), np.repeat([1, 0], 2), np.repeat([2], 4), np.repeat([3], 4)]
    given = [rng.normal(size=4) for _ in names]
    rows = rng.normal(size=(9, 4, 5)) + 1
    sums = np.array([step_sums(h @ h.T, names, given, leave_one_out=True) for h in rows])
    found = estimate_noise(sums, leave_one_out=True, phi_over_tau=None)
    assert math.isfinite(found.c1.value)
    assert math.isfinite(found.k_crit.value)
    logged = found.metrics()
    assert "c1" in logged
    assert not {"c2", "c3", "g_star", "g_star_low", "phi_over_tau"} & logged.keys()


def expected_products(prompts, size):
    """Means of ⟨vᵢ, vⱼ⟩ of completions of groups, two groups of each prompt, over every outcome."""
    z = np.array(list(itertools.product((0, 1), repeat=size)))
    a = (z - z.mean(axis=1, keepdims=True)) * size / (size - 1)
    blocks, means = [], []
    for x in prompts:
        chance = np.where(z == 1, RATES[x], 1 - RATES[x]).prod(axis=1)
        v = a[..., None] * np.where(z[..., None] == 1, WON[x], LOST[x])
        blocks.append(np.einsum("o,oid,ojd->ij", chance, v, v))
        means.append(np.einsum("o,oid->id", chance, v))
    flat = np.concatenate(means)
    products = flat @ flat.T
    for place, block in enumerate(blocks):
        rows = slice(place * size, (place + 1) * size)
        products[rows, rows] = block
    return products


TWINS = {
    "single": [[i] for i in range(12)],
    "several": [[0, 3, 6], [1, 4], [2, 5, 9], [7, 10], [8, 11]],
}


@pytest.mark.parametrize("parts", TWINS.values(), ids=TWINS)
def test_two_groups_of_one_prompt_leave_c1_what_it_is(parts):
    """Each of two prompts that are drawn has two groups of three in a step; enumerated, so exact."""
    size, places, steps = 3, np.repeat(np.arange(4), 3), {"told": [], "merged": [], "apart": []}
    for first, second in itertools.product(range(2), repeat=2):
        products = expected_products([first, first, second, second], size)
        member = np.array([np.isin(np.arange(12), part) for part in parts], dtype=float)
        names = {
            "told": np.stack([places, places // 2], axis=1),
            "merged": places // 2,
            "apart": places,
        }
        for name, of in names.items():
            groups = [of[part] for part in parts]
            steps[name].append(step_sums(member @ products @ member.T, groups, leave_one_out=True))
    gradients = RATES[:, None] * WON
    signal = float(np.square(gradients.mean(axis=0)).sum())
    c1 = float(np.square(gradients).sum(axis=1).mean()) - signal
    found = {
        name: estimate_noise(np.array([np.mean(sums, axis=0)] * 2), leave_one_out=True)
        for name, sums in steps.items()
    }
    assert found["told"].signal.value == pytest.approx(signal, rel=1e-9)
    assert found["told"].c1.value == pytest.approx(c1, rel=1e-9)
    assert found["told"].constant_steps == 2
    # The noise of the step as it is, with two groups of a prompt.
    alone = expected_products([0], size), expected_products([1], size)
    same = c1 + signal
    alpha = np.mean([block[0, 0] for block in alone])
    noise = alpha + (size - 1) * same * (1 + 1 / (size - 1) ** 2) + size * same - 2 * size * signal
    assert found["told"].k_crit.value == pytest.approx(noise / signal, rel=1e-9)
    # Two groups taken for one of six, and for groups of two prompts.
    assert found["merged"].c1.value != pytest.approx(c1, rel=0.01)
    assert found["apart"].c1.value != pytest.approx(c1, rel=0.01)
    assert found["apart"].signal.value != pytest.approx(signal, rel=1e-3)


def exact_law(size, prompts=((F(1, 4), F(1, 3)), (F(3, 5), F(1, 2)))):
    """Every group of a prompt drawn at random: its sum Σ Aᵢ sᵢ and probability, in fractions, one dimension.

    A prompt has the chance of a success under the trained policy, and under the sampler.
    """
    for rate, drawn in prompts:
        for z in itertools.product((0, 1), repeat=size):
            chance = F(1, len(prompts))
            for each in z:
                chance *= drawn if each else 1 - drawn
            yield rate, drawn, z, chance


def score(each, rate):
    return (each - rate) * (3 if rate == F(1, 4) else 1)


def test_silent_groups_that_are_refilled_are_those_of_the_law_without_them():
    """K_crit by outputs generated, from the whole law, is K_crit of groups that are not silent over 1 - q."""
    size, whole = 3, []
    for rate, _, z, _ in exact_law(3):
        chance = F(1, 2)
        for each in z:
            chance *= rate if each else 1 - rate
        mean = F(sum(z), size)
        step = sum((each - mean) * F(size, size - 1) * score(each, rate) for each in z)
        whole.append((chance, step, 0 < sum(z) < size))

    def critical(groups):
        """Completions at which the noise of the mean of independent groups is its signal."""
        total = sum(chance for chance, _ in groups)
        first = sum(chance * h for chance, h in groups) / total
        second = sum(chance * h * h for chance, h in groups) / total
        return size * (second - first**2) / first**2

    silent = sum(chance for chance, _, live in whole if not live)
    known = critical([(chance, h) for chance, h, _ in whole])
    trained = critical([(chance, h) for chance, h, live in whole if live])
    refilled = known - size * silent / (1 - silent)
    assert trained / (1 - silent) == refilled
    # Less is generated than without, and not by the factor alone.
    assert trained < refilled < known
    assert refilled != known * (1 - silent)
    # Two groups a step, their completions one by one, each with its probability.
    names = [np.array([place // size]) for place in range(2 * size)]
    sums, weights = [], []
    laws = list(exact_law(size, [(rate, rate) for rate, _ in ((F(1, 4), 0), (F(3, 5), 0))]))
    for pair in itertools.product(laws, repeat=2):
        rows, given, chance = [], [], F(1)
        for rate, _, z, own in pair:
            chance *= own
            for each in z:
                a = (each - F(sum(z), size)) * F(size, size - 1)
                given.append(np.array([float(a)]))
                rows.append([float(a * score(each, rate))])
        h = np.array(rows)
        sums.append(step_sums(h @ h.T, names, given))
        weights.append(float(chance))
    found = estimate_noise(np.array([np.average(sums, axis=0, weights=weights)] * 2))
    assert found.silent.value == pytest.approx(float(silent), rel=1e-9)
    assert found.k_crit.value == pytest.approx(float(known), rel=1e-9)
    assert found.k_crit_refilled.value == pytest.approx(float(refilled), rel=1e-9)


@pytest.mark.parametrize("cut", [None, F(5, 4)])
def test_the_share_of_importance_weights_is_that_of_the_law_without_them(cut):
    """Rewards are advantages: the noise of outputs from the sampler less that of outputs from the policy."""
    size, sums, chances, moments = 2, [], [], [F(0), F(0), F(0)]
    groups = list(exact_law(size))
    for rate, drawn, z, chance in groups:
        for each in z:
            w = weight(rate, drawn, each, cut)
            u = each * (each - rate)
            # Of the law of density w to the sampler's: the trained policy's, where no weight is cut.
            moments[0] += chance * F(1, size) * w * u * u
            moments[1] += chance * F(1, size) * w * w * u * u
    first = sum(
        chance * sum(each * (each - rate) * weight(rate, drawn, each, cut) for each in z)
        for rate, drawn, z, chance in groups
    ) / size  # fmt: skip
    second = sum(
        chance * sum(each * (each - rate) * weight(rate, drawn, each, cut) for each in z) ** 2
        for rate, drawn, z, chance in groups
    )
    noise = second / size - size * first**2
    wanted = (moments[1] - moments[0]) / noise
    if cut is None:
        # The same from the law of the trained policy itself.
        own = [(rate, rate) for rate in (F(1, 4), F(3, 5))]
        plain = [
            (chance, sum(each * (each - rate) for each in z))
            for rate, _, z, chance in exact_law(size, own)
        ]
        assert sum(chance * h for chance, h in plain) / size == first
        without = sum(chance * h * h for chance, h in plain) / size - size * first**2
        assert wanted == (noise - without) / noise
    names = [np.array([place // size]) for place in range(2 * size)]
    for pair in itertools.product(groups, repeat=2):
        rows, given, ratios, chance = [], [], [], F(1)
        for rate, drawn, z, own in pair:
            chance *= own
            for each in z:
                w = float(weight(rate, drawn, each, cut))
                rows.append([w * float(each * (each - rate))])
                given.append(np.array([float(each)]))
                ratios.append(np.array([w]))
        h = np.array(rows)
        sums.append(step_sums(h @ h.T, names, given, ratios))
        chances.append(float(chance))
    found = estimate_noise(np.array([np.average(sums, axis=0, weights=chances)] * 2))
    assert found.weights_share.value == pytest.approx(float(wanted), rel=1e-9)
    assert abs(float(wanted)) > 0.01


def weight(rate, drawn, each, cut):
    w = (rate if each else 1 - rate) / (drawn if each else 1 - drawn)
    return w if cut is None else min(w, cut)
