"""Writes the HLO texts in ``hlo``, and what XLA itself says of each module. Needs JAX; run it from the root::

    PYTHONPATH=tests/jax_frontend XLA_FLAGS='--xla_dump_to=build/hlo --xla_dump_hlo_as_text' \
      build/jax/bin/python tests/frontends/record_hlo.py build/hlo
"""

import json
import shutil
import sys
from pathlib import Path

import jax
import jax_models

HERE = Path(__file__).parent / "hlo"
STAGES = {"before_optimizations": "before", "cpu_after_optimizations": "after"}


def dumped(name: str) -> dict[str, float]:
    """Compiles the step of a model, which XLA dumps; returns what XLA says of it."""
    function, arguments, *options = getattr(jax_models, name)()
    step = jax.value_and_grad(function, **(options[0] if options else {}))

    def run(*given):
        return step(*given)

    run.__name__ = name
    compiled = jax.jit(run).lower(*arguments).compile()
    memory = compiled.memory_analysis()
    return {
        "flops": compiled.cost_analysis()["flops"],
        "argument_bytes": memory.argument_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
    }


if __name__ == "__main__":
    jax.config.update("jax_traceback_in_locations_limit", 0)  # no paths of this machine in the files
    told = {name: dumped(name) for name in ("mlp", "mixed", "layers", "control")}
    for name in told:
        for stage, short in STAGES.items():
            [file] = Path(sys.argv[1]).glob(f"*.jit_{name}.{stage}.txt")
            shutil.copy(file, HERE / f"{name}.{short}.hlo.txt")
    (HERE / "told.json").write_text(json.dumps(told, indent=1, sort_keys=True) + "\n", encoding="utf-8")
