"""Points of networks' figures as a run leaves them, with values that tests can recognise."""

from __future__ import annotations

import pandas as pd
import pytest

BASELINES = ("vanilla", "grpo", "minimum-variance", "norm-weighted")
MEASURED = ("estimate", "low", "high")


def _measured(value: float, half: float) -> dict[str, float]:
    return dict(zip(MEASURED, (value, value - half, value + half), strict=True))


def _points(on: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for step in (0, 1, 4, 9, 30):
        at = {"figure": f"{on}_map", "problem": "sums", "step": step}
        correlation = {**at, "panel": "correlation", "series": "grpo"}
        rows.append({**correlation, **_measured(-0.03 * step, 0.01)})
        for rank, name in enumerate((*BASELINES, "oracle")):
            reached = {**at, "panel": "return", "series": name}
            rows.append({**reached, **_measured(0.1 + 0.02 * step + 0.01 * rank, 0.01)})
        for rank, name in enumerate(BASELINES):
            error = {**at, "panel": "error", "series": name, "group_size": 8}
            # The last interval of each reaches below 0, as few runs may have it.
            rows.append({**error, **_measured(1.5 / (1 + rank + step), 0.05)})
    for step in range(0, 50, 10):
        at = {"figure": f"{on}_path", "problem": "sums", "step": step}
        gap, ratio = 0.8 * 0.96**step, 0.02 - 1e-5 * (step - 20) ** 2
        rows.append({**at, "panel": "gap", "series": "gap", "prediction": gap})
        rows[-1] |= _measured(1.02 * gap, 0.01)
        if step >= 20:
            rows.append({**at, "panel": "gap", "series": "PL", "prediction": 0.8 * 0.9**step})
        rows.append({**at, "panel": "pl", "series": "pl", "prediction": ratio})
        rows[-1] |= _measured(0.9 * ratio, 0.001)
    at = {"figure": f"{on}_group_size", "problem": "sums"}
    for budget in (16, 64):
        for step in (10, 20, 40):
            for size in (2, 4, 8, 16):
                own = {**at, "panel": "trained", "series": f"K = {budget}, T = {step}"}
                own |= {"budget": budget, "step": step, "group_size": size}
                value = 0.5 + step / 100 + budget / 1000 - size / 200
                rows.append({**own, **_measured(value, 0.01)})
    for rank, stage in enumerate(("initial", "middle", "final")):
        for size in (2.0, 3.0, 4.0, 6.0, 8.0, 16.0):
            noise = 1.0 + 0.02 * abs(size - 3 - rank)
            own = {"panel": "predicted", "series": stage, "group_size": size}
            rows.append({**at, **own, "prediction": noise})
    return rows


@pytest.fixture(scope="session")
def network_points() -> pd.DataFrame:
    """Points of the pictures of prefix policies and of transformers."""
    points = pd.DataFrame([row for on in ("tokens", "transformer") for row in _points(on)])
    return points.assign(exact=float("nan"))
