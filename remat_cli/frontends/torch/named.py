"""Builds the training step of a model that a library knows by name: Transformers, timm, torchvision, diffusers.

A :class:`NamedModel` returns a module and its inputs for a batch and a length or resolution, as the functions do that
users write. It is called with fake tensors, so weights take no memory. Where a library leaves a choice (the task, the
type of numbers), the options say which, and :attr:`NamedModel.assumptions` names what was assumed.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from remat_cli.errors import FrameworkUnavailable, InputError, Problem, UsageError
from remat_cli.frontends.optimizers import Parameter
from remat_cli.frontends.torch.compat.distributed import local_tensor
from remat_cli.frontends.torch.denoisers import LATENTS, denoiser
from remat_cli.frontends.torch.tensors import mapped
from remat_cli.frontends.torch.types import Module, Tensor
from remat_cli.registry import suggestion

DTYPES = ("float32", "bfloat16", "float16", "bfloat16-mixed", "float16-mixed")
"""Types of parameters; ``-mixed`` keeps them in float32 and computes under autocast."""
_TASKS = {
    "causal-lm": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
    "seq2seq-lm": "AutoModelForSeq2SeqLM",
    "sequence-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
    "image-classification": "AutoModelForImageClassification",
}
"""Tasks of Transformers, and the class that makes a model for each."""
_HEADS = {
    "ForCausalLM": "causal-lm",
    "LMHeadModel": "causal-lm",
    "ForMaskedLM": "masked-lm",
    "ForConditionalGeneration": "seq2seq-lm",
    "ForSequenceClassification": "sequence-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForImageClassification": "image-classification",
}
"""How the classes end that ``architectures`` of a configuration names, and their task."""
_LENGTH = 2048
"""Tokens of a sequence if neither the user nor the configuration says; capped by the positions that a model has."""
Inputs: TypeAlias = "tuple[Tensor, ...] | dict[str, Any]"
Build = Callable[["Sizes"], tuple[Any, ...]]
"""Makes a module, its inputs and, unless the module returns it, its loss."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a batch.

    Attributes:
        batch: Sequences or images.
        length: Tokens of a sequence; None for images.
        resolution: Height and width of an image; None for sequences.
    """

    batch: int
    length: int | None = None
    resolution: int | None = None


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model by name.

    Attributes:
        title: The model, for reports.
        sizes: The sizes asked for, or assumed.
        make: Makes the module and its inputs.
        assumptions: What was assumed, in sentences.
        most_length: The longest sequence that the model can take; None without such a limit, or for images.
        dtype: One of :data:`DTYPES`.
        lora_rank: Rank of the adapters that are trained in place of the model's own parameters; 0 for none.
    """

    title: str
    sizes: Sizes
    make: Build
    assumptions: tuple[str, ...] = ()
    most_length: int | None = None
    dtype: str = DTYPES[0]
    lora_rank: int = 0

    def resized(self, **sizes: int) -> NamedModel:
        """The model on batches of other sizes."""
        return replace(self, sizes=replace(self.sizes, **sizes))

    def build(self) -> tuple[Any, ...]:
        """The module, in training mode, its inputs and its loss, as a function of the user would return them."""
        module, inputs, *loss = self.make(self.sizes)
        return adapted(module, self.dtype, self.lora_rank), _typed(inputs, self.dtype), *loss


def adapted(module: Module, dtype: str, lora_rank: int) -> Module:
    """A module in training mode with parameters of a type, computing under autocast if asked, or with adapters.

    Raises:
        FrameworkUnavailable: If adapters are asked for and peft is missing.
    """
    import torch

    name, _, mixed = dtype.partition("-")
    if not mixed and name != DTYPES[0]:
        module = module.to(getattr(torch, name))
    if lora_rank:
        module = _with_adapters(module, lora_rank)
    module.train()
    if mixed:
        device = next((p.device.type for p in module.parameters()), "cpu")
        module.forward = torch.autocast(device, getattr(torch, name))(module.forward)
    return module


def _typed(inputs: Inputs, dtype: str) -> Inputs:
    """Inputs in the type of the parameters, but those that are whole numbers; as they are where autocast converts."""
    import torch

    def typed(tensor: Tensor) -> Tensor:
        return tensor.to(getattr(torch, dtype)) if tensor.is_floating_point() else tensor

    if dtype.endswith("-mixed"):
        return inputs
    converted: Inputs = mapped(inputs, typed)
    return converted


