"""Benchmarks of remat: ``python -m benchmarks``, or ``make bench``. Results and their page are committed."""
