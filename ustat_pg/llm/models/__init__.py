"""Language models: where they come from, and how they write."""
