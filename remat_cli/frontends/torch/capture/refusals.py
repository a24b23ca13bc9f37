"""Puts into words why a step cannot be captured, or not as one graph, and refuses operations that no plan supports."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from remat_cli.errors import CaptureFailed, NotOneGraph
from remat_cli.frontends.source import Frame, frames_of
from remat_cli.frontends.torch.capture.naming import place_in, places_told
from remat_cli.frontends.torch.compat.fake_tensors import needs_numbers
from remat_cli.frontends.torch.tensors import is_dense, is_fixed
from remat_cli.frontends.torch.types import FxNode, Tensor

_OWN_ERROR = "when making fake tensor call"
"""Part of PyTorch's error if the user's code failed, and not its capture."""
_USER_CODE, _TRACED = "from user code:", "Original traceback:"
"""What comes before the places in the user's code, in an error of the capture and in one of what compiles a graph."""
_EXPLAINED = re.compile(r"^ *Explanation: ")
_HINTED = re.compile(r"^ *Hint: ")
_END = re.compile(r"^ *(Developer debug context:|For more details about|from user code:|User Stack|Set TORCHDYNAMO)")
_JUMP = "generic_jump"
"""PyTorch's word for a branch, where it has already captured what comes before."""
_FAILED = "the model could not be captured"
_BREAK = "what PyTorch calls a graph break divides it: data-dependent control flow, .item(), printing"
APART = (
    "call what divides it in a statement of its own outside of loops, or in a method with @torch.compiler.disable: "
    "then what comes before and after it is planned"
)
"""What to do about code that PyTorch divides a step at."""
_PARTS = "export_torch_parts makes a graph of each part"
_LONGEST = 400
"""Most characters of the first line: some errors hold whole tensors."""
_LSTM = "aten.mkldnn_rnn_layer"
_UNIQUE = "aten._unique.default"
"""Before 2.13, PyTorch invents a size for its result."""
_WRONG = "multilabel_margin_loss"
"""PyTorch compiles this wrongly: labels after the first -1 count as if they were 0 (2.13.0)."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why PyTorch captures no further.

    Attributes:
        place: ``model.py:12 in forward``; empty if unknown.
        what: What is there, in a few words.
        explanation: PyTorch's explanation, in lines; empty if there is none.
        hints: PyTorch's hints.
    """

    place: str
    what: str
    explanation: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()

    def line(self) -> str:
        """In one line: the place, and what is there."""
        return f"{self.place}: {self.what}" if self.place else self.what

    def sentence(self) -> str:
        """In one line, with the first line of PyTorch's explanation."""
        return f"{self.line()}: {self.explanation[0]}" if self.explanation else self.line()

    def details(self) -> list[str]:
        """What PyTorch has to say about it, a line for each statement."""
        lines = [f"  {'PyTorch: ' if not k else ' ' * 9}{text}" for k, text in enumerate(self.explanation)]
        return lines + [f"  PyTorch's hint: {text}" for text in self.hints]


def in_no_part(whole: NotOneGraph) -> CaptureFailed:
    """The error if PyTorch captures no part of the step that trains either."""
    first, *details = whole.message.split("\n")
    hint = (
        f"{_BREAK}, and PyTorch captures no part of the step that reads a parameter that trains: it divides no loop "
        f"and no expression; {APART}"
    )
    return CaptureFailed(first, hint=hint, details=details)


def refusal_of(error: BaseException) -> Refusal:
    """What an error says that ended a capture."""
    text = str(error)
    traceback = text.partition(_USER_CODE)[2] or text.partition(_TRACED)[2]
    frames = places_told(traceback)
    if needs_numbers(error):
        what = f"what it does depends on the numbers in a tensor ({_first_line(text)})"
        return Refusal(place_in(frames or frames_of(error)), what)
    if _OWN_ERROR in text:
        cause = _cause(error)
        return Refusal(_place(frames), _cut(_first_line(str(cause)) or type(cause).__name__))
    return read_refusal(text or type(error).__name__, frames or frames_of(error))