def _with_adapters(module: Module, rank: int) -> Module:
    """A module whose linear layers but the last one have adapters of low rank, which alone are trained."""
    import torch

    peft = _library("peft", "adapters")
    head = getattr(module, "get_output_embeddings", lambda: None)()
    linear = [
        name for name, layer in module.named_modules() if isinstance(layer, torch.nn.Linear) and layer is not head
    ]
    if not linear:
        raise UsageError(
            "the model has no linear layers, so there is nothing for adapters to adapt", hint="leave lora out"
        )
    return peft.get_peft_model(module, peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=linear))


@dataclass(frozen=True, slots=True)
class NameOptions:
    """What a user asks of a model by name.

    Attributes:
        batch: Sequences or images.
        length: Tokens of a sequence; None for the model's own.
        resolution: Height and width of images; None for the model's own.
        task: A key of ``_TASKS``; empty for what the configuration says.
        dtype: One of :data:`DTYPES`; empty for the configuration's own, or float32.
        lora_rank: Rank of adapters; 0 for none.
    """

    batch: int = 1
    length: int | None = None
    resolution: int | None = None
    task: str = ""
    dtype: str = ""
    lora_rank: int = 0


def named_model(source: str, options: NameOptions) -> NamedModel:
    """The model that ``hf:``, ``timm:``, ``torchvision:`` or ``diffusers:`` and a name stand for.

    Raises:
        UsageError: If there is no such model, or an option is not for it.
        InputError: If its configuration lacks what is needed.
        FrameworkUnavailable: If the library is missing.
    """
    float_types(options.dtype)
    scheme, _, name = source.partition(":")
    model = LIBRARIES[scheme](name, options)
    dtype = options.dtype or model.dtype
    return replace(model, dtype=dtype, lora_rank=options.lora_rank)


def _transformers(name: str, options: NameOptions) -> NamedModel:
    transformers = _library("transformers", f"hf:{name}")
    document = _configuration(name, transformers)
    config = _config_of(document, name, transformers)
    task = options.task or _task_of(document, name)
    if task not in _TASKS:
        raise UsageError(
            f'there is no task "{task}"', hint=suggestion(task, list(_TASKS)) or f"known: {', '.join(_TASKS)}"
        )
    if getattr(config, "use_cache", False):
        config.use_cache = False
    made_from = getattr(transformers, _TASKS[task])
    model_type = document["model_type"]
    if type(config) not in made_from._model_mapping:
        raise UsageError(f"Transformers has no model of type {model_type} for {task}", hint="choose another task")
    assumptions = [] if options.task else [f"the task is {task}, as architectures in the configuration says"]
    if document.get("quantization_config"):
        assumptions.append("weights are not quantized, though the configuration says that they are")
    own = str(document.get("dtype") or document.get("torch_dtype") or DTYPES[0]).removeprefix("torch.")
    if own not in DTYPES:
        raise UsageError(
            f"the configuration says that parameters are {own}, which cannot be trained here",
            hint=f"write one of {', '.join(DTYPES[:3])} as its dtype",
        )
    title = f"{document.get('_name_or_path') or Path(name).stem} ({model_type}, {task})"
    if task == "image-classification":
        _refuse(options, length="sequences")
        sizes = Sizes(options.batch, resolution=options.resolution or _image_size(config, assumptions))

        def images(sizes: Sizes) -> tuple[Any, ...]:
            channels = getattr(config, "num_channels", 3)
            return made_from.from_config(config), _pictures(sizes, channels, config.num_labels)

        return NamedModel(title, sizes, images, tuple(assumptions), dtype=own)

    _refuse(options, resolution="images")
    most = next(
        (int(v) for key in ("max_position_embeddings", "n_positions") if (v := getattr(config, key, None))), None
    )
    length = options.length or min(_LENGTH, most or _LENGTH)
    if options.length is None:
        assumptions.append(f"sequences have {length:,} tokens")
    if most is not None and length > most:
        raise UsageError(f"{length:,} tokens are more than the {most:,} positions of the model", hint=f"at most {most}")

    def words(sizes: Sizes) -> tuple[Any, ...]:
        return made_from.from_config(config), _sentences(sizes, config, task)

    return NamedModel(title, Sizes(options.batch, length=length), words, tuple(assumptions), most, own)


