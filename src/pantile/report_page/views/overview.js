// Does it fit, how fast is it, what fills the memory, what to change.

const PARTS = [
  ["weights", "weights"],
  ["buffers", "buffers"],
  ["accumulators", "gradient accumulators"],
  ["gradients", "gradients"],
  ["optimizer_state", "optimizer state"],
  ["stash", "stash"],
  ["activations", "activations"],
  ["temporary", "temporary"],
  ["code", "code"],
  ["exchange_code", "exchange code"],
  ["vertex_state", "vertex state"],
];

// By how much it does not fit, what takes most of it, and whether one change would do.
function tooMuch(report) {
  const capacity = report.target.memory_bytes_per_tile;
  const [worst] = [...report.stages].sort((a, b) => b.memory.fullest_tile - a.memory.fullest_tile);
  const over = (worst.memory.fullest_tile - 1) * capacity;
  const most = PARTS.map(([key, label]) => [worst.memory[key], label])
    .sort((a, b) => b[0] - a[0])
    .slice(0, 3)
    .map(([bytes, label]) => `${label} ${show.bytes(bytes)}`);
  const one = report.changes.find((change) => change.enough);
  const advice = one
    ? `Enough by itself: ${one.what}.`
    : "No single change below is enough: combine them, or let pantile plan find a split.";
  return `IPU ${worst.ipu} needs ${show.bytes(over)} more on its fullest tile than there are (${most.join(", ")}). ${advice}`;
}

function verdictBox(report) {
  const { verdict, fullest_tile: full } = report.summary;
  const kind = { fits: "fits", borderline: "borderline" }[verdict] || "not";
  const words = {
    fits: "Every tile has room to spare.",
    borderline:
      "The fullest tile has less than a tenth of its memory free: the model may be off by more.",
    not: kind === "not" ? tooMuch(report) : "",
  }[kind];
  return h(
    "div",
    { class: `verdict ${kind}`, role: "status" },
    h("strong", {}, verdict),
    ` The fullest tile is ${show.percent(full)} full. ${words}`,
  );
}

function factsOf(report) {
  const { summary, target, configuration: chosen } = report;
  const facts = [
    ["Throughput", `${show.number(summary.samples_per_second)} samples/s`],
    [
      "By the errors on published results",
      `${show.number(summary.samples_per_second_low)} to ${show.number(summary.samples_per_second_high)}`,
    ],
    [
      chosen.training ? "One weight update" : "One device iteration",
      show.seconds(summary.seconds_per_update),
    ],
    ["Pipeline bubble", show.percent(summary.bubble)],
    ["Balance of the IPUs", show.percent(summary.balance)],
    ["Use of the peak", show.percent(summary.utilisation)],
    ["Work of a micro-batch", show.flops(summary.flops_per_micro_batch)],
    ["Ops", show.count(summary.ops)],
    ["Machine", `${target.system}, ${chosen.ipus_per_replica} IPU × ${chosen.replicas} replicas`],
    ["Micro-batch × accumulation", `${chosen.micro_batch} × ${chosen.gradient_accumulation}`],
    ["Recomputation", chosen.recompute],
    ["Optimizer", chosen.optimizer],
  ];
  return h(
    "dl",
    { class: "facts" },
    facts.map(([name, text]) => h("div", {}, h("dt", {}, name), h("dd", {}, text))),
  );
}

