"""Counts the bytes of live tensors, per storage, after every operator."""

from __future__ import annotations

from typing import Any

from remat_cli.frontends.aten.retained_bytes import REDUCED
from remat_cli.frontends.torch.private import dispatch_mode, is_host, weak_storage


def live_storages() -> Any:
    """A mode that counts live bytes. Use it as a context manager; ``peak_bytes`` is their maximum.

    On a CPU, copies that a plan keeps in host memory count apart: ``host_peak_bytes`` is their maximum. Only storages
    made under the mode count, so parameters and inputs do not. Workspace inside an operator is not seen.
    """

    class LiveStorages(dispatch_mode()):  # type: ignore[misc]  # torch is Any to the type checker
        def __init__(self, known: list[Any]) -> None:
            super().__init__()
            self.known = {weak_storage(t) for t in known}
            self.sizes: dict[Any, int] = {}
            self.peak_bytes = 0
            self.host_sizes: dict[Any, int] = {}
            self.host_peak_bytes = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            import torch

            result = function(*args, **(kwargs or {}))
            kept = _kept(function, args, kwargs or {})
            for item in result if isinstance(result, list | tuple) else (result,):
                if isinstance(item, torch.Tensor):
                    reference = weak_storage(item)
                    if reference not in self.known:
                        sizes = self.host_sizes if is_host(reference) else self.sizes
                        sizes[reference] = max(item.untyped_storage().nbytes(), kept)
            self.sizes, self.host_sizes = _living(self.sizes), _living(self.host_sizes)
            self.peak_bytes = max(self.peak_bytes, sum(self.sizes.values()))
            self.host_peak_bytes = max(self.host_peak_bytes, sum(self.host_sizes.values()))
            return result

    return LiveStorages


def _kept(function: Any, args: Any, kwargs: Any) -> int:
    """Bytes that the result of a reduced loss keeps, which its fake tensor does not tell; 0 for other operators."""
    import torch

    at = REDUCED.get(str(getattr(function, "overloadpacket", "")))
    if at is None or (args[at] if len(args) > at else kwargs.get("reduction", 1)) == 0:
        return 0
    return int(torch.broadcast_shapes(args[0].shape, args[1].shape).numel() * args[0].itemsize)


def _living(sizes: dict[Any, int]) -> dict[Any, int]:
    return {reference: size for reference, size in sizes.items() if not reference.expired()}
