// What is alive at each op, and which tensors and source lines that is.

function livenessChart(report, found, pick) {
  const opOf = (place) => report.ops[found.ops[place]];
  const flat = found.ops.map(() => found.always_live);
  const area = (name, data) => ({
    name,
    type: "line",
    stack: "alive",
    showSymbol: false,
    lineStyle: { width: 1 },
    areaStyle: { opacity: 0.6 },
    data,
  });
  return chart({
    title: `Memory alive at each op of IPU ${found.ipu}`,
    label: `Most is alive at op ${peakOf(found)}; the slider below the chart chooses an op`,
    height: 360,
    click: (instance, event) => {
      const at = [event.offsetX, event.offsetY];
      if (instance.containPixel("grid", at))
        pick(Math.round(instance.convertFromPixel("grid", at)[0]));
    },
    option: () => ({
      legend: {},
      grid: { left: 8, right: 24, top: 40, bottom: 64, containLabel: true },
      tooltip: {
        trigger: "axis",
        formatter: (points) => {
          const op = opOf(points[0].dataIndex);
          return tip(
            `${op.op} (${op.phase})`,
            op.module,
            op.source,
            ...points.map((p) => `${p.seriesName}: ${show.bytes(p.value)}`),
          );
        },
      },
      dataZoom: [{ type: "inside" }, { type: "slider", bottom: 8, height: 20 }],
      xAxis: {
        type: "category",
        data: found.ops.map((_, place) => place),
        boundaryGap: false,
        name: "op",
        nameLocation: "middle",
        nameGap: 24,
      },
      yAxis: { type: "value", axisLabel: { formatter: show.bytes } },
      series: [
        area("always live", flat),
        area("values", found.bytes),
        area("temporary", found.temporary),
      ],
    }),
    columns: [
      { label: "Op", text: (place) => `${place}: ${opOf(place).op}` },
      { label: "Values", number: true, text: (place) => show.bytes(found.bytes[place]) },
      { label: "Temporary", number: true, text: (place) => show.bytes(found.temporary[place]) },
      { label: "Source", text: (place) => opOf(place).source },
    ],
    rows: () => found.ops.map((_, place) => place),
  });
}

function peakOf(found) {
  let best = 0;
  found.bytes.forEach((bytes, place) => {
    if (bytes + found.temporary[place] > found.bytes[best] + found.temporary[best]) best = place;
  });
  return best;
}

function aliveAt(report, found, place) {
  const named = new Map(report.tensors.map((tensor) => [tensor.id, tensor]));
  return (found.lifetimes || [])
    .filter(([, first, last]) => first <= place && place <= last)
    .sort((a, b) => b[3] - a[3])
    .map(([id, first, last, bytes]) => ({
      bytes,
      first,
      last,
      ...(named.get(id) || { name: `tensor ${id}`, shape: [], dtype: "", module: "", source: "" }),
    }));
}

function aliveDetail(report, found, place) {
  const op = report.ops[found.ops[place]];
  return h(
    "div",
    { class: "detail", "aria-live": "polite" },
    h("h2", {}, `Op ${place}: ${op.op} (${op.phase})`),
    h(
      "p",
      {},
      [op.module, op.source].filter(Boolean).join(", "),
      " ",
      h("a", { href: `#ops/${op.id}` }, "Show it in the op table"),
    ),
    h(
      "p",
      {},
      `${show.bytes(found.bytes[place])} of values and ${show.bytes(found.temporary[place])} of temporary memory, beside ${show.bytes(found.always_live)} that are always live.`,
    ),
    smallTable(
      "Values alive at this op, the largest first",
      [
        { label: "Tensor", text: (t) => t.name },
        { label: "Size", number: true, text: (t) => show.bytes(t.bytes) },
        { label: "Shape", text: (t) => `${t.dtype}[${t.shape.join(", ")}]` },
        { label: "Alive from op to op", text: (t) => `${t.first} to ${t.last}` },
        { label: "Made by module", text: (t) => t.module },
        { label: "Source line", text: (t) => t.source },
      ],
      aliveAt(report, found, place),
      { limit: 50 },
    ),
  );
}

// What stays from step to step: the weights by name, the rest by kind.
function alwaysLive(stage) {
  const named = stage.units.flatMap((unit) =>
    unit.parameters.map((one) => ({ name: one.name, bytes: one.bytes, source: unit.source })),
  );
  const weights = [...new Map(named.map((row) => [row.name, row])).values()];
  const kept = ["buffers", "accumulators", "optimizer_state", "stash", "code", "exchange_code"];
  const others = PARTS.filter(([key]) => [...kept, "vertex_state"].includes(key))
    .map(([key, label]) => ({ name: label, bytes: stage.memory[key], source: "" }))
    .filter((row) => row.bytes);
  return [...weights, ...others].sort((a, b) => b.bytes - a.bytes);
}

function alwaysLiveTable(stage) {
  const details = h("details", {}, h("summary", {}, "What is always live on this IPU"));
  const columns = [
    { label: "Name", text: (row) => row.name },
    { label: "Size", number: true, text: (row) => show.bytes(row.bytes) },
    { label: "Source line", text: (row) => row.source },
  ];
  const fillIt = () =>
    details.append(smallTable("Weights, and what is kept for them", columns, alwaysLive(stage)));
  details.addEventListener("toggle", fillIt, { once: true });
  return details;
}

views.push({
  id: "liveness",
  title: "Liveness",
  render(section, report) {
    const box = h("div", {});
    const open = (ipu) => {
      const found = report.liveness[Number(ipu)];
      if (!found.ops.length) return refill(box, h("p", {}, "No op runs on this IPU."));
      const detail = h("div", {});
      const slider = h("input", {
        type: "range",
        min: 0,
        max: found.ops.length - 1,
        value: 0,
        oninput: () => pick(slider.valueAsNumber),
      });
      const pick = (place) => {
        const inside = Math.max(0, Math.min(found.ops.length - 1, place));
        slider.value = String(inside);
        fill(detail, aliveDetail(report, found, inside));
      };
      const peak = h(
        "button",
        { type: "button", onclick: () => pick(peakOf(found)) },
        "Go to the peak",
      );
      refill(
        box,
        livenessChart(report, found, pick),
        h("div", { class: "controls" }, h("label", { class: "field wide" }, "Op", slider), peak),
        detail,
        alwaysLiveTable(report.stages[Number(ipu)]),
      );
      return pick(peakOf(found));
    };
    append(section, [
      h(
        "p",
        {},
        "Click into the chart, or move the slider, to see which tensors are alive at an op and which lines made them.",
      ),
      h("div", { class: "controls" }, choice("IPU", ipuChoices(report), "0", open)),
      box,
    ]);
    open(0);
  },
});
