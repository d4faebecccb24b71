"""Mutants: named errors of one line, planted one at a time; `verify` must not confirm what they break.

``errors.toml`` has the errors, ``errors`` reads it and finds their lines, ``planted`` is the process that
runs claims on the changed program, ``runner`` runs one such process for each error, and ``command`` is
``python -m simulations mutants``.
"""