def read_refusal(text: str, frames: Sequence[Frame]) -> Refusal:
    """What a text of PyTorch says about code in ``frames``, from the outermost to the innermost."""
    what: list[str] = []
    explanation: list[str] = []
    hints: list[str] = []
    into = what
    for line in text.splitlines():
        if _END.match(line):
            break
        if _EXPLAINED.match(line):
            into = explanation
        elif _HINTED.match(line):
            into = hints
        elif into is hints:  # a hint goes on in the next line
            if line.strip():
                hints[-1] += f" {line.strip()}"
            continue
        words = _EXPLAINED.sub("", _HINTED.sub("", line)).strip()
        if words:
            into.append(words)
    first = what[0] if what else "it cannot be captured"
    if first.startswith(_JUMP):
        first = "a branch depends on the numbers in a tensor"
    return Refusal(_place(frames), _cut(first), (*what[1:3], *explanation), tuple(hints))


def not_captured(error: Exception) -> CaptureFailed:
    """The error for a step that ``error`` keeps from being captured as one graph."""
    refusal = refusal_of(error)
    hint = ""
    if _OWN_ERROR in str(error) or not type(error).__module__.startswith("torch"):
        hint = "does the step run as it is, without remat?"
    if "RNN, GRU, or LSTM" in str(error):
        hint = f"{APART}; or that setting captures nn.RNN, nn.GRU and most nn.LSTM, and nn.LSTMCell needs no setting"
    if not hint:
        return NotOneGraph(
            f"{_FAILED}: {refusal.line()}",
            reason=refusal.sentence(),
            hint=f"{_BREAK}; {_PARTS}",
            details=refusal.details(),
        )
    return CaptureFailed(f"{_FAILED}: {refusal.line()}", hint=hint, details=refusal.details())


def second_gradient() -> CaptureFailed:
    """The error for a step that takes the gradient of a gradient."""
    return CaptureFailed(
        "the step takes the gradient of a gradient (torch.autograd.grad with create_graph=True), which PyTorch does "
        "not do through compiled code",
        hint="leave that module uncompiled; other modules of the model can be fitted one by one",
    )


def _place(frames: Sequence[Frame]) -> str:
    """The place of the code in words; if all of it is PyTorch's, the innermost line of that."""
    place = place_in(frames)
    if place or not frames:
        return place
    file, line, name = frames[-1]
    return f"{Path(file).name}:{line} in {name}"


def _cause(error: BaseException) -> BaseException:
    """The first error in the chain of causes of ``error``."""
    while (before := error.__cause__ or error.__context__) is not None:
        error = before
    return error


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."


def require_plannable(node: FxNode, tensors: Sequence[tuple[int | None, Tensor]]) -> None:
    """Check that the results of an FX node are correct, and that a plan can count, keep and pass them on.

    ``tensors`` are the position and the fake tensor of each.

    Raises:
        CaptureFailed: If they are not, or it cannot.
    """
    if str(node.target).startswith(_LSTM):
        raise CaptureFailed(
            "nn.LSTM on a CPU keeps memory for its backward pass that PyTorch hands to no compiled step",
            hint="build the layer from nn.LSTMCell",
        )
    if any(getattr(function, "__name__", "") == _WRONG for _, function in node.meta.get("source_fn_stack", ())):
        raise CaptureFailed(
            f"PyTorch computes {_WRONG} wrongly when it is compiled: what follows the first -1 is counted too",
            hint="leave that loss outside of what is compiled",
        )
    if any(not is_dense(tensor) for _, tensor in tensors):
        raise CaptureFailed(
            f"{node.target} makes a sparse tensor, and a plan counts the bytes of dense ones",
            hint="embeddings have sparse gradients only if they are made with sparse=True",
        )
    if str(node.target) == _UNIQUE or any(not is_fixed(tensor) for _, tensor in tensors):
        raise CaptureFailed(
            f"the size of what {node.target} makes depends on the numbers in a tensor",
            hint="torch.where and masked_fill keep sizes fixed, where a mask as an index does not",
        )
