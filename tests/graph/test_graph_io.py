import json
from dataclasses import replace

import pytest
from families import graphs
from hypothesis import given
from hypothesis import strategies as st
from mangling import as_json, outcome, spoiled, spoiled_text, to_yaml

from remat_cli.errors import InputError
from remat_cli.graph.document import Document, parse_document
from remat_cli.graph.io import dump_document, graph_from_document, graph_sha256, graph_to_document
from remat_cli.graph.model import Graph, Node, Phase

DESIGN_EXAMPLE = """\
schema: remat-graph/1
name: toy
cost_unit: flops          # flops, us, ns, unit, ...: shown in reports, never converted
fixed_memory: 2GiB
nodes:                    # in execution order
  - {id: conv1, op: conv2d, phase: forward, inputs: [], cost: 1.2e9, memory: 64MiB}
  - {id: bn1, phase: forward, inputs: [conv1], cost: 3.0e7, outputs: [64MiB, 256B, 256B]}
  - {id: relu1, phase: forward, inputs: ["bn1:0"], cost: 1.0e6, memory: 64MiB, workspace: 1MiB}
  - {id: loss, phase: loss, inputs: [relu1], cost: 1, memory: 4B, recompute: false}
outputs: [loss]           # values resident at the end; default: the last node's values
"""
EXAMPLE_GRAPH = Graph(
    name="toy",
    nodes=(
        Node("conv1", 1.2e9, (), (64 * 2**20,), op="conv2d", phase=Phase.FORWARD),
        Node("bn1", 3e7, (0,), (64 * 2**20, 256, 256), phase=Phase.FORWARD),
        Node("relu1", 1e6, (1,), (64 * 2**20,), workspace=2**20, phase=Phase.FORWARD),
        Node("loss", 1.0, (4,), (4,), recompute=False, phase=Phase.LOSS),
    ),
    outputs=(5,),
    cost_unit="flops",
    fixed_memory=2 * 2**30,
)
CANONICAL = """\
{
"cost_unit": "flops",
"fixed_memory": 2147483648,
"name": "toy",
"nodes": [
{"cost": 1200000000, "id": "conv1", "inputs": [], "op": "conv2d", "outputs": [67108864], "phase": "forward", \
"recompute": true, "workspace": 0},
{"cost": 30000000, "id": "bn1", "inputs": ["conv1:0"], "outputs": [67108864, 256, 256], "phase": "forward", \
"recompute": true, "workspace": 0},
{"cost": 1000000, "id": "relu1", "inputs": ["bn1:0"], "outputs": [67108864], "phase": "forward", \
"recompute": true, "workspace": 1048576},
{"cost": 1, "id": "loss", "inputs": ["relu1:0"], "outputs": [4], "phase": "loss", "recompute": false, "workspace": 0}
],
"outputs": ["loss:0"],
"schema": "remat-graph/1"
}
"""


def read(text: str, format: str | None = None) -> Graph:
    return graph_from_document(parse_document(text, "g", format))


def graph(*nodes: str, rest: str = "") -> str:
    """A JSON graph document with node k on line 3 + k."""
    return '{"schema": "remat-graph/1",\n"nodes": [\n' + ",\n".join(nodes) + "\n]" + rest + "}"


def node(node_id: str, *inputs: str, rest: str = '"cost": 1, "memory": 4') -> str:
    return f'{{"id": {json.dumps(node_id)}, "inputs": {json.dumps(inputs)}, {rest}}}'


def one(rest: str) -> str:
    """A document with one node."""
    return graph(node("a", rest=rest))


