"""HLO text that XLA dumped: sizes, FLOPs, loops and fusions as XLA sees them, and clear errors for damaged text.

The dumps in ``hlo`` and XLA's own numbers are made by ``record_hlo.py``.
"""

import json
import random
import re
from pathlib import Path

import pytest
from mangling import refusal

import remat_cli as remat
from remat_cli.errors import InputError, UsageError
from remat_cli.frontends.hlo.importing import import_hlo
from remat_cli.frontends.hlo.shapes import Array, leaves, parts, read_shape
from remat_cli.frontends.imported import DefaultCosts, Wishes
from remat_cli.frontends.models import model_format
from remat_cli.plan.check import check

HERE = Path(__file__).parent / "hlo"
TOLD = json.loads((HERE / "told.json").read_text(encoding="utf-8"))
DUMPS = sorted(HERE.glob("*.txt"))
AFTER = [HERE / f"{name}.after.hlo.txt" for name in TOLD]
POINTER_BYTES = 8
"""Bytes that XLA adds to a tuple of results for each of them."""


def imported(path, **wishes):
    return import_hlo(str(path), Wishes(**wishes)).graph


def module(tmp_path, *lines, computations=""):
    """The graph of a module whose entry computation has these lines."""
    body = "\n".join(f"  {line}" for line in lines)
    text = f"HloModule test\n\n{computations}\n\nENTRY %main (p: f32[]) -> f32[] {{\n{body}\n}}\n"
    path = tmp_path / "module.txt"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: path.name)
def test_dumps_are_recognised_and_solved(path):
    assert model_format(str(path)) == "hlo"
    graph = remat.import_model(path)
    assert graph.cost_unit == "flops"
    assert all(node.cost >= 1 for node in graph.nodes)
    assert remat.solve(graph, "100%").plan.graph is graph


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: path.name)
def test_arguments_and_results_have_the_bytes_that_xla_says(path):
    graph = imported(path)
    told = TOLD[path.name.partition(".")[0]]
    entry = path.read_text(encoding="utf-8").partition("\nENTRY ")[2]
    constants = re.findall(r"= (\w+\[[^\]]*\](?:\{[^}]*\})?) constant\(", entry)
    inlined = graph.fixed_memory - told["argument_bytes"]
    assert inlined >= 0
    if ".after." in path.name and "call(" not in entry:
        assert inlined == sum(read_shape(text, 0)[0].bytes for text in constants)
    results = sum(graph.size[value] for value in graph.outputs)
    assert results == told["output_bytes"] - POINTER_BYTES * len(graph.outputs)


@pytest.mark.parametrize(
    ("name", "turns"), [("mlp", 1), ("layers", 4)], ids=["products", "a scan over layers, whose body XLA counts once"]
)
def test_flops_are_those_of_xla(name, turns):
    total = imported(HERE / f"{name}.after.hlo.txt").total_cost
    assert total == pytest.approx(TOLD[name]["flops"] * turns, rel=0.01)


def test_loops_are_whole_and_what_lives_inside_is_workspace():
    graph = imported(HERE / "layers.after.hlo.txt")
    loops = [node for node in graph.nodes if node.op == "while"]
    assert len(loops) == 2
    assert all(node.workspace > 0 for node in loops)
    assert any("2 loop" in note for note in graph.metadata["notes"])
    assert any("one turn" in note for note in imported(HERE / "control.after.hlo.txt").metadata["notes"])


