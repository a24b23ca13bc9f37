"""What the settings of tools for training can say about layers: the same choice in each, as operations that run again.

A setting has a text: ``none``; ``full`` (every layer as a whole); ``every/2`` (every second layer); ``save/mlp+norm``
(layers but for what is saved: modules, or results of operators); and what a single tool has besides. Each tool has its
own way to recompute: when it begins, whether it stops at the last result that is needed, and what it keeps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from remat_cli.errors import StrategyMismatch
from remat_cli.graph.model import Graph
from remat_cli.graph.modules import Call, Module, lies_in, module_of
from remat_cli.graph.phases import Training

NONE, FULL, SELECTIVE = "none", "full", "selective"
SAVE, EVERY, BLOCK, UNIFORM, PARTS = "save", "every", "block", "uniform", "modules"
MOST = 4096
"""The largest number of sets of modules that are tried: each takes a walk over the graph."""
ATTENTION = "attention"
ATTENTION_OPERATORS = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
)
"""What ``attention`` stands for: axolotl's group of this name."""
PRODUCTS = ("mm", "addmm", "bmm", "convolution")
"""Operators that may be saved besides attention: those that cost most, and whose results something else reads again."""
TITAN_SAVES = frozenset(
    {
        *("mm", "addmm", "bmm", "convolution", "convolution_backward", "upsample_bilinear2d", "_scaled_mm", "linear"),
        *("_flash_attention_forward", "_efficient_attention_forward", "_scaled_dot_product_flash_attention"),
        *("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention"),
        *("_scaled_dot_product_attention_math", "_scaled_dot_product_fused_attention_overrideable"),
        *("max", "topk", "reduce_scatter_tensor", "all_to_all_single", "flex_attention"),
    }
)
"""Operators whose results torchtitan's SelectiveAC saves, as of 0.3.0 with PyTorch 2.13; a test compares them."""
RANDOM = frozenset({"native_dropout", "bernoulli", "rand", "rand_like", "randn", "randn_like", "randint", "randperm"})
Parts = dict[str, dict[int, tuple[int, ...]]]
"""The nodes of modules in layers: by the name of the module, and the first node of the call of the layer."""
_TITAN_GATE = "moe.router.gate"
_MLP = re.compile(r"mlp|feed_forward|ffn|moe")
_ATTENTION = re.compile(r"attn|attention")
_NORM = re.compile(r"norm|ln_|layernorm")


@dataclass(frozen=True, slots=True)
class Unit:
    """Operations that run again together.

    Attributes:
        again: Forward nodes, in order.
        trigger: The node of the backward pass before which they run.
    """

    again: tuple[int, ...]
    trigger: int


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of a tool.

    Attributes:
        text: What it says.
        units: What runs again.
    """

    text: str
    units: tuple[Unit, ...]


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers of a network.

    Attributes:
        training: The graph.
        modules: The layers in the order in which tools count them; None for one whose recomputation frees nothing.
    """

    training: Training
    modules: tuple[Module | None, ...]

    @property
    def calls(self) -> Iterator[tuple[Module, Call]]:
        """All calls of layers."""
        return ((module, call) for module in self.modules if module is not None for call in module.calls)

    def begins(self, module: Module, call: Call) -> int:
        """The first node of the gradients of a call: where a tool begins that waits for the gradient of its result."""
        if len(module.calls) > 1:
            return call.trigger
        return self.first_gradient(module.name, call.trigger)

    def first_gradient(self, name: str, most: int) -> int:
        """The first node of the gradients of a module; ``most`` if there is none before."""
        graph = self.training.graph
        nodes = range(self.training.sweep, most + 1)
        return next((k for k in nodes if lies_in(module_of(graph.nodes[k].id), name)), most)

    def named(self, name: str) -> bool:
        """Whether the path of a module in a layer holds ``name``."""
        graph = self.training.graph
        return any(name in module_of(graph.nodes[node].id) for _, call in self.calls for node in call.nodes)

    def parts(self) -> Parts:
        """The modules inside of layers by their names there, outermost first.

        Only modules that are called once in a call of a layer; of modules with the same nodes, the outermost.
        """
        graph = self.training.graph
        called = graph.metadata.get("modules") if isinstance(graph.metadata, dict) else None
        parts: Parts = {}
        broken: set[str] = set()
        for module, call in self.calls:
            inside: dict[str, list[int]] = {}
            for node in call.nodes:
                pieces = module_of(graph.nodes[node].id).removeprefix(module.name).strip("./").split(".")
                for end in range(1, len(pieces) + 1) if pieces != [""] else ():
                    inside.setdefault(".".join(pieces[:end]), []).append(node)
            seen: set[tuple[int, ...]] = set()
            for name, nodes in inside.items():
                if isinstance(called, list) and f"{module.name}.{name}" not in called:
                    continue
                if nodes[-1] - nodes[0] >= len(nodes) or tuple(nodes) in seen:
                    broken.add(name)
                seen.add(tuple(nodes))
                parts.setdefault(name, {})[call.nodes[0]] = tuple(nodes)
        return {name: nodes for name, nodes in parts.items() if name not in broken}

    def operators(self) -> dict[int, str]:
        """The operator of each node in layers, as far as the graph tells."""
        graph = self.training.graph
        tags = graph.metadata.get("tags") if isinstance(graph.metadata, dict) else None
        found: dict[int, str] = {}
        if not isinstance(tags, dict):
            return found
        for _, call in self.calls:
            for node in call.nodes:
                tag = next((tags.get(graph.value_name(value)) for value in graph.values_of(node)), None)
                if isinstance(tag, str):
                    found[node] = tag.rpartition(".")[0]
        return found