def refusal(text: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        read(text)
    return str(caught.value).splitlines()


def test_the_example_of_the_design():
    read_graph = read(DESIGN_EXAMPLE, "yaml")
    assert read_graph == EXAMPLE_GRAPH
    assert dump_document(graph_to_document(read_graph)) == CANONICAL
    assert read(CANONICAL) == EXAMPLE_GRAPH


def test_defaults():
    small = read(graph(node("a"), node("b", "a", rest='"cost": 0.5, "outputs": [1, "2kB"]')))
    assert small == Graph(
        name="graph", nodes=(Node("a", 1.0, (), (4,)), Node("b", 0.5, (0,), (1, 2000))), outputs=(1, 2)
    )


def test_repeated_inputs_and_outputs_are_merged():
    small = read(graph(node("a"), node("b", "a", "a:0", "a"), rest=', "outputs": ["b", "a", "b:0"]'))
    assert small.nodes[1].inputs == (0,)
    assert small.outputs == (0, 1)


def test_sizes_up_to_the_largest():
    assert read(graph(node("a", rest='"cost": 1, "memory": "9e15kB"'))).size == (9 * 10**18,)
    assert read(graph(node("a", rest='"cost": 1e300, "memory": 9223372036854775807'))).size == (2**63 - 1,)


def test_no_outputs_are_allowed():
    assert read(graph(node("a"), rest=', "outputs": []')).outputs == ()
    empty = read(graph(node("a"), node("b", "a", rest='"cost": 1, "outputs": []')))
    assert empty.outputs == ()
    assert empty.nodes[1].outputs == ()


SIZE = "write bytes as a whole number, or as text such as 64MiB (2^20) or 64MB (10^6)"
COST = "the cost of one computation: a finite number that is not negative, in the graph's cost_unit"
ID = (
    "an id is any text without control characters or line breaks that does not end in a colon and digits "
    "(name:1 is the second output of name)"
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", '1:1: no field schema (add "schema": "remat-graph/1")'),
        ("a: 1", "1:1: no field schema (add schema: remat-graph/1)"),
        (
            '{"schema": "remat-graph/2"}',
            '1:2: /schema: "remat-graph/2" was made by a newer remat (this one reads remat-graph/1: upgrade)',
        ),
        (
            '{"schema": "remat-graph/0"}',
            '1:2: /schema: is "remat-graph/0", a version that does not exist (expected "remat-graph/1")',
        ),
        ('{"schema": "remat-plan/1"}', "1:2: /schema: this is a plan, expected a graph (give a graph)"),
        ('{"schema": 3}', '1:2: /schema: is 3, which is not a schema of remat (expected "remat-graph/1")'),
        (
            '{"schema": "remat-graph/1"}',
            "1:1: no field nodes (add it: the operations, at least one, in execution order)",
        ),
        (
            graph(),
            "2:1: /nodes: is an empty list, expected at least one item "
            "(the operations, at least one, in execution order)",
        ),
        (
            graph("7"),
            "3:1: /nodes/0: is the number 7, expected an object "
            "(one operation: an object such as {id: conv1, inputs: [x], cost: 1.2e9, memory: 64MiB})",
        ),
        (one('"cost": 1'), "3:1: /nodes/0: has neither memory nor outputs (give exactly one of them)"),
        (
            one('"cost": 1, "memory": 1, "outputs": [1]'),
            "3:1: /nodes/0: has both memory and outputs (give exactly one of them)",
        ),
        (one('"memory": 1'), f"3:1: /nodes/0: no field cost (add it: {COST})"),
        (one('"cost": -1, "memory": 1'), f"3:27: /nodes/0/cost: is -1, expected at least 0 ({COST})"),
        (one('"cost": "1", "memory": 1'), f'3:27: /nodes/0/cost: is the string "1", expected a number ({COST})'),
        (one('"cost": true, "memory": 1'), f"3:27: /nodes/0/cost: is true, expected a number ({COST})"),
        (
            one(f'"cost": {"9" * 400}, "memory": 1'),
            f"3:27: /nodes/0/cost: is an integer of 1329 bits, expected at most 1e+300 ({COST})",
        ),
        (
            one('"cost": 1, "memory": 3.5'),
            f"3:38: /nodes/0/memory: is the number 3.5, expected an integer or a string ({SIZE})",
        ),
        (one('"cost": 1, "memory": -3'), f"3:38: /nodes/0/memory: is -3, expected at least 0 ({SIZE})"),
        (
            one('"cost": 1, "outputs": [1, null]'),
            f"3:53: /nodes/0/outputs/1: is null, expected an integer or a string ({SIZE})",
        ),
        (
            one('"cost": 1, "memory": "16G"'),
            '3:38: /nodes/0/memory: "16G" is ambiguous (write 16GB (powers of 1000) or 16GiB (of 1024))',
        ),
        (
            one('"cost": 1, "memory": "-1MB"'),
            '3:38: /nodes/0/memory: "-1MB" is negative (write a size like 16GB (10^9) or 16GiB (2^30))',
        ),
        (
            graph(node("a"), rest=',\n"fixed_memory": "much"'),
            '5:1: /fixed_memory: "much" is not a size (write it like 16GB (10^9) or 16GiB (2^30))',
        ),
        (
            one('"cost": 1, "memory": 9223372036854775808'),
            f"3:38: /nodes/0/memory: is 9223372036854775808, expected at most 9223372036854775807 ({SIZE})",
        ),
        (
            one('"cost": 1, "memory": "1e16kB"'),
            '3:38: /nodes/0/memory: "1e16kB" is more than 9223372036854775807 bytes (is the unit right?)',
        ),
        (
            graph(*(node(name, rest='"cost": 1, "memory": 9223372036854775807') for name in "ab")),
            "2:1: /nodes: all sizes together are more than 2^63 - 1 bytes (use smaller sizes)",
        ),
        (
            graph(*(node(name, rest='"cost": 9e299, "memory": 1') for name in "ab")),
            "2:1: /nodes: all costs together are more than 1e+300 (use a larger cost_unit)",
        ),
        (graph(node("a:1")), f'3:2: /nodes/0/id: is "a:1", which is not allowed ({ID})'),
        (graph(node("")), f'3:2: /nodes/0/id: is "", expected some text ({ID})'),
        (graph(node("a\nb")), f'3:2: /nodes/0/id: is "a\\nb", which is not allowed ({ID})'),
        (graph(node("a\n")), f'3:2: /nodes/0/id: is "a\\n", which is not allowed ({ID})'),
        (
            graph(node("a"), node("b"), node("a")),
            '5:2: /nodes/2/id: the id "a" is already used by /nodes/0/id (line 3) (give every node an id of its own)',
        ),
        (
            graph(node("a", "a")),
            '3:24: /nodes/0/inputs/0: reads "a" in a cycle: a -> a (a graph has no cycles: cut one edge)',
        ),
        (
            graph(node("a"), node("b", "a", "c"), node("c", "a")),
            '4:29: /nodes/1/inputs/1: reads "c", which comes later in the document '
            '(nodes must be in execution order: put "c" before "b")',
        ),
        (
            graph(node("a"), node("b", "a", "d"), node("c", "b"), node("d", "c")),
            '4:29: /nodes/1/inputs/1: reads "d" in a cycle: b -> c -> d -> b (a graph has no cycles: cut one edge)',
        ),
        (
            graph(node("conv1"), node("b", "cnov1")),
            '4:24: /nodes/1/inputs/0: there is no node "cnov1" (did you mean "conv1"?)',
        ),
        (
            graph(node("conv1"), node("b", "x:0")),
            '4:24: /nodes/1/inputs/0: there is no node "x" (write the id of a node, or id:k for its output k)',
        ),
        (
            graph(node("a"), node("b", "a:1")),
            '4:24: /nodes/1/inputs/0: "a:1" does not exist: "a" has 1 output (write "a:0")',
        ),
        (
            graph(node("a", rest='"cost": 1, "outputs": [1, 2]'), node("b", "a:00")),
            '4:24: /nodes/1/inputs/0: "a:00" does not exist: "a" has 2 outputs (write "a:0" to "a:1")',
        ),
        (
            graph(node("a", rest='"cost": 1, "outputs": []'), node("b", "a")),
            '4:24: /nodes/1/inputs/0: "a" does not exist: "a" has no outputs (give it outputs, or leave this out)',
        ),
        (
            graph(node("a"), rest=',\n"outputs": ["a", "q"]'),
            '5:18: /outputs/1: there is no node "q" (write the id of a node, or id:k for its output k)',
        ),
        (
            one('"cost": 1, "memory": 1, "phase": "forwrd"'),
            '3:51: /nodes/0/phase: is "forwrd", expected forward, loss, backward or update (did you mean "forward"?)',
        ),
        (
            one('"cost": 1, "memory": 1, "recompute": "no"'),
            '3:51: /nodes/0/recompute: is the string "no", expected true or false '
            "(use false for a node that may be computed only once; default: true)",
        ),
        (
            one('"cost": 1, "memory": 1, "wrkspace": 2'),
            '3:51: /nodes/0/wrkspace: unknown field "wrkspace" (did you mean "workspace"?)',
        ),
        (
            graph(node("a"), rest=',\n"x": 1'),
            '5:1: /x: unknown field "x" (known: schema, name, cost_unit, fixed_memory, nodes, outputs, splits, '
            "metadata)",
        ),
        (
            graph(node("a")).replace("[]", '"x"'),
            '3:13: /nodes/0/inputs: is the string "x", expected a list '
            '(a list of the values it reads, such as [conv1, "bn1:0"]; [] for none)',
        ),
    ],
)
def test_refusals(text, message):
    assert refusal(text) == [f"g:{message}"]


