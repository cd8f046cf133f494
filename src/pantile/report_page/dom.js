// Making elements, and writing numbers for people.
//
// Every text of a report passes through h() and becomes a text node: a module called <script> is
// shown, not run. Nothing in the page assigns innerHTML.

// Each file of views/ adds one: {id, title, render(section, report)}; main.js shows them.
const views = [];

function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

function scaled(value, units, step) {
  let rest = value;
  let index = 0;
  while (Math.abs(rest) >= step && index < units.length - 1) {
    rest /= step;
    index += 1;
  }
  return `${digits(rest)} ${units[index]}`;
}

// Three significant digits, without an exponent where a person would not write one.
function digits(value) {
  if (!Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 100) return Math.round(value).toLocaleString("en-US");
  if (size >= 0.001) return String(Number(value.toPrecision(3)));
  return value.toExponential(2);
}

const show = {
  bytes: (value) => scaled(value, ["B", "kB", "MB", "GB", "TB"], 1000),
  seconds: (value) => scaled(value * 1e9, ["ns", "µs", "ms", "s"], 1000),
  count: (value) => Math.round(value).toLocaleString("en-US"),
  flops: (value) => scaled(value, ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"], 1000),
  percent: (value) => `${digits(100 * value)} %`,
  number: digits,
};

// A table of a few rows; columns are {label, text(row), number?}.
function smallTable(caption, columns, rows, { limit = 2000 } = {}) {
  const cells = (row) =>
    columns.map((column, index) =>
      h(
        index ? "td" : "th",
        { scope: index ? null : "row", class: column.number ? "number" : null },
        column.text(row),
      ),
    );
  const head = columns.map((c) =>
    h("th", { scope: "col", class: c.number ? "number" : null }, c.label),
  );
  return h(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    h(
      "table",
      {},
      h("caption", {}, caption),
      h("thead", {}, h("tr", {}, head)),
      h(
        "tbody",
        {},
        rows.slice(0, limit).map((row) => h("tr", {}, cells(row))),
      ),
    ),
    rows.length > limit &&
      h(
        "p",
        { class: "quiet" },
        `The first ${limit} of ${rows.length} rows; the raw data has all.`,
      ),
  );
}

// A labelled <select>; options are [value, text] pairs.
function choice(label, options, chosen, change) {
  const select = h(
    "select",
    { onchange: (event) => change(event.target.value) },
    options.map(([value, text]) => h("option", { value, selected: value === chosen }, text)),
  );
  return h("label", { class: "field" }, label, select);
}

function download(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const link = h("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

function ipuChoices(report) {
  return report.stages.map((stage) => [String(stage.ipu), `IPU ${stage.ipu}`]);
}
