"""Lightning: ``Trainer(callbacks=[RematCallback("8GB", module="net")])`` trains within a budget."""

from __future__ import annotations

from collections.abc import Callable
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
    ``training_step`` calls. Put the loss inside it to have its memory planned, or give ``loss`` to have it counted.

    Args:
        budget: ``"8GB"``, ``"80%"`` of what the first batch needs without recomputation, or bytes.
        module: Name of the module that ``training_step`` calls, such as ``net``; empty for the ``LightningModule``,
            which is called as ``self(...)``.
        reserve: Memory outside the step; None for what the optimizers keep, accumulated gradients and buckets of
            ``DistributedDataParallel``.
        loss: The loss as ``training_step`` computes it, from what the module returns and the batch: ``lambda logits,
            batch: cross_entropy(logits, batch[1])``, so that its memory is counted. Leave it out where the module
            returns its loss.
        options: Other arguments of :func:`remat_cli.fit`.
    """

    def __init__(
        self,
        budget: Budget | str | float,
        *,
        module: str = "",
        reserve: str | float | None = None,
        loss: Callable[[Any, Any], Any] | None = None,
        **options: Any,
    ) -> None:
        self.budget, self.module, self.reserve, self.loss, self.options = budget, module, reserve, loss, options
        self._batch: Any = None

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
        options = {"holds": ()} | self.options  # by the backward pass, training_step has returned
        fit(module, None, self.budget, reserve=reserve, loss=self._of_output(), **options)

    def _of_output(self) -> Callable[[Any], Any] | None:
        """The loss of what the module returns, with the batch at hand."""
        loss = self.loss
        if loss is None:
            return None
        if not callable(loss):
            raise UsageError(
                f"loss is a function of what the module returns and the batch, and not {type(loss).__name__}",
                hint="loss=lambda output, batch: criterion(output, batch[1])",
            )
        return lambda output: loss(output, self._batch)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Keep the batch for the loss."""
        self._batch = None if self.loss is None else batch

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Check that the first step has called the module.

        Raises:
            UsageError: If it has not.
        """
        self._batch = None
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
