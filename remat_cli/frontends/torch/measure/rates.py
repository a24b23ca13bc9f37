"""The rates of the device at hand: measured when they are first needed, and kept in the user's cache folder.

A measurement takes two seconds. An operation of every kind, see :data:`remat_cli.frontends.rates.KINDS`, runs in turn,
again and again, as the operations of a training step do, so that it does not find the caches as it left them; and then
once more. Each call is timed, and the shortest time counts, since other programs can only make it longer. With one
thread on a CPU, its own processor time counts, for the same reason. Expensive operations run less often, so that every
one gets an equal share of the time.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from remat_cli.errors import Worded
from remat_cli.files import cache_folder, read_text
from remat_cli.frontends.messages import Tell, tell_stderr
from remat_cli.frontends.rates import DTYPES, PRODUCT, REQUIRED, Curve, Rates, kept_rates, processor, read_rates
from remat_cli.frontends.torch.execute.out_of_memory import memory_told, out_of_memory
from remat_cli.frontends.torch.types import Device, Operator, Tensor

RATES = "REMAT_RATES"
"""Environment variable with a file of rates, which are taken instead of those of the device at hand."""
_METHOD = 1
"""Number of the way to measure; rates that were measured in another way are not read."""
_SEEN: dict[DeviceKey, Rates] = {}
LIMIT_S = 2.0
"""Seconds of a measurement, unless a few calls of everything take longer, as on a very busy machine."""
_FEWEST = 3
"""Least turns of an operation, even if it has had its share of the time, or the time is over. Untuned."""
_LARGE_SHARE = 0.15
"""Share of the time for tensors larger than the caches. Untuned."""
_LEAST_SHARE = 0.05
"""Least share of an operation's time that is its own work: noise must not make a rate infinite or negative. Untuned."""
_LAUNCH, _VIEW = "launch", "view"
_WIDTH = 512
"""Columns of the matrices."""
_CALLS = {"cpu": 1, "cuda": 10}
"""Calls between two looks at the clock. On CUDA they are launched without waiting for each, as those of a step are."""


def device_rates(device: Device | str, tell: Tell = tell_stderr) -> Rates:
    """The rates of a device that is here.

    In this order: the file that ``REMAT_RATES`` names; the rates that this process has seen, or an earlier one has kept
    for the same processor, number of threads and version of PyTorch; those that are now measured, in two seconds.

    Args:
        device: ``cpu``, ``cuda``, or a device of PyTorch.
        tell: Called before a measurement, and if its result cannot be kept.

    Raises:
        InputError: If the file that the environment names cannot be read, or holds no rates.
        OutOfMemory: If the device's memory is too small for the measurement.
    """
    named = os.environ.get(RATES, "")
    if named:
        return read_rates(*read_text(named))
    asked = DeviceKey.of(device)
    if asked not in _SEEN:
        _SEEN[asked] = _kept_or_measured(asked, tell)
    return _SEEN[asked]


@dataclass(frozen=True, slots=True)
class DeviceKey:
    """All that the speed and the workspace of operations depend on.

    Attributes:
        device: The device as PyTorch names it.
        machine: Its processor or GPU.
        threads: Threads of PyTorch, on a CPU; 0 on a GPU.
        vectors: The vector instructions that PyTorch uses, or the version of CUDA.
        torch: Its version.
    """

    device: str
    machine: str
    threads: int
    vectors: str
    torch: str

    @classmethod
    def of(cls, device: Device | str) -> DeviceKey:
        """The device at hand."""
        import torch

        version = str(torch.__version__)
        if torch.device(device).type == "cuda":
            return cls(str(device), torch.cuda.get_device_name(device), 0, f"CUDA {torch.version.cuda}", version)
        capability = str(torch.backends.cpu.get_cpu_capability())
        return cls("cpu", processor(), torch.get_num_threads(), capability, version)

    def path(self, folder: str, *more: int) -> Path:
        """The file in the cache folder ``folder`` for what depends on this, and on ``more``."""
        key = [self.device.partition(":")[0], self.machine, self.threads, self.vectors, self.torch, *more]
        return cache_folder(folder) / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]}.json"

    def facts(self) -> dict[str, Any]:
        """What is written beside the rates."""
        threads = {"threads": self.threads} if self.threads else {}
        return {"device": self.device.partition(":")[0], "vectors": self.vectors, "torch": self.torch} | threads


