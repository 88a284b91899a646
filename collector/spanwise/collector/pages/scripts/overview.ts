// The script of the overview: the charts become canvases with a cursor that all of them share. A click on a bucket
// shows its traces, and dragging selects a shorter time. Each chart is drawn from the numbers beside its SVG, whose
// links and tooltips it keeps.

import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

interface Plot { series: (number | null)[][]; low: number; high: number; bars: boolean }

const sync = uPlot.sync("overview");
const EDGE = 4; // px above and below the axis, so that lines at its ends are not cut; the style sheet has it, too
const tip = Object.assign(document.createElement("div"), { className: "plot-tip", hidden: true });
document.body.append(tip);

/** Draws one chart over its SVG. */
function draw(box: HTMLElement): void {
  const { series, low, high, bars } = JSON.parse(box.dataset.plot!) as Plot;
  const svg = box.querySelector("svg")!;
  const links = [...svg.querySelectorAll("a")];
  const marks = links.map((link) => link.querySelector("rect")!);
  const starts = marks.map((mark) => mark.x.baseVal.value), widths = marks.map((mark) => mark.width.baseVal.value);
  const address = (index: number) => new URL(links[index]!.getAttribute("href")!, location.href);
  const color = (index: number) => {
    const style = getComputedStyle(svg.querySelector(bars ? ".bars" : `.line.l${index + 1}`) ?? svg);
    return bars ? style.fill : style.stroke;
  };
  /** Bars as wide as their buckets, of which the first and the last may be cut; those of uPlot have one width. */
  const drawBars: uPlot.Series.PathBuilder = (plot, series, first, last) => {
    const fill = new Path2D(), x = (value: number) => plot.valToPos(value, "x", true), bottom = plot.valToPos(low, "y", true);
    for (let index = first; index <= last; index++) {
      const value = plot.data[series]![index];
      if (!value) continue;
      const left = x(starts[index]! + widths[index]! * 0.1), right = x(starts[index]! + widths[index]! * 0.9);
      const height = Math.max(1.5, bottom - plot.valToPos(value, "y", true));
      fill.rect(left, bottom - height, right - left, height);
    }
    return { fill, stroke: null };
  };
  const edge = (high - low) * EDGE / svg.clientHeight;
  const place = document.createElement("div");
  place.className = "canvas";
  svg.before(place);
  const chart = new uPlot({
    width: svg.clientWidth,
    height: svg.clientHeight + 2 * EDGE,
    pxAlign: 0,
    legend: { show: false },
    axes: [{ show: false }, { show: false }],
    scales: { x: { time: false, range: () => [0, svg.viewBox.baseVal.width] }, y: { range: () => [low - edge, high + edge] } },
    cursor: { y: false, sync: { key: sync.key }, drag: { x: true, y: false, setScale: false } },
    series: [{}, ...series.map((_, index) => ({
      paths: bars ? drawBars : uPlot.paths.linear!(),
      width: bars ? 0 : 2,
      stroke: () => color(index),
      ...(bars && { fill: () => color(index) }),
      ...(!bars && index === 2 && { dash: [1, 4] }),
      points: { show: false }, // single values are dots of the SVG
    }))],
    hooks: {
      setCursor: [(plot) => show(plot)],
      setSelect: [(plot) => {
        const [first, last] = [plot.select.left, plot.select.left + plot.select.width].map((left) => plot.posToIdx(left));
        zoom(address(first!), address(last!));
      }],
    },
  }, [starts.map((start, index) => start + widths[index]! / 2), ...series] as uPlot.AlignedData, place);

  /** Shows the numbers of the bucket below the pointer. Of the charts with the same cursor, only the one below it has a tip. */
  function show(plot: uPlot): void {
    const { idx, left = -1 } = plot.cursor;
    if (!plot.over.matches(":hover")) return;
    tip.hidden = left < 0 || idx == null;
    if (tip.hidden) return;
    tip.textContent = links[idx!]!.querySelector("title")?.textContent?.trim() ?? "";
    const frame = plot.over.getBoundingClientRect(), width = tip.offsetWidth;
    tip.style.left = `${scrollX + Math.max(0, Math.min(frame.left + left + 12, innerWidth - width - 8))}px`;
    tip.style.top = `${scrollY + frame.top - tip.offsetHeight - 4}px`;
  }
  chart.over.addEventListener("mouseleave", () => { tip.hidden = true; });
  chart.over.addEventListener("click", (event) => {
    const index = chart.cursor.idx;
    if (index == null) return;
    if (event.ctrlKey || event.metaKey) open(address(index));
    else location.assign(address(index));
  });
  sync.sub(chart);
  new ResizeObserver(() => chart.setSize({ width: svg.clientWidth, height: svg.clientHeight + 2 * EDGE })).observe(svg);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => chart.redraw(false));
}

/** Opens the overview of the time from the first bucket to the last. */
function zoom(first: URL, last: URL): void {
  const here = new URL(location.href);
  here.searchParams.set("since", first.searchParams.get("since")!);
  here.searchParams.set("until", last.searchParams.get("until")!);
  location.assign(here);
}

for (const note of document.querySelectorAll<HTMLElement>("[data-drag]")) note.hidden = false;
document.querySelectorAll<HTMLElement>("[data-plot]").forEach(draw);
