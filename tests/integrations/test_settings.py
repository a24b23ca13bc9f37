"""Settings of tools for training as remat policy prints them: each tool takes them, and the predicted peak is kept.

The tools are those of ``requirements.txt``, and of ``sources.txt``, which are installed without what they depend on.
"""

import ast
import importlib.util
import re
from pathlib import Path

import pytest
import torch
import torch_remat
import transformers
import yaml
from trainable import bert, llama, sentences, step_bytes

from remat_cli.api import SolveOptions, policy, solve
from remat_cli.errors import Infeasible
from remat_cli.frontends.torch.export import export_model
from remat_cli.graph.modules import lies_in, module_of
from remat_cli.graph.phases import Training
from remat_cli.graph.tools import as_autograd_holds
from remat_cli.plan.model import Allocate, Compute, Deallocate
from remat_cli.strategies.policies.layer_choices import ATTENTION_OPERATORS, TITAN_SAVES

FAST = SolveOptions(time_limit_s=20)
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*Transformer Engine and Apex:UserWarning"),
]


def deep(make=llama, layers=4):
    """A model of several layers without dropout, and a batch whose activations are larger than the parameters."""
    small = make()
    small.config.update({"num_hidden_layers": layers, "use_cache": False, "num_key_value_heads": 4})
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        setattr(small.config, name, 0.0)
    torch.manual_seed(2)
    model = type(small)(small.config).train()
    ids = torch.stack([sentence["input_ids"] for sentence in sentences(32)])
    return model, {"input_ids": ids, "labels": torch.arange(32) % 2 if make is bert else ids}


NEEDED = {
    **{"base_model": "none", "datasets": [{"path": "none", "type": "alpaca"}], "learning_rate": 1e-4},
    **{"micro_batch_size": 1, "gradient_accumulation_steps": 1},
}
"""What axolotl asks of any configuration."""
SIZES = {"vocab_size": 300, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}


def gpt2():
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=300, n_embd=64, n_head=4, **rates))


def gemma2():
    """Every second layer has a sliding window."""
    config = transformers.Gemma2Config(**SIZES, num_hidden_layers=4, head_dim=16, sliding_window=16)
    return transformers.Gemma2ForCausalLM(config)


def mixtral():
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**SIZES, num_local_experts=4))


@pytest.fixture(scope="module", params=[llama, bert])
def step(request):
    """How to make a model, and its graph."""
    return request.param, exported(request.param)


@pytest.fixture(scope="module")
def graph():
    return exported(llama)


def exported(make):
    return export_model(lambda: deep(make), name="deep", source="torch:deep", cost="flops")


def compare(model, found, make=llama, most=1.01):
    """A model in which a setting is at work: its gradients are those without it, and its peak is the predicted one.

    The peak of a BERT, whose layers end with a norm, may be two results of a layer higher, with the layers' own
    recomputation in Transformers, too.
    """
    (plain, batch), predicted = deep(make), found.solved.report.replay.peak_bytes
    result = batch["input_ids"].numel() * model.config.hidden_size * 4
    most = 1 + 2 * result / predicted if make is bert else most
    measured = step_bytes(lambda: model(**batch).loss.backward(), model, batch.values())
    assert 0.9 * predicted <= measured <= most * predicted
    if found.solved.plan.claim.cost > found.graph.total_cost:
        assert measured < step_bytes(lambda: plain(**batch).loss.backward(), plain, batch.values())
    for net in (plain, model):
        net(**batch).loss.backward()
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert one.grad is other.grad is None or torch.equal(one.grad, other.grad)


def saved_bytes(found, modules):
    """Bytes that a plan holds after the forward pass, of what modules with these names in layers make.

    Without the mask of attention: Transformers makes it only when it is traced.
    """
    graph, live = found.graph, {}
    sweep = Training.of(graph, "test").sweep
    for statement in found.solved.plan.statements:
        if isinstance(statement, Allocate):
            live[statement.register] = statement.value
        elif isinstance(statement, Deallocate):
            live.pop(statement.register)
        elif isinstance(statement, Compute) and statement.node == sweep - 1:
            break
    paths = {value: module_of(graph.nodes[graph.producer[value]].id) for value in live.values()}
    paths = {value: path for value, path in paths.items() if not graph.value_name(value).endswith("/where:0")}
    layers = set(graph.metadata["layers"])
    wanted = [f"{layer}.{name}" for layer in layers for name in modules]
    return sum(graph.size[value] for value, path in paths.items() if any(lies_in(path, one) for one in wanted))