def schedule(graph: Graph, units: Collection[Unit]) -> list[int]:
    """The computes of a step in which ``units`` run again."""
    before: dict[int, list[tuple[int, ...]]] = {}
    for unit in units:
        before.setdefault(unit.trigger, []).append(unit.again)
    computes: list[int] = []
    for node in range(len(graph.nodes)):
        for again in sorted(before.get(node, ())):
            computes += again
        computes.append(node)
    return computes


def trl(layers: Layers) -> Iterator[Setting]:
    """Every n-th layer, as Transformers counts; a layer stops at the last result that is needed."""
    yield Setting(NONE, ())
    for n in range(1, len(layers.modules) + 1):
        chosen = [module for module in layers.modules[::n] if module is not None]
        units = (Unit(call.again, call.trigger) for module in chosen for call in module.calls)
        yield Setting(f"{EVERY}/{n}", tuple(units))


def axolotl(layers: Layers) -> Iterator[Setting]:
    """All layers, without the results of some operators.

    With saved results, all of a layer that is not saved counts as run again, though PyTorch may stop a little earlier:
    what is saved stays until then in any case.
    """
    yield Setting(NONE, ())
    yield Setting(FULL, tuple(Unit(call.again, call.trigger) for _, call in layers.calls))
    lora = layers.named("lora_")
    for names, saved in _operator_sets(layers, products=not lora):
        yield Setting(f"{SAVE}/{names}", _but(layers, saved))


def titan(layers: Layers) -> Iterator[Setting]:
    """All layers to their ends, without the results of some operators; of saved products of matrices, every second."""
    yield Setting(NONE, ())
    yield Setting(FULL, _but(layers, ()))
    if layers.named(_TITAN_GATE):
        return  # SelectiveAC recomputes products whose weights have the shape of the gate's, which no name tells
    operators = layers.operators()
    saved = [node for node, name in operators.items() if name in TITAN_SAVES]
    if saved:
        yield Setting(SELECTIVE, _but(layers, _every_second(layers, operators, saved)))
    for names, chosen in _operator_sets(layers, products=True):
        yield Setting(f"{SAVE}/{names}", _but(layers, _every_second(layers, operators, chosen)))


def torch_remat(layers: Layers) -> Iterator[Setting]:
    """All layers to their ends, from when their gradients begin, without some modules.

    Only modules whose results are kept in any case, because gradients or something of the layer that runs again reads
    them: torch_remat 0.2.2 keeps what it is told to, and its stand-ins for other results need a CUDA build of PyTorch.
    So no module that makes the result of the layer.

    Raises:
        StrategyMismatch: If a layer draws random numbers: torch_remat leaves their state to its users.
    """
    yield Setting(NONE, ())
    graph = layers.training.graph
    for _, call in layers.calls:
        for node in call.nodes:
            if graph.nodes[node].op in RANDOM:
                raise StrategyMismatch(
                    f"torch_remat does not keep the state of random numbers, and {graph.nodes[node].id} draws some",
                    hint="switch dropout off, or take torch-checkpoint, which keeps their state",
                )
    parts = {name: runs for name, runs in layers.parts().items() if _inside(layers, runs)}
    begins = [layers.begins(module, call) for module, call in layers.calls]
    read = {run: _read_outside(layers.training, run) for runs in parts.values() for run in runs.values()}
    names = _countable(graph, parts)
    for chosen in _apart(names):
        units = []
        for (_, call), begin in zip(layers.calls, begins, strict=True):
            runs = [parts[name][call.nodes[0]] for name in chosen if call.nodes[0] in parts[name]]
            saved = {node for run in runs for node in run}
            again = tuple(node for node in call.nodes if node not in saved)
            if any(saved.issuperset(readers) for run in runs for readers in read[run]):
                break
            units.append(Unit(again, begin))
        else:
            units = [unit for unit in units if unit.again]
            yield Setting(f"{SAVE}/{'+'.join(chosen)}" if chosen else FULL, tuple(units))


