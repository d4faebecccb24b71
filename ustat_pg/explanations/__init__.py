"""Explanations of a trainer's options, an estimator, a way of sampling or several rewards, in words and
numbers.

Each explanation is a record, and ``ustat-pg explain`` prints it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