def test_what_a_loop_only_passes_through_is_no_value(tmp_path):
    """The body returns the weights as it got them, and adds to a sum."""
    body = """%body (s: (f32[8], f32[100], s32[])) -> (f32[8], f32[100], s32[]) {
  %s = (f32[8], f32[100], s32[]) parameter(0)
  %sum = f32[8] get-tuple-element(%s), index=0
  %w = f32[100] get-tuple-element(%s), index=1
  %k = s32[] get-tuple-element(%s), index=2
  %one = s32[] constant(1)
  %next = s32[] add(%k, %one)
  %more = f32[8] exponential(%sum)
  %new = f32[8] add(%sum, %more)
  ROOT %t = (f32[8], f32[100], s32[]) tuple(%new, %w, %next)
}

%test (s: (f32[8], f32[100], s32[])) -> pred[] {
  %s.1 = (f32[8], f32[100], s32[]) parameter(0)
  %k.1 = s32[] get-tuple-element(%s.1), index=2
  %limit = s32[] constant(10)
  ROOT %less = pred[] compare(%k.1, %limit), direction=LT
}"""
    graph = imported(
        module(
            tmp_path,
            "%x = f32[8] parameter(0)",
            "%v = f32[100] parameter(1)",
            "%w = f32[100] negate(%v)",
            "%zero = s32[] constant(0)",
            "%start = (f32[8], f32[100], s32[]) tuple(%x, %w, %zero)",
            "%loop = (f32[8], f32[100], s32[]) while(%start), condition=%test, body=%body",
            "%sum = f32[8] get-tuple-element(%loop), index=0",
            "%w2 = f32[100] get-tuple-element(%loop), index=1",
            "%out = f32[100] negate(%w2)",
            "ROOT %r = (f32[8], f32[100]) tuple(%sum, %out)",
            computations=body,
        )
    )
    loop = next(node for node in graph.nodes if node.op == "while")
    assert loop.outputs == (32, 4)
    assert loop.cost == 10 * (1 + 8 + 8 + 1)
    assert loop.workspace == 32  # the exponential, beside the sum that it is added to, which is a result
    assert [graph.value_name(value) for value in graph.nodes[-1].inputs] == ["w:0"]


FUSED = """%fused (a: f32[4,8], b: f32[8,2]) -> f32[4,2] {
  %a = f32[4,8]{1,0} parameter(0)
  %b = f32[8,2]{1,0} parameter(1)
  %d = f32[4,2]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %e = f32[4,2]{1,0} tanh(%d)
}"""


def test_a_fusion_is_one_operation_with_the_flops_inside(tmp_path):
    graph = imported(
        module(
            tmp_path,
            "%p = f32[4,8]{1,0} parameter(0)",
            "%q = f32[8,2]{1,0} parameter(1)",
            "ROOT %f = f32[4,2]{1,0} fusion(%p, %q), kind=kLoop, calls=%fused",
            computations=FUSED,
        )
    )
    [node] = graph.nodes
    assert node.cost == 2 * 4 * 8 * 2 + 8
    assert graph.fixed_memory == 4 * (32 + 16)


@pytest.mark.parametrize(
    ("line", "flops"),
    [
        ("f32[2,14,14,16] convolution(%p, %q), window={size=3x3}, dim_labels=b01f_01io->b01f", 2 * 2 * 196 * 16 * 27),
        (
            "f32[2,28,28,3] convolution(%p, %q), window={size=3x3 lhs_dilate=2x2}, dim_labels=b01f_01io->b01f",
            2 * 2 * 784 * 3 * 27 // 4,
        ),
        (
            "(f32[2,14,14,16], u8[64]) custom-call(%p, %q), window={size=3x3}, dim_labels=b01f_01io->b01f, "
            'custom_call_target="__cudnn$convForward"',
            2 * 2 * 196 * 16 * 27,
        ),
        (
            'f32[2,16,16,16] custom-call(%p, %q), custom_call_target="__cublas$gemm", '
            'backend_config={"dot_dimension_numbers":{"lhs_contracting_dimensions":["3"]}}',
            2 * 2 * 256 * 16 * 3,
        ),
        ("f32[3] reduce(%p, %q), dimensions={0,1,2}, to_apply=%fused", 2 * 256 * 3 + 432),
        ("f32[2,8,8,3] reduce-window(%p, %q), window={size=1x2x2x1 stride=1x2x2x1}, to_apply=%fused", 2 * 64 * 3 * 4),
        ("f32[2,16,16,3] copy(%p)", 1),
    ],
)
def test_flops_by_formula(tmp_path, line, flops):
    path = module(tmp_path, "%p = f32[2,16,16,3] parameter(0)", "%q = f32[3,3,3,16] parameter(1)", f"ROOT %r = {line}")
    assert imported(path).total_cost == flops


def _call(target, shape, operands="%p", config=""):
    return f'{shape} custom-call({operands}), custom_call_target="{target}", backend_config={{{config}}}'


def _svd(target, config):
    return _call(target, "(f32[5,32,16], f32[5,16], f32[5,32,16], f32[5,16,16], s32[5])", config=config)


