"""Plans that ``fit`` keeps: used again only if they are of the same graph and replay within the budget."""

import json

import pytest
from torch_plans import FAST, graph_of

from remat_cli.api.fitting import CachedPlanner, plan_folder
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.planning.cache import PlanCache
from remat_cli.units import parse_budget


@pytest.fixture
def graph():
    return graph_of("mlp")


def test_a_plan_is_solved_once(graph, tmp_path, monkeypatch):
    planner = CachedPlanner(parse_budget("100%"), FAST, tmp_path / "deep" / "plans")
    first = planner(graph)
    monkeypatch.setattr("remat_cli.planning.job.Job.attempt", None)
    assert planner(graph).statements == first.statements
    assert len(list((tmp_path / "deep" / "plans").iterdir())) == 1


def _other_graph(document):
    document["graph"]["nodes"][0]["cost"] = 12345.0


def _no_frees(document):
    document["statements"] = [s for s in document["statements"] if "deallocate" not in s]


def _no_end(document):
    document["statements"] = document["statements"][:-4]


@pytest.mark.parametrize("damage", [None, _other_graph, _no_frees, _no_end])
def test_a_kept_plan_is_made_again_when_it_is_broken(graph, tmp_path, damage):
    planner = CachedPlanner(parse_budget("100%"), FAST, tmp_path)
    good = planner(graph)
    [path] = tmp_path.iterdir()
    whole = path.read_text(encoding="utf-8")
    if damage is None:
        path.write_text(whole[: len(whole) // 2], encoding="utf-8")
    else:
        document = json.loads(whole)
        damage(document)
        path.write_text(json.dumps(document), encoding="utf-8")
    budget, cache = no_remat_peak(graph), PlanCache(tmp_path)
    assert cache.find(path, graph, budget, complete=False) is None
    assert planner(graph).claim.cost <= good.claim.cost * 1.5
    assert cache.find(path, graph, budget, complete=False) is not None


def test_a_folder_that_cannot_be_written_is_only_a_warning(graph, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.warns(UserWarning, match="the plan is not kept"):
        assert CachedPlanner(parse_budget("100%"), FAST, tmp_path / "file" / "plans")(graph).statements


def test_where_plans_are_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert plan_folder(None).parts[-2:] == ("remat", "plans")
    assert plan_folder("") is None
    assert plan_folder(tmp_path) == tmp_path
