"""Pages as a reader uses them in a real browser: pointing, zooming, keys, scales, the dark, paper, narrow windows."""

import json
import math
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from browser import Browser
from test_pages import NASTY, compared, nasty_graph, page_of
from test_result_pages import curve_text, worth

import remat_cli as remat
from remat_cli.graph.summary import summarize
from remat_cli.plan.comparison import Comparison
from remat_cli.reports.web.comparison import comparison_page
from remat_cli.reports.web.graph import graph_page
from remat_cli.reports.web.page import render_page
from remat_cli.zoo.registry import build_graph

pytestmark = pytest.mark.system  # chromium
RANGE = "document.getElementById('{}')._fullLayout.{}axis.range"
HOVER = "[...document.querySelectorAll('.hoverlayer text')].map((t) => t.textContent).join('\\n')"


RECORDING = Path(__file__).parents[1] / "frontends" / "recorded_step.pickle"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    large = build_graph("unit-chain{n=5000}")
    texts = {
        "plan": page_of(build_graph("vgg16"), budget=20 * 10**9),
        "comparison": render_page(comparison_page(compared()), "remat compare c.json"),
        "large": render_page(graph_page(large, summarize(large)), "remat show c.json --format html"),
        "nasty": page_of(nasty_graph(), [0, 1, 0, 2]),
        "nasty graph": render_page(graph_page(nasty_graph(), summarize(nasty_graph())), "c"),
        "vgg": render_page(graph_page(vgg := build_graph("vgg16"), summarize(vgg)), "c"),
        "curve": curve_text(),
        "worth": remat.page(worth()),
        "recording": remat.page(remat.load_snapshot(RECORDING)),
        "resnet": render_page(graph_page(resnet := build_graph("resnet50"), summarize(resnet)), "c"),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("browser")) as started:
        yield started
        assert started.console == []


def middle(browser: Browser, element: str, across: float = 0.5, down: float = 0.5) -> tuple[float, float]:
    left, top, width, height = browser.box(element)
    return left + across * width, top + down * height


def test_pointing_at_the_timeline_names_the_values_in_memory(browser, pages):
    browser.open(pages["plan"])
    last = browser.ask("document.getElementById('timeline')._fullLayout.xaxis.range[1]")
    for across in (0.2, 0.5, 0.8):
        statement = math.floor(across * last)
        browser.point(*middle(browser, "#timeline .nsewdrag", (statement + 0.5) / last))
        browser.until(f"{HOVER}.includes(' at statement {statement}')")
        shown = browser.ask(HOVER)
        assert "GB" in shown
        assert "conv1_1" in shown or "relu" in shown or "pool" in shown


def test_names_that_look_like_markup_are_shown_as_they_are(browser, pages):
    browser.open(pages["nasty"])
    browser.point(*middle(browser, "#timeline .nsewdrag", 0.25))
    browser.until("document.querySelector('.hoverlayer .hovertext')")
    assert NASTY[:20] in browser.ask(HOVER)


def boxes(browser: Browser) -> dict[str, list[float]]:
    """The drawn boxes by name: middle in the window, width and height in pixels."""
    return browser.ask("""(() => {
        const figure = document.getElementById('graph'), found = figure._fullData.find((t) => t.name === 'boxes');
        const { xaxis, yaxis } = figure._fullLayout;
        const box = figure.querySelector('.nsewdrag').getBoundingClientRect();
        return Object.fromEntries(found.x.map((x, k) => [content.items[found.customdata[k]].id, [
            box.left + xaxis.d2p(x), box.top + yaxis.d2p(found.base[k] + found.y[k] / 2),
            xaxis.d2p(found.width[k]) - xaxis.d2p(0), yaxis.d2p(0) - yaxis.d2p(found.y[k])]]));
    })()""")


PINNED = "document.getElementById('pinned')"


@pytest.mark.parametrize("page", ["large", "resnet"])
def test_a_large_graph_is_drawn_in_few_boxes_that_do_not_cover_each_other(browser, pages, page):
    browser.open(pages[page])
    seen = list(boxes(browser).values())
    assert 20 < len(seen) < 130
    for one, other in combinations(seen, 2):
        apart = max(abs(one[k] - other[k]) - (one[k + 2] + other[k + 2]) / 2 for k in (0, 1))
        assert apart > 0
    told = browser.ask("(Plotly.validate(charts[0].data, charts[0].layout) ?? []).map((x) => x.msg)")
    # It does not know that a colour axis may be in the layout.
    assert [line for line in told if "coloraxis" not in line] == []


