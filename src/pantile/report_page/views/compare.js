// Two reports side by side: one in the page, one from a file, or both put in by `--against`.

const COMPARED = [
  ["samples_per_second", "Samples/s", show.number],
  ["seconds_per_update", "One update", show.seconds],
  ["fullest_tile", "Fullest tile", show.percent],
  ["bubble", "Bubble", show.percent],
  ["balance", "Balance", show.percent],
  ["utilisation", "Use of the peak", show.percent],
  ["flops_per_micro_batch", "Work of a micro-batch", show.flops],
  ["ops", "Ops", show.count],
];

function ratio(a, b) {
  return b ? `× ${show.number(a / b)}` : "–";
}

function cyclesByPlace(report) {
  const found = new Map();
  for (const op of report.ops) {
    const key = JSON.stringify([op.module, op.op, op.phase]);
    found.set(key, (found.get(key) || 0) + op.cycles);
  }
  return found;
}

function changedPlaces(report, other) {
  const [mine, theirs] = [cyclesByPlace(report), cyclesByPlace(other)];
  return [...new Set([...mine.keys(), ...theirs.keys()])]
    .map((key) => ({
      place: JSON.parse(key),
      mine: mine.get(key) || 0,
      theirs: theirs.get(key) || 0,
    }))
    .filter((row) => row.mine !== row.theirs)
    .sort((a, b) => Math.abs(b.mine - b.theirs) - Math.abs(a.mine - a.theirs));
}

function changedSettings(report, other) {
  const text = (data, key) => [data.configuration[key] ?? "–"].flat().join(", ");
  const keys = [
    ...new Set([...Object.keys(report.configuration), ...Object.keys(other.configuration)]),
  ].filter((key) => key !== "optimizer_cost"); // follows from the optimizer
  const rows = keys.map((key) => [key, text(report, key), text(other, key)]);
  return [["target", report.target.system, other.target.system], ...rows].filter(
    (row) => row[1] !== row[2],
  );
}

function comparison(report, other) {
  const mine = { label: "This", number: true };
  const theirs = { label: "Other", number: true };
  const stages = Array.from(
    { length: Math.max(report.stages.length, other.stages.length) },
    (_, i) => [i, report.stages[i], other.stages[i]],
  );
  const total = (stage) => (stage ? show.bytes(stage.memory.total) : "–");
  return [
    h(
      "p",
      {},
      `This: ${report.name}, ${report.kind}, ${report.created}. Other: ${other.name}, ${other.kind}, ${other.created}.`,
    ),
    smallTable(
      "Summary",
      [
        { label: "", text: (row) => row[1] },
        { ...mine, text: ([key, , text]) => text(report.summary[key]) },
        { ...theirs, text: ([key, , text]) => text(other.summary[key]) },
        {
          label: "This / other",
          number: true,
          text: ([key]) => ratio(report.summary[key], other.summary[key]),
        },
      ],
      COMPARED,
    ),
    h("p", {}, `Verdicts: ${report.summary.verdict}, ${other.summary.verdict}.`),
    smallTable(
      "Settings that differ",
      [
        { label: "Setting", text: (row) => row[0] },
        { label: "This", text: (row) => row[1] },
        { label: "Other", text: (row) => row[2] },
      ],
      changedSettings(report, other),
    ),
    smallTable(
      "Memory of each IPU",
      [
        { label: "IPU", text: (row) => row[0] },
        { ...mine, text: (row) => total(row[1]) },
        { ...theirs, text: (row) => total(row[2]) },
      ],
      stages,
    ),
    smallTable(
      "Cycles that differ, by module, op and phase, the largest difference first",
      [
        { label: "Module", text: (row) => row.place[0] || "(none)" },
        { label: "Op", text: (row) => `${row.place[1]} (${row.place[2]})` },
        { ...mine, text: (row) => show.count(row.mine) },
        { ...theirs, text: (row) => show.count(row.theirs) },
        { label: "Difference", number: true, text: (row) => show.count(row.mine - row.theirs) },
      ],
      changedPlaces(report, other),
      { limit: 200 },
    ),
  ];
}

async function readReport(file) {
  const data = JSON.parse(await file.text());
  if (data.version !== 1) throw new Error(`${file.name} is no report of version 1`);
  return data;
}

views.push({
  id: "compare",
  title: "Compare",
  render(section, report, against) {
    const result = h("div", { id: "comparison", "aria-live": "polite" });
    const open = async (file) => {
      if (!file) return;
      try {
        fill(result, comparison(report, await readReport(file)));
      } catch (error) {
        fill(
          result,
          h("p", { class: "bad", role: "alert" }, `This file cannot be compared: ${error.message}`),
        );
      }
    };
    const input = h("input", {
      type: "file",
      accept: ".json,application/json",
      onchange: () => open(input.files[0]),
    });
    section.addEventListener("dragover", (event) => event.preventDefault());
    section.addEventListener("drop", (event) => {
      event.preventDefault();
      open(event.dataTransfer.files[0]);
    });
    append(section, [
      h(
        "p",
        {},
        "Choose the report.json of another run, or drop it here; it is read by this page and goes nowhere. ",
        h("code", {}, "pantile report dir --against other"),
        " makes a page with both.",
      ),
      h("div", { class: "controls" }, h("label", { class: "field" }, "Other report", input)),
      result,
    ]);
    if (against) fill(result, comparison(report, against));
  },
});