function memoryBars(title, stages, capacity) {
  const used = PARTS.filter(([key]) => stages.some((stage) => stage.memory[key]));
  return chart({
    title,
    label: `${title}. ${stages
      .map((s) => `IPU ${s.ipu}: ${show.percent(s.memory.fullest_tile)} full`)
      .slice(0, 8)
      .join(", ")}`,
    height: 130 + 28 * stages.length,
    option: (palette) => ({
      legend: {},
      grid: { left: 8, right: 32, top: 52, bottom: 32, containLabel: true },
      tooltip: {
        trigger: "item",
        formatter: (p) => tip(`${p.seriesName}, ${p.name}`, show.bytes(p.value)),
      },
      xAxis: {
        type: "value",
        axisLabel: { formatter: show.bytes, showMaxLabel: false },
        max: (range) => Math.max(range.max, capacity * 1.02),
      },
      yAxis: { type: "category", data: stages.map((stage) => `IPU ${stage.ipu}`), inverse: true },
      series: used.map(([key, name], index) => ({
        name,
        type: "bar",
        stack: "memory",
        barMaxWidth: 22,
        data: stages.map((stage) => stage.memory[key] || 0),
        markLine: index ? undefined : capacityLine(capacity, palette, "start"),
      })),
    }),
    columns: [
      { label: "IPU", text: (s) => s.ipu },
      ...used.map(([key, name]) => ({
        label: name,
        number: true,
        text: (s) => show.bytes(s.memory[key] || 0),
      })),
      { label: "total", number: true, text: (s) => show.bytes(s.memory.total) },
      { label: "fullest tile", number: true, text: (s) => show.percent(s.memory.fullest_tile) },
    ],
    rows: () => stages,
  });
}

function capacityLine(capacity, palette, position) {
  return {
    symbol: "none",
    silent: true,
    lineStyle: { color: palette.bad, type: "solid", width: 2 },
    label: { formatter: "memory", color: palette.bad, position },
    data: [{ xAxis: capacity }],
  };
}

function changesTable(report) {
  if (!report.changes.length)
    return h("p", { class: "quiet" }, "No change that is tried frees memory.");
  return smallTable(
    "Changes, those that suffice first, then by what they free on the fullest IPU",
    [
      { label: "Change", text: (c) => c.what },
      { label: "Frees", number: true, text: (c) => show.bytes(c.freed_bytes) },
      { label: "Then the fullest tile is", number: true, text: (c) => show.percent(c.fraction) },
      { label: "Time", number: true, text: (c) => `× ${show.number(c.slowdown)}` },
      { label: "Enough", text: (c) => (c.enough ? "yes" : "no") },
      { label: "How", text: (c) => h("code", {}, c.how) },
    ],
    report.changes,
  );
}

function assumptionsOf(report) {
  const factors = Object.entries(report.calibration.factors).map(
    ([name, value]) => `${name} ${value}`,
  );
  return h(
    "details",
    {},
    h("summary", {}, "What the model assumes"),
    h("p", {}, `Calibration factors, in every cycle count: ${factors.join(", ")}.`),
    smallTable(
      "Constants of the machine",
      [
        { label: "Constant", text: (c) => c.name },
        { label: "Value", number: true, text: (c) => show.number(c.value) },
        { label: "", text: (c) => (c.assumed ? "assumed" : "") },
        { label: "Source", text: (c) => c.source },
      ],
      report.target.constants,
    ),
  );
}

views.push({
  id: "overview",
  title: "Overview",
  render(section, report) {
    const largest = report.stages.flatMap((stage) =>
      stage.largest.slice(0, 5).map((text) => [stage.ipu, text]),
    );
    append(section, [
      verdictBox(report),
      factsOf(report),
      memoryBars("Memory of each IPU", report.stages, report.stages[0].memory.capacity),
      h("h2", {}, "What would free memory"),
      changesTable(report),
      h("h2", {}, "What takes most of it"),
      smallTable(
        "The largest holders on each IPU, with their source lines",
        [
          { label: "IPU", text: (row) => row[0] },
          { label: "What", text: (row) => row[1] },
        ],
        largest,
        { limit: 100 },
      ),
      report.summary.hints.length > 0 && [
        h("h2", {}, "Hints"),
        h(
          "ul",
          {},
          report.summary.hints.map((hint) => h("li", {}, hint)),
        ),
      ],
      assumptionsOf(report),
    ]);
  },
});
