"""Engines, which repeat one replication's arithmetic over all outcomes or over random draws.

``exact`` enumerates every outcome, ``reference`` is readable plain NumPy, ``cpu`` is the
same compiled, ``cuda`` the same on a GPU. A cell describes the draws of a gradient at fixed parameters
(:class:`GradientCell`). Its one entry point is ``cell.measure(engine, quantities)``.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
