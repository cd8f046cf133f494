// What runs when in one micro-batch, and what was measured on the host; the trace as a file.

// The ops of one IPU one after the other, each as sync, exchange and compute.
function opSpans(report, ipu) {
  const clock = report.target.clock_hz;
  const spans = [];
  let now = 0;
  for (const op of report.ops) {
    if (op.ipu !== ipu || !op.cycles) continue;
    const lines = [op.module, op.source, `${show.count(op.cycles)} cycles`];
    spans.push({
      row: 0,
      start: now,
      end: now + op.cycles / clock,
      kind: op.phase,
      name: op.op,
      lines,
      op: op.id,
    });
    for (const kind of ["sync", "exchange", "compute"]) {
      const end = now + (op[kind] * op.factor) / clock;
      if (op[kind])
        spans.push({ row: 1, start: now, end, kind, name: `${kind} of ${op.op}`, lines });
      now = end;
    }
  }
  return spans;
}

const SPAN_COLOURS = { forward: 0, backward: 1, update: 2, compute: 6, exchange: 4, sync: 5 };

function timelineChart(report, ipu) {
  const spans = opSpans(report, ipu);
  return chart({
    title: `Ops of one micro-batch on IPU ${ipu} (modelled): forward blue, backward orange; below, compute grey, exchange pink, sync red`,
    label:
      "First row: forward, backward, update. Second row: compute, exchange and sync of each op",
    height: 210,
    click: (instance, event) => {
      const at = [event.offsetX, event.offsetY];
      if (!instance.containPixel("grid", at)) return;
      const [time, row] = instance.convertFromPixel("grid", at);
      const hit =
        Math.round(row) === 0 &&
        spans.find((span) => span.row === 0 && span.start <= time && time <= span.end);
      if (hit) location.hash = `#ops/${hit.op}`;
    },
    option: (palette) =>
      spansOption(
        ["ops", "phases"],
        spans.map((span) => ({ ...span, colour: palette.cycle[SPAN_COLOURS[span.kind]] })),
        palette,
        { unit: "time of one micro-batch" },
      ),
    columns: [
      { label: "Op", text: (span) => span.name },
      { label: "From", number: true, text: (span) => show.seconds(span.start) },
      { label: "To", number: true, text: (span) => show.seconds(span.end) },
      { label: "Source", text: (span) => span.lines[1] },
    ],
    rows: () => spans.filter((span) => span.row === 0),
  });
}

// A report of an older release knows one kind of span.
function laneOf(span) {
  return span.lane || "host";
}

function hostLanes(report) {
  return [...new Set((report.host.spans || []).map(laneOf))];
}

function hostChart(report) {
  const lanes = hostLanes(report);
  const spans = report.host.spans.map((span) => ({
    row: lanes.indexOf(laneOf(span)),
    start: span.start,
    end: span.start + span.seconds,
    name: span.name,
    lane: laneOf(span),
  }));
  return chart({
    title: `The host (measured here: ${report.host.machine}, ${report.host.processors} processors)`,
    height: 110 + 45 * lanes.length,
    option: (palette) =>
      spansOption(
        lanes,
        spans.map((span) => ({ ...span, colour: palette.cycle[(3 + span.row) % 8] })),
        palette,
        { unit: "time" },
      ),
    columns: [
      { label: "Part", text: (span) => span.lane },
      { label: "What", text: (span) => span.name },
      { label: "Took", number: true, text: (span) => show.seconds(span.end - span.start) },
    ],
    rows: () => spans,
  });
}

const WRITERS = {
  kernels: "our own kernels",
  segments: "our own kernels, with calls of torch's operators",
  inductor: "PyTorch's Inductor",
  reference: "the reference engine, op by op",
};

function programsTable(report) {
  return smallTable(
    "What ran on this machine",
    [
      { label: "Part", text: (program) => program.part },
      { label: "Run by", text: (program) => WRITERS[program.lowering] || program.lowering },
      { label: "Instructions", text: (program) => program.cpu || "" },
      { label: "Threads", number: true, text: (program) => program.threads || "" },
      { label: "Why", text: (program) => program.why || "" },
    ],
    report.host.programs,
  );
}

// The Chrome trace event format, as pantile/machine/trace.py writes it; times are microseconds.
function traceOf(report) {
  const events = [];
  const meta = (kind, pid, tid, name) =>
    events.push({ ph: "M", name: kind, pid, tid, args: { name } });
  const span = (pid, tid, one, args) =>
    events.push({
      ph: "X",
      name: one.name,
      pid,
      tid,
      ts: one.start * 1e6,
      dur: (one.end - one.start) * 1e6,
      args,
    });
  const numbers = usedIpus(report);
  const pipeline = pipelineSpans(report);
  report.stages.forEach((stage, row) => {
    meta("process_name", row, 0, `IPU ${row} (modelled)`);
    ["ops of one micro-batch", "phases", "pipeline"].forEach((name, tid) =>
      meta("thread_name", row, tid, name),
    );
    for (const one of opSpans(report, numbers[row]))
      span(row, one.row, one, { module: one.lines[0], source: one.lines[1] });
    for (const one of pipeline)
      if (one.row === row) span(row, 2, { ...one, name: `${one.kind} ${one.batch}` }, {});
  });
  const host = report.stages.length;
  meta("process_name", host, 0, "host (measured)");
  const lanes = hostLanes(report);
  lanes.forEach((lane, tid) => meta("thread_name", host, tid, lane));
  for (const one of report.host.spans || [])
    span(host, lanes.indexOf(laneOf(one)), { ...one, end: one.start + one.seconds }, {});
  return { traceEvents: events, displayTimeUnit: "ns" };
}

// The numbers of the IPUs in the order of the stages: a model may use IPUs 1 and 3.
function usedIpus(report) {
  return [...new Set(report.ops.map((op) => op.ipu))].sort((a, b) => a - b);
}

views.push({
  id: "timeline",
  title: "Timeline",
  render(section, report) {
    const box = h("div", {});
    const open = (ipu) => refill(box, timelineChart(report, Number(ipu)));
    const numbers = usedIpus(report).map((ipu) => [String(ipu), `IPU ${ipu}`]);
    const save = h(
      "button",
      { type: "button", onclick: () => download("trace.json", JSON.stringify(traceOf(report))) },
      "Save the trace",
    );
    append(section, [
      h(
        "p",
        {},
        "Zoom with the wheel or the handles below the chart; click an op to see it in the table. The trace file opens in Perfetto (ui.perfetto.dev) and in chrome://tracing.",
      ),
      h(
        "div",
        { class: "controls" },
        numbers.length > 1 && choice("IPU", numbers, numbers[0][0], open),
        save,
      ),
      box,
      report.host.spans && report.host.spans.length > 0 && hostChart(report),
      report.host.programs && report.host.programs.length > 0 && programsTable(report),
    ]);
    if (numbers.length) open(numbers[0][0]);
  },
});
