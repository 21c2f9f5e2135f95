// Charts over the last ten minutes, drawn by uPlot: one y axis from zero, a legend that shows the last values.

import { clock, isKnown, trimmed } from "./words.js";

const SPAN_S = 600;
const LEAST_SPAN_S = 180;
const HEIGHT = 180;

const colour = (role) => getComputedStyle(document.documentElement).getPropertyValue(role).trim();

/** A chart in a figure. `lines`: [{label, colour, fill}]; `format` words a value; `top` is the least upper end. */
export class Chart {
  constructor(figure, { lines, format, top, empty, most }) {
    Object.assign(this, { lines, format, top, most });
    this.place = document.createElement("div");
    this.place.className = "plot";
    this.empty = document.createElement("p");
    this.empty.className = "empty";
    this.empty.textContent = empty;
    this.empty.hidden = true;
    figure.append(this.place, this.empty);
    this.data = [[], ...lines.map(() => [])];
    this.end = 0;
    this.plot = null;
    this.drawn = "";
    new ResizeObserver(() => this.plot?.setSize(this.size())).observe(this.place);
  }

  /** Show columns; the last of `at` is the right end. */
  show(at, columns) {
    this.data = [at, ...columns];
    this.end = at.at(-1) ?? Date.now() / 1000;
    this.empty.hidden = columns.some((column) => column.some((value) => isKnown(value) && value > 0));
    this.place.classList.toggle("idle", !this.empty.hidden);
    if (typeof uPlot === "undefined") return; // it has failed in this browser: the rest of the page need not
    if (this.plot === null) this.build();
    else this.plot.setData(this.data);
    this.rest();
  }

  /** Draw anew: colours have changed. */
  build() {
    this.plot?.destroy();
    const [ink, line] = [colour("--dim"), colour("--line")];
    const font = `12px ${getComputedStyle(document.body).fontFamily}`;
    const axis = { stroke: ink, font, ticks: { show: false } };
    this.plot = new uPlot(
      {
        ...this.size(),
        padding: [8, 20, 0, 0],
        cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 }, sync: { key: "minutes" } },
        scales: { x: { range: () => [this.begin(), this.end] }, y: { range: (_, low, high) => this.range(high) } },
        axes: [
          {
            ...axis,
            grid: { show: false },
            size: 26,
            space: 60,
            incrs: [60, 120, 300],
            values: (_, splits) => splits.map((at) => clock(at)),
          },
          {
            ...axis,
            grid: { stroke: line, width: 1 },
            size: 58,
            gap: 8,
            space: 34,
            values: (_, splits) => splits.map((value) => trimmed(this.format(value))),
          },
        ],
        series: [
          { label: "at", value: (_, at) => (at == null ? "–" : clock(at, true)) },
          ...this.lines.map(({ label, role, fill }) => ({
            label,
            stroke: colour(role),
            fill: fill ? colour(fill) : undefined,
            width: 1.75,
            points: { show: false },
            spanGaps: false,
            value: (_, value) => (value == null ? "–" : this.format(value)),
          })),
        ],
        legend: { markers: { width: 0, fill: (_, at) => (at ? colour(this.lines[at - 1].role) : "transparent") } },
        hooks: { setCursor: [() => this.rest()] },
      },
      this.data,
      this.place,
    );
    this.rest();
  }

  /** Let the legend tell the last values while nobody points at others. */
  rest() {
    const last = this.data[0].length - 1;
    if (this.plot !== null && this.plot.cursor.idx == null && last >= 0) this.plot.setLegend({ idx: last }, false);
  }

  begin() {
    return Math.max(this.end - SPAN_S, Math.min(this.data[0][0] ?? this.end, this.end - LEAST_SPAN_S));
  }

  range(high) {
    return [0, this.most ?? Math.max(this.top, (high ?? 0) * 1.08)];
  }

  size() {
    return { width: Math.max(120, this.place.clientWidth), height: HEIGHT };
  }
}
