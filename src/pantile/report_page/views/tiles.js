// How full each tile of an IPU is: as a line, and as a map of the chip.

const MAP_ROWS = 32;

function tileLine(report, stage) {
  const { memory_bytes_per_tile: capacity } = report.target;
  return chart({
    title: `Memory on each tile of IPU ${stage.ipu}`,
    label: `${stage.tiles.length} tiles, at most ${show.bytes(most(stage.tiles, (b) => b))} of ${show.bytes(capacity)}`,
    option: (palette) => ({
      grid: { left: 8, right: 64, top: 16, bottom: 64, containLabel: true },
      tooltip: {
        trigger: "axis",
        formatter: ([p]) => tip(`tile ${p.dataIndex}`, show.bytes(p.value)),
      },
      dataZoom: [{ type: "inside" }, { type: "slider", bottom: 8, height: 20 }],
      xAxis: {
        type: "category",
        data: stage.tiles.map((_, tile) => tile),
        name: "tile",
        nameLocation: "middle",
        nameGap: 24,
      },
      yAxis: {
        type: "value",
        axisLabel: { formatter: show.bytes, showMaxLabel: false },
        max: (range) => Math.max(range.max, capacity * 1.02),
      },
      series: [
        {
          type: "line",
          step: "middle",
          showSymbol: false,
          areaStyle: { opacity: 0.3 },
          data: stage.tiles,
          markLine: { ...capacityLine(capacity, palette, "end"), data: [{ yAxis: capacity }] },
        },
      ],
    }),
    columns: [
      { label: "Tile", text: (row) => row[0] },
      { label: "Bytes", number: true, text: (row) => show.count(row[1]) },
    ],
    rows: () => stage.tiles.map((bytes, tile) => [tile, bytes]),
  });
}

// Coloured by how full a tile is, or, to see small differences, from the emptiest to the fullest.
function tileMap(report, stage, scale) {
  const capacity = report.target.memory_bytes_per_tile;
  const columns = Math.ceil(stage.tiles.length / MAP_ROWS);
  const names = (count) => Array.from({ length: count }, (_, index) => index);
  const least = Math.min(...stage.tiles);
  const top = most(stage.tiles, (bytes) => bytes);
  return chart({
    title: `Map of the tiles, ${MAP_ROWS} in a column`,
    label: `Tiles hold between ${show.bytes(least)} and ${show.bytes(top)}`,
    height: 420,
    option: (palette) => ({
      grid: { left: 8, right: 8, top: 8, bottom: 64, containLabel: true },
      tooltip: {
        formatter: (p) =>
          tip(
            `tile ${p.value[0] * MAP_ROWS + p.value[1]}`,
            show.bytes(p.value[2]),
            `${show.percent(p.value[2] / capacity)} full`,
          ),
      },
      xAxis: { type: "category", data: names(columns), splitLine: { show: false } },
      yAxis: { type: "category", data: names(MAP_ROWS), inverse: true, splitLine: { show: false } },
      visualMap: {
        min: scale === "full" ? 0 : least,
        max: scale === "full" ? Math.max(top, capacity) : Math.max(top, least + 1),
        calculable: true,
        orient: "horizontal",
        left: "center",
        bottom: 0,
        formatter: show.bytes,
        textStyle: { color: palette.text },
        inRange: { color: [palette.low, palette.cycle[0], palette.high] },
      },
      series: [
        {
          type: "heatmap",
          data: stage.tiles.map((bytes, tile) => [
            Math.floor(tile / MAP_ROWS),
            tile % MAP_ROWS,
            bytes,
          ]),
        },
      ],
    }),
  });
}

views.push({
  id: "tiles",
  title: "Tiles",
  render(section, report) {
    const box = h("div", {});
    const chosen = { ipu: "0", scale: "full" };
    const open = (changes) => {
      Object.assign(chosen, changes);
      const stage = report.stages[Number(chosen.ipu)];
      refill(
        box,
        h(
          "div",
          { class: "columns" },
          tileLine(report, stage),
          tileMap(report, stage, chosen.scale),
        ),
      );
    };
    const scales = [
      ["full", "empty to full"],
      ["range", "emptiest to fullest tile"],
    ];
    append(section, [
      h(
        "p",
        {},
        "Weights and accumulators are laid over the tiles one after the other, in shares of at least 128 bytes; everything else is spread evenly. The verdict uses the measured imbalance of real programs instead.",
      ),
      h(
        "div",
        { class: "controls" },
        choice("IPU", ipuChoices(report), "0", (ipu) => open({ ipu })),
        choice("Colours of the map", scales, "full", (scale) => open({ scale })),
      ),
      box,
    ]);
    open({});
  },
});
