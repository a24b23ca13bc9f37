// The page of a plan: pin a node, and its bands stand out.
start(() => {
  const { nodes } = content, bands = charts.find(({ id }) => id === "bands");
  if (!bands) return;
  const readers = nodes.map(() => []);
  nodes.forEach(({ reads }, at) => reads.forEach((from) => readers[from].push(at)));
  const links = (found) => found.length ? found.flatMap((at, k) => [k ? ", " : "", link(at, nodes[at].id)]) : "none";
  const shade = (at) => {
    bands.data.forEach((trace) => { trace.opacity = at === undefined || trace.meta === at || trace.meta === undefined ? 1 : 0.22; });
    drawChart(bands);
  };
  const pin = (at) => {
    const { id, facts, values } = nodes[at];
    const spans = values.map(([name, size, lived]) => [name, `${size}; ` + (lived.map(([first, end, again]) =>
      `statements ${first.toLocaleString("en")} to ${end.toLocaleString("en")}${again ? ` (${again})` : ""}`).join(", ") || "never in memory")]);
    showPinned(id, [...facts.filter(([name]) => name !== "makes"), ...spans, ["reads", links(nodes[at].reads)],
      ["read by", links(readers[at])], ["more", element("code", {}, `remat explain PLAN ${id}`)]]);
    shade(at);
  };
  explore({ texts: nodes.map(({ id, op }) => `${id} ${op}`), pin, unpin: () => shade() });
  bands.ready = (figure) => figure.on("plotly_click", ({ points: [{ data }] }) => { if (data.meta !== undefined) pin(data.meta); });
});
