"""The mistakes to plant, each in code that must be correct: every one of them changes the behaviour."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Mutation:
    """One mistake.

    Attributes:
        name: Short and unique: the area, then what goes wrong.
        breaks: In one line.
        old: Text that occurs exactly once in the package; other spellings of it, for trees of another age, after it.
        new: What replaces it; one for each spelling.
        tests: Files or folders of tests that are to catch it; the quickest first.
    """

    name: str
    breaks: str
    old: tuple[str, ...]
    new: tuple[str, ...]
    tests: tuple[str, ...]

    def also(self, old: str, new: str) -> Mutation:
        """The same mistake in code that was written anew."""
        return replace(self, old=(*self.old, old), new=(*self.new, new))


def _one(name: str, breaks: str, old: str, new: str, *tests: str) -> Mutation:
    return Mutation(name, breaks, (old,), (new,), tuple(f"tests/{test}" for test in tests))


PLAN = (
    _one(
        "plan: freed one step early",
        "derive frees a value one step before the last read that it serves",
        "            last_use[value] = position\n        for value in graph.values_of(node):",
        "            last_use[value] = max(last_use[value], position - 1)\n        for value in graph.values_of(node):",
        "plan",
    ).also(
        "dying[step] = sorted(values)",
        "dying[max(0, step - 1)] += sorted(values)",
    ),
    _one(
        "plan: peak without workspace",
        "the quick peak of a search leaves out the workspace",
        "highest = max(highest, live + node.workspace)",
        "highest = max(highest, live)",
        "plan",
    ).also(
        "height = level + node.workspace",
        "height = level",
    ),
    _one(
        "plan: peak without fixed memory",
        "the quick peak of a search leaves out fixed memory",
        "live = highest = graph.fixed_memory",
        "live = highest = 0",
        "plan",
    ).also(
        "level = graph.fixed_memory + sum(size[v] for v, step in enumerate(reads) if step >= 0)",
        "level = sum(size[v] for v, step in enumerate(reads) if step >= 0)",
    ),
    _one(
        "plan: output pruned",
        "prune drops the recomputation that leaves a graph output",
        "needed = set(graph.outputs)\n    kept = []",
        "needed: set[int] = set()\n    kept = []",
        "plan",
    ).also(
        "                if reads[v] >= 0:\n                    break",
        "                if 0 <= reads[v] < len(computes):\n                    break",
    ),
    _one(
        "plan: double free passes",
        "the replay says nothing of a register freed twice",
        '            self.complain("double-free", at, f"deallocate {name}, {why}")\n            return',
        "            return",
        "plan",
    ),
    _one(
        "plan: replay without fixed memory",
        "the replayed profile leaves out fixed memory",
        "profile.append(graph.fixed_memory + checker.memory + workspace)",
        "profile.append(checker.memory + workspace)",
        "plan",
    ),
    _one(
        "plan: replay without workspace",
        "the replayed profile leaves out the workspace",
        "profile.append(graph.fixed_memory + checker.memory + workspace)",
        "profile.append(graph.fixed_memory + checker.memory)",
        "plan",
    ),
    _one(
        "plan: read before it is written",
        "the replay lets a node read a register that is allocated and not yet computed",
        "        if name is not None and self.live[name].filled:\n            return",
        "        if name is not None:\n            return",
        "plan",
    ),
    _one(
        "plan: third computation",
        "the replay reports `recompute: false` from the third computation on, not from the second",
        "if not node.recompute and self.times[statement.node]:",
        "if not node.recompute and self.times[statement.node] > 1:",
        "plan",
    ),
    _one(
        "plan: budget not inclusive",
        "a plan whose peak is exactly the budget counts as over it",
        "self.replay.peak_bytes <= self.budget_bytes",
        "self.replay.peak_bytes < self.budget_bytes",
        "plan",
    ),
    _one(
        "plan: kept a stage short",
        "a value leaves one stage before the end of its interval",
        "            leaving[last + 1].append(value)",
        "            leaving[last].append(value)",
        "plan",
    ),
)

MILP = (
    _one(
        "milp: frontier without workspace",
        "frontier rows leave out the workspace of the node",
        "own = sum(graph.size[v] for v in node.inputs) + sum(node.outputs) + node.workspace\n"
        "        room = stated.room - stated.memory.down(own)",
        "own = sum(graph.size[v] for v in node.inputs) + sum(node.outputs)\n"
        "        room = stated.room - stated.memory.down(own)",
        "milp/test_retention.py",
    ),
    _one(
        "milp: first reader forgotten",
        "in-stage rows forget that the node recomputed reads its own inputs",
        "if k <= j < t and (t, j) in self.stated.R]",
        "if k < j < t and (t, j) in self.stated.R]",
        "milp/test_retention.py",
    ),
    _one(
        "milp: in-stage row one node short",
        "in-stage rows leave out the values of the node after the one recomputed",
        "range(graph.first_value[k + 1], graph.first_value[t])",
        "range(graph.first_value[k + 2], graph.first_value[t])",
        "milp/test_retention.py",
    ),
    _one(
        "milp: big-M one too small",
        "FREE's big-M cuts off schedules with every hazard",
        "sum(others, 1 - R[t, k]), 1 + len(others)",
        "sum(others, 1 - R[t, k]), len(others)",
        "milp/test_checkmate.py",
    ),
    _one(
        "milp: sign of what is kept",
        "Checkmate's recurrence of memory starts with less for what is kept",
        "append(size[v] * var)",
        "append(-size[v] * var)",
        "milp/test_checkmate.py",
    ),
    _one(
        "milp: cover row coefficient",
        "a node with several waiting values offers only the last of them",
        "parts[maker] = parts.get(maker, 0) + graph.size[v]",
        "parts[maker] = graph.size[v]",
        "milp/test_retention.py",
        "strategies/test_optimal.py",
    ),
    _one(
        "milp: cover rows without fixed memory",
        "cover rows compare with the whole budget, fixed memory not taken off",
        "need = waiting_bytes + working_set(graph, t) - (budget_bytes - graph.fixed_memory)",
        "need = waiting_bytes + working_set(graph, t) - budget_bytes",
        "milp/test_retention.py",
        "strategies/test_optimal.py",
    ),
    _one(
        "milp: running cover counts outputs twice",
        "the running cover rows count what a node writes as waiting beside it",
        "own = [v for v in (*node.inputs, *graph.values_of(t)) if last[v] > t]",
        "own = [v for v in node.inputs if last[v] > t]",
        "milp/test_retention.py",
        "strategies/test_dual.py",
    ),
    _one(
        "milp: cover cut cuts nothing",
        "the right-hand side of a cover cut is one too large",
        "-math.inf, len(columns) - 1.0)",
        "-math.inf, float(len(columns)))",
        "milp/test_checkmate.py",
        "milp/test_retention.py",
        "strategies/test_optimal.py",
    ),
    _one(
        "milp: block one node short",
        "a block between two cuts leaves out its last node",
        "end = self.frontier(k + 1) + 1 if k + 1 < len(self.cuts)",
        "end = self.frontier(k + 1) if k + 1 < len(self.cuts)",
        "strategies/test_cuts.py",
    ),
    _one(
        "milp: inputs counted twice",
        "rows of what is live through a stage count the inputs of the recomputed node twice",
        "if graph.size[v] == 0 or graph.producer[v] == k or v in node.inputs:",
        "if graph.size[v] == 0 or graph.producer[v] == k:",
        "milp/test_live_through.py",
        "strategies/test_proofs.py",
    ),
    _one(
        "milp: event support too small",
        "the stage after a reader is no event, so the bound may be above the optimum",
        "stages.update((j, j + 1))",
        "stages.add(j)",
        "milp/test_events.py",
    ),
    _one(
        "milp: prices below zero",
        "negative weights from a solver make prices that no schedule has to pay",
        "weight = max(0.0, weight_of.get(id(variable), 0.0)) * scale",
        "weight = weight_of.get(id(variable), 0.0) * scale",
        "milp/test_events.py",
    ).also(
        "weight = max(0.0, float(value)) * scale",
        "weight = float(value) * scale",
    ),
)

SOLVERS = (
    _one(
        "solvers: bound not scaled back",
        "the bound of a scaled model is taken for one of the model asked about",
        "bound = _over(answer.bound, factor)",
        "bound = answer.bound",
        "solvers/test_solver_properties.py",
        "solvers/test_solver_requests.py",
        "solvers/test_solver_conformance.py",
    ),
    _one(
        "solvers: violated rows pass",
        "a solution that violates the model is taken",
        "GROSS_VIOLATION = 1e-4",
        "GROSS_VIOLATION = 1e4",
        "solvers/test_solver_failures.py",
        "solvers/test_solver_requests.py",
        "solvers/test_solver_conformance.py",
    ),
    _one(
        "solvers: bound above the solution",
        "a bound above the solution's own objective is handed on",
        "bound if objective is None else min(bound, objective)",
        "bound",
        "solvers/test_solver_failures.py",
        "solvers/test_solver_requests.py",
        "solvers/test_solver_conformance.py",
    ),
    _one(
        "solvers: offset not scaled",
        "the constant of the objective is not scaled with it",
        "offset=model.offset * factor",
        "offset=model.offset",
        "solvers/test_solver_properties.py",
        "solvers/test_solver_requests.py",
        "solvers/test_solver_conformance.py",
    ),
)

STRATEGIES = (
    _one(
        "strategies: bound without its margin",
        "a solver's bound is taken without the margin for its tolerance",
        "return whole(graph, bound - _SOLVER_TOLERANCE * base)",
        "return whole(graph, bound)",
        "strategies/test_optimal.py",
        "strategies/test_proofs.py",
        "strategies/test_cuts.py",
    ).also(
        "return whole(graph, bound - BOUND_MARGIN * base)",
        "return whole(graph, bound)",
    ),
    _one(
        "strategies: bound above the cost",
        "a bound above a schedule's cost, which does not speak of it, proves it optimal",
        "if bound.cost > cost * (1 + _EQUAL):",
        "if math.isinf(bound.cost):",
        "strategies/test_search.py",
        "strategies/test_optimal.py",
        "strategies/test_strategies.py",
    ).also(
        "if bound.cost > cost * (1 + SAME_COST):",
        "if math.isinf(bound.cost):",
    ),
    _one(
        "strategies: scope too wide",
        "a cover bound for document order claims to hold for any order",
        "scope = Scope.ANY_ORDER if any_order else Scope.DOCUMENT_ORDER",
        "scope = Scope.ANY_ORDER",
        "strategies/test_ordering.py",
        "strategies/test_optimal.py",
        "strategies/test_search.py",
        "strategies/test_conformance.py",
    ),
    _one(
        "strategies: budget not inclusive",
        "a schedule whose peak is exactly the budget is not taken",
        "        if new.peak_bytes > self.budget_bytes:",
        "        if new.peak_bytes >= self.budget_bytes:",
        "strategies/test_cuts.py",
        "strategies/test_optimal.py",
    ),
    _one(
        "strategies: recompute false ignored",
        "a schedule that recomputes what may be computed only once is taken",
        "        if k in seen and not graph.nodes[k].recompute:\n            return True",
        "        if k in seen and not graph.nodes[k].recompute:\n            return False",
        "strategies/test_cuts.py",
    ),
    _one(
        "strategies: largest value of a level",
        "the bound of visits reserves the largest value of a level, where only the smallest is sure",
        "smallest.append(min((graph.size[v] for v in values), default=0))",
        "smallest.append(max((graph.size[v] for v in values), default=0))",
        "strategies/test_chain_bounds.py",
    ),
    _one(
        "strategies: Rotor forgets the backward step",
        "Rotor's programme leaves out the memory of the backward step where a tape is kept",
        "need = max(tape[s], waiting[t] + record[s], rest[s])",
        "need = max(tape[s], waiting[t] + record[s])",
        "strategies/test_chain_strategies.py",
    ),
    _one(
        "strategies: heights without dead inputs",
        "heights of a schedule leave out inputs that are read for the last time",
        "                level += size[v]\n                here += size[v]",
        "                level += size[v]",
        "strategies/test_spans.py",
        "plan",
    ).also(
        "                height += size[v]\n                dying.append(v)\n            reads[v] = step",
        "                dying.append(v)\n            reads[v] = step",
    ),
    _one(
        "strategies: bound above the ceiling",
        "a model that leaves out dear schedules raises the bound above what it looked for",
        "whole(best.graph, min(bound, ceiling))",
        "whole(best.graph, bound)",
        "strategies/test_proofs.py",
    ).also("whole(incumbent.graph, min(bound, ceiling))", "whole(incumbent.graph, bound)"),
    _one(
        "strategies: rehearsal proves",
        "the bound of a model over a small support counts as a proof",
        "LiveThroughRows(model.stated), cheaper.ceiling, depth is None)",
        "LiveThroughRows(model.stated), cheaper.ceiling, True)",
        "strategies/test_proofs.py",
    ),
    _one(
        "strategies: bound of a smaller room",
        "the bound at a smaller room than the budget leaves counts",
        "bounding=self.room == whole)",
        "bounding=True)",
        "strategies/test_cuts.py",
    ),
    _one(
        "strategies: dual not lowered where values are read",
        "the dual bound charges a value also for stages that read it",
        "spans -= np.bincount(self.read, weights=weights[self.reader], minlength=len(self.size))",
        "spans -= 0.0",
        "strategies/test_dual.py",
    ),
    _one(
        "strategies: forbidden nodes in the network",
        "the cut may choose nodes that may be computed only once",
        "costs[self.fixed if allowed is None else self.fixed | ~allowed] = _NO_LIMIT",
        "costs[~allowed if allowed is not None else slice(0)] = _NO_LIMIT",
        "strategies/test_spans.py",
    ),
)

TORCH = (
    _one(
        "torch: retained bytes of a loss",
        "a loss that keeps one number per element counts as one number",
        "return max(shown, elements * int(tensor.dtype.itemsize))",
        "return shown",
        "frontends/test_torch_models.py",
        "frontends/test_torch_profile.py",
    ).also(
        "return max(shown, math.prod([a if b == 1 else b for a, b in pairs]) * made.itemsize)",
        "return shown",
    ),
    _one(
        "torch: views counted as memory",
        "what an operation makes is not remembered, so its views count as new memory",
        "        self.owners[storage(tensor)] = value\n        draft.values.append([description])",
        "        draft.values.append([description])",
        "frontends/test_torch_export.py",
        "frontends/test_torch_models.py",
    ).also(
        "            self.own(kind, places[name])\n            values.append([name])",
        "            values.append([name])",
    ),
    _one(
        "torch: attention with dropout",
        "attention that drops numbers is not known to be random",
        "return bool(dropout != 0.0)",
        "return False",
        "frontends/test_torch_attention.py",
        "frontends/test_torch_export.py",
        "frontends/test_torch_traps.py",
        "frontends/test_torch_random.py",
        "frontends/test_torch_models.py",
    ),
    _one(
        "torch: random state not restored",
        "after a recomputation the generator goes on from the old state",
        'self.line("set_state(now)")',
        "pass",
        "frontends/test_torch_random.py",
        "frontends/test_torch_run.py",
    ),
    _one(
        "torch: other numbers in a recomputation",
        "a recomputation draws new random numbers",
        'self.line(f"set_state(s{index})")',
        "pass",
        "frontends/test_torch_random.py",
        "frontends/test_torch_run.py",
    ),
    _one(
        "torch: updated buffer not copied",
        "the backward half reads a buffer that the forward half wrote over",
        'f"places[{p}].clone()" if p in updated else f"places[{p}]"',
        'f"places[{p}]"',
        "frontends/test_torch_training.py",
        "frontends/test_torch_traps.py",
    ),
    _one(
        "torch: last element left out",
        "the memory of a tensor is counted without its last element",
        "return int(last + 1) * int(tensor.dtype.itemsize)",
        "return int(last) * int(tensor.dtype.itemsize)",
        "frontends/test_torch_export.py",
        "frontends/test_torch_models.py",
    ),
    _one(
        "torch: unread parameters left out",
        "fixed memory leaves out parameters and buffers that the step does not read",
        "tensors = [*captured.tensors, *module.parameters(), *module.buffers()]",
        "tensors = [*captured.tensors]",
        "frontends/test_torch_export.py",
        "frontends/test_torch_traps.py",
    ),
)

MUTATIONS = PLAN + MILP + SOLVERS + STRATEGIES + TORCH
MOVED = {"tests/planning": "tests/api"}
"""Folders of tests with the names that they have in older trees."""
