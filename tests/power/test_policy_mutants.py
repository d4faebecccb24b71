"""Planted mutants of the predictions about runs: each wrong formula must fail a check. Those that claims
on runs meet are planted in test_training_mutants.py.

The checks share no code with what they check: SciPy's Lyapunov solver, the recursion matrix by matrix,
simulated runs, difference quotients, quadratics whose gap is known.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from scipy import linalg, stats

from tests.support.mutants import mutated

LIMIT, BOUND = "limit_law", "suboptimality"

MUTANTS = {
    "-2 for -1 in it": (LIMIT, "exponents - 1)", "exponents - 1.5)"),
    "c for c^2": (LIMIT, "rate**2 * covariance", "rate * covariance"),
    "curvature left out of the weights": (
        LIMIT, "0.5 * root[:, None] * gamma * root", "0.5 * gamma"),
    "curvature on one side, made symmetric": (
        LIMIT, "0.5 * root[:, None] * gamma * root",
        "0.25 * (curvatures[:, None] * gamma + gamma * curvatures)"),
    "curvature for its root": (
        LIMIT, "root = np.sqrt(curvatures)", "root = curvatures"),
    "singular values for eigenvalues": (
        LIMIT, "found = np.linalg.eigvalsh(_form(curvatures, gamma))",
        "found = np.linalg.eigvalsh(_form(curvatures, gamma) ** 2) ** 0.5"),
    "diagonal of the covariance only": (
        LIMIT, "return (array + array.T) / 2", "return np.diag(np.diag(array))"),
    "noise shrunk once too often": (LIMIT, "rates**2, kept", "rates**2, later"),
    "rate for its square": (LIMIT, '"t,tjk->jk", rates**2', '"t,tjk->jk", rates'),
    "schedule a step late": (
        LIMIT, "    schedule = _rates(rates)\n",
        "    schedule = np.append(_rates(rates)[1:], _rates(rates)[-1])\n"),
    "the first rates dropped": (
        LIMIT, "    schedule = _rates(rates)\n",
        "    schedule = _rates(rates)[min(4, len(rates) - 1) :]\n"),
    "schedule reversed": (
        LIMIT, "    schedule = _rates(rates)\n", "    schedule = _rates(rates)[::-1]\n"),
    "start forgotten": (
        LIMIT, "gamma = np.outer(start, start)", "gamma = 0 * np.outer(start, start)"),
    "mean gap without its 1/2": (LIMIT, "0.5 * np.diagonal(", "np.diagonal("),
    "derivative along the covariance": (
        LIMIT, 'moved = _form(bends, _lyapunov(bends, _symmetric("change", change, len(bends)), c))',
        "moved = form"),
    "correlation of squared advantages": (
        LIMIT, "frame.T @ record.advantage @ frame", "frame.T @ record.squared_advantage @ frame"),
    "transform without its scale": (LIMIT, "points[mine] / top[mine]", "points[mine]"),
    "mixture without its probabilities": (
        LIMIT, "np.tensordot(self.probs, np.stack(values), axes=1)",
        "np.mean(np.stack(values), axis=0)"),
    "distance in one direction": (
        LIMIT, "best = float(np.abs(first - second).max())\n    low",
        "best = float((first - second).max())\n    return best\n    low"),
    "limits c too little": (LIMIT, "if not exponents.min() > 0.5:", "if not exponents.max() > 0.5:"),
    "mu^2 for mu L": (BOUND, "low * high * steps**2", "low**2 * steps**2"),
    "the paper's factor beyond 2/L": (
        BOUND, "np.where(high * steps <= 2, inside, (1 - high * steps) ** 2)", "inside"),
    "mu beyond 2/L": (BOUND, "(1 - high * steps) ** 2)", "(1 - low * steps) ** 2)"),
    "noise without L": (BOUND, "high * steps**2 * noise / 2", "steps**2 * noise / 2"),
    "closed form with mu": (
        BOUND, "ratio = 1 - 2 * low * rate + low", "ratio = 1 - low * rate + low"),
    "floor with mu": (BOUND, "(2 * low * (2 - high * rate))", "(low * (2 - high * rate))"),
    "L eta/2 for L eta in the floor": (BOUND, "(2 - high * rate)", "(2 - high * rate / 2)"),
    "no floor": (
        BOUND, "ratio**times * start + constant_floor(rate, pl=low, smoothness=high, mse=mse)",
        "ratio**times * start"),
    "decay with mu": (BOUND, "(2 * (2 * low * rate - 1))", "(2 * (low * rate - 1))"),
    "decay without -1": (BOUND, "(2 * (2 * low * rate - 1))", "(2 * (2 * low * rate))"),
    "c for c^2 in the bound": (BOUND, "high * rate**2 * number(", "high * rate * number("),
}  # fmt: skip

HARMLESS = {
    "no square root: a similar matrix": (
        LIMIT, "found = np.linalg.eigvalsh(_form(curvatures, gamma))",
        "found = np.sort(np.linalg.eigvals(0.5 * curvatures[:, None] * gamma).real)"),
}  # fmt: skip
"""No mutants: ΛΓ/2 is similar to ½ Λ^{1/2} Γ Λ^{1/2}, so its eigenvalues are the weights too."""


def module(stem: str, *change: str) -> ModuleType:
    """The module, with the one change if there is one."""
    return mutated(f"ustat_pg/predictions/{stem}.py", *([change] if change else []))


BENDS, C = np.array([0.3, 0.8]), 6.0
NOISE = np.array([[0.9, 0.3], [0.3, 0.4]])
RATES = C / (np.arange(1, 31) + 4.0)
START = np.array([1.5, -1.0])


def close(found, wanted, rtol=1e-9):
    return bool(np.allclose(found, wanted, rtol=rtol, atol=1e-12))


def refused(call):
    try:
        call()
    except ValueError:
        return True
    return False


def plain():
    gamma = np.outer(START, START)
    for eta in RATES:
        step = np.eye(2) - eta * np.diag(BENDS)
        gamma = step @ gamma @ step + eta**2 * NOISE
    return gamma


def simulated_gaps():
    rng = np.random.default_rng(7)
    delta, root = np.zeros((20_000, 2)), np.linalg.cholesky(NOISE)
    for eta in RATES:
        delta = (1 - eta * BENDS) * delta + eta * rng.normal(size=delta.shape) @ root.T
    return 0.5 * delta**2 @ BENDS


def of_limit_law(m: ModuleType) -> dict[str, bool]:
    """Which checks the module passes."""
    drift = np.eye(2) / 2 - C * np.diag(BENDS)
    gamma = linalg.solve_continuous_lyapunov(drift, -(C**2) * NOISE)
    weights = np.sort(linalg.eigvals(np.diag(BENDS) @ gamma).real) / 2
    change = np.array([[0.1, 0.05], [0.05, 0.3]])

    def law(eps):
        moved = linalg.solve_continuous_lyapunov(drift, -(C**2) * (NOISE + eps * change))
        return np.sort(linalg.eigvals(np.diag(BENDS) @ moved).real) / 2

    slopes = (law(1e-5) - law(-1e-5)) / 2e-5
    record = type("Record", (), {"advantage": change, "squared_advantage": NOISE})
    moments = type("Record", (), {"matrices": staticmethod(lambda: iter([record]))})
    one, four = m.WeightedChi2([1.0]), m.WeightedChi2([4.0])
    apart = 8 / 3 * np.log(2)
    distance = stats.chi2.cdf(apart, 1) - stats.chi2.cdf(apart / 4, 1)
    run = m.finite_law(BENDS, NOISE, RATES)
    alarm = np.sqrt(np.log(2 / 1e-3) / (2 * 20_000))
    return {
        "Lyapunov": close(m.stationary_covariance(BENDS, NOISE, C), gamma),
        "weights": close(m.limit_weights(BENDS, NOISE, C), weights),
        "recursion": close(m.finite_covariance(BENDS, NOISE, RATES, START), plain()),
        "mean": close(m.mean_gap(BENDS, NOISE, RATES, START), np.trace(np.diag(BENDS) @ plain()) / 2),
        "simulated": stats.kstest(simulated_gaps(), run.cdf).statistic < alarm,
        "derivatives": close(m.weight_derivatives(BENDS, NOISE, change, C), slopes, 1e-5),
        "correlation": close(m.matrix_correlation(moments, np.eye(2)), [change]),
        "transform": close(
            m.conditional_transform([1.0, 3.0], [[4.0], [0.5]]), stats.chi2.cdf([0.25, 6.0], 1)
        ),
        "mixture": close(
            m.MixtureLaw([one, four], [0.9, 0.1]).cdf(2.0),
            0.9 * stats.chi2.cdf(2.0, 1) + 0.1 * stats.chi2.cdf(0.5, 1),
        ),
        "distance": all(
            abs(m.sup_distance(*pair) - distance) < 2e-5 for pair in ((one, four), (four, one))
        ),
        "refusal": refused(lambda: m.limit_weights(BENDS, NOISE, 1.6)),
    }  # fmt: skip


def of_suboptimality(m: ModuleType) -> dict[str, bool]:
    """What the bounds of the mutant say."""
    low, high, mse = 0.3, 1.1, 0.7
    made = {"pl": low, "smoothness": high, "mse": mse}
    early = np.array([4.0, 2.5, 0.9, 0.4])
    gap, gaps = 2.0, [2.0]
    for eta in early:
        gap = (1 - high * eta) ** 2 * gap + eta**2 * high * mse / 2
        gaps.append(gap)
    same = m.bound_curve(2.0, early, pl=high, smoothness=high, mse=mse)
    above = all(
        ((1 - eta * np.linspace(low, high, 23)) ** 2).max()
        <= m.bound_curve(1.0, [eta], pl=low, smoothness=high, mse=0.0)[1] + 1e-12
        for eta in (0.3, 1.0, 1.8, 2.5, 6.0)
    )
    eta = 0.4
    one = m.bound_curve(1.0, [eta], **made)[1]
    steady = m.bound_curve(1.0, np.full(3000, eta), **made)
    ratio = one - m.bound_curve(0.0, [eta], **made)[1]
    late = np.arange(1, 2**17 + 1)
    decaying = m.bound_curve(1e-3, 8.0 / (late + 5), **made)[-1] * (late[-1] + 5)
    return {
        "attained": close(same, gaps),
        "above quadratics": above,
        "by hand": close(one, 1 - 0.6 * eta + 0.33 * eta**2 + 0.385 * eta**2),
        "floor": close(m.constant_floor(eta, **made), steady[-1]),
        "closed form": close(
            m.constant_bound(np.arange(9), 1.0, eta, **made), ratio ** np.arange(9) + steady[-1]
        ),
        "decay": close(m.decay_constant(8.0, **made), decaying, 2e-3),
    }


CHECKS = {LIMIT: of_limit_law, BOUND: of_suboptimality}


@pytest.mark.parametrize("stem", CHECKS)
def test_the_true_program_passes(stem):
    found = CHECKS[stem](module(stem))
    assert all(found.values()), found


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_fails_a_check(name, record_property):
    record_property("mutant", name)
    stem, old, new = MUTANTS[name]
    found = CHECKS[stem](module(stem, old, new))
    assert not all(found.values())


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_the_same_formula_passes(name):
    stem, old, new = HARMLESS[name]
    found = CHECKS[stem](module(stem, old, new))
    assert all(found.values()), found


def test_every_check_is_needed():
    # A check that no mutant fails could be one that cannot fail.
    failed: dict[str, set[str]] = {stem: set() for stem in CHECKS}
    for stem, old, new in MUTANTS.values():
        with np.errstate(all="ignore"):
            results = CHECKS[stem](module(stem, old, new))
        failed[stem] |= {check for check, passed in results.items() if not passed}
    for stem, checks in CHECKS.items():
        assert failed[stem] == set(checks(module(stem)))
