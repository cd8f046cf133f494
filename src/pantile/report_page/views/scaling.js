// Throughput with more replicas, with the band that the errors on published results give.

// From the low end of the band to the high one; stacked areas would not do on a logarithmic axis.
function bandSeries(rows, palette) {
  const renderItem = (_, api) => {
    const ends = (key) => rows.map((row, place) => api.coord([place, row[key]]));
    const points = [...ends("high"), ...ends("low").reverse()];
    return {
      type: "polygon",
      shape: { points },
      style: { fill: palette.cycle[0], opacity: 0.25 },
      silent: true,
    };
  };
  return {
    name: "band",
    type: "custom",
    renderItem,
    data: [[0, rows[0].low]],
    silent: true,
    tooltip: { show: false },
  };
}

function scalingChart(report) {
  const rows = report.scaling;
  const line = (name, data, more) => ({ name, type: "line", data, symbolSize: 7, ...more });
  return chart({
    title: "Throughput with more replicas, the batch growing with them",
    label: rows
      .map((row) => `${row.ipus} IPUs: ${show.number(row.samples_per_second)} samples/s`)
      .join(", "),
    height: 380,
    option: (palette) => ({
      legend: { data: ["predicted", "proportional"] },
      grid: { left: 8, right: 24, top: 40, bottom: 48, containLabel: true },
      tooltip: {
        trigger: "axis",
        formatter: (points) => {
          const row = rows[points.at(-1).dataIndex];
          return tip(
            `${row.replicas} replicas, ${row.ipus} IPUs`,
            `${show.number(row.samples_per_second)} samples/s`,
            `${show.number(row.low)} to ${show.number(row.high)}`,
            `all-reduce ${show.seconds(row.all_reduce_seconds)}`,
          );
        },
      },
      xAxis: {
        type: "category",
        data: rows.map((row) => row.ipus),
        name: "IPUs",
        nameLocation: "middle",
        nameGap: 28,
        boundaryGap: false,
      },
      yAxis: { type: "log", name: "samples/s", axisLabel: { formatter: show.number } },
      series: [
        bandSeries(rows, palette),
        line(
          "predicted",
          rows.map((row) => row.samples_per_second),
          { color: palette.cycle[0] },
        ),
        line(
          "proportional",
          rows.map((row) => (rows[0].samples_per_second * row.replicas) / rows[0].replicas),
          { color: palette.quiet, symbol: "none", lineStyle: { type: "dashed" } },
        ),
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
    if (!report.scaling.length) {
      append(section, [h("p", {}, "One replica takes more than the 256 IPUs of the largest pod.")]);
      return;
    }
    append(section, [
      h(
        "p",
        {},
        "The band is what the largest errors on published results leave room for. Those results are the vendor's best configurations: an untuned script can be twice as slow on a device.",
      ),
      scalingChart(report),
    ]);
  },
});