def test_a_block_is_opened_and_closed(browser, pages):
    browser.open(pages["resnet"])
    browser.box("#graph")
    before = boxes(browser)
    assert "conv3_2/a/conv" not in before
    browser.click(*before["conv3_2"][:2])
    browser.until(f"{PINNED}.innerText.includes('10 nodes')")
    browser.until("document.querySelector('#graph .annotation-text')")
    after = boxes(browser)
    assert after.keys() - before.keys() == {f"conv3_2/{name}" for name in (
        "a/conv", "a/bn", "a/relu", "b/conv", "b/bn", "b/relu", "c/conv", "c/bn", "add", "relu",
    )}  # fmt: skip
    assert before.keys() - after.keys() == {"conv3_2"}
    browser.ask(f"[...{PINNED}.querySelectorAll('button')].find((b) => b.innerText === 'Close this block').click()")
    browser.until("!document.querySelector('#graph .annotation-text')")
    assert boxes(browser).keys() == before.keys()


def test_nodes_are_found_by_keys_and_their_neighbours_stand_out(browser, pages):
    browser.open(pages["resnet"])
    browser.key("/")
    assert browser.ask("document.activeElement.id") == "search"
    for letter in "conv4_3/B/bn":
        browser.key(letter)
    assert "2 matches" in browser.ask("document.getElementById('found').textContent")
    browser.key("Enter")
    browser.until(f"{PINNED}.innerText.startsWith('conv4_3/b/bn')")
    browser.until("document.getElementById('graph')._fullData.some((t) => t.name === 'read by' && t.visible === true)")
    assert "conv4_3/b/bn" in boxes(browser)
    assert {"batch_norm, forward", "51.38 MB"} <= set(browser.ask(f"{PINNED}.innerText").split("\n"))
    browser.key("Enter")
    browser.until(f"{PINNED}.innerText.startsWith('grad/conv4_3/b/bn')")
    linked = browser.ask(f"{PINNED}.querySelector('.link').innerText")
    browser.ask(f"{PINNED}.querySelector('.link').click()")
    browser.until(f"{PINNED}.innerText.startsWith({json.dumps(linked)} + '\\n')")
    browser.key("Escape")
    browser.until(f"{PINNED}.hidden")
    browser.until("!document.getElementById('graph')._fullData.some((t) => t.name === 'read by')")


def test_names_are_in_boxes_where_there_is_room(browser, pages):
    texts = (
        "[...document.querySelectorAll('#graph .bartext')].filter((t) => t.style.display !== 'none')"
        ".map((t) => t.dataset.unformatted)"
    )
    browser.open(pages["vgg"], width=1400)
    wide = browser.ask(texts)
    assert {"conv1_1", "pool1", "fc8", "loss"} <= set(wide)
    browser.open(pages["large"])
    first = next(iter(boxes(browser)))
    browser.drag(middle(browser, "#graph .nsewdrag", 0.0, 0.02), middle(browser, "#graph .nsewdrag", 0.1, 0.98))
    span = f"{RANGE.format('graph', 'x')}[1] - {RANGE.format('graph', 'x')}[0]"
    browser.until(f"{span} < 20")
    browser.until(f"{texts}.includes({json.dumps(first)})")


def test_names_in_boxes_are_never_markup(browser, pages):
    browser.open(pages["nasty graph"])
    assert NASTY[:8] in "".join(
        browser.ask("[...document.querySelectorAll('#graph .bartext')].map((t) => t.textContent)")
    )
    browser.click(*boxes(browser)[NASTY][:2])
    browser.until(f"{PINNED}.querySelector('h3')?.textContent === {json.dumps(NASTY)}")
    assert browser.ask(f"{PINNED}.querySelectorAll('b, script').length") == 0


