"""Language models: loading them, and sampling from them."""