def test_all_problems_are_shown_in_the_order_of_the_document():
    text = graph(node("a", rest='"cots": 1, "memory": 1'), '{"id": "b:1"}', rest=',\n"ouputs": []')
    assert [line.split(": ")[1] + " " + line.split(": ")[2].split(" (")[0] for line in refusal(text)] == [
        "/nodes/0 no field cost",
        '/nodes/0/cots unknown field "cots"',
        "/nodes/1 no field inputs",
        "/nodes/1 no field cost",
        "/nodes/1 has neither memory nor outputs",
        '/nodes/1/id is "b:1", which is not allowed',
        '/ouputs unknown field "ouputs"',
    ]


def test_the_first_twenty_problems_are_shown_and_the_rest_counted():
    shown = refusal(graph(*(node(f"n{i}", "nobody") for i in range(30))))
    assert len(shown) == 21
    assert shown[-1] == "g: and 10 more problems"


def test_yaml_refusals_have_lines_too():
    text = DESIGN_EXAMPLE.replace("64MiB, workspace: 1MiB", "64G")
    assert refusal(text) == [
        'g:8:65: /nodes/2/memory: "64G" is ambiguous (write 64GB (powers of 1000) or 64GiB (of 1024))'
    ]


def test_many_wrong_names_are_refused_quickly():
    text = graph(*(node(f"node{i}", f"nod{i}") for i in range(5000)))
    assert refusal(text)[-1] == "g: and 4980 more problems"