def test_a_band_is_pinned_by_a_click_by_search_and_from_a_table(browser, pages):
    browser.open(pages["plan"])
    browser.box("#bands")
    at = browser.ask("""(() => {
        const figure = document.getElementById('bands'), band = figure._fullData.find((t) => t.name === 'conv1_2:0');
        const { xaxis, yaxis } = figure._fullLayout, box = figure.querySelector('.nsewdrag').getBoundingClientRect();
        const half = band.y[band.y.length / 2 | 0] - band.y[band.y.length / 2 - 1 | 0];
        return [box.left + xaxis.d2p(band.x[0] + 1), box.top + yaxis.d2p(band.y[0] + Math.abs(half) / 2)];
    })()""")
    browser.point(*at)
    browser.until(f"{HOVER}.includes('conv1_2:0')")
    browser.click(*at)
    browser.until(f"{PINNED}.innerText.startsWith('conv1_2\\n')")
    assert "3.288 GB; statements " in browser.ask(f"{PINNED}.innerText")
    faint = "charts.find((c) => c.id === 'bands').data.filter((t) => t.opacity < 1)"
    assert browser.ask(f"{faint}.length") > 50
    assert browser.ask(f"{faint}.some((t) => t.name === 'conv1_2:0')") is False
    browser.key("/")
    for letter in "relu3_3":
        browser.key(letter)
    browser.key("Enter")
    browser.until(f"{PINNED}.innerText.startsWith('relu3_3')")
    assert "(recomputed)" in browser.ask(f"{PINNED}.innerText")
    browser.ask("[...document.querySelectorAll('td .link, th .link')].find((b) => b.innerText === 'conv1_1').click()")
    browser.until(f"{PINNED}.innerText.startsWith('conv1_1')")
    browser.key("Escape")
    browser.until(f"{PINNED}.hidden")
    assert browser.ask(f"{faint}.length") == 0


def test_without_its_network_a_page_says_so_and_keeps_its_tables(browser, tmp_path):
    page = tmp_path / "cdn.html"
    page.write_text(render_page(comparison_page(compared()), "c", cdn=True), encoding="utf-8")
    browser.send("Network.enable")
    browser.send("Network.setBlockedURLs", urls=["*cdn.plot.ly*"])
    browser.send("Page.navigate", url=page.resolve().as_uri())
    browser.until("document.getElementById('trouble')?.textContent.includes('plotly.js did not load')")
    assert browser.ask("document.querySelectorAll('td').length") > 20
    browser.send("Network.setBlockedURLs", urls=[])


def test_a_page_reaches_no_network_and_its_charts_can_be_saved(browser, pages):
    browser.open(pages["plan"])
    refused = browser.ask("""new Promise((done) => {
        addEventListener('securitypolicyviolation', ({ effectiveDirective }) => done(effectiveDirective));
        fetch('https://cdn.plot.ly/').catch(() => {});
    })""")
    assert refused == "connect-src"
    saved = browser.ask("Plotly.toImage('timeline', { format: 'png', width: 300, height: 200 })")
    assert saved.startswith("data:image/png;base64,")


def test_a_table_that_is_too_wide_says_so(browser, pages):
    hidden = (
        "[...document.querySelectorAll('.scroll')].filter((s) => !s.closest('details'))"
        ".map((s) => s.previousElementSibling.hidden)"
    )
    browser.open(pages["comparison"], width=1400)
    assert browser.ask(hidden) == [True]
    browser.open(pages["comparison"], width=420)
    browser.until(f"{hidden}.includes(false)")
    assert browser.ask("document.querySelector('section:last-of-type .scroll').tabIndex") == 0


def test_keys_zoom_move_and_go_back(browser, pages):
    browser.open(pages["plan"])
    for chart in ("timeline", "matrix-r"):
        browser.ask(f"document.getElementById('{chart}').focus()")
        first = browser.ask(RANGE.format(chart, "x"))
        span = first[1] - first[0]
        browser.key("+")
        browser.until(f"Math.abs({RANGE.format(chart, 'x')}[1] - {RANGE.format(chart, 'x')}[0] - {0.8 * span}) < 1e-6")
        browser.key("ArrowRight")
        browser.until(f"Math.abs({RANGE.format(chart, 'x')}[0] - {first[0] + 0.18 * span}) < 1e-6")
        # What was zoomed into stays when the lights go out.
        browser.theme(dark=True)
        browser.until("getComputedStyle(document.body).backgroundColor === 'rgb(20, 23, 27)'")
        assert browser.ask(RANGE.format(chart, "x"))[0] == pytest.approx(first[0] + 0.18 * span)
        browser.key("0")
        browser.until(f"Math.abs({RANGE.format(chart, 'x')}[0] - {first[0]}) < 1e-6")
        browser.theme(dark=False)
    assert browser.ask("document.querySelectorAll('.chart[tabindex=\"0\"][aria-label]').length") == 4


