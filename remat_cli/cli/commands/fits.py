"""``remat fits``: whether training fits into the memory of a card."""

from typing import Any

import click

from remat_cli.cli import params
from remat_cli.cli.output import Output
from remat_cli.cli.output_files import report_format
from remat_cli.cli.progress import ProgressLine, showing
from remat_cli.cli.session import current
from remat_cli.errors import ExitCode
from remat_cli.frontends.ranks import SHARDS
from remat_cli.planning.options import SolveOptions

_FORMATS = ("text", "json", "html", "markdown")
_PASSED = (
    *("batch", "length", "resolution", "task", "dtype", "lora", "largest", "buckets", "global_batch", "optimizer"),
    *("ranks", "tp", "interconnect"),
)
_EPILOG = """\b
Examples:
  remat fits hf:./config.json --gpu h100 --batch 8 --length 4096 --dtype bfloat16
  remat fits hf:./config.json --gpu 24GB --lora 16 --optimizer adamw-8bit
  remat fits timm:vit_large_patch16_224 --gpu 24GB --batch 64 --largest
  remat fits torchvision:resnet50 --gpu rtx4090 --batch 256 --dtype float16-mixed
  remat fits hf:./config.json --gpu h100 --buckets 512,1024,2048,4096 --format json
  remat fits hf:./config.json --gpu h100 --length 4096 --global-batch 64
  remat fits hf:./config.json --gpu h100 --length 4096 --ranks 64 --tp 8
  remat fits torch:train.py:build --gpu a100-40gb --optimizer sgd-momentum
  remat fits step.json --gpu 16GB

Exits with 0 if a way to train fits, with 1 if it is proven that none does, and
with 4 if time was too short to decide."""


@click.command("fits", epilog=_EPILOG)
@click.argument("source")
@click.option("--gpu", required=True, metavar="NAME|SIZE", help="A card such as h100, or its memory: 24GB.")
@click.option("--batch", type=click.IntRange(1), help="Sequences or images, of a model by name.  [default: 1]")
@click.option("--length", type=click.IntRange(1), help="Tokens of a sequence.  [default: 2048, or all positions]")
@click.option("--resolution", type=click.IntRange(1), help="Height and width of images.  [default: the model's own]")
@click.option("--task", default="", metavar="TASK", help="For hf: causal-lm, ...  [default: from architectures]")
@click.option("--dtype", default="", metavar="TYPE", help="float32, bf16, fp16, or bf16-mixed for autocast.")
@click.option("--lora", type=click.IntRange(0), default=0, metavar="RANK", help="Train adapters of this rank alone.")
@click.option("--optimizer", default="", metavar="NAME", help="adamw, adamw-8bit, sgd, ...  [default: adamw]")
@click.option("--context", type=params.SIZE, help="Memory taken outside of the framework.  [default: 600MiB]")
@click.option("--largest", is_flag=True, help="Also find the largest batch and the longest sequences.")
@click.option(
    "--buckets", type=params.LENGTHS, default="", metavar="LIST", help="Also a batch for each length: 512:4096:512."
)
@click.option("--global-batch", type=click.IntRange(1), help="Also this batch in parts, with gradients added up.")
@click.option("--ranks", type=click.IntRange(1), help="Plan one of so many ranks that train together.")
@click.option(
    "--shard",
    type=click.Choice(list(SHARDS)),
    default=None,
    help="Divide all, as FSDP; gradients and state; or nothing.  [default: full]",
)
@click.option("--tp", type=click.IntRange(1), default=1, help="Ranks that share matrices (tensor parallel).")
@click.option(
    "--interconnect", default="", metavar="BANDWIDTH", help="What a rank sends: 50GB/s, or fsdp=50GB/s,tp=450GB/s."
)
@params.solver_option
@click.option(
    "--time-limit", type=params.DURATION, default="60s", show_default=True, help="Wall time for the searches."
)
@params.threads_option
@params.seed_option
@params.output_option
@params.format_option(*_FORMATS, by_suffix=True)
@params.cdn_option
@params.quiet_option
@params.color_option
def command(source: str, gpu: str, **options: Any) -> int:
    """Say whether training SOURCE fits into the memory of a card, and what it costs.

    SOURCE is a model by name (hf:CONFIG for a configuration of Transformers, timm:NAME, torchvision:NAME,
    diffusers:CONFIG), a function that builds a step (torch:FILE.py:NAME, jax:..., tf:...), an architecture of the zoo
    (zoo:NAME), or the file of a graph. Weights take no memory, and nothing runs.

    The answer is yes or no, with a table of the memory by what it is for: without recomputation, with every block
    recomputed, with the best plan, with the best one that may run the loss and other regions in parts, and with the
    plan that needs the least.
    """
    from remat_cli.api.memory import CONTEXT, fits
    from remat_cli.api.showing import formatted

    format = report_format(options["output"], _FORMATS, options["format"])
    params.require_drawing(format, options["cdn"])
    out = Output(options["color"], options["quiet"], file=options["output"])
    line = ProgressLine(1.0, current().started_s)
    with showing(line, quiet=out.quiet):
        answer = fits(
            source,
            gpu,
            **{name: options[name] for name in _PASSED},
            shard=options["shard"] or "",
            context=CONTEXT if options["context"] is None else options["context"],
            options=params.solve_options(options, SolveOptions),
            listener=line.update,
            tell=out.note,
        )
    facts = answer.facts()
    text = formatted(facts, format, out.style(), current().command_line(), cdn=options["cdn"])
    if format in {"html", "markdown"}:
        out.write(options["output"], text)
    else:
        out.report(str(text))
    if facts.chosen is not None:
        return ExitCode.OK
    return ExitCode.NO if facts.impossible else ExitCode.LIMIT
