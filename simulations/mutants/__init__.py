"""Mutants: named errors of one line, planted one at a time; `verify` must not confirm what they break."""
