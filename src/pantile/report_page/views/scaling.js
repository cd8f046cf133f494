// Throughput with more replicas, with the band that the errors on published results give.

function scalingChart(report) {
  const rows = report.scaling;
  const line = (name, data, more) => ({ name, type: "line", data, symbolSize: 7, ...more });
  return chart({
    title: "Throughput with more replicas, the batch growing with them",
    label: rows.map((row) => `${row.ipus} IPUs: ${show.number(row.samples_per_second)} samples/s`).join(", "),
    height: 380,
    option: (palette) => ({
      legend: { data: ["predicted", "proportional"] },
      grid: { left: 8, right: 24, top: 40, bottom: 48, containLabel: true },
      tooltip: {
        trigger: "axis",
        formatter: ([p]) => {
          const row = rows[p.dataIndex];
          return tip(`${row.replicas} replicas, ${row.ipus} IPUs`, `${show.number(row.samples_per_second)} samples/s`, `${show.number(row.low)} to ${show.number(row.high)}`, `all-reduce ${show.seconds(row.all_reduce_seconds)}`);
        },
      },
      xAxis: { type: "category", data: rows.map((row) => row.ipus), name: "IPUs", nameLocation: "middle", nameGap: 28, boundaryGap: false },
      yAxis: { type: "value", name: "samples/s", axisLabel: { formatter: show.number } },
      series: [
        line("low", rows.map((row) => row.low), { stack: "band", symbol: "none", lineStyle: { opacity: 0 } }),
        line("band", rows.map((row) => row.high - row.low), { stack: "band", symbol: "none", lineStyle: { opacity: 0 }, areaStyle: { color: palette.cycle[0], opacity: 0.25 } }),
        line("predicted", rows.map((row) => row.samples_per_second), { color: palette.cycle[0] }),
        line("proportional", rows.map((row) => rows[0].samples_per_second * row.replicas / rows[0].replicas), { color: palette.quiet, symbol: "none", lineStyle: { type: "dashed" } }),
      ],
    }),
    columns: [
      { label: "Replicas", text: (row) => row.replicas },
      { label: "IPUs", number: true, text: (row) => row.ipus },
      { label: "Samples/s", number: true, text: (row) => show.number(row.samples_per_second) },
      { label: "Low", number: true, text: (row) => show.number(row.low) },
      { label: "High", number: true, text: (row) => show.number(row.high) },
      { label: "All-reduce", number: true, text: (row) => show.seconds(row.all_reduce_seconds) },
      { label: "One update", number: true, text: (row) => show.seconds(row.seconds_per_update) },
    ],
    rows: () => rows,
  });
}

views.push({
  id: "scaling",
  title: "Scaling",
  render(section, report) {
    append(section, [
      h("p", {}, "The band is what the largest errors on published results leave room for. Those results are the vendor's best configurations: an untuned script can be twice as slow on a device."),
      scalingChart(report),
    ]);
  },
});