def test_every_chart_is_reached_by_tab_and_other_keys_are_left_alone(browser, pages):
    browser.open(pages["comparison"])
    reached = []
    for _ in range(40):
        browser.send("Input.dispatchKeyEvent", type="keyDown", key="Tab", code="Tab", windowsVirtualKeyCode=9)
        reached.append(browser.ask("document.activeElement.id || document.activeElement.name"))
        if reached[-1] == "peak":
            break
    assert [name for name in reached if name] == ["scale-overhead", "overhead", "peak"]


def test_small_overheads_can_be_told_apart_on_a_logarithmic_scale(browser, pages):
    browser.open(pages["comparison"])
    linear = browser.ask(RANGE.format("overhead", "y"))
    assert browser.ask("document.getElementById('overhead')._fullLayout.yaxis.type") == "linear"
    browser.ask("document.querySelector('input[value=logarithmic]').click()")
    browser.until("document.getElementById('overhead')._fullLayout.yaxis.type === 'log'")
    shown = browser.ask("[...document.querySelectorAll('#overhead .ytick text')].map((t) => t.textContent)")
    assert shown == ["0", "10"]
    lines = browser.ask(
        "Object.fromEntries(document.getElementById('overhead')._fullData.filter((t) => t.mode !== 'markers')"
        ".map((t) => [t.name, [...t.y]]))"
    )
    for line in lines.values():
        assert all(y > 0 for y in line)
    assert lines["optimal"] == pytest.approx([100 / 3, 100 / 9, math.sqrt(10)])
    browser.ask("document.querySelector('input[value=linear]').click()")
    browser.until("document.getElementById('overhead')._fullLayout.yaxis.type === 'linear'")
    assert browser.ask(RANGE.format("overhead", "y")) == pytest.approx(linear)


def test_overheads_of_many_sizes_are_logarithmic_from_the_beginning(browser, tmp_path):
    whole = compared()
    small = tuple(
        replace(row, overhead=row.overhead and row.overhead * 1e-4**k) for k, row in enumerate(whole.rows[:3])
    )
    page = tmp_path / "many.html"
    page.write_text(render_page(comparison_page(replace(whole, rows=(*small, *whole.rows[3:]))), "c"), encoding="utf-8")
    browser.open(page)
    assert browser.ask("document.getElementById('overhead')._fullLayout.yaxis.type") == "log"
    assert browser.ask("document.querySelector('input[value=logarithmic]').checked")


