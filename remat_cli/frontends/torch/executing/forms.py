"""Tells which operations of a graph are the same operation on tensors of the same form."""

from __future__ import annotations

from typing import Any

from remat_cli.frontends.torch.document import Argument, Constant, Operation, Place, Step, View


def form_of(step: Step, index: int) -> str:
    """A text that is equal for nodes with the same operation on tensors of the same form."""
    operation = step.operations[index]
    reads = [[tensor.spec for tensor in step.tensors(value)] for value in step.graph.nodes[index].inputs]
    return repr((operation.call, *_forms(step, operation), operation.values, reads))


def _forms(step: Step, called: Operation | View) -> tuple[Any, Any]:
    """The arguments of a call, with the form of each place and the data of each constant instead of its number."""
    kwargs = sorted((key, _form(step, argument)) for key, argument in called.kwargs.items())
    return [_form(step, argument) for argument in called.args], kwargs


def _form(step: Step, argument: Argument) -> Any:
    match argument:
        case Place(number):
            place = step.places[number]
            return place.kind, place.spec, place.below
        case Constant(number):
            return step.constants[number]
        case View():
            return argument.call, _forms(step, argument), argument.item
        case tuple():
            return [_form(step, item) for item in argument]
        case _:
            return argument
