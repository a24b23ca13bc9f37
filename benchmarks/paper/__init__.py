"""Tables and figures of published papers, made again with this program: ``python -m benchmarks.paper``."""
