"""Models with anything in the wrong place: every importer makes a good graph of them, or says one clear error."""

import json
import random
import re
import zipfile

import pytest
from aten_models import imported
from mangling import mangled, refusal
from onnx_models import Builder
from seeded import seeded

from remat_cli.errors import ExitCode, InputError
from remat_cli.frontends.imported import Wishes
from remat_cli.frontends.onnx.importing import import_onnx

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # PyTorch's own, when it copies trees


def branch(error):
    """Where an import ended; an error must have the exit code for bad input."""
    assert error is None or error.exit_code is ExitCode.USAGE
    return "read" if error is None else "refused"


def documents(path):
    """The documents of an archive that are read, by name."""
    with zipfile.ZipFile(path) as archive:
        names = [n for n in archive.namelist() if re.search(r"models/.*json$|weights_config.json$", n)]
        return {name: json.loads(archive.read(name)) for name in names}


def written(path, members, **options):
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, data in members.items():
            archive.writestr(name, data if isinstance(data, bytes | str) else json.dumps(data))
    return str(path)


@seeded(range(150), model=60, weights=60, read=40, refused=40)
def test_archives(archives, tmp_path, seed):
    source = random.Random(seed)
    members = documents(archives["conv"])
    weights, model = sorted(members)
    spoiled = source.choice([weights, model])
    members[spoiled] = mangled(members[spoiled], source)
    path = written(tmp_path / "net.pt2", members)
    yield "weights" if spoiled == weights else "model"
    yield branch(refusal(lambda: imported(path)))


CONFIGS = [3, [], {}, {"config": None}, {"config": {"w": 3}}, {"config": {"w": {"path_name": 3}}}]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_a_list_of_weights_of_any_shape_is_refused(archives, tmp_path, config):
    members = documents(archives["conv"])
    with pytest.raises(InputError, match="its list of weights is not as"):
        imported(written(tmp_path / "net.pt2", members | {min(members): config}))


def test_the_place_in_an_archive_is_told(archives, tmp_path):
    members = documents(archives["conv"])
    del members[max(members)]["graph_module"]["graph"]["nodes"][2]["outputs"]
    with pytest.raises(InputError, match=r"/graph_module/graph/nodes/2: .*KeyError: 'outputs'"):
        imported(written(tmp_path / "net.pt2", members))


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_nothing_compressed_is_expanded(archives, tmp_path, method):
    """A megabyte could become a gigabyte otherwise."""
    members = documents(archives["conv"])
    for name, data in members.items():
        path = written(tmp_path / "net.pt2", members | {name: json.dumps(data) + " " * 100_000}, compression=method)
        with pytest.raises(InputError, match="is compressed, and"):
            imported(path)


@pytest.mark.parametrize("declared", [True, False])
def test_documents_in_archives_have_a_largest_size(archives, tmp_path, monkeypatch, declared):
    """Also where the archive's directory says that they are smaller."""
    monkeypatch.setattr("remat_cli.frontends.aten.pt2._LARGEST", 10_000)
    members = documents(archives["conv"])
    model = max(members)
    path = written(tmp_path / "net.pt2", members)
    size = len(json.dumps(members[model]))
    assert size > 10_000
    if not declared:
        data = bytearray((tmp_path / "net.pt2").read_bytes())
        at = data.rindex(b"PK\x01\x02", 0, data.rindex(model.encode()))
        assert int.from_bytes(data[at + 24 : at + 28], "little") == size
        data[at + 24 : at + 28] = (100).to_bytes(4, "little")
        (tmp_path / "net.pt2").write_bytes(data)
    with pytest.raises(InputError, match="larger than 10000 bytes" if declared else "not an archive|not valid JSON"):
        imported(path)


