"""The models of the GPU benchmark, a small one on a CPU: the first run on a GPU should not be the first run."""

from benchmarks.torch import users
from benchmarks.torch.devices import Cpu


def test_a_model_trains_by_fit_beside_its_own_checkpoints():
    told = list(users.rows_of(Cpu(), lambda: 1.0, print, quick=True))
    rows = [row for table, row in told if table == "models"]
    assert [row["method"].partition(",")[0] for row in rows] == ["eager", "checkpoints", "fit", "fit", "fit", "fit"]
    eager, checkpoints, *planned = rows
    assert checkpoints["losses"] == "bit for bit"
    assert all(row["losses"] == "bit for bit" for row in planned)
    [like] = [row for row in planned if row["method"] == "fit, memory of checkpoints, cost=device"]
    assert not like["problem"]
    assert like["allocated_bytes"] <= like["budget_bytes"] == checkpoints["allocated_bytes"] < eager["allocated_bytes"]
    [whole, blocks] = [row for table, row in told if table == "fits"]
    assert (whole["problem"], blocks["problem"]) == ("", "")
    assert blocks["predicted_bytes"] - blocks["gaps_bytes"] < whole["predicted_bytes"] - whole["gaps_bytes"]
