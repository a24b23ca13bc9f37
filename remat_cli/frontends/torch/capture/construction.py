"""Calls the user's function that builds a model, with as little memory as it allows.

A constructor may read numbers: rates of stochastic depth from ``torch.linspace(...).tolist()``, a mask of an
initialization, the largest entry of a table. So tensors of up to ``SMALL`` bytes are real, and larger ones, the
weights, are fake: they have a shape and no memory. If a number is read that depends on a fake tensor, the model is
built once more, with real tensors only, and made fake afterwards. No number is ever invented.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from remat_cli.errors import CaptureFailed, TooLarge, UsageError
from remat_cli.frontends.available import available_bytes
from remat_cli.frontends.messages import Tell, tell_stderr
from remat_cli.frontends.source import frames_of
from remat_cli.frontends.torch.capture.capture import Model
from remat_cli.frontends.torch.capture.naming import place_in
from remat_cli.frontends.torch.capture.random_state import undisturbed
from remat_cli.frontends.torch.compat.fake_tensors import (
    convertible,
    is_fake,
    needs_numbers,
    new_fake_mode,
    real_tensors,
    silent_fakes,
    uninitialized_fakes,
)
from remat_cli.frontends.torch.compat.operators import dispatch_mode, is_operator, schema, weak_storage
from remat_cli.frontends.torch.tensors import is_dense, leaves, mapped, storage, storage_bytes
from remat_cli.frontends.torch.types import DispatchMode, FakeMode, Operator, Tensor
from remat_cli.units import format_bytes

SMALL = 1 << 20
"""Most bytes of a tensor that is made for real while a model is built. Untuned: tables of numbers that constructors
read are smaller, and the weights of large models are not."""
LARGE = 1 << 30
"""Bytes of a model from which its real construction is announced."""
_FOR_WANT_OF_DATA = (RuntimeError, TypeError, ValueError, AttributeError, AssertionError)
"""Errors that a lack of data may cause; others, such as a ``KeyError``, are taken for the user's own at once."""
_EXPECTED = (
    "it returns (module, inputs) or (module, inputs, loss): inputs is a tuple of tensors, or a mapping of keyword "
    "arguments; loss takes the module's output and returns a scalar"
)


def construct(function: Callable[[], Any], mode: FakeMode, device: str, tell: Tell) -> Any:
    """What ``function`` returns, called with ``device`` as the default; large tensors are of ``mode`` or real.

    The state of all random generators is what it was, and the same function gets the same random numbers every time.
    ``tell`` is called before much memory is taken.

    Raises:
        CaptureFailed: If the function fails with real tensors too, with the place in the user's code.
    """
    import torch

    name = getattr(function, "__name__", "build")
    for most_bytes in (SMALL, 0):
        economical = _economical(mode, most_bytes)
        try:
            with (
                undisturbed(device),
                mode,
                economical,
                torch.device(device),
                convertible(mode),
                silent_fakes(),
                uninitialized_fakes(),
                warnings.catch_warnings(),
            ):
                warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")  # copies of modules do
                returned = function()
        except UsageError:  # what was asked for cannot be done with the model
            raise
        except Exception as error:  # the user's code may do anything
            if not economical.fake_bytes or not (economical.reason or isinstance(error, _FOR_WANT_OF_DATA)):
                raise _failed(name, error) from error
            first: BaseException | None = error
            reason = economical.reason or f"it fails without data: {type(error).__name__}"
            place = place_in(frames_of(error))
        else:
            if not economical.reason:
                return returned
            first, reason, place = None, economical.reason, ""
        if not economical.mixed:
            break
    fake_bytes = economical.fake_bytes
    return construct_for_real(function, device, tell, reason + (f" at {place}" if place else ""), fake_bytes, first)


