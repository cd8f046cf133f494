// The document itself, opened piece by piece, and as a file.

const PIECE = 100;

function jsonNode(name, value) {
  if (value === null || typeof value !== "object")
    return h("div", {}, `${name}: ${JSON.stringify(value)}`);
  const entries = Object.entries(value);
  const size = Array.isArray(value) ? `[${entries.length}]` : `{${entries.length}}`;
  const details = h("details", {}, h("summary", {}, `${name} ${size}`));
  details.addEventListener("toggle", () => jsonMore(details, entries, 0), { once: true });
  return details;
}

// Long lists are shown in pieces: ten thousand rows at once would take seconds.
function jsonMore(parent, entries, from) {
  append(
    parent,
    entries.slice(from, from + PIECE).map(([name, value]) => jsonNode(name, value)),
  );
  if (from + PIECE >= entries.length) return;
  const more = h(
    "button",
    {
      type: "button",
      onclick: () => {
        more.remove();
        jsonMore(parent, entries, from + PIECE);
      },
    },
    `${entries.length - from - PIECE} more`,
  );
  parent.append(more);
}

views.push({
  id: "raw",
  title: "Raw data",
  render(section, report) {
    const save = h(
      "button",
      { type: "button", onclick: () => download("report.json", JSON.stringify(report)) },
      "Save report.json",
    );
    const tree = h("div", { class: "json" });
    jsonMore(tree, Object.entries(report), 0);
    append(section, [
      h(
        "p",
        {},
        "Times are seconds, sizes bytes, cycles those of the modelled chip after calibration.",
      ),
      h("div", { class: "controls" }, save),
      tree,
    ]);
  },
});