def _kept_or_measured(asked: DeviceKey, tell: Tell) -> Rates:
    path = asked.path("rates", _METHOD)

    def measured() -> Rates:
        tell(f"measuring how fast {asked.machine} is, for {LIMIT_S:g} s; kept in {path}")
        device = asked.device.partition(":")[0]
        with memory_told(
            device,
            "measuring its speed",
            Worded('take cost="flops", or make room on it', "take --cost flops, or make room on it"),
        ):
            return Rates(asked.machine, *measure(asked.device), facts=asked.facts())

    return kept_rates(path, measured, tell)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """How large the tensors of a measurement are.

    Attributes:
        rows: Rows of the matrices of elements.
        large: Elements of a vector far larger than the caches.
        products: Rows, inner length and columns of products, from small to large.
        batch: Images, and sequences of attention.
    """

    rows: int
    large: int
    products: tuple[tuple[int, int, int], ...]
    batch: int


_SIZES = {
    "cpu": _Sizes(256, 1 << 22, ((512, 128, 512), (512, 512, 512)), 2),
    "cuda": _Sizes(1 << 15, 1 << 26, ((2048, 512, 2048), (4096, 4096, 4096)), 64),
}


@dataclass(slots=True)
class _Case:
    """Something to be timed.

    Attributes:
        kind: The rate that it measures: ``launch``, ``view``, or one of :data:`remat_cli.frontends.rates.KINDS`.
        amount: Its work, in the unit of the kind.
        call: Does that work once.
        first_s: The shortest time so far of the first call in a turn, with tensors that other operations have driven
            out of the caches.
        second_s: The same of the second call, with tensors that were just read.
        spent_s: The time of all calls so far.
        turns: How often it had its turn.
    """

    kind: str
    amount: float
    call: Callable[[], Any]
    first_s: float = math.inf
    second_s: float = math.inf
    spent_s: float = 0.0
    turns: int = 0

    @classmethod
    def of(cls, kind: str, amount: float, operator: Operator, *args: Any, **options: Any) -> _Case:
        """One call of an operator, bound beforehand: looking it up takes as long as launching it."""
        return cls(kind, amount, partial(operator, *args, **options))

    def add(self, again: bool, took_s: float, calls: int) -> None:
        """Add the time of the first or second calls in a turn."""
        self.spent_s += took_s
        if again:
            self.second_s = min(self.second_s, took_s / calls)
        else:
            self.first_s = min(self.first_s, took_s / calls)

    @property
    def seconds(self) -> float:
        """The time of a call in a step, where about half of the tensors that are read have just been made."""
        return (self.first_s + self.second_s) / 2


def measure(device: str, limit_s: float = LIMIT_S) -> tuple[float, float, dict[str, Curve]]:
    """Microseconds of a launch, those of a view, and rates by kind of a device, see :class:`frontends.rates.Rates`.

    It takes ``limit_s`` seconds, or longer if a few calls of everything do. The user's random generators, autocast and
    gradients are left as they are.
    """
    import torch

    kind = torch.device(device).type
    deadline = time.perf_counter() + limit_s
    forked = [] if kind == "cpu" else [device]
    with torch.random.fork_rng(forked), torch.no_grad(), torch.autocast(kind, enabled=False):
        torch.manual_seed(0)
        groups = (_elements, _kinds, _norms, _products, _others)
        cases = [case for group in groups for case in group(device, _SIZES[kind])]
        _run(cases, device, deadline - _LARGE_SHARE * limit_s, (1 - _LARGE_SHARE) * limit_s / len(cases))
        # By itself, or the others would find the caches empty, and the memory that they need returned to the system.
        large = list(_large(device, _SIZES[kind]))
        _run(large, device, deadline, _LARGE_SHARE * limit_s)
    cases += large
    rates = _rates_of(cases)
    if kind == "cuda":
        del cases, large
        torch.cuda.empty_cache()  # what it held is no longer the allocator's, or budgets would count it
    return rates


def _run(cases: list[_Case], device: str, deadline: float, share_s: float) -> None:
    """Time all in turn until the deadline; the first call of each is not timed, since it may prepare much.

    What the device does not support, such as products in a type that it does not know, is taken out of ``cases``.
    """
    import torch

    kind = torch.device(device).type
    clock = time.thread_time if kind == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    cases[:] = [case for case in cases if _works(case)]
    waiting = list(cases)
    while waiting:
        for case in waiting:
            if case.turns >= _FEWEST and time.perf_counter() > deadline:
                continue
            for again in (False, True):
                _wait(device)
                started = clock()
                for _ in range(_CALLS[kind]):
                    case.call()
                _wait(device)
                case.add(again, clock() - started, _CALLS[kind])
            case.turns += 1
        late = time.perf_counter() > deadline
        waiting = [c for c in cases if c.turns < _FEWEST or (c.spent_s < share_s and not late)]


