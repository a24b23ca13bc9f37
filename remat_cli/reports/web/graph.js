// The page of a graph: blocks open and close, nodes are searched and pinned.
const ROWS = 14;  // of a column; untuned
start(() => {
  const { items, nodes } = content, whole = items.length - 1, chart = charts.find(({ id }) => id === "graph");
  const open = new Set([whole]);
  const readers = Array.from({ length: nodes }, () => []);
  for (let at = 0; at < nodes; at++) items[at].reads.forEach((from) => readers[from].push(at));
  let pinned, places = new Map(), frames = [];

  const sideOf = ({ y }) => (y >= 0 ? 1 : -1);
  const rowsOf = (column) => [1, -1].map((side) =>
    column.filter((part) => sideOf(part) === side).sort((a, b) => side * (a.y - b.y)));
  // Columns from the line between the passes outwards. If one is too high, it becomes several, and all stand on the line.
  const wrapped = (columns, foot) => {
    if (!columns.some((column) => rowsOf(column).some((own) => own.length > ROWS))) return columns.map((column) => rowsOf(column).flat());
    return columns.flatMap((column) => {
      const sides = rowsOf(column), number = Math.max(...sides.map((own) => Math.ceil(own.length / ROWS)));
      return Array.from({ length: number }, (_, k) => sides.flatMap((own) => {
        const rows = Math.ceil(own.length / number);
        return own.slice(k * rows, (k + 1) * rows).map((part, row) => ({ ...part, y: sideOf(part) * (foot + row) }));
      }));
    });
  };
  // Columns are as wide as their widest part. Parts of a column are stacked away from the line between the passes.
  const measure = (at) => {
    const { parts } = items[at];
    if (!open.has(at)) return { at, width: 1, height: 1, inside: [] };
    const foot = at === whole ? 0 : Math.min(...parts.map((part) => items[part].y));
    const columns = [], inside = [];
    parts.forEach((part) => (columns[items[part].x] ??= []).push({ ...measure(part), y: items[part].y - foot }));
    let right = 0, top = 0.5, low = at === whole ? 0.5 : -0.5;
    wrapped(columns, at === whole ? 1 : 0).forEach((column) => {
      const width = Math.max(0, ...column.map((part) => part.width));
      for (const side of [1, -1]) {
        let edge = -Infinity;
        column.filter((part) => sideOf(part) === side).forEach((part) => {
          const near = Math.max(side * part.y - 0.5, edge);
          edge = near + part.height;
          inside.push({ ...part, x: right + width / 2, y: side * (near + part.height / 2) });
          if (side > 0) top = Math.max(top, edge); else low = Math.min(low, -edge);
        });
      }
      right += width;
    });
    return { at, width: right + 0.6, height: top - low + 0.9, low, inside };
  };
  const place = ({ at, width, height, low, inside }, x, y) => {
    if (at !== whole) places.set(at, { x, y, width });
    if (!open.has(at)) return;
    if (at !== whole) frames.push({ at, x0: x - width / 2 + 0.1, x1: x + width / 2 - 0.1, y0: y - height / 2 + 0.1, y1: y + height / 2 - 0.1 });
    const left = at === whole ? 0 : x - width / 2 + 0.3, zero = at === whole ? 0 : y - height / 2 + 0.2 - low;
    inside.forEach((part) => place(part, left + part.x, zero + part.y));
  };
  // The box that stands for a node: itself, or the closed block around it.
  const shownAs = (at) => {
    let box = at;
    for (let up = items[at].parent; up !== -1; up = items[up].parent) if (!open.has(up)) box = up;
    return box;
  };
  // As layout.py draws it: straight between neighbours, else an arc around what is between.
  const path = (from, to) => {
    const a = places.get(from), b = places.get(to), span = Math.abs(b.x - a.x);
    if (span <= 1.2 || (a.y < 0) !== (b.y < 0)) return [[a.x, a.y], [b.x, b.y]];
    const rise = Math.sign(a.y) * 0.15 * Math.log2(span);
    return Array.from({ length: 9 }, (_, k) => k / 8).map((t) => [a.x + t * (b.x - a.x), a.y + t * (b.y - a.y) + 4 * t * (1 - t) * rise]);
  };
  const lines = (name, pairs, line, opacity, zorder = 0) => {
    const points = pairs.flatMap((pair) => [...path(...pair), [null, null]]);
    return { type: "scatter", mode: "lines", name, x: points.map(([x]) => x), y: points.map(([, y]) => y), line, opacity,
      zorder, hoverinfo: "skip", showlegend: pairs.length > 0 };
  };
  const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const short = (text, most) => escaped(text.length <= most ? text : `${text.slice(0, most / 2)}…${text.slice(-most / 2)}`);
  const boxes = (near) => {
    const columns = new Set([...places.values()].map(({ x }) => x)).size;
    const narrow = document.getElementById(chart.id).clientWidth < 30 * columns;  // no room for two lines
    const shown = [...places].filter(([at]) => !open.has(at));
    const hover = ([at]) => [`<b>${short(items[at].id, 60)}</b>`, ...items[at].facts.map(([name, said]) => `${name}: ${escaped(said)}`),
      ...(items[at].parts ? ["click to open"] : [])].join("<br>");
    const edge = ([at]) => (at === pinned ? 4 : near.has(at) ? 3 : items[at].parts ? (narrow ? 1.4 : 2.4) : 0.7);
    return { type: "bar", name: "boxes", showlegend: false, zorder: 2, x: shown.map(([, { x }]) => x), width: shown.map(() => 0.84),
      base: shown.map(([at, { y }]) => y - items[at].height / 2), y: shown.map(([at]) => items[at].height),
      text: shown.map(([at]) => short(items[at].label, 24) + (items[at].parts && !narrow ? `<br>${(items[at].end - items[at].first).toLocaleString("en")} nodes` : "")),
      textposition: "inside", insidetextanchor: "middle", textfont: { size: 12, color: shown.map(([at]) => items[at].colour[1]) }, customdata: shown.map(([at]) => at),
      hovertext: shown.map(hover), hovertemplate: "%{hovertext}<extra></extra>",
      marker: { color: shown.map(([at]) => items[at].colour[0]),
        opacity: shown.map(([at]) => (pinned === undefined || at === pinned || near.has(at) ? 1 : 0.45)),
        line: { width: shown.map(edge), color: shown.map(([at]) => (at === pinned ? "#D55E00" : INK)) } } };
  };
  const drawn = () => {
    places = new Map();
    frames = [];
    place(measure(whole), 0, 0);
    const within = new Map(), across = new Map();
    for (let at = 0; at < nodes; at++) {
      const to = shownAs(at);
      items[at].reads.forEach((read) => {
        const from = shownAs(read);
        if (from !== to) (items[at].late && !items[read].late ? across : within).set(`${from} ${to}`, [from, to]);
      });
    }
    const pairs = [...within.values(), ...across.values()];
    const into = pairs.filter(([, to]) => to === pinned), out = pairs.filter(([from]) => from === pinned);
    const near = new Set([...into, ...out].flat());
    const grey = "#808890", many = across.size + within.size;
    chart.data = [
      lines("read by the backward pass", [...across.values()], { width: 0.6, color: grey }, Math.max(0.15, Math.min(0.4, 80 / many))),
      lines("edges", [...within.values()], { width: 1.2, color: grey }, Math.max(0.3, Math.min(0.8, 200 / many))),
      lines("reads", into, { width: 2.4, color: "#0072B2" }, 1, 1),
      lines("read by", out, { width: 2.4, color: "#D55E00", dash: "dash" }, 1, 1), boxes(near),
      { type: "scatter", mode: "markers", x: [null], y: [null], showlegend: false, hoverinfo: "skip",
        marker: { color: [0], coloraxis: "coloraxis" } }].filter(({ x }) => x.length);
    const ys = [...places.values()].map(({ y }) => y), rows = Math.max(0, ...ys) - Math.min(0, ...ys) + 1;
    const height = Math.round(Math.min(1000, 130 + 100 * rows));
    document.getElementById(chart.id).style.height = `${height}px`;
    chart.layout = { ...chart.layout, height,
      shapes: frames.map(({ x0, x1, y0, y1 }) => ({ type: "rect", x0, x1, y0, y1, layer: "below", line: { width: 1, dash: "dot", color: grey } })),
      annotations: frames.map(({ at, x0, y1 }) => ({ x: x0, y: y1, xanchor: "left", yanchor: "bottom", yshift: -2, showarrow: false,
        captureevents: true, name: String(at), text: `− ${short(items[at].label, 40)}`, font: { size: 12 } })) };
  };
  const redraw = async (moved) => {
    if (moved) { chart.revision = (chart.revision ?? 0) + 1; views[chart.id] = undefined; }
    drawn();
    await drawChart(chart);
    if (moved) remember();
  };
  const unfold = (at) => {
    let moved = false;
    for (let up = items[at].parent; up !== -1; up = items[up].parent) if (!open.has(up)) { open.add(up); moved = true; }
    return moved;
  };
  const close = (at) => {
    const inside = (k) => { for (let up = k; up !== -1; up = items[up].parent) if (up === at) return true; return false; };
    [...open].filter(inside).forEach((k) => open.delete(k));
  };
  const inView = (at) => {
    const { xaxis, yaxis } = document.getElementById(chart.id)._fullLayout, { x, y } = places.get(at);
    return x >= xaxis.range[0] && x <= xaxis.range[1] && y >= yaxis.range[0] && y <= yaxis.range[1];
  };
  const links = (found) => found.length ? found.flatMap((at, k) => [k ? ", " : "", link(at, items[at].id)]) : "none";
  const describe = (at) => {
    const { id, facts, parts, parent } = items[at];
    const actions = [];
    if (parts) actions.push(open.has(at) ? ["Close this block", () => { close(at); pin(at); }] : ["Open this block", () => { open.add(at); pin(at, true, true); }]);
    if (parent !== whole) actions.push([`Close ${items[parent].id}`, () => { close(parent); pin(parent); }]);
    const more = parts ? [["holds", links(parts)]] : [["reads", links(items[at].reads)], ["read by", links(readers[at])]];
    showPinned(id, [...facts, ...more], actions);
  };
  const pin = (at, shift = false, moved = false) => {
    const opened = unfold(at) || moved || !places.has(at);
    pinned = at;
    describe(at);
    redraw(opened || (shift && places.has(at) && !inView(at)));
  };
  explore({ texts: items.slice(0, nodes).map(({ id, op }) => `${id} ${op}`), pin, unpin: () => { pinned = undefined; redraw(false); } });
  drawn();
  chart.ready = (figure) => {
    figure.on("plotly_click", ({ points: [{ customdata: at }] }) => {
      if (at === undefined) return;
      if (items[at].parts) open.add(at);
      pin(at, false, Boolean(items[at].parts));
    });
    figure.on("plotly_clickannotation", ({ annotation: { name } }) => { close(Number(name)); pin(Number(name), false, true); });
  };
});
