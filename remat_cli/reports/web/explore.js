// A search box and a panel with the details of what is pinned. The page says what can be found and how to pin it.
const element = (tag, attributes = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), attributes);
  made.append(...children);
  return made;
};
// A button that pins the node `at`.
const link = (at, text) => {
  const button = element("button", { type: "button", className: "link" }, text);
  button.dataset.pin = at;
  return button;
};
// `rows`: [name, text or nodes of the document]...; `actions`: [name, function]...
const showPinned = (title, rows, actions = []) => {
  const buttons = actions.map(([name, run]) => element("button", { type: "button", onclick: run }, name));
  const list = element("dl", {}, ...rows.flatMap(([name, said]) => [element("dt", {}, name), element("dd", {}, ...[said].flat())]));
  const panel = document.getElementById("pinned");
  panel.replaceChildren(element("h3", {}, title), list, element("div", { className: "actions" }, ...buttons));
  panel.hidden = false;
};
// `texts`: what is searched, one for each node; `pin(at)` and `unpin()`.
const explore = ({ texts, pin, unpin }) => {
  const box = document.getElementById("search"), said = document.getElementById("found");
  const wanted = texts.map((text) => text.toLowerCase());
  let found = [], at = -1;
  const search = () => {
    const word = box.value.trim().toLowerCase();
    found = word ? [...wanted.keys()].filter((k) => wanted[k].includes(word)) : [];
    at = -1;
    const number = found.length === 1 ? "1 match" : `${found.length.toLocaleString("en")} matches`;
    said.textContent = word ? (found.length ? `${number}; Enter goes to the next` : "nothing found") : "";
  };
  const letGo = () => { document.getElementById("pinned").hidden = true; unpin(); };
  box.addEventListener("input", search);
  box.addEventListener("keydown", ({ key, shiftKey }) => {
    if (key !== "Enter" || !found.length) return;
    at = at < 0 ? (shiftKey ? found.length - 1 : 0) : (at + (shiftKey ? -1 : 1) + found.length) % found.length;
    said.textContent = `${(at + 1).toLocaleString("en")} of ${found.length.toLocaleString("en")}`;
    pin(found[at], true);
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "/" && event.target !== box) { event.preventDefault(); box.focus(); box.select(); }
    if (event.key === "Escape") { box.value = ""; search(); letGo(); }
  });
  document.addEventListener("click", (event) => {
    const pinned = event.target.closest?.("[data-pin]");
    if (!pinned) return;
    pin(Number(pinned.dataset.pin), true);
    if (!pinned.closest("#pinned")) document.getElementById("search").scrollIntoView({ block: "start" });
  });
};
