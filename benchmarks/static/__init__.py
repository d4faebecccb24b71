"""What kernels cost, without a card: ``python -m benchmarks.gpu --static``."""