def test_a_reversed_document_is_refused_quickly():
    nodes = [node(f"n{i}", *([f"n{i - 1}"] if i else [])) for i in range(3000)]
    shown = refusal(graph(*reversed(nodes)))
    assert shown[0].endswith('(nodes must be in execution order: put "n2998" before "n2999")')
    assert shown[-1] == "g: and 2979 more problems"


SPELLINGS = [
    '"cost": 1.2e9, "memory": "64MiB"',
    '"cost": 1200000000, "outputs": [67108864]',
    '"cost": 1200000000.0, "memory": 67108864.0, "workspace": "0B", "recompute": true',
    '"memory": "65536KiB", "cost": 12e8',
]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_digest_is_of_what_is_meant_not_of_how_it_is_spelled(spelling):
    plain = read(graph(node("a", rest=SPELLINGS[0]), node("b", "a"), rest=', "outputs": ["b"]'))
    other = read(graph(node("a", rest=spelling), node("b", "a:0", "a"), rest=', "cost_unit": "unit"'))
    assert graph_sha256(other) == graph_sha256(plain)
    assert graph_sha256(replace(other, fixed_memory=1)) != graph_sha256(plain)


def test_the_digest_does_not_change():
    # Plans on disk carry digests: a change here makes every one of them invalid.
    assert graph_sha256(EXAMPLE_GRAPH) == "c26edf881d28e21003c4e77c39a41b57eb3b19ba47917abf6d2713995635fd8f"


def test_zero_has_no_sign():
    assert graph_sha256(read(graph(node("a", rest='"cost": -0.0, "memory": 4')))) == graph_sha256(
        read(graph(node("a", rest='"cost": 0, "memory": 4')))
    )


def test_nothing_that_is_not_finite_is_written():
    with pytest.raises(ValueError, match="not JSON compliant"):
        dump_document({"a": float("nan")})


@given(graphs())
def test_any_graph_is_read_back_from_json(any_graph):
    text = dump_document(graph_to_document(any_graph))
    again = read(text, "json")
    assert again == any_graph
    assert dump_document(graph_to_document(again)) == text
    assert graph_sha256(again) == graph_sha256(any_graph)


