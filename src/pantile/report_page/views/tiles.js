// How full each tile of an IPU is: as a line, and as a map of the chip.

const MAP_ROWS = 32;
const SMALLEST_SHARE = 128; // bytes; as in pantile/machine/memory.py

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
function tileMap(report, stage, scale, pick) {
  const capacity = report.target.memory_bytes_per_tile;
  const columns = Math.ceil(stage.tiles.length / MAP_ROWS);
  const names = (count) => Array.from({ length: count }, (_, index) => index);
  const least = Math.min(...stage.tiles);
  const top = most(stage.tiles, (bytes) => bytes);
  return chart({
    title: `Map of the tiles, ${MAP_ROWS} in a column`,
    label: `Tiles hold between ${show.bytes(least)} and ${show.bytes(top)}`,
    height: 420,
    click: (instance, event) => {
      const place = instance.convertFromPixel({ seriesIndex: 0 }, [event.offsetX, event.offsetY]);
      const [column, row] = place || [-1, -1];
      const tile = column * MAP_ROWS + row;
      if (column >= 0 && row >= 0 && row < MAP_ROWS && tile < stage.tiles.length) pick(tile);
    },
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
      yAxis: {
        type: "category",
        data: names(MAP_ROWS),
        inverse: true,
        splitLine: { show: false },
        axisLabel: { interval: 3 },
      },
      visualMap: {
        min: scale === "full" ? 0 : least,
        max: scale === "full" ? Math.max(top, capacity) : Math.max(top, least + 1),
        dimension: 2,
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
          // ECharts' own heat map paints over several frames, for which a print does not wait.
          type: "custom",
          renderItem: (_, api) => {
            const [width, height] = api.size([1, 1]);
            const [x, y] = api.coord([api.value(0), api.value(1)]);
            const shape = { x: x - width / 2, y: y - height / 2, width, height };
            return { type: "rect", shape, style: { fill: api.visual("color") } };
          },
          encode: { x: 0, y: 1 },
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

// What lies on one tile: weights and accumulators where the rule of memory.py lays them, and an even
// share of all else.
function onTile(report, stage, tile) {
  const tiles = stage.tiles.length;
  const weights = parametersOf(stage.units).map((one) => ({ ...one, what: "weight" }));
  const sums = weights.map((one) => ({ ...one, what: "gradient accumulator" }));
  const rows = [];
  let start = 0;
  for (const one of stage.memory.accumulators ? [...weights, ...sums] : weights) {
    const used = Math.min(tiles, Math.max(1, Math.ceil(one.bytes / SMALLEST_SHARE)));
    const here = used === tiles || (tile - start + tiles) % tiles < used;
    if (here) rows.push({ name: one.name, what: one.what, bytes: Math.ceil(one.bytes / used) });
    if (used < tiles) start = (start + used) % tiles;
  }
  rows.sort((a, b) => b.bytes - a.bytes);
  const even = PARTS.filter(([key]) => key !== "weights" && key !== "accumulators")
    .map(([key, label]) => ({ name: label, what: "spread evenly", bytes: stage.memory[key] / tiles }))
    .filter((row) => row.bytes >= 1);
  return [...rows, ...even];
}

function tileDetail(report, stage, tile) {
  const bytes = stage.tiles[tile];
  const full = show.percent(bytes / report.target.memory_bytes_per_tile);
  return [
    h("h2", {}, `Tile ${tile} of IPU ${stage.ipu}`),
    h("p", {}, `${show.bytes(bytes)}, ${full} full.`),
    smallTable(
      "What lies on it",
      [
        { label: "Name", text: (row) => row.name },
        { label: "Bytes", number: true, text: (row) => show.count(row.bytes) },
        { label: "What", text: (row) => row.what },
      ],
      onTile(report, stage, tile),
      { limit: 100 },
    ),
  ];
}

views.push({
  id: "tiles",
  title: "Tiles",
  render(section, report) {
    const box = h("div", {});
    const chosen = { ipu: "0", scale: "full" };
    const detail = h("div", { class: "detail", "aria-live": "polite" });
    const number = h("input", {
      type: "number",
      name: "tile",
      min: 0,
      max: report.target.tiles_per_ipu - 1,
      value: 0,
      oninput: () => pick(number.valueAsNumber),
    });
    const pick = (tile) => {
      const stage = report.stages[Number(chosen.ipu)];
      if (!(tile >= 0 && tile < stage.tiles.length)) return;
      number.value = String(tile);
      fill(detail, tileDetail(report, stage, Math.floor(tile)));
    };
    const open = (changes) => {
      Object.assign(chosen, changes);
      const stage = report.stages[Number(chosen.ipu)];
      refill(
        box,
        h(
          "div",
          { class: "columns" },
          tileLine(report, stage),
          tileMap(report, stage, chosen.scale, pick),
        ),
      );
      pick(number.valueAsNumber || 0);
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
        h("label", { class: "field" }, "Tile (or click the map)", number),
      ),
      box,
      detail,
    ]);
    open({});
  },
});
