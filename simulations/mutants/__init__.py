"""Mutants: named one-line errors, planted one at a time; `verify` must not confirm claims that they break."""