def megatron(layers: Layers) -> Iterator[Setting]:
    """The first layers, chunks of layers, or some parts in all layers."""
    yield Setting(NONE, ())
    whole = [
        [Unit(call.nodes, layers.begins(module, call)) for call in module.calls] if module else []
        for module in layers.modules
    ]
    for n in range(1, len(whole) + 1):
        yield Setting(f"{BLOCK}/{n}", tuple(unit for units in whole[:n] for unit in units))
    for n in range(2, len(whole) + 1):
        if all(len(units) == 1 for units in whole):
            chunks = [[units[0] for units in whole[k : k + n]] for k in range(0, len(whole), n)]
            yield Setting(f"{UNIFORM}/{n}", tuple(map(_together, chunks)))
    parts = _megatron_parts(layers)
    for size in range(1, len(parts) + 1):
        for chosen in combinations(parts, size):
            if not {"moe", "shared_experts"} <= set(chosen):
                units = tuple(unit for name in chosen for unit in parts[name])
                yield Setting(f"{PARTS}/{'+'.join(chosen)}", units)


CHOICES: Mapping[str, Callable[[Layers], Iterator[Setting]]] = {
    "axolotl": axolotl,
    "megatron": megatron,
    "titan": titan,
    "torch-remat": torch_remat,
    "trl": trl,
}
"""The settings of each tool; the first is without recomputation."""


def _inside(layers: Layers, runs: Mapping[int, tuple[int, ...]]) -> bool:
    """Whether nothing in the forward pass outside of a layer reads what these nodes of it make."""
    graph = layers.training.graph
    ends = {call.nodes[0]: call.nodes[-1] for _, call in layers.calls}
    return all(
        ends[first] >= reader or reader >= layers.training.sweep
        for first, run in runs.items()
        for node in run
        for value in graph.values_of(node)
        for reader in graph.readers[value]
    )


def _read_outside(training: Training, inside: Collection[int]) -> list[set[int]]:
    """The readers of each value of ``inside`` that nodes outside of it read, but no gradients."""
    graph = training.graph
    found = []
    for value in (value for node in inside for value in graph.values_of(node)):
        readers = set(graph.readers[value])
        if not readers.issubset(inside) and max(readers) < training.sweep:
            found.append(readers)
    return found


def _together(units: Sequence[Unit]) -> Unit:
    return Unit(tuple(node for unit in units for node in unit.again), min(unit.trigger for unit in units))


def _but(layers: Layers, saved: Collection[int]) -> tuple[Unit, ...]:
    """All layers to their ends, from the first need on, without ``saved``."""
    units = (Unit(tuple(node for node in call.nodes if node not in saved), call.trigger) for _, call in layers.calls)
    return tuple(unit for unit in units if unit.again)


def _operator_sets(layers: Layers, *, products: bool) -> Iterator[tuple[str, frozenset[int]]]:
    """Sets of operators to save, with their nodes; without those that hold a result that nothing reads again."""
    graph, sweep = layers.training.graph, layers.training.sweep
    groups: dict[str, list[int]] = {}
    for node, operator in layers.operators().items():
        name = ATTENTION if operator in ATTENTION_OPERATORS else operator
        if name == ATTENTION or (products and name in PRODUCTS):
            groups.setdefault(name, []).append(node)
    for size in range(1, len(groups) + 1):
        for chosen in combinations(sorted(groups), size):
            nodes = frozenset(node for name in chosen for node in groups[name])
            readers = (graph.readers[value] for node in nodes for value in graph.values_of(node) if graph.size[value])
            if all(any(reader >= sweep or reader not in nodes for reader in own) for own in readers):
                yield "+".join(chosen), nodes


