"""The workspace of operations on this machine's CPU: measured when it is first needed, and kept in the cache folder.

No rule tells it: kernels differ between processors, numbers of threads and versions of PyTorch. So an operation runs
once, on random tensors of the shapes, types and strides that it has in the step, and all later steps know.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from remat_cli.errors import ExecutionFailed, InputError, UsageError
from remat_cli.files import read_text, write_text
from remat_cli.frontends.captured.profiling import groups
from remat_cli.frontends.torch.costing.device import DeviceKey
from remat_cli.frontends.torch.layouts import copied_bytes
from remat_cli.frontends.torch.measuring.one_operation import Operations
from remat_cli.frontends.torch.measuring.workspace import workspaces
from remat_cli.frontends.torch.reading import read_step
from remat_cli.frontends.torch.telling import Tell, tell_stderr
from remat_cli.frontends.torch.warning import warn
from remat_cli.graph.model import Graph

_METHOD = 1
"""Number of the way to measure; what was measured in another way is not read."""
_COLLECTIVE = ("_c10d_functional.", "c10d.")
"""Operators that wait for other processes cannot run alone."""
_MOST_NAMES = 3
"""Operators that a warning names."""


def with_workspaces(graph: Graph) -> Graph:
    """``graph`` with the workspace of each operation on this machine's CPU.

    Args:
        graph: A graph that this process captured, for a CPU.
    """
    step = read_step(graph)
    alone = [
        index
        for index, operation in enumerate(step.operations)
        if index != step.tangents and not operation.call.startswith(_COLLECTIVE)
    ]
    graph = counted(graph, Operations(step, "cpu"), alone)
    nodes = [
        replace(node, workspace=max(node.workspace, copied_bytes(operation, "cpu")))
        for node, operation in zip(graph.nodes, step.operations, strict=True)
    ]
    return replace(graph, nodes=tuple(nodes))


def counted(graph: Graph, operations: Operations, indices: Sequence[int]) -> Graph:
    """``graph`` with the workspace of some of its nodes; those of one form are measured once.

    The state of the user's random generators is preserved. A warning names the operators that fail on random tensors.

    Args:
        graph: A graph that this process captured, for a CPU.
        operations: Its operations.
        indices: The nodes.
    """
    kinds = groups((operations.kind(index), index) for index in indices)
    found = kept_workspaces(operations, [members[0] for members in kinds])
    failed = sorted({operations.step.operations[index].call for index, taken in found.items() if taken is None})
    if failed:
        names = ", ".join(failed[:_MOST_NAMES]) + (", ..." if len(failed) > _MOST_NAMES else "")
        warn(f"remat: the workspace of {names} could not be measured, and is not counted: set reserve for it")
    nodes = list(graph.nodes)
    for members in kinds:
        for index in members:
            nodes[index] = replace(nodes[index], workspace=max(nodes[index].workspace, found[members[0]] or 0))
    return replace(graph, nodes=tuple(nodes))


def kept_workspaces(
    operations: Operations, indices: Sequence[int], tell: Tell = tell_stderr
) -> Mapping[int, int | None]:
    """The workspace in bytes of each node, measured now or by an earlier process; None if it fails on random tensors.

    Args:
        operations: Operations on a CPU.
        indices: The nodes.
        tell: Called if the results cannot be kept.
    """
    import torch

    path = DeviceKey.of("cpu").path(
        "workspaces", _METHOD, torch.are_deterministic_algorithms_enabled(), torch.backends.mkldnn.enabled
    )
    keys = {index: hashlib.sha256(operations.kind(index).encode()).hexdigest()[:24] for index in indices}
    known = _SEEN.setdefault(path, {})
    if not keys.keys() <= {index for index in indices if keys[index] in known}:
        known |= _read(path)
    missing = [index for index in indices if keys[index] not in known]
    if missing:
        failed = set[int]()
        with torch.random.fork_rng(devices=[]), torch.autocast("cpu", enabled=False):
            for index, workspace in zip(missing, _measured(operations, missing, failed), strict=True):
                if index not in failed:
                    known[keys[index]] = workspace
        try:
            # Another process may have written meanwhile.
            write_text(str(path), json.dumps(_read(path) | known, indent=0, sort_keys=True) + "\n")
        except UsageError as error:  # the next process measures again
            tell(f"the workspace of operations is not kept: {error.message}")
    return {index: known.get(keys[index]) for index in indices}


_SEEN: dict[Path, dict[str, int]] = {}


def _measured(operations: Operations, indices: Sequence[int], failed: set[int]) -> list[int]:
    """The workspace of each node; 0 for those that fail, which are added to ``failed``."""
    try:
        return workspaces(operations, indices)
    except ExecutionFailed:
        pass
    found = []
    for index in indices:
        try:
            found += workspaces(operations, [index])
        except ExecutionFailed:
            failed.add(index)
            found.append(0)
    return found


def _read(path: Path) -> dict[str, int]:
    """What is kept; nothing if the file is missing or damaged."""
    try:
        document = json.loads(read_text(str(path))[0])
    except (InputError, ValueError):
        return {}
    entries = document.items() if isinstance(document, dict) else ()
    return {key: size for key, size in entries if isinstance(size, int) and size >= 0}
