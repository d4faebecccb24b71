"""Predictions: closed forms that read moments and nothing else.

A function that accepts moments also accepts a problem, and then uses the moments at its current parameters.

>>> from ustat_pg.problems import example_problem, problem_from_mapping
>>> round(gradient_mse(problem_from_mapping(example_problem()), "grpo", group_size=8).mse, 5)
0.04916
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