def _configuration(name: str, transformers: Any) -> dict[str, Any]:
    """The document of a configuration: a file, the one in a folder, or that of a name on the hub."""
    path = Path(name)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        if path.suffix == ".json" or name.startswith((".", "/")):
            raise UsageError(
                f"{path}: there is no such file", hint="hf: takes a config.json, its folder, or a hub name"
            )
        try:
            config = transformers.AutoConfig.from_pretrained(name)
        except Exception as error:  # no network, a gated or unknown name, code that is not to be trusted
            first = str(error).strip().splitlines()[0]
            raise UsageError(
                f"the configuration of {name} cannot be had from the hub: {type(error).__name__}: {first}",
                hint="download its config.json, and give that file: hf:config.json",
            ) from error
        return dict(config.to_dict()) | {"_name_or_path": name}
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(str(path), [Problem(f"is not JSON: {error}")]) from None
    if not isinstance(document, dict) or not isinstance(document.get("model_type"), str):
        other = isinstance(document, dict) and "_class_name" in document
        remedy = "; a model of diffusers is named diffusers:CONFIG" if other else ""
        raise InputError(str(path), [Problem(f"has no model_type, so it is none of Transformers{remedy}")])
    return document


def _config_of(document: Mapping[str, Any], name: str, transformers: Any) -> Any:
    model_type = document["model_type"]
    known = list(transformers.CONFIG_MAPPING.keys())
    if model_type not in known:
        raise UsageError(
            f"this version of Transformers ({transformers.__version__}) knows no model of type {model_type}",
            hint=suggestion(model_type, known) or "install a newer one",
        )
    others = {key: value for key, value in document.items() if key != "model_type"}
    try:
        return transformers.AutoConfig.for_model(model_type, **others)
    except Exception as error:  # each model checks its configuration in its own way
        raise InputError(name, [Problem(f"is refused by Transformers: {type(error).__name__}: {error}")]) from error


def _task_of(document: Mapping[str, Any], name: str) -> str:
    architectures = document.get("architectures") or []
    if not isinstance(architectures, list):
        architectures = [architectures]
    for architecture in architectures:
        for ending, task in _HEADS.items():
            if str(architecture).endswith(ending):
                return task
    said = f"names {architectures[0]}" if architectures else "names no architecture"
    raise UsageError(f"{name} {said}, so its task is not known", hint=f"give the task: {', '.join(_TASKS)}")


def _sentences(sizes: Sizes, config: Any, task: str) -> dict[str, Tensor]:
    import torch

    assert sizes.length is not None
    shape = (sizes.batch, sizes.length)
    tokens = torch.randint(0, config.get_text_config().vocab_size, shape)
    if task == "question-answering":
        ends = torch.randint(0, sizes.length, (sizes.batch,))
        return {"input_ids": tokens, "start_positions": ends, "end_positions": ends.clone()}
    if task == "sequence-classification":
        return {"input_ids": tokens, "labels": torch.randint(0, config.num_labels, (sizes.batch,))}
    if task == "token-classification":
        return {"input_ids": tokens, "labels": torch.randint(0, config.num_labels, shape)}
    return {"input_ids": tokens, "labels": torch.randint(0, config.get_text_config().vocab_size, shape)}


def _image_size(config: Any, assumptions: list[str]) -> int:
    size = getattr(config, "image_size", None)
    size = max(size) if isinstance(size, list | tuple) else size
    if not size:
        size = 224
        assumptions.append("images have 224 x 224 pixels")
    return int(size)


def _pictures(sizes: Sizes, channels: int, classes: int) -> dict[str, Tensor]:
    import torch

    assert sizes.resolution is not None
    pictures = torch.randn(sizes.batch, channels, sizes.resolution, sizes.resolution)
    return {"pixel_values": pictures, "labels": torch.randint(0, classes, (sizes.batch,))}


def _timm(name: str, options: NameOptions) -> NamedModel:
    timm = _library("timm", f"timm:{name}")
    _refuse(options, length="sequences", task="models of Transformers")
    if not timm.is_model(name.partition(".")[0]):
        raise _no_model("timm", name, timm.list_models())
    resolution = options.resolution or timm.get_pretrained_cfg(name.partition(".")[0]).input_size[-1]

    def make(sizes: Sizes) -> tuple[Any, ...]:
        module = timm.create_model(name, **({"img_size": sizes.resolution} if _takes_size(timm, name) else {}))
        return module, *_classified(sizes, module.num_classes or 1000)

    return NamedModel(f"{name} (timm)", Sizes(options.batch, resolution=resolution), make)


def _takes_size(timm: Any, name: str) -> bool:
    """Whether a model is built for one resolution, as those with positional embeddings are."""
    return bool(timm.get_pretrained_cfg(name.partition(".")[0]).fixed_input_size)


