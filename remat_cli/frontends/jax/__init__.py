"""JAX: capture of training steps, costs, measurement and execution. Needs the extra ``remat[jax]``.

Nothing here imports jax before it is needed; nothing elsewhere imports it at all.
"""
