"""The strategies remat knows. A new one is a file in this folder and a line here."""

from __future__ import annotations

from remat_cli.registry import Registry
from remat_cli.spec import build, split_spec
from remat_cli.strategies.base import Strategy

STRATEGIES: Registry[Strategy] = Registry(
    kind="strategy",
    table={
        "anneal": "remat_cli.strategies.searches:Anneal",
        "ap-greedy": "remat_cli.strategies.published.chen:ApGreedy",
        "ap-sqrt": "remat_cli.strategies.published.chen:ApSqrt",
        "auto": "remat_cli.strategies.searches:Auto",
        "checkmate-ilp": "remat_cli.strategies.published.checkmate_ilp:CheckmateIlp",
        "chen-greedy": "remat_cli.strategies.published.chen:ChenGreedy",
        "chen-recursive": "remat_cli.strategies.chains.checkpointed:ChenRecursive",
        "chen-sqrt": "remat_cli.strategies.published.chen:ChenSqrt",
        "checkmate-lp": "remat_cli.strategies.published.checkmate_lp:CheckmateLp",
        "checkpoint-all": "remat_cli.strategies.keep_all:CheckpointAll",
        "dtr": "remat_cli.strategies.published.dtr:Dtr",
        "fsdp": "remat_cli.strategies.policies.sharded:Fsdp",
        "keep-all": "remat_cli.strategies.keep_all:KeepAll",
        "keras-layers": "remat_cli.strategies.policies.whole_modules:KerasLayers",
        "layer-settings": "remat_cli.strategies.policies.layer_settings:LayerSettings",
        "linearized-greedy": "remat_cli.strategies.published.chen:LinearizedGreedy",
        "linearized-sqrt": "remat_cli.strategies.published.chen:LinearizedSqrt",
        "lns": "remat_cli.strategies.searches:Lns",
        "every-n-layers": "remat_cli.strategies.policies.whole_modules:EveryNLayers",
        "min-cut": "remat_cli.strategies.published.min_cut:MinCut",
        "module-checkpoint": "remat_cli.strategies.policies.whole_modules:ModuleCheckpoint",
        "moccasin": "remat_cli.strategies.published.moccasin.strategy:Moccasin",
        "offload": "remat_cli.strategies.copying.offload:Offload",
        "optimal": "remat_cli.strategies.searches:Optimal",
        "overlap": "remat_cli.strategies.overlapping.overlap:Overlap",
        "pwremat": "remat_cli.strategies.published.twremat:PwRemat",
        "repeated": "remat_cli.strategies.repeated.search:Repeated",
        "revolve": "remat_cli.strategies.chains.griewank:Revolve",
        "revolve-bytes": "remat_cli.strategies.chains.rotor:RevolveBytes",
        "revolve-hetero": "remat_cli.strategies.chains.griewank:RevolveHetero",
        "rotor": "remat_cli.strategies.chains.rotor:Rotor",
        "save-only": "remat_cli.strategies.policies.saved_values:SaveOnly",
        "search": "remat_cli.strategies.searches:Search",
        "sequential": "remat_cli.strategies.chains.checkpointed:Sequential",
        "twremat": "remat_cli.strategies.published.twremat:TwRemat",
        "xla-greedy": "remat_cli.strategies.published.xla_greedy:XlaGreedy",
    },
    group="remat.strategies",
)


def strategy_from_spec(text: str) -> Strategy:
    """The strategy that ``name{option=value,...}`` describes.

    Raises:
        UsageError: If there is no such strategy or option.
    """
    name, options = split_spec(text)
    return build(STRATEGIES.load(name), name, options)
