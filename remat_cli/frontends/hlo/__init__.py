"""HLO: graphs of modules that XLA dumps as text. Needs neither XLA nor JAX."""
