"""Settings of tools for training: each runs again what the tool does, and the choice is the cheapest of all."""

from __future__ import annotations

import ast
import json
import math
import random
from dataclasses import replace
from itertools import combinations

import jsonschema
import pytest
import yaml
from seeded import seeded
from test_whole_modules import context, modular

from remat_cli.api import SolveOptions, policy
from remat_cli.errors import StrategyMismatch, UsageError
from remat_cli.graph.document import load_schema
from remat_cli.graph.model import Graph, Node, Phase
from remat_cli.graph.modules import lies_in
from remat_cli.graph.tools import as_autograd_holds
from remat_cli.plan.liveness import cost_of, heights
from remat_cli.plan.model import Scope
from remat_cli.reports.documents import document_json
from remat_cli.reports.policy import policy_text
from remat_cli.reports.style import Style
from remat_cli.spec import split_spec
from remat_cli.strategies.base import Found, NotFound, Task
from remat_cli.strategies.policies import layer_choices
from remat_cli.strategies.policies.layer_choices import CHOICES, schedule
from remat_cli.strategies.policies.layer_settings import LayerSettings, settings_for

F, B = Phase.FORWARD, Phase.BACKWARD
FORWARD = (  # module, operator, inputs by number, cost, bytes
    ("norm1", "layer_norm", (0,), 1.0, 8),
    ("attn.q", "mm", (1,), 10.0, 8),
    ("attn.k", "mm", (1,), 10.0, 8),
    ("attn", "_scaled_dot_product_flash_attention", (2, 3), 20.0, 8),
    ("attn.o", "mm", (4,), 10.0, 8),
    ("", "add", (0, 5), 1.0, 8),
    ("norm2", "layer_norm", (6,), 1.0, 8),
    ("mlp.up", "mm", (7,), 40.0, 32),
    ("mlp.act", "gelu", (8,), 2.0, 32),
    ("mlp.down", "mm", (9,), 40.0, 8),
    ("", "add", (6, 10), 1.0, 8),
)
READS = {0: (0,), 1: (1,), 2: (1,), 3: (2, 3, 4), 4: (4,), 6: (6,), 7: (7,), 8: (8,), 9: (9,)}
"""What the gradients of each operation read of the values that FORWARD numbers, 0 for the input of the layer."""


def transformer(layers: int = 3) -> Graph:
    """Layers of a transformer; the gradients of an addition are no operation."""
    nodes = [Node("embed/op", 1.0, (), (8,), phase=F)]
    tags, places = {}, []
    for layer in range(layers):
        numbers = [len(nodes) - 1]
        for module, operator, inputs, cost, size in FORWARD:
            path = ".".join(part for part in (f"layers.{layer}", module) if part)
            count = sum(node.id.startswith(f"{path}/{operator}") for node in nodes)
            name = f"{path}/{operator}" + (f".{count}" if count else "")
            tags[f"{name}:0"] = f"{operator}.{len(nodes)}"
            numbers.append(len(nodes))
            nodes.append(Node(name, cost, tuple(sorted(numbers[i] for i in inputs)), (size,), phase=F, op=operator))
        places.append(numbers)
    nodes.append(Node("loss/op", 1.0, (len(nodes) - 1,), (1,), phase=Phase.LOSS))
    for layer in reversed(range(layers)):
        for k in reversed(range(len(FORWARD))):
            if k in READS:
                path = ".".join(part for part in (f"grad/layers.{layer}", FORWARD[k][0]) if part)
                read = sorted({len(nodes) - 1, *(places[layer][i] for i in READS[k])})
                nodes.append(Node(f"{path}/{FORWARD[k][1]}", 2 * FORWARD[k][3], tuple(read), (8,), phase=B))
    return Graph("transformer", tuple(nodes), (len(nodes) - 1,), metadata={"tags": tags})


def ran_again(graph: Graph, tool: str, text: str) -> list[tuple[str, list[str]]]:
    """The node before which operations of the last layer run again under a setting, with these operations."""
    [setting] = [one for one in settings_for(Task(graph, None), tool) if one.text == text]
    named = [(graph.nodes[unit.trigger].id, [graph.nodes[node].id for node in unit.again]) for unit in setting.units]
    return [(begin, [one.removeprefix("layers.2") for one in again]) for begin, again in named if "layers.2" in begin]