@given(graphs(max_nodes=4))
def test_any_graph_is_read_back_from_yaml(any_graph):
    again = read(to_yaml(graph_to_document(any_graph)), "yaml")
    assert again == any_graph
    assert graph_sha256(again) == graph_sha256(any_graph)


@given(st.data(), graphs(max_nodes=4, plain_ids=True))
def test_mangled_data_is_read_or_refused(data, any_graph):
    mangled = data.draw(spoiled(graph_to_document(any_graph)))
    result, message = outcome(lambda: read(as_json(mangled), "json"))
    assert len(message.splitlines()) <= 21
    if result is not None:
        assert read(dump_document(graph_to_document(result))) == result
    from_memory, _ = outcome(lambda: graph_from_document(Document("m", json.loads(as_json(mangled)))))
    assert from_memory == result


@given(st.data(), graphs(max_nodes=3, plain_ids=True), st.sampled_from(["json", "yaml"]))
def test_mangled_text_is_read_or_refused(data, any_graph, format):
    document = graph_to_document(any_graph)
    text = data.draw(spoiled_text(dump_document(document) if format == "json" else to_yaml(document)))
    result, message = outcome(lambda: read(text, format))
    assert len(message.splitlines()) <= 21
    message.encode("utf-8")
    if result is not None:
        assert read(dump_document(graph_to_document(result))) == result


@pytest.mark.parametrize(
    ("written", "meant", "canonical"),
    [
        (True, True, None),
        (False, False, False),
        ([True, True], True, None),
        ([False, False], False, False),
        ([True, False], (True, False), [True, False]),
    ],
)
def test_values_may_have_to_stay_on_the_device(written, meant, canonical):
    node = {"id": "a", "inputs": [], "cost": 1, "outputs": [4, 4], "offload": written}
    graph = graph_from_document(Document("f", {"schema": "remat-graph/1", "nodes": [node]}))
    assert graph.nodes[0].offload == meant
    assert [graph.may_offload(v) for v in (0, 1)] == (list(meant) if isinstance(meant, tuple) else [meant] * 2)
    again = graph_to_document(graph)
    assert again["nodes"][0].get("offload") == canonical
    assert graph_from_document(Document("f", again)) == graph


def test_a_list_of_values_that_stay_has_an_entry_for_each():
    node = {"id": "a", "inputs": [], "cost": 1, "outputs": [4, 4], "offload": [False]}
    with pytest.raises(InputError, match="/nodes/0/offload: has 1 entries, and the node makes 2 values"):
        graph_from_document(Document("f", {"schema": "remat-graph/1", "nodes": [node]}))


def test_a_node_may_run_in_the_communication_queue():
    nodes = [
        {"id": "gather", "inputs": [], "cost": 2, "memory": 4, "queue": "communication"},
        {"id": "block", "inputs": ["gather"], "cost": 3, "memory": 4, "queue": "compute"},
    ]
    data = {"schema": "remat-graph/1", "cost_unit": "ms", "nodes": nodes}
    graph = graph_from_document(Document("f", data))
    assert [node.queue for node in graph.nodes] == ["communication", "compute"]
    assert (graph.overlaps, graph.total_cost, graph.no_remat_cost, graph.least_cost) == (True, 5, 5, 3)
    again = graph_to_document(graph)
    assert [node.get("queue") for node in again["nodes"]] == ["communication", None]
    assert graph_from_document(Document("f", again)) == graph


def test_a_communication_queue_needs_times():
    node = {"id": "a", "inputs": [], "cost": 1, "memory": 4, "queue": "communication"}
    with pytest.raises(InputError, match="/nodes/0/queue: costs are unit, and a node in the communication queue takes"):
        graph_from_document(Document("f", {"schema": "remat-graph/1", "nodes": [node]}))


def test_an_unknown_queue_is_refused():
    node = {"id": "a", "inputs": [], "cost": 1, "memory": 4, "queue": "link"}
    with pytest.raises(InputError, match=r"/nodes/0/queue: is \"link\""):
        graph_from_document(Document("f", {"schema": "remat-graph/1", "cost_unit": "s", "nodes": [node]}))