def _works(case: _Case) -> bool:
    """Call something for the first time; returns whether the device supports it."""
    try:
        case.call()
    except RuntimeError as error:
        if case.kind in {_LAUNCH, _VIEW, *REQUIRED} or out_of_memory(error):
            raise
        return False
    return True


def _wait(device: str) -> None:
    """Wait until the device has done all that it was given."""
    import torch

    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def _rates_of(cases: list[_Case]) -> tuple[float, float, dict[str, Curve]]:
    """The rates that follow from the times."""
    launch_s, view_s = (min(c.seconds / c.amount for c in cases if c.kind == kind) for kind in (_LAUNCH, _VIEW))
    plain_s = min(case.seconds for case in cases if case.kind == "stream")
    per_s: dict[str, list[tuple[float, float]]] = {}
    for case in cases:
        if case.kind in {_LAUNCH, _VIEW}:
            continue
        # Walking over elements that do not lie side by side comes on top of what the same operation takes anyway.
        beyond_s = case.seconds - (plain_s if case.kind in {"run", "scatter"} else launch_s)
        rate = case.amount / max(beyond_s, _LEAST_SHARE * case.seconds)
        per_s.setdefault(case.kind, []).append((float(case.amount), float(f"{rate:.4g}")))
    return round(1e6 * launch_s, 3), round(1e6 * view_s, 3), {k: tuple(sorted(curve)) for k, curve in per_s.items()}


def _random(device: str) -> Callable[..., Tensor]:
    """Makes tensors of random numbers, whatever the user's default type."""
    import torch

    return partial(torch.rand, device=device, dtype=torch.float32)


def _elements(device: str, sizes: _Sizes) -> Iterator[_Case]:
    """What every operation pays: its launch, views, memory traffic, and walking over what is not one dense run."""
    import torch

    aten, rand = torch.ops.aten, _random(device)
    rows, n = sizes.rows, sizes.rows * _WIDTH
    x, y = rand(rows, _WIDTH), rand(rows, _WIDTH)
    tiny = rand(16)
    slices = rand(2 * n).view(-1, 8)[:, :4]
    turned = rand(_WIDTH, rows).t()
    launches = [
        partial(aten.add.Tensor, tiny, tiny),
        partial(aten.mul.Tensor, tiny, 2.0),
        partial(aten.exp.default, tiny),
        partial(aten.clone.default, tiny),
    ]
    views = [partial(aten.view.default, x, [-1]), partial(aten.transpose.int, x, 0, 1)]
    yield _Case(_LAUNCH, 4 * len(launches), lambda: [call() for call in launches * 4])
    yield _Case(_VIEW, 4 * len(views), lambda: [call() for call in views * 4])
    yield _Case.of("stream", 12 * n, aten.add.Tensor, x, y)
    yield _Case.of("run", n / 4, aten.add.Tensor, slices, slices)
    yield _Case.of("scatter", n, aten.add.Tensor, turned, y)
    yield _Case.of("mixed", n, aten.mul.Tensor, x, x > 0.5)
    yield _Case.of("select", n, aten.where.self, x > 0.5, x, y)


def _large(device: str, sizes: _Sizes) -> Iterator[_Case]:
    """Memory traffic beyond the caches."""
    import torch

    vector = _random(device)(sizes.large)
    yield _Case.of("stream", 12 * sizes.large, torch.ops.aten.add.Tensor, vector, vector.clone())