@pytest.mark.parametrize("budget", ["90%", "70%", "55%"])
def test_torch_remat_saves_what_is_predicted(step, budget):
    make, graph = step
    found = policy(graph, budget, "torch-remat", FAST)
    kind, *saved = found.settings
    assert kind == "save"
    model, batch = deep(make)
    exec(found.snippet, {"model": model})
    loss = model(**batch).loss
    report = torch_remat.format_saved_tensors_report(loss)
    [number, unit] = re.search(r"4 region\(s\) ([\d.]+) (\w+),", report).groups()
    told = float(number) * {"KiB": 2**10, "MiB": 2**20}[unit]
    assert told == pytest.approx(saved_bytes(found, saved), rel=0.01)
    loss.backward()
    model.zero_grad()
    compare(model, found, make)


def test_torch_remat_can_save_nothing(graph):
    nothing = SolveOptions(strategy="layer-settings{tool=torch-remat,setting=full}")
    least = solve(as_autograd_holds(graph), None, nothing).report.replay.peak_bytes
    found = policy(graph, least, "torch-remat", FAST)
    assert found.settings == ("full",)
    model, _ = deep()
    exec(found.snippet, {"model": model})
    compare(model, found)


@pytest.mark.parametrize("make", [gpt2, gemma2, mixtral])
def test_torch_remat_takes_settings_of_other_families(make):
    found = policy(exported(make), "60%", "torch-remat", FAST)
    assert found.settings[0] == "save"
    model, _ = deep(make)
    exec(found.snippet, {"model": model})
    compare(model, found, make)


@pytest.mark.parametrize(("budget", "every"), [("100%", None), ("85%", 4), ("65%", 2), ("40%", 1)])
def test_a_trainer_of_trl_takes_its_settings(graph, budget, every, tmp_path):
    import datasets
    import tokenizers
    import trl

    found = policy(graph, budget, "trl", FAST)
    assert found.settings == (("none",) if every is None else ("every", str(every)))
    written = tmp_path / "sft.yaml"
    rest = f"output_dir: {tmp_path / 'out'}\nuse_cpu: true\nbf16: false\nreport_to: none\nmax_steps: 1\n"
    written.write_text(found.snippet + rest)
    [arguments] = trl.TrlParser((trl.SFTConfig,)).parse_args_and_config(["--config", str(written)])
    model, _ = deep()
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "<eos>": 1}, unk_token="a"))
    tokens = transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>", pad_token="<eos>")
    data = datasets.Dataset.from_list([{"input_ids": s["input_ids"].tolist()} for s in sentences(8)])
    trainer = trl.SFTTrainer(model=model, args=arguments, train_dataset=data, processing_class=tokens)
    trainer.train()
    layers = [part.gradient_checkpointing for part in model.modules() if type(part).__name__ == "LlamaDecoderLayer"]
    assert layers == [every is not None and k % every == 0 for k in range(4)]
    fresh, _ = deep()
    model.load_state_dict(fresh.state_dict())
    model.train()
    model.zero_grad()
    compare(model, found)


@pytest.mark.parametrize(
    ("budget", "wanted"),
    [("100%", ("none",)), ("75%", ("save", "attention", "mm")), ("66%", ("save", "mm")), ("40%", ("full",))],
)
def test_axolotl_takes_its_settings(graph, budget, wanted):
    from axolotl.utils.schemas.config import AxolotlInputConfig

    found = policy(graph, budget, "axolotl", FAST)
    assert found.settings == wanted
    setting = yaml.safe_load(found.snippet)
    taken = AxolotlInputConfig(**NEEDED, **setting)
    assert {name: getattr(taken, name) for name in setting if name != "selective_checkpointing"} == {
        name: value for name, value in setting.items() if name != "selective_checkpointing"
    }
    if "selective_checkpointing" in setting:
        assert taken.selective_checkpointing.model_dump(exclude_unset=True) == setting["selective_checkpointing"]
    compare(with_axolotl(taken), found)


