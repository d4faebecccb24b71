"""The figures of the results: what each shows, and the points that are drawn."""