def _torchvision(name: str, options: NameOptions) -> NamedModel:
    torchvision = _library("torchvision", f"torchvision:{name}")
    _refuse(options, length="sequences", task="models of Transformers")
    models = torchvision.models
    known = models.list_models(module=models) + models.list_models(module=models.segmentation)
    if name not in known:
        if name in models.list_models():
            raise UsageError(
                f"{name} needs targets that have no fixed form, such as boxes",
                hint="write a function that returns it with a batch, and give that: torch:train.py:build",
            )
        raise _no_model("torchvision", name, known)
    segments = name in models.list_models(module=models.segmentation)
    resolution = options.resolution or (520 if segments else 299 if name.startswith("inception") else 224)

    def make(sizes: Sizes) -> tuple[Any, ...]:
        module = models.get_model(name, weights=None, **({"weights_backbone": None} if segments else {}))
        return module, *_classified(sizes, 21 if segments else 1000, each_pixel=segments)

    return NamedModel(f"{name} (torchvision)", Sizes(options.batch, resolution=resolution), make)


def _classified(sizes: Sizes, classes: int, *, each_pixel: bool = False) -> tuple[Any, ...]:
    """Images, and a loss that compares what the module says of them, or of every pixel, with classes."""
    import torch

    resolution = sizes.resolution
    assert resolution is not None
    images = torch.randn(sizes.batch, 3, resolution, resolution)
    shape = (sizes.batch, resolution, resolution) if each_pixel else (sizes.batch,)
    labels = torch.randint(0, classes, shape)

    def loss(output: Any) -> Tensor:
        if isinstance(output, dict):  # segmentation; how much a head counts changes no memory
            return sum(torch.nn.functional.cross_entropy(part, labels) for part in output.values())
        if isinstance(output, tuple):  # networks with auxiliary heads
            return sum(torch.nn.functional.cross_entropy(part, labels) for part in output if part is not None)
        return torch.nn.functional.cross_entropy(output, labels)

    return (images,), loss


def _diffusers(name: str, options: NameOptions) -> NamedModel:
    diffusers = _library("diffusers", f"diffusers:{name}")
    _refuse(options, length="sequences", task="models of Transformers")
    path = Path(name) / "config.json" if Path(name).is_dir() else Path(name)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise UsageError(f"{path}: there is no such file", hint="diffusers: takes the config.json of a model") from None
    except (ValueError, RecursionError) as error:
        raise InputError(str(path), [Problem(f"is not JSON: {error}")]) from None
    document = document if isinstance(document, dict) else {}
    model = denoiser(diffusers, document, str(path))
    resolution = options.resolution or model.resolution or LATENTS

    def make(sizes: Sizes) -> tuple[Any, ...]:
        assert sizes.resolution is not None
        size = (sizes.batch, sizes.resolution)
        module = getattr(diffusers, model.kind).from_config(dict(document))
        return module, model.inputs(*size), model.loss(*size)

    title = f"{path.stem} ({model.kind})"
    assumed = model.assumptions(options.resolution)
    return NamedModel(title, Sizes(options.batch, resolution=resolution), make, assumed)


LIBRARIES: dict[str, Callable[[str, NameOptions], NamedModel]] = {
    "hf": _transformers,
    "timm": _timm,
    "torchvision": _torchvision,
    "diffusers": _diffusers,
}
"""What reads the names of each library, by the scheme of the source."""


def _library(name: str, wanted: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == name
        reason = f"{name} is missing" if missing else f"{name} cannot be imported: {error}"
        raise FrameworkUnavailable(f"{wanted} needs {name}: {reason}", hint=f"pip install {name}") from error


def _refuse(options: NameOptions, **reasons: str) -> None:
    """Refuse options that are not for this kind of model."""
    for name, kind in reasons.items():
        if getattr(options, name):
            raise UsageError(f"{name} is for {kind}", hint="leave it out")


def _no_model(library: str, name: str, known: list[str]) -> UsageError:
    return UsageError(f'{library} has no model "{name}"', hint=suggestion(name, known))


def float_types(dtype: str) -> str:
    """A type of parameters that was asked for; float32 if none was.

    Raises:
        UsageError: If it is none of :data:`DTYPES`.
    """
    if dtype and dtype not in DTYPES:
        raise UsageError(f'"{dtype}" is no type of parameters', hint=f"choose {', '.join(DTYPES)}")
    return dtype or DTYPES[0]


def contents(module: Module) -> tuple[dict[str, Parameter], int]:
    """The parameters of a module by name, each once and as this rank has it, and the bytes of its buffers."""
    own = ((name, local_tensor(p), p.requires_grad) for name, p in module.named_parameters())
    parameters = {name: Parameter(tuple(p.shape), p.element_size(), trained) for name, p, trained in own}
    return parameters, sum(b.numel() * b.element_size() for b in module.buffers())
