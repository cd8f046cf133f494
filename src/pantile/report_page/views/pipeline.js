// Who works when: the time of each IPU, and the micro-batches with the bubbles between them.

const MOST_MICRO_BATCHES = 64;
const STEPS = [
  ["forward", "forward"],
  ["recompute", "recompute"],
  ["backward", "backward"],
  ["copies", "copies"],
  ["host", "host"],
];

function stageBars(report) {
  const used = STEPS.filter(([key]) => report.stages.some((stage) => stage.seconds[key]));
  return chart({
    title: "Time of one micro-batch on each IPU",
    label: `Balance ${show.percent(report.summary.balance)}: the mean of the IPUs' times over the longest`,
    height: 120 + 28 * report.stages.length,
    option: () => ({
      legend: {},
      grid: { left: 8, right: 24, top: 40, bottom: 32, containLabel: true },
      tooltip: { formatter: (p) => tip(`${p.seriesName}, ${p.name}`, show.seconds(p.value)) },
      xAxis: { type: "value", axisLabel: { formatter: show.seconds } },
      yAxis: {
        type: "category",
        data: report.stages.map((stage) => `IPU ${stage.ipu}`),
        inverse: true,
      },
      series: used.map(([key, name]) => ({
        name,
        type: "bar",
        stack: "time",
        barMaxWidth: 22,
        data: report.stages.map((stage) => stage.seconds[key]),
      })),
    }),
    columns: [
      { label: "IPU", text: (s) => s.ipu },
      ...used.map(([key, name]) => ({
        label: name,
        number: true,
        text: (s) => show.seconds(s.seconds[key]),
      })),
      { label: "micro-batch", number: true, text: (s) => show.seconds(s.seconds.micro_batch) },
      { label: "update, once", number: true, text: (s) => show.seconds(s.seconds.update) },
      { label: "all-reduce, once", number: true, text: (s) => show.seconds(s.seconds.all_reduce) },
    ],
    rows: () => report.stages,
  });
}

// Micro-batch m is forward on IPU i in cycle m + i, and backward in cycle m + 2 P - 2 - i.
function pipelineSpans(report) {
  const { stages, configuration: chosen } = report;
  const last = stages.length - 1;
  const cycle = most(stages, (stage) => stage.seconds.micro_batch);
  const count = Math.min(chosen.gradient_accumulation, MOST_MICRO_BATCHES);
  const spans = [];
  stages.forEach(({ seconds }, row) => {
    for (let batch = 0; batch < count; batch += 1) {
      const start = (batch + row) * cycle;
      spans.push({ row, kind: "forward", batch, start, end: start + seconds.forward });
      if (!chosen.training) continue;
      const back = (batch + 2 * last - row) * cycle + seconds.forward;
      spans.push({
        row,
        kind: "backward",
        batch,
        start: back,
        end: back + seconds.recompute + seconds.backward,
      });
    }
    if (count === chosen.gradient_accumulation && chosen.training) {
      const end = (count + 2 * last) * cycle;
      spans.push({
        row,
        kind: "update",
        batch: 0,
        start: end,
        end: end + seconds.update + seconds.all_reduce,
      });
    }
  });
  return spans;
}

function pipelineChart(report) {
  const spans = pipelineSpans(report);
  const colour = (kind, palette) => palette.cycle[{ forward: 0, backward: 1, update: 2 }[kind]];
  return chart({
    title: "The pipeline: forward blue, backward orange, update green, idle grey",
    label: `The bubble is ${show.percent(report.summary.bubble)} of the pipeline's cycles`,
    height: 110 + 30 * report.stages.length,
    option: (palette) =>
      spansOption(
        report.stages.map((stage) => `IPU ${stage.ipu}`),
        spans.map((span) => ({
          ...span,
          colour: colour(span.kind, palette),
          name:
            span.kind === "update"
              ? "all-reduce and update"
              : `${span.kind}, micro-batch ${span.batch}`,
        })),
        palette,
        { unit: "time of one update", idle: true },
      ),
    columns: [
      { label: "IPU", text: (span) => span.row },
      { label: "What", text: (span) => `${span.kind} ${span.batch}` },
      { label: "From", number: true, text: (span) => show.seconds(span.start) },
      { label: "To", number: true, text: (span) => show.seconds(span.end) },
    ],
    rows: () => spans,
  });
}

views.push({
  id: "pipeline",
  title: "Pipeline",
  render(section, report) {
    const { gradient_accumulation: count } = report.configuration;
    append(section, [
      h(
        "p",
        {},
        `The pipeline fills and empties in ${show.percent(report.summary.bubble)} of its cycles. A longer accumulation makes that part smaller; a better split makes the IPUs' times equal.`,
      ),
      stageBars(report),
      pipelineChart(report),
      count > MOST_MICRO_BATCHES &&
        h(
          "p",
          { class: "quiet" },
          `The first ${MOST_MICRO_BATCHES} of ${count} micro-batches are drawn.`,
        ),
    ]);
  },
});