def _every_second(layers: Layers, operators: Mapping[int, str], saved: Collection[int]) -> frozenset[int]:
    """``saved`` without every second product of matrices of a layer."""
    dropped: set[int] = set()
    for _, call in layers.calls:
        products = [node for node in call.nodes if operators.get(node) in {"mm", "linear"}]
        dropped.update(products[1::2])
    return frozenset(saved) - dropped


def _countable(graph: Graph, parts: Parts) -> list[str]:
    """Names of modules, those that cost most first, as many as have at most :data:`MOST` sets that can be saved."""

    def cost(name: str) -> float:
        return sum(graph.nodes[node].cost for nodes in parts[name].values() for node in nodes)

    names: list[str] = []
    for name in sorted(parts, key=lambda name: (-cost(name), name)):
        if _count([*names, name]) > MOST:
            break
        names.append(name)
    return sorted(names, key=list(parts).index)


def _children(names: Sequence[str], of: str | None) -> list[str]:
    """The outermost of ``names`` inside of the module ``of``; None for the layer."""
    inside = [name for name in names if of is None or (name != of and lies_in(name, of))]
    return [name for name in inside if not any(name != other and lies_in(name, other) for other in inside)]


def _count(names: Sequence[str], of: str | None = None) -> int:
    """How many sets of ``names`` there are in which none lies in another."""
    product = 1
    for child in _children(names, of):
        product *= 1 + _count(names, child)
    return product


def _apart(names: Sequence[str], of: str | None = None) -> Iterator[tuple[str, ...]]:
    """All sets of ``names`` in which none lies in another."""

    def join(children: Sequence[str]) -> Iterator[tuple[str, ...]]:
        if not children:
            yield ()
            return
        for rest in join(children[1:]):
            yield (children[0], *rest)
            for inner in _apart(names, children[0]):
                yield (*inner, *rest)

    yield from join(_children(names, of))


def megatron_modules(layers: Layers) -> dict[str, tuple[str, ...]]:
    """Megatron's names for parts of a layer that the names of modules tell, with these modules.

    ``layernorm`` only if a layer is norm, attention, norm, MLP.
    """
    parts = layers.parts()
    outer = [name for name in parts if "." not in name]
    norms = [name for name in outer if _NORM.search(name)]
    mlps = [name for name in outer if _MLP.search(name) and name not in norms]
    attentions = [name for name in outer if _ATTENTION.search(name) and name not in [*norms, *mlps]]
    if len(mlps) != 1 or any(len(module.calls) > 1 for module, _ in layers.calls):
        return {}
    [mlp] = mlps
    inside = {name.rpartition(".")[2]: name for name in parts if lies_in(name, mlp)}
    found: dict[str, tuple[str, ...]] = {"moe" if layers.named(".experts") else "mlp": (mlp,)}
    for name in ("shared_experts", "shared_expert"):
        if name in inside:
            found["shared_experts"] = (inside[name],)
    if len(attentions) == 1 and len(norms) == 2:
        order = [norms[0], attentions[0], norms[1], mlp]
        if all(_in_order([parts[name].get(call.nodes[0]) for name in order]) for _, call in layers.calls):
            found["layernorm"] = tuple(norms)
    return found


def _megatron_parts(layers: Layers) -> dict[str, list[Unit]]:
    """What each of :func:`megatron_modules` recomputes.

    A norm is computed again when the gradient of what reads it begins: Megatron drops its result alone.
    """
    parts = layers.parts()
    outer = [name for name in parts if "." not in name]
    found: dict[str, list[Unit]] = {}
    for name, modules in megatron_modules(layers).items():
        found[name] = []
        for module in modules:
            reader = outer[outer.index(module) + 1] if name == "layernorm" else module
            found[name] += _part(layers, parts[module], reader)
    return found


def _part(layers: Layers, nodes: Mapping[int, tuple[int, ...]], reader: str) -> list[Unit]:
    """``nodes`` of each layer, run again when the gradients of the module ``reader`` in it begin."""
    end = len(layers.training.graph.nodes) - 1
    return [
        Unit(nodes[call.nodes[0]], layers.first_gradient(f"{module.name}.{reader}", end))
        for module, call in layers.calls
        if call.nodes[0] in nodes
    ]


def _in_order(runs: Sequence[tuple[int, ...] | None]) -> bool:
    """Whether each run ends before the next begins."""
    return all(a and b and a[-1] < b[0] for a, b in pairwise(runs))
