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
  remat fits hf:./config.json --gpu h100 --length 4096 --ranks 64 --tp 8
  remat fits torch:train.py:build --gpu a100-40gb --optimizer sgd-momentum
  remat fits step.json --gpu 16GB

Exit code: 0 if a way to train fits, 1 if it is proven that none does, 4 if time was too short to decide.

More: docs/fits.md, docs/which-number.md"""


@click.command("fits", epilog=_EPILOG)
@click.argument("source")
@click.option("--gpu", required=True, metavar="NAME|SIZE", help="A card such as h100, or its memory: 24GB.")
@click.option("--batch", metavar="N", type=click.IntRange(1), help="Sequences or images.  [default: 1]")
@click.option(
    "--length", metavar="N", type=click.IntRange(1), help="Tokens of a sequence.  [default: 2048, or all positions]"
)
@click.option(
    "--resolution", metavar="N", type=click.IntRange(1), help="Height and width of images.  [default: the model's]"
)
@click.option("--task", default="", metavar="TASK", help="hf: task such as causal-lm.  [default: the configuration's]")
@click.option(
    "--dtype",
    default="",
    metavar="TYPE",
    help="float32, bf16, fp16, or bf16-mixed for autocast.  [default: the model's, or float32]",
)
@click.option(
    "--lora", type=click.IntRange(0), default=0, metavar="RANK", help="Train only LoRA adapters of this rank."
)
@click.option("--optimizer", default="", metavar="NAME", help="adamw, adamw-8bit, sgd, ...  [default: adamw]")
@click.option("--context", type=params.SIZE, help="Memory outside of the framework's allocator.  [default: 600MiB]")
@click.option("--largest", is_flag=True, help="Also find the largest batch and the longest sequences.")
@click.option(
    "--buckets",
    type=params.LENGTHS,
    default="",
    metavar="LENGTHS",
    help="Also find a batch for each length: 512:4096:512, or 512,1024.",
)
@click.option(
    "--global-batch", metavar="N", type=click.IntRange(1), help="Also reach this batch by gradient accumulation."
)
@click.option("--ranks", metavar="N", type=click.IntRange(1), help="Plan one of N ranks that train together.")
@click.option(
    "--shard",
    type=click.Choice(list(SHARDS)),
    default=None,
    help="full: divide parameters, gradients and state, as FSDP; grad: the last two; none: nothing.  [default: full]",
)
@click.option("--tp", metavar="N", type=click.IntRange(1), default=1, help="Ranks of a tensor-parallel group.")
@click.option(
    "--interconnect",
    default="",
    metavar="BANDWIDTH",
    help="Send bandwidth of a rank: 50GB/s, or fsdp=50GB/s,tp=450GB/s.  [default: the card's]",
)
@params.solver_option
@click.option(
    "--time-limit",
    type=params.DURATION,
    default="60s",
    show_default=True,
    help="Wall time of the searches for each answer.",
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

    SOURCE is a model by name (hf:CONFIG, timm:NAME, torchvision:NAME, diffusers:CONFIG), a function that builds a step
    (torch:FILE.py:NAME, jax:..., tf:...), zoo:NAME, or a graph file. Weights take no memory, and nothing runs. The
    options --batch to --lora are for models by name.

    The report compares training without recomputation, with every block recomputed, and by the best plans.
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
