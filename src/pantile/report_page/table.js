// A table of many rows of which only the visible ones exist: sorted, searched, walked by keyboard.
//
//   hugeTable({label, columns, rows, select(row)})  ->  {element, show(rows), focus(row)}
//
// Columns are {key, label, text(row), value(row), number?, width}. Every row is ROW pixels high, so
// that the place of row n is known without laying out the n rows above it.

const ROW = 28;
const SPARE = 8;

function hugeTable({ label, columns, rows, select, sorted }) {
  const state = { rows, shown: rows, sort: sorted, down: true, active: 0 };
  const above = h("tr", { "aria-hidden": "true" }, h("td", { colspan: columns.length }));
  const below = h("tr", { "aria-hidden": "true" }, h("td", { colspan: columns.length }));
  const body = h("tbody", {});
  const heads = columns.map((column) => headOf(column, () => sortBy(column)));
  const table = h(
    "table",
    { class: "huge", "aria-label": label },
    h(
      "colgroup",
      {},
      columns.map((c) => h("col", { style: `width:${c.width}px` })),
    ),
    h("thead", {}, h("tr", {}, heads)),
    body,
  );
  table.style.width = `${columns.reduce((sum, column) => sum + column.width, 0)}px`;
  const box = h(
    "div",
    { class: "viewport", tabindex: 0, role: "region", "aria-label": label },
    table,
  );
  box.addEventListener("scroll", () => requestAnimationFrame(paint), { passive: true });
  box.addEventListener("keydown", onKey);
  new ResizeObserver(() => requestAnimationFrame(paint)).observe(box);

  function sortBy(column) {
    state.down = state.sort === column.key ? !state.down : Boolean(column.number);
    state.sort = column.key;
    arrange();
  }

  function arrange() {
    const column = columns.find((one) => one.key === state.sort);
    const sign = state.down ? -1 : 1;
    const value = (row) => column.value(row);
    if (column) {
      state.shown = [...state.rows].sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        return sign * (x < y ? -1 : x > y ? 1 : 0);
      });
    }
    columns.forEach((one, index) => {
      const order = one.key === state.sort ? (state.down ? "descending" : "ascending") : "none";
      heads[index].setAttribute("aria-sort", order);
    });
    state.active = 0;
    box.scrollTop = 0;
    paint();
  }

  function paint() {
    const height = box.clientHeight || 400;
    const first = Math.max(0, Math.floor(box.scrollTop / ROW) - SPARE);
    const last = Math.min(state.shown.length, first + Math.ceil(height / ROW) + 2 * SPARE);
    table.setAttribute("aria-rowcount", state.shown.length + 1);
    above.firstChild.style.height = `${first * ROW}px`;
    below.firstChild.style.height = `${(state.shown.length - last) * ROW}px`;
    const visible = state.shown.slice(first, last).map((row, index) => rowOf(row, first + index));
    body.replaceChildren(above, ...visible, below);
  }

  function rowOf(row, place) {
    const cells = columns.map((column) => {
      const text = column.text(row);
      return h("td", { class: column.number ? "number" : null, title: text }, text);
    });
    const chosen = place === state.active;
    return h(
      "tr",
      {
        "aria-rowindex": place + 2,
        class: chosen ? "active" : null,
        onclick: () => activate(place),
      },
      cells,
    );
  }

  function activate(place) {
    state.active = Math.max(0, Math.min(state.shown.length - 1, place));
    const top = state.active * ROW;
    const room = box.clientHeight - 3 * ROW;
    if (top < box.scrollTop) box.scrollTop = top;
    else if (top > box.scrollTop + room) box.scrollTop = top - room;
    paint();
    if (state.shown.length) select(state.shown[state.active]);
  }

  function onKey(event) {
    const page = Math.max(1, Math.floor(box.clientHeight / ROW) - 2);
    const to = {
      ArrowDown: state.active + 1,
      ArrowUp: state.active - 1,
      PageDown: state.active + page,
      PageUp: state.active - page,
      Home: 0,
      End: state.shown.length - 1,
      Enter: state.active,
    }[event.key];
    if (to === undefined || event.target !== box) return;
    event.preventDefault();
    activate(to);
  }

  arrange();
  return {
    element: box,
    show(found) {
      state.rows = found;
      state.shown = found;
      arrange();
    },
    focus(row) {
      const place = state.shown.indexOf(row);
      if (place >= 0) activate(place);
    },
  };
}

function headOf(column, sort) {
  const button = h("button", { type: "button", onclick: sort }, column.label);
  return h(
    "th",
    { scope: "col", "aria-sort": "none", class: column.number ? "number" : null },
    button,
  );
}