def _economical(mode: FakeMode, most_bytes: int) -> DispatchMode:
    """A mode on top of the fake mode ``mode``, in which tensors of up to ``most_bytes`` are real.

    Its attributes: ``fake_bytes`` of all larger tensors so far, also of freed ones; ``reason``, why what was built is
    not to be used; ``mixed``, whether that was a fake number written into a real tensor.
    """

    class Economical(dispatch_mode()):  # type: ignore[misc]  # torch is Any to the type checker
        def __init__(self) -> None:
            super().__init__()
            self.sizes = new_fake_mode()
            self.fake_bytes = 0
            self.reason = ""
            self.mixed = False

        def __torch_dispatch__(self, function: Operator, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            inputs = _tensors((args, kwargs))
            if any(map(is_fake, inputs)):
                return self.fake(function, args, kwargs, inputs)
            if not inputs or not is_operator(function) or not any(a.alias_info for a in schema(function).arguments):
                needed = _result_bytes(function, args, kwargs, self.sizes)
                if needed > most_bytes:
                    return self.fake(function, args, kwargs, inputs)
            with real_tensors():
                return function(*args, **kwargs)

        def fake(self, function: Operator, args: Any, kwargs: Any, inputs: list[Tensor]) -> Any:
            """The result without data."""
            if any(not is_fake(t) for t in _written(function, args, kwargs)):
                self.reason, self.mixed = "it writes what was computed from large tensors into a small one", True
            try:
                result = function(*args, **kwargs)
            except Exception as error:
                if needs_numbers(error):  # the user's code may catch it, and go another way
                    self.reason = "it reads a number that is computed from a large tensor"
                raise
            old = set(map(storage, inputs))
            new = {storage(t): storage_bytes(t) for t in _tensors(result)}
            self.fake_bytes += sum(size for key, size in new.items() if key not in old)
            return result

    return Economical()


def _result_bytes(function: Operator, args: Any, kwargs: Any, mode: FakeMode) -> int:
    """Bytes of the largest result of a call; 0 if only the data can tell, since the data is real and small."""
    if str(function) == "aten._to_copy.default":  # thousands of adapters are converted, and a call is slow
        return int(args[0].numel() * (kwargs.get("dtype") or args[0].dtype).itemsize)
    try:
        with real_tensors():
            # Copies on the same memory: a fake mode keeps weak references, and then nothing can be exchanged.
            args, kwargs = mapped((args, kwargs), lambda tensor: tensor.detach())
            with mode:
                result = function(*args, **kwargs)
    except Exception:  # operators without a rule for fake tensors
        return 0
    return max(map(storage_bytes, _tensors(result)), default=0)


def construct_for_real(
    function: Callable[[], Any],
    device: str,
    tell: Tell,
    reason: str,
    asked_bytes: int = 0,
    first: BaseException | None = None,
) -> Any:
    """What ``function`` returns if all tensors are real.

    ``reason`` says why it cannot be called without memory, ``asked_bytes`` what it made before that became clear, and
    ``first`` is its error without memory, if there was one. ``tell`` is called before much memory is taken.

    Raises:
        CaptureFailed: If it fails, or the memory of the machine does not suffice.
    """
    import torch

    name = getattr(function, "__name__", "build")
    free = available_bytes() if device == "cpu" else None
    if free is not None and asked_bytes > free:
        raise _too_large(name, reason, asked_bytes, free) from first
    if asked_bytes >= LARGE:
        tell(_announced(name, reason, asked_bytes, free))
    counted = _counted(name, reason, free, tell if asked_bytes < LARGE else None)
    try:
        with undisturbed(device), counted, torch.device(device):
            return function()
    except (TooLarge, UsageError):
        raise
    except Exception as error:  # the user's code may do anything
        raise _failed(name, error) from error


def _failed(name: str, error: Exception) -> CaptureFailed:
    """The error for a function that fails by itself, with the place in the user's code."""
    place = place_in(frames_of(error))
    return CaptureFailed(
        f"{name}() failed{' at ' + place if place else ''}: {type(error).__name__}: {error}",
        hint="does it run as it is, without remat?",
    )


def _announced(name: str, reason: str, size: int, free: int | None) -> str:
    room = "" if free is None else f"; {format_bytes(free)} are available"
    return (
        f"{name}() is built with real tensors, since {reason}: they take {format_bytes(size)} so far, and will take "
        f"more{room}"
    )


def _too_large(name: str, reason: str, size: int, free: int) -> TooLarge:
    return TooLarge(
        f"{name}() cannot be built without memory, since {reason}, and with real tensors it takes {format_bytes(size)} "
        f"and more, of {format_bytes(free)} available",
        hint="read numbers from small tensors, or build a smaller model of the same kind",
    )


def _counted(name: str, reason: str, free: int | None, tell: Tell | None) -> DispatchMode:
    """A mode that counts the live bytes of real tensors, announces ``LARGE`` of them and refuses more than ``free``."""

    class Counted(dispatch_mode()):  # type: ignore[misc]  # torch is Any to the type checker
        def __init__(self) -> None:
            super().__init__()
            self.sizes: dict[Any, int] = {}
            self.live_bytes = 0
            self.told = tell is None

        def __torch_dispatch__(self, function: Operator, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            for tensor in _tensors(result):
                if not _is_meta(tensor):
                    self.add(weak_storage(tensor), storage_bytes(tensor))
            return result

        def add(self, key: Any, size: int) -> None:
            if key in self.sizes:
                return
            self.sizes[key] = size
            self.live_bytes += size
            if self.live_bytes < LARGE:
                return
            # Only now what has been freed is looked for: that takes time.
            self.sizes = {ref: n for ref, n in self.sizes.items() if not ref.expired()}
            self.live_bytes = sum(self.sizes.values())
            if free is not None and self.live_bytes > free:
                raise _too_large(name, reason, self.live_bytes, free)
            if self.live_bytes >= LARGE and not self.told and tell is not None:
                self.told = True
                tell(_announced(name, reason, self.live_bytes, free))

    return Counted()


def made_fake(tensors: Iterable[Tensor], mode: FakeMode) -> None:
    """Take the data of real ``tensors`` away: they become tensors of ``mode``, and every reference to them holds.

    A tensor that cannot be exchanged, such as one to which weak references point, stays real. That costs memory and
    changes nothing else: tensors of a model may be real while it is captured.
    """
    import torch

    alone = {id(tensor): tensor for tensor in tensors if not is_fake(tensor) and tensor.is_leaf}
    for tensor in alone.values():
        if _is_meta(tensor) or type(tensor) not in {torch.Tensor, torch.nn.Parameter}:
            continue
        # A second tensor on the same memory: the mode keeps weak references to what it copies, and remembers memory,
        # so tensors that share memory share it afterwards.
        fake = mode.from_tensor(tensor.detach())
        with mode, contextlib.suppress(RuntimeError):
            if isinstance(tensor, torch.nn.Parameter):
                fake = torch.nn.Parameter(fake, tensor.requires_grad)
            else:
                fake = fake.detach().requires_grad_(tensor.requires_grad)
            with convertible(mode):
                torch.utils.swap_tensors(tensor, fake)


def _is_meta(tensor: Tensor) -> bool:
    return bool(tensor.device.type == "meta")


def _written(function: Operator, args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors into which a call of an operator writes."""
    written: list[Tensor] = []
    for k, argument in enumerate(schema(function).arguments if is_operator(function) else ()):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written += _tensors(args[k] if k < len(args) else kwargs.get(argument.name))
    return written


def _tensors(tree: Any) -> list[Tensor]:
    """The dense tensors among the leaves of ``tree``."""
    return [tensor for _, tensor in leaves(tree) if is_dense(tensor)]


def build_model(function: Callable[[], Any], mode: FakeMode, device: str, tell: Tell = tell_stderr) -> Model:
    """Call ``function`` with ``device`` as the default, and check that it returned a model; its tensors are fake.

    Raises:
        CaptureFailed: If it fails, or does not return a model.
    """
    model = as_model(construct(function, mode, device, tell), getattr(function, "__name__", "build"))
    made_fake(model.tensors(), mode)
    return model


def build_real(function: Callable[[], Any], device: str, tell: Tell, reason: str) -> Model:
    """As :func:`build_model`, but all tensors are real; ``reason`` says why.

    Raises:
        CaptureFailed: If it fails, or does not return a model.
    """
    return as_model(construct_for_real(function, device, tell, reason), getattr(function, "__name__", "build"))


def as_model(returned: Any, name: str) -> Model:
    """The model in ``returned``, which the function ``name`` returned.

    Raises:
        CaptureFailed: If it is not of the expected form.
    """
    import torch

    if not isinstance(returned, tuple) or not 2 <= len(returned) <= 3:
        raise CaptureFailed(f"{name}() returned {type(returned).__name__}", hint=_EXPECTED)
    module, inputs = returned[:2]
    loss = returned[2] if len(returned) == 3 else None
    if not isinstance(module, torch.nn.Module):
        raise CaptureFailed(f"{name}() returned {type(module).__name__} as the module", hint=_EXPECTED)
    if loss is not None and not callable(loss):
        raise CaptureFailed(f"{name}() returned {type(loss).__name__} as the loss", hint=_EXPECTED)
    if isinstance(inputs, Mapping):
        return Model(module, (), dict(inputs), loss)
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    if not isinstance(inputs, tuple | list):
        raise CaptureFailed(f"{name}() returned {type(inputs).__name__} as the inputs", hint=_EXPECTED)
    return Model(module, tuple(inputs), {}, loss)
