// Another configuration, computed in the page.

const CANNOT =
  "The chip, the split into stages, the available memory proportion and the type of partial sums change the plan of every op, which this page does not compute: use the command pantile plan, or compile again with other options and compare.";

function whatIfForm(report, changed) {
  const now = report.configuration;
  const wanted = {};
  const set = (key, value) => {
    wanted[key] = value;
    changed(wanted);
  };
  const number = (label, key) =>
    h(
      "label",
      { class: "field" },
      label,
      h("input", {
        type: "number",
        min: 1,
        max: 65536,
        step: 1,
        value: now[key],
        name: key,
        oninput: (event) =>
          event.target.checkValidity() &&
          event.target.value &&
          set(key, event.target.valueAsNumber),
      }),
    );
  const check = (label, key) =>
    h(
      "label",
      { class: "field check" },
      h("input", {
        type: "checkbox",
        name: key,
        checked: Boolean(now[key]),
        onchange: (event) => set(key, event.target.checked),
      }),
      label,
    );
  const training = now.training && [
    choice(
      "Recomputation",
      [
        ["none", "none"],
        ["stage", "from the inputs of stages"],
        ["layer", "from the outputs of layers"],
      ],
      now.recompute,
      (value) => set("recompute", value),
    ),
    check("Optimizer state sharded over replicas", "sharded_optimizer_state"),
    check("Optimizer state off chip", "optimizer_state_off_chip"),
  ];
  return h(
    "form",
    { class: "controls", onsubmit: (event) => event.preventDefault() },
    number("Micro-batch", "micro_batch"),
    number(now.training ? "Gradient accumulation" : "Device iterations", "gradient_accumulation"),
    number("Replicas", "replicas"),
    training,
  );
}

function whatIfTable(now, then) {
  const rows = [
    ["Verdict", now.verdict, then.verdict],
    ["Fullest tile", show.percent(now.fullest_tile), show.percent(then.fullest_tile)],
    ["Samples/s", show.number(now.samples_per_second), show.number(then.samples_per_second)],
    [
      "… at least",
      show.number(now.samples_per_second_low),
      show.number(then.samples_per_second_low),
    ],
    [
      "… at most",
      show.number(now.samples_per_second_high),
      show.number(then.samples_per_second_high),
    ],
    ["One update", show.seconds(now.seconds_per_update), show.seconds(then.seconds_per_update)],
    ["Bubble", show.percent(now.bubble), show.percent(then.bubble)],
  ];
  return smallTable(
    "The report's configuration and the changed one",
    [
      { label: "", text: (row) => row[0] },
      { label: "Report", number: true, text: (row) => row[1] },
      { label: "Changed", number: true, text: (row) => row[2] },
    ],
    rows,
  );
}

views.push({
  id: "whatif",
  title: "What if",
  render(section, report) {
    const result = h("div", { id: "whatif-result", "aria-live": "polite" });
    if (!report.stages.every((stage) => stage.units.every((unit) => unit.parameters))) {
      append(section, [
        h(
          "p",
          {},
          "This report was written by an earlier release, without the parts that this view computes with.",
        ),
      ]);
      return;
    }
    const { capacity } = report.stages[0].memory;
    const compute = (changes) => {
      const then = predicted(report, changes);
      const fixed = (stage, index) => ({ ...report.stages[index].memory, ...stage.memory });
      const stages = then.stages.map((stage, index) => ({ ...stage, memory: fixed(stage, index) }));
      refill(
        result,
        whatIfTable(report.summary, then),
        memoryBars("Memory of each IPU, changed", stages, capacity),
      );
    };
    append(section, [
      h(
        "p",
        {},
        "Accumulation, replicas, recomputation and where the optimizer state lies are computed with the formulas of the model. Another micro-batch is scaled from this one, which is rougher: half the rows are taken to need 0.575 of the time.",
      ),
      h("p", { class: "quiet" }, CANNOT),
      whatIfForm(report, compute),
      result,
    ]);
    compute({});
  },
});
