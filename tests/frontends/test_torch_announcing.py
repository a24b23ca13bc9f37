"""What fit says while it plans, and of every plan: one line that says what is saved, and what it costs."""

import io
import re
import sys

import pytest
import torch
from torch import nn
from torch_plans import FAST

import remat_cli
from remat_cli.api.announcing import Announcer
from remat_cli.control import Progress
from remat_cli.frontends.messages import clear_live, show_live, tell_stderr, warn
from remat_cli.frontends.torch.framework import Torch
from remat_cli.frontends.torch.train.report import Fitted, kernels_words, saving
from remat_cli.zoo.registry import build_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")

MB = 10**6


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch):
    """Makes standard error a terminal, when it is called: pytest takes it over when a test begins."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")

    def installed() -> Terminal:
        shown = Terminal()
        monkeypatch.setattr(sys, "stderr", shown)
        return shown

    yield installed
    clear_live()


def module() -> nn.Module:
    layers = [layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(32, 1))


def test_kernels_that_eager_mode_has_not_are_named():
    """On CUDA alone, where eager mode leaves batch normalisation to cuDNN."""
    names = ("gpt2{batch=1,depth=1,cost=flops}", "unet{batch=1,resolution=32,width=2,depth=1,cost=flops}")
    other, normalised = (Torch().export_architecture(f"torch/{name}") for name in names)
    assert kernels_words("cuda", other, normalised).startswith("batch normalisation is PyTorch's")
    assert kernels_words("cuda", other) == kernels_words("cpu", normalised) == ""


def test_a_saving_says_of_what():
    for arguments, words in (
        (
            (302 * MB, 168 * MB, 180 * MB, 7.73, "us", 5.0),
            "peak 302 -> 168 MB (-44%) within 180 MB, about +7.7% step time",
        ),
        ((1200 * MB, 800 * MB, None, 0.1234, "flops", 5.0), "peak 1.2 GB -> 800 MB (-33%), about +0.12% FLOPs"),
        ((100 * MB, 90 * MB, None, 123.4, "ms", 5.0), "peak 100 -> 90 MB (-10%), about +123.4% step time"),
        ((100 * MB, 90 * MB, None, -1e-12, "unit", 5.0), "peak 100 -> 90 MB (-10%), about +0% unit"),
        ((100 * MB, 100 * MB, 200 * MB, 0.0, "us", 5.0), "peak 100 MB within 200 MB without recomputation"),
    ):
        assert saving(*arguments) == saving(*arguments, search_s=2.5) == f"{words}; planned in 5.00 s"
        quick = saving(*arguments, search_s=0.5)  # as if the plan was in the cache
        assert quick == f"{words}; planned in 5.00 s (0.50 s of it for the search)"


def test_a_line_has_what_was_assumed_and_what_is_not_counted():
    report = Fitted("Net", 180 * MB, None, 302 * MB, 168 * MB, 90 * MB, 7.73, False, "assumes much", 2, 50 * MB)
    assert report.line("us", 5.0) == (
        "Net, in 2 parts: peak 302 -> 168 MB (-44%) within 180 MB, 50 MB on the host, about +7.7% step time; "
        'planned in 5.00 s; the workspace of operations comes on top: cost="measured" counts it; assumes much'
    )


def test_fit_and_later_forms_say_what_their_plans_save(capsys):
    planned, batch = module(), torch.randn(256, 32)
    remat_cli.fit(planned, batch, "70%", options=FAST, cost="flops", cache="")
    said = capsys.readouterr().err
    assert re.fullmatch(
        r"remat: Sequential: peak [\d.]+ -> [\d.]+ kB \(-\d+%\) within [\d.]+ kB, about \+[\d.]+% FLOPs; "
        r"planned in [\d.]+ s( \([\d.]+ s of it for the search\))?; "
        r"assumes that the loss takes .*\n",
        said,
    )
    planned(batch).sum().backward()
    assert capsys.readouterr().err == ""
    planned(batch[:200]).sum().backward()
    said = capsys.readouterr().err
    assert re.fullmatch(r"remat: Sequential, called with float32\[200, 32\]: peak .*; planned in [\d.]+ s\n", said)
    planned(batch[:200]).sum().backward()
    assert capsys.readouterr().err == ""


def test_buckets_were_told_before(capsys):
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = module()

        def forward(self, x):
            return self.layers(x).sum()

    planned = Words()
    remat_cli.fit(planned, torch.randn(4, 40, 32), "90%", options=FAST, cost="flops", cache="", buckets=[64])
    assert capsys.readouterr().err.count("\n") == 1
    planned(torch.randn(4, 50, 32)).backward()
    assert capsys.readouterr().err == ""


def test_a_terminal_shows_where_fit_is_and_keeps_one_line(terminal):
    shown = terminal()
    remat_cli.fit(module(), torch.randn(256, 32), "70%", options=FAST, cost="flops", cache="")
    lives = shown.getvalue().split("\r\x1b[K")
    assert lives[0] == ""
    assert lives[1] == "remat: capturing Sequential"
    assert any(re.fullmatch(r"remat: planning Sequential: \d+ s.*", live) for live in lives)
    assert "\n" not in "".join(lives[:-1])
    assert lives[-1].startswith("remat: Sequential: peak ")
    assert lives[-1].count("\n") == 1


def test_an_error_leaves_no_line_on_a_terminal(terminal):
    shown = terminal()
    with pytest.raises(remat_cli.Infeasible):
        remat_cli.fit(module(), torch.randn(256, 32), "1%", options=FAST, cost="flops", cache="")
    assert shown.getvalue().endswith("\r\x1b[K")


def test_progress_has_the_time_and_the_best_so_far(terminal):
    shown = terminal()
    graph = build_graph("unit-chain{n=17}")
    announcer = Announcer("Net")
    announcer.progress(graph, Progress("searching", cost=1.125 * graph.total_cost))
    announcer.progress(graph, Progress("searching", cost=graph.total_cost))  # too soon for another
    assert shown.getvalue() == "\r\x1b[Kremat: planning Net: 0 s, best +12.5%"


def test_other_lines_take_the_place_of_a_live_one(terminal):
    shown = terminal()
    show_live("x" * 100)
    tell_stderr("told")
    show_live("again")
    with pytest.warns(UserWarning, match="beware"):
        warn("beware")
    tell_stderr("more")
    cleared = "\r\x1b[K"
    expected = f"{cleared}remat: {'x' * 52}{cleared}remat: told\n{cleared}remat: again{cleared}remat: more\n"
    assert shown.getvalue() == expected


def test_only_the_first_process_tells(terminal):
    shown = terminal()
    announcer = Announcer("Net", quiet=True)
    with announcer.until_done():
        announcer.progress(build_graph("unit-chain{n=17}"), Progress("searching"))
    announcer.fitted(Fitted("Net", 1, 1, 1, 1, 1, 0.0))
    assert shown.getvalue() == ""