DUMP = """class Net(torch.nn.Module):
    def forward(self, p_w: "f32[4, 3][3, 1]cpu", x: "f32[s0, 3][3, 1]cpu"):
        t: "f32[3, 4][1, 3]cpu" = torch.ops.aten.t.default(p_w);  p_w = None
        mm: "f32[s0, 4][4, 1]cpu" = torch.ops.aten.mm.default(x, t);  x = t = None
        split = torch.ops.aten.split.Tensor(mm, 2, 1);  mm = None
        a: "f32[s0, 2][4, 1]cpu" = split[0]
        b: "f32[s0, 2][4, 1]cpu" = split[1];  split = None
        add: "f32[s0, 2][2, 1]cpu" = torch.ops.aten.add.Tensor(a, b);  a = b = None
        return (add,)
"""
SIZES = (
    *("", " ", "{4", "s0*", "2**99", "0**-1", "((9**16)**16)**16", "Integer()", "Max()", "Symbol(3)", "9" * 5000, "-1"),
    *("(" * 5000, "-" * 3000 + "1", "+".join("1" * 3000), "a" + ".b" * 3000, "\x00", "\x1b[2J", "²", "s0//0", "s1"),
    *("10**15*10**15", "9223372036854775807", "9223372036854775808", "f(" * 150 + ")" * 150),
)
"""Texts in place of a size; few are one."""
PIECES = (
    *("split[1]", "split[9**9]", "split[-1]", "split[x]", "split[[]]", "split[99999999999]", "None", "x", "[" * 300),
    *(
        "torch.ops.aten.mm.default",
        "torch.ops" + ".a" * 3000,
        "\x00",
        "\x1b[2J",
        '"',
        "(",
        ")",
        "\n",
        "    ",
        "class A:",
    ),
)


@seeded(range(400), size=100, piece=80, cut=50, read=20, refused=250)
def test_dumps(tmp_path, seed):
    source = random.Random(seed)
    what = source.choice(["size", "size", "piece", "cut"])
    if what == "size":
        found = source.choice(list(re.finditer(r"(?<=[\[ ])(?:s0|\d)(?=[,\]])", DUMP)))
        text = DUMP[: found.start()] + source.choice(SIZES) + DUMP[found.end() :]
    else:
        tokens = re.split(r"(\W)", DUMP)
        k = source.randrange(60, len(tokens))
        tokens[k] = source.choice(PIECES) if what == "piece" else ""
        text = "".join(tokens)
    path = tmp_path / "net.py"
    path.write_text(text, encoding="utf-8")
    yield what
    yield branch(refusal(lambda: imported(str(path), sizes={"s0": 5}, default_cost=1)))


def perceptron():
    b = Builder()
    x = b.node("Relu", b.gemm(b.input("images", "batch", 12), 12, 8), name="first")
    x = b.node("Reshape", x, b.constant([0, 2, 4]), name="second")
    return b.model(b.node("ReduceMean", x, axes=[1], name="third"))


def test_onnx_models_with_text_that_is_not_utf8_are_refused_with_its_place(tmp_path):
    """Every text of a model, one after another."""
    model = perceptron()
    model.graph.doc_string = "documented"
    model.metadata_props.add(key="author", value="nobody")
    data = model.SerializeToString()
    path = tmp_path / "net.onnx"
    refused = 0
    texts = {"images", "batch", "first", "Relu", "Reshape", "documented", "author", "nobody", "axes", "net"}
    for text in sorted(texts):
        for found in re.finditer(re.escape(text.encode()), data):
            path.write_bytes(data[: found.start()] + b"\xff" + data[found.start() + 1 :])
            error = refusal(lambda: import_onnx(str(path), Wishes({"batch": 3})))
            assert error is not None, found
            assert re.search(r": /[a-z_/0-9]+: .*text that is not UTF-8", error.message), error.message
            refused += 1
    assert refused >= len(texts)


@seeded(range(400), read=20, refused=150)
def test_onnx_models(tmp_path, seed):
    source = random.Random(seed)
    data = bytearray(perceptron().SerializeToString())
    for _ in range(source.choice([1, 1, 2, 5])):
        k = source.randrange(len(data))
        match source.choice(["byte", "byte", "bit", "cut", "remove", "double"]):
            case "byte":
                data[k] = source.choice([0, 1, 127, 128, 255, source.randrange(256)])
            case "bit":
                data[k] ^= 1 << source.randrange(8)
            case "cut":
                del data[max(8, k) :]
            case "remove":
                del data[k : k + source.randrange(9)]
            case "double":
                data[k:k] = data[k : k + source.randrange(9)]
        data = data or bytearray(b"\n")
    path = tmp_path / "net.onnx"
    path.write_bytes(data)
    yield branch(refusal(lambda: import_onnx(str(path), Wishes({"batch": 3}))))
