"""Points and figures of results whose claims are long: the others' stand in the claim's own file."""
