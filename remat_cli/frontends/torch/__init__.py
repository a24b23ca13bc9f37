"""PyTorch: capture of training steps, costs, measurement and execution. Needs the extra ``remat[torch]``.

Nothing here imports torch before it is needed; nothing elsewhere imports it at all.
"""