ALL = ["layer_norm", "mm", "mm", "_scaled_dot_product_flash_attention", "mm", "add"]
WHOLE = [
    *(".norm1/layer_norm", ".attn.q/mm", ".attn.k/mm", ".attn/_scaled_dot_product_flash_attention", ".attn.o/mm"),
    *("/add", ".norm2/layer_norm", ".mlp.up/mm", ".mlp.act/gelu", ".mlp.down/mm", "/add.1"),
]
NEEDED = WHOLE[:-2]
"""What a layer runs again that stops at the last result that its gradients read."""
FIRST = "grad/layers.2.mlp.down/mm"


@pytest.mark.parametrize(
    ("tool", "text", "again"),
    [
        ("trl", "every/1", [(FIRST, NEEDED)]),
        ("axolotl", "full", [(FIRST, NEEDED)]),
        ("axolotl", "save/mm", [(FIRST, [name for name in WHOLE if "mm" not in name])]),
        ("axolotl", "save/attention+mm", [(FIRST, [n for n in WHOLE if "mm" not in n and "attention" not in n])]),
        ("titan", "full", [(FIRST, WHOLE)]),
        # Of the products q, k, o, up, down the second and the fourth are not saved.
        ("titan", "save/mm", [(FIRST, [n for n in WHOLE if n not in {".attn.q/mm", ".attn.o/mm", ".mlp.down/mm"}])]),
        ("torch-remat", "full", [(FIRST, WHOLE)]),
        ("torch-remat", "save/attn+mlp.up", [(FIRST, [n for n in WHOLE if "attn" not in n and ".up" not in n])]),
        ("megatron", "block/3", [(FIRST, WHOLE)]),
        ("megatron", "modules/mlp", [(FIRST, [".mlp.up/mm", ".mlp.act/gelu", ".mlp.down/mm"])]),
        (
            "megatron",
            "modules/layernorm",
            [("grad/layers.2.attn.o/mm", [".norm1/layer_norm"]), (FIRST, [".norm2/layer_norm"])],
        ),
    ],
)
def test_each_tool_runs_again_what_its_setting_says(tool, text, again):
    assert ran_again(transformer(), tool, text) == again


def test_the_settings_of_each_tool():
    def texts(tool: str, graph: Graph) -> set[str]:
        return {setting.text for setting in settings_for(Task(graph, None), tool)}

    graph = transformer()
    assert texts("trl", graph) == {"none", "every/1", "every/2", "every/3"}
    assert texts("axolotl", graph) == {"none", "full", "save/attention", "save/mm", "save/attention+mm"}
    assert texts("titan", graph) == {"none", "full", "selective", "save/attention", "save/mm"}  # selective saves both
    blocks = {"block/1", "block/2", "block/3", "uniform/2", "uniform/3"}
    assert texts("megatron", graph) == {"none", *blocks, "modules/mlp", "modules/layernorm", "modules/mlp+layernorm"}
    halves = replace(graph, metadata={})  # no names of operators: what chooses by them has no such settings
    assert texts("axolotl", halves) == texts("titan", halves) == {"none", "full"}


def test_chunks_of_layers_run_again_together():
    graph = transformer()
    [setting] = [one for one in settings_for(Task(graph, None), "megatron") if one.text == "uniform/2"]
    assert [graph.nodes[unit.trigger].id for unit in setting.units] == ["grad/layers.1.mlp.down/mm", FIRST]
    assert [len(unit.again) for unit in setting.units] == [2 * len(FORWARD), len(FORWARD)]


def test_torch_remat_chooses_among_all_sets_of_modules():
    """Of which none lies in another, and whose results are kept in any case."""
    graph = transformer()
    names = ["norm1", "attn", "attn.q", "attn.k", "attn.o", "norm2", "mlp", "mlp.up", "mlp.act", "mlp.down"]
    wanted = {
        chosen
        for size in range(1, len(names) + 1)
        for chosen in combinations(names, size)
        if not any(a != b and lies_in(a, b) for a in chosen for b in chosen)
    }
    texts = {one.text for one in layer_choices.torch_remat(layers_of(graph))} - {"none", "full"}
    assert {tuple(text.removeprefix("save/").split("+")) for text in texts} == wanted
    blind = [  # nothing reads what the first norm makes but products, and only their gradients keep it
        replace(node, inputs=tuple(i for i in node.inputs if graph.nodes[i].op != "layer_norm" or i > 6))
        if node.phase is B
        else node
        for node in graph.nodes
    ]
    forgetful = replace(graph, nodes=tuple(blind))
    texts = {one.text for one in layer_choices.torch_remat(layers_of(forgetful))}
    assert "save/norm1+attn.q" in texts  # the product with attn.k runs again, and reads it
    assert "save/norm1+attn.q+attn.k" not in texts


