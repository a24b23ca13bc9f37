// Shared by all pages: unpack, draw in light, in the dark and on paper; keys, scales, and tables that are too wide.
const INK = "#010203", PAPER = "#FCFDFE";  // as in page.py: they stand for colours that depend on the background
const dark = matchMedia("(prefers-color-scheme: dark)");
let charts = [], content = {};
const unpacked = async (id) => {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
};
const template = (night) => {
  const axis = { gridcolor: night ? "#2c3238" : "#e4e7ea", linecolor: night ? "#5b646e" : "#9aa3ac",
    zerolinecolor: night ? "#2c3238" : "#e4e7ea", tickcolor: night ? "#5b646e" : "#9aa3ac", automargin: true };
  return { layout: { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", xaxis: axis, yaxis: axis,
    font: { color: night ? "#e6e8eb" : "#1b1f24", family: 'system-ui, "Segoe UI", "DejaVu Sans", sans-serif', size: 12.5 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: night ? "#77828d" : "#8b949e", activecolor: night ? "#e6e8eb" : "#1b1f24" },
    hoverlabel: { align: "left", bgcolor: night ? "#22272d" : "#ffffff", bordercolor: night ? "#5b646e" : "#9aa3ac",
      font: { color: night ? "#e6e8eb" : "#1b1f24", size: 12.5 } } } };
};
const inked = (value, night) => {
  if (value === INK) return night ? "#e6e8eb" : "#1b1f24";
  if (value === PAPER) return night ? "#1d2126" : "#f4f5f6";
  if (Array.isArray(value)) return value.map((part) => inked(part, night));
  if (value !== null && typeof value === "object")
    return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, inked(part, night)]));
  return value;
};
const config = { displaylogo: false, responsive: false, scrollZoom: false,
  // Named one by one: plotly's own set has a button that sends the chart to a server.
  modeBarButtons: [["toImage"], ["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]] };
const shown = (chart) => {
  const scale = document.querySelector(`input[name="scale-${chart.id}"]:checked`);
  return scale?.value === "logarithmic" ? { ...chart.logarithmic, scale: scale.value } : { ...chart, scale: "linear" };
};
const drawChart = (chart, night = dark.matches, paper = false) => {
  const { data, layout, scale } = shown(chart);
  // Paper is light, and no wider than this in A4 or Letter.
  const size = paper ? (chart.square ? { width: 330, height: 350 } : { width: 660 }) : {};
  const near = Object.entries(views[chart.id] ?? {}).map(([name, range]) => [name, { ...layout[name], range, autorange: false }]);
  // With the same revision, what the mouse has zoomed into stays.
  return Plotly.react(chart.id, inked(data, night),
    { ...inked({ ...layout, ...Object.fromEntries(near) }, night), ...size,
      uirevision: `${scale} ${chart.revision ?? 0}`, template: template(night) }, config);
};
const draw = (night, paper) => Promise.all(charts.map((chart) => drawChart(chart, night, paper)));
const views = {};  // what the keys have zoomed into
const axes = (figure) => Object.entries(figure.layout).filter(([name, axis]) => /^[xy]axis/.test(name) && axis.range && !axis.fixedrange);
const home = {};
const remember = () => charts.forEach(({ id }) => {
  home[id] = Object.fromEntries(axes(document.getElementById(id)).map(([name, axis]) => [name, [...axis.range]]));
});
const moves = { ArrowLeft: ["x", -0.1], ArrowRight: ["x", 0.1], ArrowDown: ["y", -0.1], ArrowUp: ["y", 0.1] };
const zooms = { "+": 0.8, "=": 0.8, "-": 1.25, "_": 1.25 };
const ranged = (figure, key) => Object.fromEntries(axes(figure).map(([name, { range: [low, high] }]) => {
  const [which, step] = moves[key] ?? [name[0], 0];
  const by = which === name[0] ? step * (high - low) : 0;
  const cut = (high - low) * (1 - (zooms[key] ?? 1)) / 2;
  return [name, [low + by + cut, high + by - cut]];
}));
const relayout = (id, ranges) =>
  Plotly.relayout(id, Object.fromEntries(Object.entries(ranges).map(([name, range]) => [`${name}.range`, range])));
const onKey = (event) => {
  const { key, currentTarget: { id } } = event;
  if (event.ctrlKey || event.altKey || event.metaKey || !(key in moves || key in zooms || key === "0")) return;
  event.preventDefault();
  views[id] = key === "0" ? undefined : ranged(event.currentTarget, key);
  relayout(id, views[id] ?? home[id]);
};
// The wheel alone moves the page; with Ctrl it zooms, around what the mouse points at.
const onWheel = (event) => {
  if (!event.ctrlKey) return;
  event.preventDefault();
  const { currentTarget: figure, clientX, clientY, deltaY } = event, { left, top } = figure.getBoundingClientRect();
  views[figure.id] = Object.fromEntries(axes(figure).map(([name, { range: [low, high] }]) => {
    const { _offset: offset, _length: length } = figure._fullLayout[name];
    const along = name[0] === "x" ? (clientX - left - offset) / length : 1 - (clientY - top - offset) / length;
    const centre = low + Math.min(1, Math.max(0, along)) * (high - low), by = deltaY > 0 ? 1.25 : 0.8;
    return [name, [centre - by * (centre - low), centre + by * (high - centre)]];
  }));
  relayout(figure.id, views[figure.id]);
};
// Charts over the same axis show the same part of it, whichever is moved.
const move = (figure, others) => {
  const { range } = figure._fullLayout.xaxis;
  views[figure.id] = { ...views[figure.id], xaxis: [...range] };
  others.filter(({ _fullLayout: { xaxis } }) => xaxis.range.some((end, k) => end !== range[k]))
    .forEach(({ id }) => relayout(id, { xaxis: [...range] }));
};
const linked = () => charts.filter(({ movesWith }) => movesWith).forEach(({ id, movesWith }, _, all) => {
  const figures = all.filter((other) => other.movesWith === movesWith && other.id !== id).map((other) => document.getElementById(other.id));
  const figure = document.getElementById(id);
  figure.on("plotly_relayout", () => move(figure, figures));
});
const onScale = (event) => {
  views[event.target.name.replace("scale-", "")] = undefined;
  draw(dark.matches).then(remember);
};
// A table that is wider than its window says so, and can be moved by keys.
const cue = (scroll) => {
  const wide = scroll.scrollWidth > scroll.clientWidth + 1;
  scroll.previousElementSibling.hidden = !wide;
  if (wide) scroll.tabIndex = 0; else scroll.removeAttribute("tabindex");
};
// A chart follows the width of its place, not only that of the window: a scroll bar may come or go. On paper it has its own.
const fitted = new ResizeObserver((seen) => seen.forEach(({ target }) => {
  if (!target.layout.width && Math.abs(target.clientWidth - target._fullLayout.width) > 1) Plotly.Plots.resize(target);
}));
const begin = async (prepare) => {
  const embedded = document.getElementById("plotly-js");
  if (embedded) {
    const script = document.createElement("script");
    script.textContent = await unpacked("plotly-js");
    document.head.append(script);
    script.remove();  // it has run
  }
  if (!window.Plotly) throw new Error("plotly.js did not load from its network (this page was made with --cdn)");
  ({ charts, content } = JSON.parse(await unpacked("content")));
  prepare();
  charts.forEach(({ id }) => {
    document.getElementById(id).addEventListener("keydown", onKey);
    document.getElementById(id).addEventListener("wheel", onWheel, { passive: false });
  });
  document.querySelectorAll(".scale").forEach((scale) => { scale.hidden = false; scale.addEventListener("change", onScale); });
  dark.addEventListener("change", () => draw(dark.matches));
  addEventListener("beforeprint", () => draw(false, true));
  addEventListener("afterprint", () => draw(dark.matches));
  await draw(dark.matches);
  remember();
  linked();
  charts.forEach(({ id }) => fitted.observe(document.getElementById(id)));
  charts.forEach(({ id, ready }) => ready?.(document.getElementById(id)));
  document.body.dataset.drawn = charts.length;
};
const start = (prepare = () => {}) => {
  const wide = new ResizeObserver((seen) => seen.forEach(({ target }) => cue(target)));
  document.querySelectorAll(".scroll").forEach((scroll) => wide.observe(scroll));
  begin(prepare).catch((error) => {
    document.getElementById("trouble").textContent = `The charts cannot be drawn: ${error.message}. The tables are complete.`;
  });
};