@pytest.mark.parametrize(
    ("operand", "line", "flops"),
    [
        ("c64[3,64]", "c64[3,64] fft(%p), fft_type=FFT, fft_length={64}", 3 * 5 * 64 * 6),
        ("f32[3,64]", "c64[3,33] fft(%p), fft_type=RFFT, fft_length={64}", 3 * 5 * 64 * 6 // 2),
        ("c64[3,33]", "f32[3,64] fft(%p), fft_type=IRFFT, fft_length={64}", 3 * 5 * 64 * 6 // 2),
        ("c64[3,64,32]", "c64[3,64,32] fft(%p), fft_type=FFT, fft_length={64,32}", 3 * 5 * 2048 * 11),
        ("f32[5,16,16]", "f32[5,16,16] cholesky(%p), lower=true", 5 * 16**3 // 3),
        ("f32[5,16,16]", _call("lapack_spotrf_ffi", "(f32[5,16,16], s32[5])"), 5 * 16**3 // 3),
        ("f32[5,16,16]", _call("__cusolver$cholesky", "(f32[5,16,16], u8[99], s32[5])"), 5 * 16**3 // 3),
        ("f32[5,16,16]", _call("lapack_sgetrf_ffi", "(f32[5,16,16], s32[5,16], s32[5])"), 5 * (16**3 - 16**3 // 3)),
        ("f32[5,32,16]", _call("lapack_sgeqrf_ffi", "(f32[5,32,16], f32[5,16])"), 5 * (2 * 32 * 256 - 8192 // 3)),
        ("f32[5,16,7]", "f32[5,16,7] triangular-solve(%s, %p), left_side=true, lower=true", 5 * 16 * 16 * 7),
        ("f32[5,16,7]", _call("lapack_strsm_ffi", "f32[5,16,7]", "%s, %p"), 5 * 16 * 16 * 7),
        (
            "f32[5,32,16]",
            _call("lapack_sorgqr_ffi", "f32[5,32,16]", "%p, %t"),
            5 * (4 * 32 * 256 - 96 * 256 + 16384 // 3),
        ),
        ("f32[5,32,16]", _svd("lapack_sgesdd_ffi", "mode = 78 : ui8"), 5 * (4 * 32 * 256 - 16384 // 3)),
        ("f32[5,32,16]", _svd("lapack_sgesdd_ffi", "mode = 83 : ui8"), 5 * (14 * 32 * 256 + 8 * 4096)),
        ("f32[5,16,32]", _svd("lapack_sgesdd_ffi", "mode = 83 : ui8"), 5 * (14 * 32 * 256 + 8 * 4096)),
        ("f32[5,32,16]", _svd("lapack_sgesdd_ffi", "mode = 65 : ui8"), 5 * (4 * 1024 * 16 + 8 * 32 * 256 + 9 * 4096)),
        (
            "f32[5,32,16]",
            _svd("cusolver_gesvdj_ffi", "compute_uv = true, full_matrices = true"),
            5 * (4 * 1024 * 16 + 8 * 32 * 256 + 9 * 4096),
        ),
        ("f32[5,16,16]", _call("lapack_ssyevd_ffi", "(f32[5,16,16], f32[5,16], s32[5])"), 5 * 9 * 16**3),
        ("f32[6,100]", _call("TopK", "(f32[6,4], s32[6,4])"), 600 * 2),
        ("f32[6,100]", "(f32[6,4], s32[6,4]) topk(%p), k=4, largest=true", 600 * 2),
        ("f32[6,100]", "f32[6,100] sort(%p), dimensions={1}, is_stable=true, to_apply=%less", 600 * 7),
    ],
)
def test_flops_of_libraries(tmp_path, operand, line, flops):
    given = ["%s = f32[5,16,16] parameter(1)", "%t = f32[5,16] parameter(2)"]
    path = module(tmp_path, f"%p = {operand} parameter(0)", *given, f"ROOT %r = {line}")
    assert imported(path).total_cost == flops


def test_a_library_without_a_formula_needs_a_default(tmp_path):
    path = module(tmp_path, "%p = f32[8] parameter(0)", 'ROOT %r = f32[8] custom-call(%p), custom_call_target="secret"')
    with pytest.raises(InputError, match=r"module\.txt:7: r calls secret, without a rule for its cost"):
        imported(path)
    graph = imported(path, default_cost=3)
    assert graph.total_cost == 24
    assert "costs by the default cost: secret (1)" in graph.metadata["notes"]


def test_side_effects_happen_once_and_calls_are_put_in_place(tmp_path):
    inner = """%inner (a: f32[8]) -> f32[8] {
  %a = f32[8] parameter(0)
  %lo = f32[] constant(0)
  %r = f32[8] rng(%lo, %lo), distribution=rng_uniform
  ROOT %s = f32[8] add(%a, %r)
}"""
    path = module(
        tmp_path,
        "%p = f32[8] parameter(0)",
        "%c = f32[8] call(%p), to_apply=%inner",
        "ROOT %d = f32[8] call(%c), to_apply=%inner",
        computations=inner,
    )
    graph = imported(path)
    assert [(node.id, node.recompute) for node in graph.nodes] == [
        ("r", False),
        ("s", True),
        ("r.1", False),
        ("s.1", True),
    ]


def test_operations_that_run_beside_others_have_one_result(tmp_path):
    path = module(
        tmp_path,
        "p = f32[8]{0} parameter(0)",
        "s = (f32[8]{0:S(5)}, f32[8]{0}, u32[]) copy-start(f32[8]{0} p)",
        "d = f32[8]{0:S(5)} copy-done((f32[8]{0:S(5)}, f32[8]{0}, u32[]) s)",
        'ROOT n = f32[8]{0} negate(f32[8]{0:S(5)} d), metadata={op_name="jit(f)/transpose(jvp())/neg, a=("}',
    )
    graph = imported(path)
    assert [node.id for node in graph.nodes] == ["s", "n"]
    assert graph.nodes[1].phase == "backward"
    assert graph.nodes[1].inputs == (1,)


def test_a_matrix_over_several_lines_is_one_constant(tmp_path):
    path = module(
        tmp_path,
        "%p = f32[2,2] parameter(0)",
        "%c = f32[2,2] constant({",
        "{ 1, 2 },",
        "{ 3, 4 }",
        "})",
        "ROOT %r = f32[2,2] add(%p, %c)",
    )
    assert imported(path).fixed_memory == 32


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("f32[4,4]{1,0}", Array("f32", (4, 4))),
        ("bf16[<=8, 2]{1,0:T(8,128)(2,1)S(1)}", Array("bf16", (8, 2))),
        ("pred[]", Array("pred", ())),
        ("(s32[], /*index=1*/(f32[2]{0}, token[]))", (Array("s32", ()), (Array("f32", (2,)), Array("token", ())))),
        ("()", ()),
    ],
)
def test_shapes(text, shape):
    found, end = read_shape(text, 0)
    assert found == shape
    assert end == len(text)


def test_sizes_of_types():
    assert [leaf.bytes for leaf in leaves(read_shape("(s4[3], pred[3], bf16[3], c128[3], token[])", 0)[0])] == [
        2, 3, 6, 48, 0,
    ]  # fmt: skip


def test_parts_are_divided_outside_brackets_and_quotes():
    assert parts('a={1,2}, b="x,\\"(", c=(d,[e,f])') == ["a={1,2}", 'b="x,\\"("', "c=(d,[e,f])"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["%p = f32[8 parameter(0)"], ":6: p: there is no shape|does not end"),
        (["%p = f33[8] parameter(0)"], ":6: p: 'f33' is not a type of XLA"),
        (["%p = f32[-8] parameter(0)"], ":6: p: '-8' is not a size"),
        (["%p = f32[8] add(%q, %q)"], ":6: p reads q, which no earlier line of its computation makes"),
        (["%p = f32[8] parameter(0)", "%p = f32[8] parameter(1)"], ":7: p is made twice"),
        (["%p = f32[8] parameter(0)", "nonsense"], ":7: this is no instruction: nonsense"),
        (["%p = f32[8] parameter(0)", "%r = f32[8] fusion(%p), calls=%gone"], ":7: r calls gone, which is not"),
        (["%p = f32[8] parameter(0)", "%r = f32[8] fusion(%p)"], "cannot be costed: it has no calls"),
        (["%p = f32[8] parameter(0)", "%r = f32[2] get-tuple-element(%p), index=4"], ":7: r .* is no tuple"),
        (["%p = (f32[8]) parameter(0)", "%r = f32[8] get-tuple-element(%p), index=x"], "is damaged: invalid literal"),
        (["%p = f32[8] parameter(0)", "%r = f32[8] dot(%p, %p), lhs_contracting_dims={7}"], "cannot be costed"),
        (["%p = f32[8] parameter(0)", "%r = f32[8] cholesky(%p)"], "cannot be costed: its operand is no matrix"),
        (["%p = f32[8] parameter(0)", "%r = f32[8] fft(%p)"], r"r \(fft\) cannot be costed: 'fft_type'"),
        (["%p = f32[8] parameter(0)", "%r = f32[8] call(%p), to_apply=%main"], "calls main|calls itself"),
        ([], ":7: the computation main is empty"),
        (["%p = f32[8] parameter(0)"], "nothing is computed in it"),
    ],
)
def test_damaged_text_is_one_error_with_its_line(tmp_path, lines, message):
    with pytest.raises(InputError, match=message) as caught:
        imported(module(tmp_path, *lines))
    assert len(caught.value.problems) == 1


def test_a_computation_that_calls_itself_is_refused(tmp_path):
    inner = "%f (a: f32[8]) -> f32[8] {\n  %a = f32[8] parameter(0)\n  ROOT %b = f32[8] call(%a), to_apply=%f\n}"
    for opcode in ("call(%p), to_apply=%f", "fusion(%p), calls=%f", "while(%p), condition=%f, body=%f"):
        path = module(tmp_path, "%p = f32[8] parameter(0)", f"ROOT %r = f32[8] {opcode}", computations=inner)
        with pytest.raises(InputError, match="the computation f calls itself"):
            imported(path)


def test_files_that_are_cut_off_or_changed_are_read_or_refused():
    """Whatever happens to a dump, the answer is a graph that can be planned, or one error of remat."""
    source = random.Random(1)
    counts = {"read": 0, "refused": 0}
    texts = [path.read_text(encoding="utf-8") for path in AFTER]
    for _ in range(250):
        text = source.choice(texts)
        for _ in range(source.randint(1, 3)):
            at = source.randrange(len(text))
            change = source.choice(["cut", "drop", "letter", "line", "swap"])
            if change == "cut":
                text = text[: max(20, at)]
            elif change == "drop":
                text = text[:at] + text[at + source.randint(1, 30) :]
            elif change == "letter":
                text = text[:at] + source.choice('(){}[]=%,"0 9x\n') + text[at + 1 :]
            else:
                lines = text.split("\n")
                k, j = source.randrange(len(lines)), source.randrange(len(lines))
                lines[k] = lines[j] if change == "line" else lines[k][::-1]
                text = "\n".join(lines)
        counts[_answer(text)] += 1
    assert counts["refused"] > 100
    assert counts["read"] > 5


def _answer(text):
    from remat_cli.frontends.hlo.flops import Costs
    from remat_cli.frontends.hlo.lower import lower
    from remat_cli.frontends.hlo.read import read_module

    lowered = None

    def read():
        nonlocal lowered
        found = read_module(text, "dump.txt")
        lowered = lower(found, Costs(found, DefaultCosts("", 1)))

    error = refusal(read)
    if error is not None:
        [problem] = error.problems
        assert problem.line is not None
        return "refused"
    assert all(operation.flops >= 1 for operation in lowered.operations)
    return "read"


def test_what_does_not_apply_is_refused():
    for wishes in ({"sizes": {"batch": 3}}, {"backward": "operator"}):
        with pytest.raises(UsageError, match=r"leave --(dim|backward) out|all sizes are in the file|whole program"):
            remat.import_model(AFTER[0], **wishes)


def test_stablehlo_is_told_apart(tmp_path):
    path = tmp_path / "module.txt"
    path.write_text("module @jit_f {\n  func.func @main() {\n    stablehlo.add\n  }\n}\n", encoding="utf-8")
    with pytest.raises(InputError, match="is a module of StableHLO"):
        remat.import_model(path)


def test_convert_writes_a_graph_and_says_where_numbers_come_from(tmp_path, capsys):
    from remat_cli.cli.main import run

    out = tmp_path / "graph.json"
    assert run(["convert", str(AFTER[0]), "-o", str(out)]) == 0
    assert "order: read, the schedule of the compiler" in capsys.readouterr().err
    graph = remat.load_graph(out)
    assert check(remat.solve(graph, "100%").plan).replay.valid
