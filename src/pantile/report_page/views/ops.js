// Every op with its cost: sorted, filtered, searched.

function opColumns(report) {
  const total = sum(report.ops, (op) => op.cycles) || 1;
  const number = (key, label, width, text) => ({
    key,
    label,
    width,
    number: true,
    value: (op) => op[key],
    text: (op) => text(op[key]),
  });
  const words = (key, label, width) => ({
    key,
    label,
    width,
    value: (op) => op[key],
    text: (op) => String(op[key]),
  });
  return [
    number("id", "#", 70, String),
    words("op", "Op", 190),
    words("phase", "Phase", 90),
    number("ipu", "IPU", 60, String),
    number("cycles", "Cycles", 110, show.count),
    {
      key: "share",
      label: "Share",
      width: 80,
      number: true,
      value: (op) => op.cycles,
      text: (op) => show.percent(op.cycles / total),
    },
    words("module", "Module", 240),
    words("source", "Source line", 260),
    number("compute", "Compute", 100, show.count),
    number("exchange", "Exchange", 100, show.count),
    number("sync", "Sync", 90, show.count),
    number("flops", "Work", 110, show.flops),
    number("utilisation", "Of peak", 90, show.percent),
    number("temporary_bytes_per_tile", "Temp/tile", 100, show.bytes),
    words("grid", "Grid", 130),
    {
      key: "outputs",
      label: "Outputs",
      width: 220,
      value: (op) => op.outputs.join(" "),
      text: (op) => op.outputs.join(" "),
    },
  ];
}

function opDetail(op) {
  const rows = [
    ["inputs", op.inputs.join(", ")],
    ["outputs", op.outputs.join(", ")],
    ["module", op.module],
    ["source", op.source],
    [
      "cycles",
      `(${show.count(op.compute)} compute + ${show.count(op.exchange)} exchange + ${show.count(op.sync)} sync) × ${op.factor} = ${show.count(op.cycles)}, in ${op.steps} steps`,
    ],
    ["grid (groups × rows × inner × columns)", op.grid],
    ["note", op.note],
  ].filter(([, text]) => text);
  return [
    h("h2", {}, `${op.op}, op ${op.id}, ${op.phase} on IPU ${op.ipu}`),
    h(
      "dl",
      { class: "facts" },
      rows.map(([name, text]) => h("div", {}, h("dt", {}, name), h("dd", {}, text))),
    ),
  ];
}

// Where the time goes: the chosen ops summed by one of their fields.
function opSums(rows, key, total) {
  const groups = new Map();
  for (const op of rows) {
    const name = String(op[key]) || "(none)";
    const group = groups.get(name) || { name, ops: 0, cycles: 0, flops: 0 };
    group.ops += 1;
    group.cycles += op.cycles;
    group.flops += op.flops;
    groups.set(name, group);
  }
  const found = [...groups.values()].sort((a, b) => b.cycles - a.cycles);
  return smallTable(
    `Ops by ${key}, the dearest first`,
    [
      { label: key, text: (group) => group.name },
      { label: "Cycles", number: true, text: (group) => show.count(group.cycles) },
      { label: "Share", number: true, text: (group) => show.percent(group.cycles / total) },
      { label: "Work", number: true, text: (group) => show.flops(group.flops) },
      { label: "Ops", number: true, text: (group) => show.count(group.ops) },
    ],
    found,
    { limit: 50 },
  );
}

function opFilters(report, changed) {
  const wanted = { text: "", phase: "", ipu: "", kind: "" };
  const values = (key) =>
    [...new Set(report.ops.map((op) => String(op[key])))].sort((a, b) =>
      a.localeCompare(b, "en", { numeric: true }),
    );
  const pick = (label, key) =>
    choice(label, [["", "all"], ...values(key).map((v) => [v, v])], "", (value) => {
      wanted[key] = value;
      changed();
    });
  const search = h("input", {
    type: "search",
    placeholder: "op, module or source line",
    oninput: () => {
      wanted.text = search.value.toLowerCase();
      changed();
    },
  });
  const texts = report.ops.map((op) => `${op.op} ${op.module} ${op.source}`.toLowerCase());
  const element = h(
    "div",
    { class: "controls", role: "search" },
    h("label", { class: "field wide" }, "Search", search),
    pick("Phase", "phase"),
    pick("IPU", "ipu"),
    pick("Kind", "kind"),
  );
  const fits = (op, index) =>
    ["phase", "ipu", "kind"].every((key) => !wanted[key] || String(op[key]) === wanted[key]) &&
    wanted.text.split(" ").every((word) => texts[index].includes(word));
  return { element, chosen: () => report.ops.filter(fits) };
}

// On paper, in place of the table that scrolls.
function dearest(report, total) {
  const rows = [...report.ops].sort((a, b) => b.cycles - a.cycles).slice(0, 40);
  const table = smallTable(
    `The ${rows.length} dearest ops`,
    [
      { label: "Op", text: (op) => op.op },
      { label: "Phase", text: (op) => op.phase },
      { label: "IPU", number: true, text: (op) => op.ipu },
      { label: "Cycles", number: true, text: (op) => show.count(op.cycles) },
      { label: "Share", number: true, text: (op) => show.percent(op.cycles / total) },
      { label: "Module", text: (op) => op.module },
      { label: "Source line", text: (op) => op.source },
    ],
    rows,
  );
  table.classList.add("paper");
  return table;
}

views.push({
  id: "ops",
  title: "Ops",
  render(section, report) {
    const total = sum(report.ops, (op) => op.cycles) || 1;
    const detail = h(
      "div",
      { class: "detail", "aria-live": "polite" },
      h("p", {}, "Choose a row to see the op."),
    );
    const counted = h("p", { role: "status" });
    const table = hugeTable({
      label: "Ops; arrow keys walk through the rows",
      columns: opColumns(report),
      rows: report.ops,
      sorted: "cycles",
      select: (op) => fill(detail, opDetail(op)),
    });
    const sums = h("div", {});
    const chosen = { rows: report.ops, key: "" };
    const retell = (changes) => {
      Object.assign(chosen, changes);
      const { rows, key } = chosen;
      fill(
        counted,
        `${show.count(rows.length)} of ${show.count(report.ops.length)} ops, ${show.percent(sum(rows, (op) => op.cycles) / total)} of the cycles`,
      );
      fill(sums, key && opSums(rows, key, total));
    };
    const filters = opFilters(report, () => {
      const rows = filters.chosen();
      table.show(rows);
      retell({ rows });
    });
    const keys = ["op", "kind", "phase", "ipu", "module", "source"].map((key) => [key, key]);
    filters.element.append(
      choice("Sum by", [["", "nothing"], ...keys], "", (key) => retell({ key })),
    );
    retell({});
    append(section, [filters.element, counted, sums, table.element, dearest(report, total), detail]);
    return {
      open: (id) => {
        const op = report.ops.find((one) => String(one.id) === id);
        if (!op) return;
        table.focus(op);
        fill(detail, opDetail(op)); // also when the filters hide its row
      },
    };
  },
});
