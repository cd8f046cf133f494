// One chart: a figure with a caption, a canvas by ECharts, and the same numbers as a table.
//
//   chart({title, label, height, option(colours), columns, rows(), click(x)})
//
// A chart is drawn when it first has a size, and again when the colours or the width change.

const darkScheme = window.matchMedia("(prefers-color-scheme: dark)");
const drawn = new Set();
let printing = false; // paper is white

// The first are Okabe and Ito's, told apart by people who do not see all colours; memory has eleven
// parts, so three more follow.
function colours() {
  const dark = darkScheme.matches && !printing;
  return {
    text: dark ? "#e8e8e8" : "#1b1b1b",
    quiet: dark ? "#b4b4b4" : "#595959",
    line: dark ? "#4a4a4a" : "#d0d0d0",
    ground: dark ? "#1d1f21" : "#ffffff",
    idle: dark ? "#3a3d40" : "#e6e6e6",
    bad: dark ? "#ff8a70" : "#b3261e",
    cycle: dark
      ? [
          "#56b4e9",
          "#e69f00",
          "#2fc193",
          "#f0e442",
          "#d98bbb",
          "#e8734a",
          "#9aa5b1",
          "#7f8cff",
          "#c9b28f",
          "#63d3d8",
          "#ffffff",
        ]
      : [
          "#0072b2",
          "#e69f00",
          "#009e73",
          "#a89a00",
          "#b4558f",
          "#d55e00",
          "#5b6672",
          "#4046c8",
          "#8a6d3b",
          "#3aa6ad",
          "#1b1b1b",
        ],
    low: dark ? "#22415a" : "#deebf7",
    high: dark ? "#ffd166" : "#08306b",
  };
}

function withStyle(option, palette) {
  const axis = (given) => {
    const axes = Array.isArray(given) ? given : [given];
    return axes.map((one) => ({
      ...one,
      nameTextStyle: { color: palette.quiet },
      axisLabel: { color: palette.quiet, ...one.axisLabel },
      axisLine: { lineStyle: { color: palette.quiet } },
      splitLine: { lineStyle: { color: palette.line }, ...one.splitLine },
    }));
  };
  const found = {
    animation: false,
    textStyle: { fontFamily: "system-ui, sans-serif", color: palette.text },
    color: palette.cycle,
    ...option,
    tooltip: {
      confine: true,
      backgroundColor: palette.ground,
      borderColor: palette.line,
      textStyle: { color: palette.text },
      ...option.tooltip,
    },
  };
  if (option.legend)
    found.legend = {
      type: printing ? "plain" : "scroll", // paper has no buttons to turn its pages
      top: 0,
      textStyle: { color: palette.text },
      pageTextStyle: { color: palette.text },
      ...option.legend,
    };
  if (option.legend && printing && found.grid)
    found.grid = { ...found.grid, top: found.grid.top + 24 };
  if (option.xAxis) found.xAxis = axis(option.xAxis);
  if (option.yAxis) found.yAxis = axis(option.yAxis);
  return found;
}

// What a tooltip shows: an element of text nodes, never a string of HTML.
function tip(...lines) {
  return h(
    "div",
    {},
    lines.filter(Boolean).map((line) => h("div", {}, line)),
  );
}

function chart({ title, label, height = 320, option, columns, rows, click }) {
  const plot = h("div", { class: "plot", role: "img", "aria-label": label || title });
  plot.style.height = `${height}px`;
  const figure = h("figure", {}, h("figcaption", {}, title), plot);
  if (columns) figure.append(tableOf(title, columns, rows));
  const self = { plot, option, click, instance: null };
  const watcher = new ResizeObserver(() => draw(self));
  watcher.observe(plot);
  self.close = () => {
    watcher.disconnect();
    drawn.delete(self);
    if (self.instance) self.instance.dispose();
  };
  figure.chart = self;
  drawn.add(self);
  return figure;
}

function tableOf(title, columns, rows) {
  const details = h("details", { class: "alternative" }, h("summary", {}, "The same as a table"));
  details.addEventListener("toggle", () => details.append(smallTable(title, columns, rows())), {
    once: true,
  });
  return details;
}

function draw(self, again = false) {
  if (!self.plot.clientWidth || !self.plot.isConnected) return;
  if (!self.instance) {
    self.instance = echarts.init(self.plot);
    again = true;
    if (self.click) self.instance.getZr().on("click", (event) => self.click(self.instance, event));
  } else {
    self.instance.resize();
  }
  if (again) self.instance.setOption(withStyle(self.option(colours()), colours()), true);
}

// Replace the charts in a box by new ones.
function refill(box, ...children) {
  for (const figure of box.querySelectorAll("figure")) if (figure.chart) figure.chart.close();
  fill(box, ...children);
}

darkScheme.addEventListener("change", () => {
  for (const self of drawn) draw(self, true);
});

// Spans on rows, as in a trace: {row, start, end, colour, name, lines}. Rows are from top to bottom.
function spansOption(rows, given, palette, { unit, idle = false }) {
  const end = most(given, (span) => span.end);
  const ground = (_, row) => ({ row, start: 0, end, colour: palette.idle, name: "idle between" });
  const spans = [...(idle ? rows.map(ground) : []), ...given];
  const data = spans.map((span, index) => ({ value: [span.row, span.start, span.end, index] }));
  const draw = (params, api) => {
    const span = spans[api.value(3)];
    const from = api.coord([span.start, span.row]);
    const to = api.coord([span.end, span.row]);
    const high = Math.min(26, api.size([0, 1])[1] * 0.8);
    const area = params.coordSys;
    const left = Math.max(from[0], area.x);
    const right = Math.min(to[0], area.x + area.width);
    if (right < area.x || left > area.x + area.width) return null;
    const shape = {
      x: left,
      y: from[1] - high / 2,
      width: Math.max(0.5, right - left),
      height: high,
    };
    return { type: "rect", shape, style: { fill: span.colour } };
  };
  return {
    grid: { left: 8, right: 16, top: 8, bottom: 64, containLabel: true },
    tooltip: {
      trigger: "item",
      formatter: (params) => {
        const span = spans[params.value[3]];
        return tip(span.name, show.seconds(span.end - span.start), ...(span.lines || []));
      },
    },
    dataZoom: [
      { type: "inside", filterMode: "weakFilter" },
      { type: "slider", filterMode: "weakFilter", bottom: 8, height: 20 },
    ],
    xAxis: {
      type: "value",
      name: unit,
      nameLocation: "middle",
      nameGap: 24,
      min: 0,
      max: end,
      axisLabel: { formatter: show.seconds, showMaxLabel: false },
      splitLine: { show: false },
    },
    yAxis: { type: "category", data: rows, inverse: true, axisTick: { show: false } },
    series: [{ type: "custom", renderItem: draw, encode: { x: [1, 2], y: 0 }, data, clip: true }],
  };
}
