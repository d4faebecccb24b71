"""Engines: what loops one replication's arithmetic over outcomes or over random draws.

``exact`` enumerates every outcome, ``reference`` is plain NumPy written to be read, ``cpu`` is the
same compiled, ``cuda`` the same on a GPU. A cell says what is drawn, a gradient at fixed parameters
(:class:`GradientCell`), and has one door, ``cell.measure(engine, quantities)``.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