def turn(browser: Browser, element: str, across: float, by: float, **held: int) -> None:
    """Turn the wheel over an element."""
    x, y = middle(browser, element, across)
    browser.point(x, y)
    browser.send("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=by, **held)


def test_the_wheel_zooms_with_ctrl_alone_and_both_charts_of_a_plan_show_the_same_statements(browser, pages):
    browser.open(pages["plan"])
    timeline, bands = RANGE.format("timeline", "x"), RANGE.format("bands", "x")
    whole = browser.ask(timeline)
    middle(browser, "#timeline")  # scrolls there
    before = browser.ask("scrollY")
    turn(browser, "#timeline", 0.25, 100)
    browser.until(f"scrollY !== {before}")
    assert browser.ask(timeline) == whole
    turn(browser, "#timeline", 0.25, -100, modifiers=2)
    browser.until(f"{timeline}[1] < {whole[1]}")
    left, right = browser.ask(timeline)
    assert right - left == pytest.approx(0.8 * (whole[1] - whole[0]))
    assert left - whole[0] < whole[1] - right  # around what the mouse points at
    browser.until(f"Math.abs({bands}[1] - {right}) < 1e-6")
    browser.ask(f"void Plotly.relayout('bands', {{'xaxis.range': [0, {right / 2}]}})")
    browser.until(f"Math.abs({timeline}[1] - {right / 2}) < 1e-6")
    assert browser.ask("document.querySelectorAll('#timeline .rangeslider-container').length") == 1
    assert browser.ask(bands) == browser.ask(timeline)


def test_without_any_overhead_there_is_no_logarithmic_scale():
    whole = compared()
    free = tuple(row for row in whole.rows if row.budget_bytes == 6 and row.strategy == "optimal")
    none = Comparison(whole.graph, 6, ("optimal",), (("6", 6),), whole.limits, free)
    assert "logarithmic</label>" not in render_page(comparison_page(none), "c")
    assert "logarithmic</label>" in render_page(comparison_page(whole), "c")


@pytest.mark.parametrize("page", ["plan", "comparison", "large", "nasty", "resnet", "curve", "worth", "recording"])
def test_a_narrow_window_breaks_no_words_and_nothing_sticks_out(browser, pages, page):
    browser.open(pages[page], width=360, height=740)
    assert browser.ask("document.documentElement.scrollWidth") <= 360
    # A short name on two lines would be a name broken apart.
    cells = "[...document.querySelectorAll('td, tbody th')].map((t) => [t.textContent, t.offsetHeight])"
    assert not [cell for cell in browser.ask(cells) if len(cell[0]) < 30 and cell[1] > 40]


@pytest.mark.parametrize("page", ["plan", "comparison", "large", "vgg", "resnet", "curve", "worth", "recording"])
def test_nothing_of_a_chart_is_cut_off_on_a_phone(browser, pages, page):
    browser.open(pages[page], width=420, height=900)
    fits = (
        "[...document.querySelectorAll('.chart')].every((c) =>"
        " Math.abs(c.querySelector('.main-svg').getBoundingClientRect().width - c.clientWidth) <= 1)"
    )
    browser.until(fits)
    words = ".xtick text, .ytick text, .xtitle, .ytitle, .legendtext, .modebar-btn, .cbaxis text"
    edges = (
        f"[...document.querySelectorAll('{words}')].map((t) => [t, t.getBoundingClientRect()])"
        ".filter(([_, b]) => b.width && (b.left < 0 || b.right > 420))"
        ".map(([t, b]) => [t.textContent, b.left, b.right])"
    )
    assert browser.ask(edges) == []


def test_charts_follow_the_width_of_their_place(browser, pages):
    browser.open(pages["curve"], width=1200)
    browser.ask("document.querySelector('main').style.width = '500px'")
    browser.until("document.querySelector('#peak .main-svg').getBoundingClientRect().width <= 500")


@pytest.mark.parametrize("dark", [False, True])
def test_text_can_be_read_in_light_and_in_the_dark(browser, pages, dark):
    browser.open(pages["plan"], dark=dark)
    for element in ("h1", ".note", "dt", "th", ".verdict", "footer"):
        ink = browser.ask(f"getComputedStyle(document.querySelector('{element}')).color")
        assert contrast(ink, browser.ask("getComputedStyle(document.body).backgroundColor")) >= 4.5, element
    for text in (".xtick text", ".legendtext", ".ytitle"):
        ink = browser.ask(f"getComputedStyle(document.querySelector('#timeline {text}')).fill")
        assert contrast(ink, browser.ask("getComputedStyle(document.body).backgroundColor")) >= 4.5, text


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours as WCAG 2.1 defines it."""

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in colour.removeprefix("rgb(").rstrip(")").split(",")]
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_paper_is_light_has_no_buttons_and_cuts_no_chart(browser, pages):
    browser.open(pages["plan"], dark=True)
    assert browser.printed().startswith(b"%PDF")
    browser.send("Emulation.setEmulatedMedia", media="print", features=[])
    for element in (".modebar-container", ".keys"):
        assert browser.ask(f"getComputedStyle(document.querySelector('{element}')).display") == "none"
    assert browser.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.ask("getComputedStyle(document.querySelector('.chart')).breakInside") == "avoid"
    browser.send("Emulation.setEmulatedMedia", media="", features=[])


def test_a_photograph_is_a_picture(browser, pages, tmp_path):
    browser.open(pages["comparison"])
    browser.photograph(tmp_path / "page.png")
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
