"""Units of ``fully_shard`` by plan in two processes: the bits of plain FSDP2, and the peak that was predicted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch_plans import most_bytes
from torch_processes import together

from remat_cli import SolveOptions, fit, fitted, plans_of, unfit
from remat_cli.errors import Infeasible, RematError, UsageError
from remat_cli.frontends.torch.compat.distributed import local_tensor
from remat_cli.frontends.torch.compat.fully_sharded import reshards
from remat_cli.frontends.torch.tensors import total_bytes
from remat_cli.plan.io import dump_plan

ROOT = Path(__file__).parents[2]
WIDTH, BLOCKS, ROWS = 64, 4, 512
QUICK = SolveOptions(strategy="dtr", time_limit_s=10)


class Block(nn.Module):
    def __init__(self, width=WIDTH):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width, bias=False)
        self.back = nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        return x + self.back(nn.functional.gelu(self.wide(self.norm(x))))


def squared(y):
    return y.square().mean()


def sharded(build, reshard=True, **options):
    """The module of ``build``, its blocks and itself as units."""
    torch.manual_seed(1)
    module = build()
    options.setdefault("mesh", init_device_mesh("cpu", (2,)))
    for block in getattr(module, "blocks", module):
        fully_shard(block, reshard_after_forward=reshard, **options)
    if build is Joint:
        fully_shard([module.norm, module.head], **options)
    return fully_shard(module, **options)


def blocks():
    return nn.Sequential(*[Block() for _ in range(BLOCKS)])


def batch(rank, width=WIDTH, rows=ROWS):
    torch.manual_seed(3 + rank)
    return torch.randn(rows, width)


def trained(module, x, steps=3):
    """Losses of some steps, and the parameters behind them."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = squared(module(x))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *(local_tensor(one).detach().clone() for one in module.parameters())]


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def taken(module, x):
    """What a step takes at most; gloo's threads let go of tensors late, so it is the least of some steps."""
    found = []
    for _ in range(4):
        module.zero_grad()
        found.append(most_bytes(lambda: squared(module(x)).backward(), []))
    return min(found) + total_bytes([*module.parameters(), x])  # parts are padded


