"""Explanations: what a trainer's options, an estimator, a way of sampling or several rewards do, in words and
numbers.

Each is a record, which ``ustat-pg explain`` prints.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