def layers_of(graph: Graph) -> layer_choices.Layers:
    from remat_cli.strategies.policies.layer_settings import layers_for

    return layers_for(Task(graph, None), "test")


@seeded(range(60), fits=60, again=20, impossible=20)
def test_the_choice_is_the_cheapest_of_all(seed):
    rng = random.Random(seed)
    graph = modular(rng, rng.randint(2, 4))
    tool = rng.choice(list(CHOICES))
    try:
        settings = list(CHOICES[tool](layers_of(graph)))
    except StrategyMismatch:
        return
    priced = []
    for setting in settings:
        computes = schedule(graph, setting.units)
        assert sorted(set(computes)) == list(range(len(graph.nodes)))
        priced.append((max(heights(graph, computes)), cost_of(graph, computes), setting.text))
    plain = max(heights(graph, range(len(graph.nodes))))
    for budget in sorted(rng.sample(range(min(p for p, *_ in priced) - 2, plain + 1), 2)):
        wanted = min((cost for peak, cost, _ in priced if peak <= budget), default=math.inf)
        answer = LayerSettings(tool).solve(Task(graph, budget), context())
        if isinstance(answer, NotFound):
            assert wanted == math.inf
            assert answer.best is not None
            assert max(heights(graph, answer.best.computes)) == min(peak for peak, *_ in priced)
            yield "impossible"
            continue
        assert cost_of(graph, answer.schedule.computes) == pytest.approx(wanted)
        assert max(heights(graph, answer.schedule.computes)) <= budget
        [bound] = answer.bounds
        assert (bound.cost, bound.scope) == (pytest.approx(wanted), Scope.RESTRICTED)
        given = split_spec(answer.maker)[1]["setting"]
        again = LayerSettings(tool, given).solve(Task(graph, budget), context())
        assert isinstance(again, Found)
        assert again.schedule == answer.schedule
        yield "fits"
        if len(answer.schedule.computes) > len(graph.nodes):
            yield "again"


def test_layers_in_which_something_must_not_run_twice_are_refused():
    graph = transformer()
    once = replace(graph, nodes=tuple(replace(n, recompute=n.id != "layers.1.mlp.act/gelu") for n in graph.nodes))
    for tool in CHOICES:
        with pytest.raises(StrategyMismatch, match=r"layers.1.mlp.act/gelu must not run twice"):
            settings_for(Task(once, None), tool)
    outside = replace(graph, nodes=tuple(replace(n, recompute=n.id != "embed/op") for n in graph.nodes))
    assert settings_for(Task(outside, None), "trl") == settings_for(Task(graph, None), "trl")


def test_random_numbers_and_gates_are_left_to_tools_that_keep_them():
    graph = transformer()
    dropped = replace(graph, nodes=tuple(replace(n, op="native_dropout") if n.op == "gelu" else n for n in graph.nodes))
    with pytest.raises(StrategyMismatch, match=r"layers.0.mlp.act/gelu draws some"):
        settings_for(Task(dropped, None), "torch-remat")
    assert len(settings_for(Task(dropped, None), "titan")) == len(settings_for(Task(graph, None), "titan"))

    def renamed(old: str, new: str) -> Graph:
        named = tuple(replace(node, id=node.id.replace(old, new)) for node in graph.nodes)
        tags = {name.replace(old, new): tag for name, tag in graph.metadata["tags"].items()}
        return replace(graph, nodes=named, metadata={"tags": tags})

    gated = settings_for(Task(renamed("mlp.up", "moe.router.gate"), None), "titan")
    assert {setting.text for setting in gated} == {"none", "full"}
    lora = settings_for(Task(renamed("mlp.up", "mlp.lora_A"), None), "axolotl")
    assert {setting.text for setting in lora} == {"none", "full", "save/attention"}
    experts = settings_for(Task(renamed("mlp.up", "mlp.experts"), None), "megatron")
    assert "modules/moe+layernorm" in {setting.text for setting in experts}


