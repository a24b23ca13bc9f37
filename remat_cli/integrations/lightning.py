"""Lightning: ``Trainer(callbacks=[RematCallback("8GB", module="net")])`` trains within a budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback

from remat_cli.api import fit, plans_of
from remat_cli.errors import UsageError
from remat_cli.integrations.trained import gradient_bytes, state_bytes
from remat_cli.printable import printable

if TYPE_CHECKING:
    from remat_cli.units import Budget


class RematCallback(Callback):
    """Fits a module on its first batch.

    The budget is for the module, its gradients, the optimizers' state, and all that a call of the module computes.
    Lightning calls ``training_step``, not the ``LightningModule`` itself, so the module to fit is the one that
    ``training_step`` calls: put the loss inside it to have its memory counted.

    Args:
        budget: ``"8GB"``, ``"80%"`` of what the first batch needs without recomputation, or bytes.
        module: Name of the module that ``training_step`` calls, such as ``net``; empty for the ``LightningModule``,
            which is called as ``self(...)``.
        reserve: Memory outside the step; None for what the optimizers keep, accumulated gradients and buckets of
            ``DistributedDataParallel``.
        options: Other arguments of :func:`remat_cli.fit`.
    """

    def __init__(
        self, budget: Budget | str | float, *, module: str = "", reserve: str | float | None = None, **options: Any
    ) -> None:
        self.budget, self.module, self.reserve, self.options = budget, module, reserve, options

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Fit the module when it is first called.

        Raises:
            UsageError: If there is no module of that name.
        """
        try:
            module = pl_module.get_submodule(self.module)
        except AttributeError as error:
            raise UsageError(
                f"there is no module {self.module} in {type(pl_module).__name__}", hint=_parts(pl_module)
            ) from error
        reserve = self.reserve
        if reserve is None:
            copies = int(trainer.accumulate_grad_batches > 1) + int(trainer.world_size > 1)
            reserve = sum(map(state_bytes, trainer.optimizers)) + copies * gradient_bytes(pl_module.parameters())
        fit(module, None, self.budget, reserve=reserve, **self.options)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Check that the first step has called the module.

        Raises:
            UsageError: If it has not.
        """
        if plans_of(pl_module.get_submodule(self.module)):
            return
        called = f"its module {printable(self.module)}" if self.module else "the module itself, as self(...)"
        raise UsageError(
            f"training_step of {type(pl_module).__name__} does not call {called}",
            hint=f"name the module that it calls: {_parts(pl_module)}",
        )


def _parts(pl_module: Any) -> str:
    """The names of the modules that might be fitted, in words."""
    names = [f'module="{name}"' for name, _ in pl_module.named_children()]
    return printable(", ".join(names) or "it has no other modules")
