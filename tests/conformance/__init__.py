"""Frameworks' own functions, run beside the catalogue: ``python -m tests.conformance NAME CHECKOUT``.

A driver, the module named as the framework, calls the framework's function out of a checkout of its
repository. What it answered lies in ``tests/data/conformance``, and `tests/test_conformance.py` holds
the catalogue to it. No code of a framework is kept here.
"""