class Language(nn.Module):
    """Embedding, norm and head are in no unit; the blocks differ."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(100, WIDTH)
        self.blocks = nn.ModuleList([Block(), Deep(), Block()])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 100)

    def forward(self, x):
        h = self.embedding((x[:, 0].abs() * 10).long())
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


class Joint(Language):
    """Norm and head are one unit, as Accelerate has them."""


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(WIDTH, 96), nn.SiLU(), nn.Linear(96, 192), nn.Tanh(), nn.Linear(192, WIDTH)
        )

    def forward(self, x):
        return self.layers(x)


def odd():
    """Rows that two ranks cannot share evenly."""
    return nn.Sequential(*[Block(WIDTH - 1) for _ in range(3)])


def run_budgets(rank, build, shares, options, rows=ROWS):
    x = batch(rank, WIDTH - 1 if build is odd else WIDTH, rows)
    plain = sharded(build, **options)
    wanted = trained(plain, x)
    found = []
    for share in shares:
        module = sharded(build, **options)
        fit(module, x, share, options=QUICK, cache="", loss=squared, holds=())
        same = equal(trained(module, x), wanted)
        report = fitted(module)
        found.append((same, report, taken(module, x), [dump_plan(plan) for plan in plans_of(module)]))
    return taken(plain, x), found


BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
IN_BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
CASES = {
    "equal": (blocks, ["100%", "85%", "70%"], {}),
    "kept": (blocks, ["100%", "70%"], {"reshard": False}),
    "more parameters than activations": (blocks, ["100%", "90%"], {"reshard": False}, 32),
    "uneven": (odd, ["100%", "75%"], {}),
    "different, and parameters in no unit": (Language, ["100%", "80%"], {}),
    "bfloat16": (blocks, ["100%", "75%"], {"mp_policy": BF16}),
    "reduced in bfloat16": (blocks, ["75%"], {"mp_policy": IN_BF16}),
}


@pytest.mark.parametrize("case", CASES)
def test_units_take_what_is_predicted_and_make_the_bits_of_plain_steps(case):
    results = together(run_budgets, *CASES[case])
    for plain, found in results:
        for same, report, measured, _ in found:
            assert same
            assert measured == report.plan_bytes
            assert report.least_bytes <= report.plan_bytes <= report.budget_bytes
            assert 0 <= report.least_extra_cost <= report.extra_cost
            if "bfloat16" not in case:  # on some processors eager mode copies more than its graph says
                assert plain == report.keep_all_bytes
        costs = [report.extra_cost for _, report, *_ in found]
        assert costs == sorted(costs)
        assert "100%" not in CASES[case][1] or costs[0] == 0
    first, second = ([(report.plan_bytes, plans) for _, report, _, plans in found] for _, found in results)
    assert first == second


def test_modules_that_are_one_unit_run_as_they_are_and_are_counted():
    for _, found in together(run_budgets, Joint, ["100%", "80%"], {}):
        for same, report, measured, _ in found:
            assert same
            assert report.parts == 3
            assert "norm and head run as they are, and are counted as gathered all the time" in report.assumed
            assert measured <= report.plan_bytes <= report.budget_bytes
            # Too much by what two linear layers of 100 outputs take, gathered and as buffers of gloo
            assert report.plan_bytes <= measured + 4 * 4 * (WIDTH + 3) * 102


LINKS = [None, "1TB/s+0us", "1MB/s", "measure"]


def run_links(rank):
    """By link: whether the bits are those of plain units, the figures, and which units are resharded."""
    x, found = batch(rank, rows=256), []
    options = {"mesh": init_device_mesh("cpu", (2,), mesh_dim_names=("parts",)), "reshard": False}
    wanted = trained(sharded(blocks, **options), x)
    for links in LINKS:
        module = sharded(blocks, **options)
        fit(module, x, "80%", options=QUICK, cache="", loss=squared, holds=(), cost="roofline:h100", interconnect=links)
        found.append((fitted(module), [reshards(unit) for unit in module]))
        assert equal(trained(module, x), wanted)
    said = []
    for links, cost in (("1GB/s", "flops"), ("other=1GB/s", "device")):
        with pytest.raises(UsageError) as refused:
            fit(module, x, "80%", options=QUICK, cache="", loss=squared, holds=(), cost=cost, interconnect=links)
        said.append(refused.value.message)
    return found, said


def test_units_are_resharded_where_the_link_is_fast():
    for found, said in together(run_links):
        (unknown, free), (fast, often), (slow, never), (measured, _) = found
        assert "gathers in the backward pass are counted as free" in unknown.assumed
        assert "counted as free" not in fast.assumed + slow.assumed + measured.assumed
        assert any(free)
        assert any(often)
        assert sum(never) < sum(often)
        assert fast.extra_cost < slow.extra_cost
        assert said == [
            "the time on a link is compared with costs, and FLOPs are no times",
            'the mesh of the step has no dimension "other": its dimensions are parts',
        ]


def run_uses(rank):
    """What a module that is fitted by its first call does then, without gradients, in another form, and unfitted."""
    x, plain = batch(rank), sharded(blocks)
    module = sharded(blocks)
    with torch.no_grad():
        module(x)  # its parameters stay gathered
    fit(module, None, "80%", options=QUICK, cache="", loss=squared, holds=())
    same = [equal(trained(module, x), trained(plain, x))]
    with torch.no_grad():
        same.append(torch.equal(module(x), plain(x)))
    kept = [reshards(unit) for unit in module]
    fit(module, x, "90%", options=QUICK, cache="", loss=squared, holds=())
    same.append(equal(trained(module, x), trained(plain, x)))
    unfit(module)
    same.append(equal(trained(module, x), trained(plain, x)))
    after = [reshards(unit) for unit in module], ["forward" in vars(unit) for unit in module]
    fit(module, x, "90%", options=QUICK, cache="", loss=squared, holds=())
    try:
        module(x[:8])
    except UsageError as error:
        said = error.message
    return same, said, kept, *after


def test_fitted_by_the_first_call_and_unfitted():
    results = together(run_uses)
    assert results[0][2] == results[1][2]
    for same, said, kept, after, replaced in results:
        assert same == [True] * 4
        assert "a unit is called in another form than fit was given" in said
        assert not all(kept)
        assert after == [True] * BLOCKS
        assert replaced == [False] * BLOCKS


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        return self.blocks[1](self.blocks[0](self.blocks[0](x)))


class Printing(Block):
    def forward(self, x):
        if x.sum() > 0:
            x = x + 1
        return super().forward(x)


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([fully_shard(nn.Sequential(fully_shard(Block()), Block())), Block()])

    def forward(self, x):
        return self.blocks[1](self.blocks[0](x))


def frozen():
    module = blocks()
    module[0].requires_grad_(requires_grad=False)
    return module


REFUSED = {
    "is called 2 times in a step": lambda: sharded(Twice),
    "unit 0 cannot be captured as one graph": lambda: sharded(lambda: nn.Sequential(Printing(), Block())),
    "is sharded with an offload policy": lambda: sharded(blocks, offload_policy=CPUOffloadPolicy(pin_memory=False)),
    "(HSDP)": lambda: sharded(blocks, mesh=init_device_mesh("cpu", (1, 2), mesh_dim_names=("copies", "parts"))),
    "unit 0 has nothing to train": lambda: sharded(frozen),
    "parts of this Sequential are sharded by fully_shard, and it is not": lambda: nn.Sequential(fully_shard(Block())),
}


def run_refused(rank):
    said = []
    for build in REFUSED.values():
        try:
            fit(build(), batch(rank), "1GB", options=QUICK, cache="")
        except RematError as error:
            said.append(error.message)
    module = sharded(blocks)
    try:
        fit(module, batch(rank)[: 64 + 8 * rank], "1GB", options=QUICK, cache="")
    except RematError as error:
        said.append(error.message)
    try:
        fit(module, batch(rank), "600kB", options=QUICK, cache="")
    except Infeasible as error:
        said.append(f"{error.message}: {error.hint}")
    try:
        fit(module, batch(rank), "1GB", options=QUICK, cache="", buckets=[64])
    except UsageError as error:
        said.append(error.message)
    return said, trained(module, batch(rank))[0].isfinite()


def test_what_is_not_planned_is_refused():
    for said, trains in together(run_refused):
        for words, message in zip(REFUSED, said, strict=False):
            assert words in message
        rest = said[len(REFUSED) :]
        assert "the processes have different steps" in rest[0]
        assert "no plans of the 4 units were found that fit a budget of 600 kB" in rest[1]
        assert "is the least that was found" in rest[1]
        assert rest[2] == "buckets does not go together with fully_shard"
        assert trains


def run_shown(rank, code):
    scope = {}
    exec(compile(code, "train.py", "exec"), scope)
    report = scope["train"]()
    return report.plan_bytes <= report.budget_bytes < report.keep_all_bytes


def test_the_page_shows_how():
    page = ROOT / "docs" / "sharded.md"
    section = page.read_text(encoding="utf-8").partition("## Train with `fully_shard`")[2]
    code = section.split("```python\n")[1].partition("```")[0]
    assert together(run_shown, code) == [True, True]


def test_torchrun_starts_the_file_that_is_shown(tmp_path):
    code = (ROOT / "docs" / "fsdp.md").read_text(encoding="utf-8").split("```python\n")[1].partition("```")[0]
    (tmp_path / "train_fsdp.py").write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train_fsdp.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "remat: FSDPSequential, in 4 parts: peak " in done.stderr
    assert done.stdout.count("loss ") == 6
