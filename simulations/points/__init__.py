"""The points of figures, by result, where they are many: the claim's own file has the others'."""