def test_unknown_tools_settings_and_networks_without_layers():
    graph = transformer()
    with pytest.raises(UsageError, match='there is no tool "trll"') as told:
        LayerSettings("trll")
    assert "trl" in told.value.hint
    with pytest.raises(UsageError, match='trl has no setting "every/9" for this graph'):
        LayerSettings("trl", "every/9").solve(Task(graph, None), context())
    answer = LayerSettings("trl", "every/3").solve(Task(graph, 1), context())
    assert isinstance(answer, NotFound)
    assert "this setting does not fit" in str(answer)
    nodes = (
        Node("block/a", 1.0, (), (1,), phase=F),
        Node("other/b", 1.0, (0,), (1,), phase=F),
        Node("grad/other/b", 1.0, (1,), (1,), phase=B),
        Node("grad/block/a", 1.0, (0, 2), (1,), phase=B),
    )
    with pytest.raises(StrategyMismatch, match="no modules have names that differ in a number"):
        LayerSettings("trl").solve(Task(Graph("flat", nodes, (3,)), None), context())


@pytest.mark.parametrize("tool", list(CHOICES))
def test_every_setting_is_written_as_its_tool_reads_it(tool):
    """With what is predicted as a comment, in words, and as a document of the schema."""
    graph = transformer()
    graph = replace(
        graph, metadata={**graph.metadata, "layers": [f"layers.{k}" for k in range(3)], "frontend": "torch"}
    )
    held = as_autograd_holds(graph)
    heads = set()
    for setting in settings_for(Task(held, None), tool)[:: -1 if tool != "torch-remat" else 40]:
        peak = max(heights(held, schedule(held, setting.units)))
        found = policy(graph, peak, tool, SolveOptions(time_limit_s=20))
        assert found.solved.report.replay.peak_bytes <= peak
        assert found.best is not None
        document = json.loads(document_json(found.document()))
        jsonschema.Draft202012Validator(load_schema("policy")).validate(document)
        comment, rest = found.snippet.split("\n", 1)
        assert comment == f"# By remat for the graph transformer: peak {found.solved.report.replay.peak_bytes} B,"
        assert "# " in rest
        assert "over no recomputation (the best of all plans: +" in rest
        if tool in {"trl", "axolotl"}:
            written = yaml.safe_load(found.snippet)
            assert written["gradient_checkpointing"] is (found.settings != ("none",))
        else:
            ast.parse(found.snippet)
        text = policy_text(document, Style(200, color=False, unicode=True))
        heads.add(text.splitlines()[0].partition(",")[0])
        cheapest = f"the cheapest of {len(settings_for(Task(held, None), tool))} settings"
        assert cheapest in text
    assert (
        heads
        >= {
            "torch-remat": {
                "torch-remat: nothing is recomputed",
                "torch-remat: every layer is recomputed but for norm1",
            },
            "trl": {
                "trl: nothing is recomputed",
                "trl: every 2nd layer is recomputed",
                "trl: every layer is recomputed",
            },
            "axolotl": {"axolotl: nothing is recomputed", "axolotl: every layer is recomputed but for attention"},
            "titan": {"titan: every layer is recomputed but for the results that the tool saves"},
            "megatron": {"megatron: layernorm is recomputed in every layer", "megatron: the first layer is recomputed"},
        }[tool]
    ), heads


def test_an_answer_is_there_before_all_settings_are_tried():
    """What is published on the way keeps the budget, and gets cheaper; its bound claims nothing."""
    graph = transformer()
    published: list[Found] = []
    told = replace(context(), publish=published.append)
    plain = max(heights(graph, range(len(graph.nodes))))
    answer = LayerSettings().solve(Task(graph, plain * 7 // 10), told)
    assert isinstance(answer, Found)
    costs = [cost_of(graph, found.schedule.computes) for found in published]
    assert len(costs) > 3
    assert costs == sorted(costs, reverse=True)
    assert cost_of(graph, answer.schedule.computes) <= costs[-1]
    assert all(max(heights(graph, found.schedule.computes)) <= plain * 7 // 10 for found in published)
    assert {bound.cost for found in published for bound in found.bounds} == {graph.total_cost}


def test_graphs_of_other_frameworks_are_refused():
    graph = transformer()
    for tool in CHOICES:
        with pytest.raises(StrategyMismatch, match=r"needs a graph of remat export torch:.*this one is of jax:"):
            policy(replace(graph, metadata={**graph.metadata, "frontend": "jax"}), "80%", tool)