def with_axolotl(taken, make=llama):
    """A model as axolotl prepares it for a configuration."""
    from axolotl.monkeypatch.selective_checkpointing import apply_selective_checkpointing

    model, _ = deep(make)
    if saved := taken.selective_checkpointing:
        apply_selective_checkpointing(model, save=saved.save, save_sliding_window=saved.save_sliding_window)
    if taken.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=taken.gradient_checkpointing_kwargs)
    return model


@pytest.mark.parametrize("make", [gpt2, gemma2])
def test_axolotl_saves_the_same_in_layers_of_all_kinds(make):
    from axolotl.utils.schemas.config import AxolotlInputConfig

    found = policy(exported(make), "75%", "axolotl", FAST)
    assert found.settings[0] == "save"
    taken = AxolotlInputConfig(**NEEDED, **yaml.safe_load(found.snippet))
    compare(with_axolotl(taken, make), found, make, most=1.02)


@pytest.mark.parametrize(
    ("budget", "wanted"),
    [
        ("100%", ("none",)),
        ("70%", ("save", "attention", "mm")),
        ("50%", ("selective",)),
        ("40%", ("save", "attention")),
        ("34%", ("full",)),
    ],
)
def test_torchtitan_takes_its_settings(graph, budget, wanted):
    from torchtitan.distributed.activation_checkpoint import ActivationCheckpointing

    found = policy(graph, budget, "titan", FAST)
    assert found.settings == wanted
    names = {}
    exec(found.snippet, names)
    chosen = names["activation_checkpoint"]
    model, _ = deep()
    if found.settings == ("none",):
        assert chosen is None
    else:
        assert isinstance(chosen, ActivationCheckpointing.Config)
        built = chosen.build()
        assert type(built).__name__ == {"full": "FullAC", "selective": "SelectiveAC"}.get(
            found.settings[0], "SaveListed"
        )
        built.apply(model.model)
    compare(model, found)


def test_the_configuration_of_torchtitan_has_the_field_that_is_named():
    """By the source of its trainer, which needs a GPU to be imported."""
    [folder] = importlib.util.find_spec("torchtitan").submodule_search_locations
    tree = ast.parse(Path(folder, "trainer.py").read_text())
    [trainer] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Trainer"]
    [config] = [node for node in trainer.body if isinstance(node, ast.ClassDef) and node.name == "Config"]
    fields = {node.target.id: ast.unparse(node.annotation) for node in config.body if isinstance(node, ast.AnnAssign)}
    assert "ActivationCheckpointingConfig" in fields["activation_checkpoint"]


def test_torchtitan_saves_the_operators_that_are_told():
    from torchtitan.distributed.activation_checkpoint import _get_default_save_ops

    names = {
        str(operator).split(".")[1] if "." in str(operator) else str(operator) for operator in _get_default_save_ops()
    }
    known = {"inductor_compiled_code", "_varlen_attn", "dispatch", "combine"}  # of compilers and other packages
    assert names - known == TITAN_SAVES
    assert {name for name in TITAN_SAVES if "dot_product" in name} & set(ATTENTION_OPERATORS)


def test_every_setting_of_megatron_is_a_valid_configuration(graph):
    from megatron.core.transformer.transformer_config import TransformerConfig

    seen = set()
    for budget in ("100%", "85%", "75%", "67%", "52%", "46%", "36%"):
        found = policy(graph, budget, "megatron", FAST)
        names = {}
        exec(found.snippet, names)
        config = TransformerConfig(num_layers=4, hidden_size=64, num_attention_heads=4, **names["recompute"])
        assert all(getattr(config, name) == value for name, value in names["recompute"].items())
        seen.add(found.settings[0])
    assert seen >= {"none", "block", "modules"}
    with pytest.raises((ValueError, AssertionError)):
        TransformerConfig(
            num_layers=4, hidden_size=64, num_attention_heads=4, **{**names["recompute"], "recompute_method": "x"}
        )


@pytest.mark.parametrize("tool", ["torch-remat", "trl", "axolotl", "titan", "megatron"])
def test_what_no_setting_can_do_is_refused(graph, tool):
    with pytest.raises(Infeasible, match=f"no setting of {tool} fits"):
        policy(graph, "20%", tool, FAST)