def _kinds(device: str, sizes: _Sizes) -> Iterator[_Case]:
    """Operations that do more with an element than to read and write it."""
    import torch

    aten, rand = torch.ops.aten, _random(device)
    rows, n = sizes.rows, sizes.rows * _WIDTH
    x = rand(rows, _WIDTH)
    yield _Case.of("exp", n, aten.silu.default, x)
    yield _Case.of("erf", n, aten.gelu.default, x)
    yield _Case.of("tanh", n, aten.gelu.default, x, approximate="tanh")
    yield _Case.of("random", n, aten.native_dropout.default, x, 0.1, True)
    yield _Case.of("softmax", n, aten._softmax.default, x, -1, False)
    yield _Case.of("safe softmax", n, aten._safe_softmax.default, x, -1)
    yield _Case.of("pool", n, aten.max_pool2d_with_indices.default, x.view(-1, 16, 32, 32), [2, 2])
    yield _Case.of("index", n, aten.index.Tensor, x, [torch.randint(0, rows, (rows,), device=device)])
    yield _Case.of("sort", n / 8, aten.sort.default, x[: rows // 8], 1)


def _norms(device: str, sizes: _Sizes) -> Iterator[_Case]:
    """Normalisations of rows and of channels."""
    import torch

    aten, rand = torch.ops.aten, _random(device)
    rows, n, every = sizes.rows, sizes.rows * _WIDTH, [True, True, True]
    x, y = rand(rows, _WIDTH), rand(rows, _WIDTH)
    weight = rand(_WIDTH)
    layer, layer_backward = aten.native_layer_norm.default, aten.native_layer_norm_backward.default
    _, mean, scale = layer(x, [_WIDTH], weight, weight, 1e-5)
    yield _Case.of("layer norm", n, layer, x, [_WIDTH], weight, weight, 1e-5)
    yield _Case.of("layer norm backward", n, layer_backward, x, y, [_WIDTH], mean, scale, weight, weight, every)
    images, channel = x.view(-1, 16, 32, 32), rand(16)
    channels = (channel, channel, channel.clone(), channel.clone())
    batch, batch_backward = aten.native_batch_norm.default, aten.native_batch_norm_backward.default
    _, mean, scale = batch(images, *channels, True, 0.1, 1e-5)
    yield _Case.of("batch norm", n, batch, images, *channels, True, 0.1, 1e-5)
    saved = (*channels[2:], mean, scale)
    yield _Case.of("batch norm backward", n, batch_backward, images, images, channel, *saved, True, 1e-5, every)


def _products(device: str, sizes: _Sizes) -> Iterator[_Case]:
    """Products of matrices, in every type."""
    import torch

    rand = _random(device)
    mm, bmm = torch.ops.aten.mm.default, torch.ops.aten.bmm.default

    def product(dtype: str, rows: int, inner: int, columns: int) -> _Case:
        a = rand(rows, inner).to(getattr(torch, dtype))
        b = rand(inner, columns).to(getattr(torch, dtype))
        return _Case.of(f"{PRODUCT} {dtype}", 2 * rows * inner * columns, mm, a, b)

    for size in sizes.products:
        yield product(DTYPES[0], *size)
    for dtype in DTYPES[1:]:  # small, since some processors compute in these types without help from their hardware
        yield product(dtype, *(max(length // 4, 128) for length in sizes.products[0]))
    many, length, width = 8 * sizes.batch, 128, 32
    a, b = rand(many, length, width), rand(many, width, length)
    yield _Case.of("batched product", 2 * many * length * length * width, bmm, a, b)


def _others(device: str, sizes: _Sizes) -> Iterator[_Case]:
    """Convolutions with a window of 3 x 3, of all channels and of one at a time; attention, short and long."""
    import torch

    aten, rand = torch.ops.aten, _random(device)
    channels, side = 64, 28
    images = rand(sizes.batch, channels, side, side)
    for name, groups in (("convolution", 1), ("grouped convolution", channels)):
        window = rand(channels, channels // groups, 3, 3)
        form = ([1, 1], [1, 1], [1, 1], False, [0, 0], groups)
        work = 2 * images.numel() * 9 * channels // groups
        yield _Case.of(name, work, aten.convolution.default, images, window, None, *form)
        arguments = (images, images, window, None, *form, [True, True, False])
        yield _Case.of(f"{name} backward", 2 * work, aten.convolution_backward.default, *arguments)
    for length, width in ((128, 32), (256, 64)):
        yield from _attention(rand(sizes.batch, 4, length, width))


def _attention(q: Tensor) -> Iterator[_Case]:
    """Attention forward and backward, by the kernels that PyTorch chooses on the device of the queries."""
    import torch

    aten = torch.ops.aten
    work = 4 * q.numel() * q.shape[2]
    if q.device.type == "cpu":
        forward = aten._scaled_dot_product_flash_attention_for_cpu.default
        backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
        out, sums = forward(q, q, q)
        yield _Case.of("attention", work, forward, q, q, q)
        yield _Case.of("attention backward", 2.5 * work, backward, out, q, q, q, out, sums, 0.0, False)
        return
    forward = aten._scaled_dot_product_efficient_attention.default
    backward = aten._scaled_dot_product_efficient_attention_backward.default
    out, sums, seed, offset = forward(q, q, q, None, True)
    yield _Case.of("attention", work, forward, q, q, q, None, True)
    arguments = (out, q, q, q, None, out, sums, seed, offset, 0.0, [True, True, True, False])
    yield _Case.of("attention backward", 2.5 * work, backward, *arguments)
