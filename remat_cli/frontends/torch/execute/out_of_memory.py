"""Recognises PyTorch's out-of-memory errors on both devices, and turns them into remat's own."""

import contextlib
import re
from collections.abc import Iterator

from remat_cli.errors import OutOfMemory

_ASKED = re.compile(r"[Tt]ried to allocate ([\d.]+ ?\w+)")
_SAID = re.compile(
    r"can't allocate memory|not enough memory|out of memory|bad_alloc|Cannot allocate memory"
    r"|CUDNN_STATUS_ALLOC_FAILED|CUBLAS_STATUS_ALLOC_FAILED"
)
"""Texts of a plain RuntimeError from the allocators of CPUs (first line) and the libraries of CUDA (second line)."""


def out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` means that memory is exhausted, on a CPU or on CUDA.

    CUDA has an exception of its own. A CPU's allocator raises a ``RuntimeError``, which only its text identifies.
    """
    import torch

    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and _SAID.search(str(error)) is not None


def no_memory(error: BaseException, device: str, where: str) -> OutOfMemory:
    """The error for users.

    Args:
        error: What PyTorch raised.
        device: ``cpu`` or ``cuda``.
        where: What was being allocated for: ``node conv1``, ``weights and inputs``.
    """
    asked = _ASKED.search(str(error))
    more = f", which asked for {asked[1]} more" if asked else ""
    return OutOfMemory(f"out of memory on {device} at {where}{more}", hint="make room on the device")


@contextlib.contextmanager
def memory_told(device: str, where: str, hint: str) -> Iterator[None]:
    """Within this context, every out-of-memory error becomes an :class:`OutOfMemory` with ``hint``.

    Raises:
        OutOfMemory: If memory is exhausted; PyTorch's exception is its cause.
    """
    try:
        yield
    except OutOfMemory as error:
        raise OutOfMemory(error.message, hint=hint) from error.__cause__
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        raise OutOfMemory(no_memory(error, device, where).message, hint=hint) from error
