// Charts: thin lines, one soft area, horizontal hairlines, one crosshair for all charts of a page.
import uplot from "../vendor/uplot.js";
import { api, now } from "./live.js";
import { clock, UNKNOWN } from "./format.js";
import { extended, followed, gapIn, windowed } from "./reduce.js";
import { html, theme, use, useEffect, useRef, useState } from "./parts.js";

/** @typedef {(number|null)[]} Values */
/** @typedef {{name: string, color: string, values: Values, low?: Values, high?: Values, area?: boolean, step?: boolean}} Series `low` and `high` are the band of each point */
/** @typedef {{t: number[], series: Series[], span: number, step?: number, height?: number, unit?: (value: any) => string, max?: number, splits?: number[], bands?: [number, number, string][]}} ChartProps */

/** The ranges of what the server keeps: by the second, then by the minute. */
export const RANGES = /** @type {[string, string][]} */ ([["2m", "2 min"], ["15m", "15 min"], ["2h", "2 h"], ["24h", "24 h"]]);
/** The ranges of what is kept by the second only. */
export const SHORT_RANGES = /** @type {[string, string][]} */ ([["2m", "2 min"], ["5m", "5 min"], ["15m", "15 min"]]);

/** @param {string} range as in the address: 2m, 24h @returns {number} ms */
export const spanOf = (range) => Number.parseInt(range, 10) * (range.endsWith("h") ? 3600e3 : 60e3);

/** The library has no types of its own here. @type {any} */
const UPlot = uplot;

/** @type {Map<string, [number, number, number]>} colours as the canvas needs them, of the theme in force */
let colors = new Map();
let colorsOf = "";

/** A token as `rgb()`, with an alpha if asked for. @param {string} name @param {number} [alpha] */
function ink(name, alpha = 1) {
  if (colorsOf !== theme.peek()) [colors, colorsOf] = [new Map(), theme.peek()];
  if (!colors.has(name)) {
    const probe = document.createElement("i");
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    colors.set(name, /** @type {any} */ (getComputedStyle(probe).color.match(/[\d.]+/g)?.slice(0, 3).map(Number) ?? [0, 0, 0]));
    probe.remove();
  }
  return `rgb(${colors.get(name)?.join(" ")} / ${alpha})`;
}

/** @param {Series} series */
const fill = (series) => (/** @type {any} */ plot) => {
  if (!Number.isFinite(plot.bbox.height)) return ink(series.color, 0.1);
  const shade = plot.ctx.createLinearGradient(0, plot.bbox.top, 0, plot.bbox.top + plot.bbox.height);
  shade.addColorStop(0, ink(series.color, 0.25));
  shade.addColorStop(1, ink(series.color, 0.02));
  return shade;
};

/** Tinted bands for thresholds. @param {[number, number, string][]} bands */
const tint = (bands) => (/** @type {any} */ plot) => {
  for (const [from, to, color] of bands) {
    const top = plot.valToPos(to, "y", true), bottom = plot.valToPos(from, "y", true);
    plot.ctx.fillStyle = ink(color, 0.08);
    plot.ctx.fillRect(plot.bbox.left, top, plot.bbox.width, bottom - top);
  }
};

/** @param {ChartProps} props @param {number} width @param {(at: number|null, left: number) => void} point */
function options({ series, span, height = 132, unit = String, max, splits, bands = [] }, width, point) {
  const font = `11px ${getComputedStyle(document.body).fontFamily}`;
  return {
    width, height, padding: [8, 26, 0, 0], legend: { show: false },
    cursor: { sync: { key: "page" }, points: { size: 6 }, drag: { x: false, y: false }, y: false },
    scales: { x: { time: true, range: (/** @type {any} */ _, /** @type {number} */ _low, /** @type {number} */ high) => [high - span / 1000, high] }, y: { range: (/** @type {any} */ _, /** @type {number} */ _low, /** @type {number} */ high) => [0, max ?? (high > 0 ? high * 1.12 : 1)] } },
    axes: [
      { stroke: ink("--ink-3"), font, grid: { show: false }, ticks: { show: false }, size: 22, gap: 4, space: 70, values: (/** @type {any} */ _, /** @type {number[]} */ at) => at.map((x) => clock(x * 1000).slice(0, x % 60 ? 8 : 5)) },
      { stroke: ink("--ink-3"), font, grid: { stroke: ink("--line"), width: 1 }, ticks: { show: false }, size: 54, gap: 6, space: 26, splits: splits && (() => splits), values: (/** @type {any} */ _, /** @type {number[]} */ at) => at.map(unit) },
    ],
    series: [{}, ...series.map((one) => ({
      stroke: ink(one.color), width: 1.6, points: { show: false }, fill: one.area ? fill(one) : undefined,
      paths: one.step ? UPlot.paths.stepped({ align: 1 }) : undefined,
    })), ...series.flatMap((one) => (one.low ? [{ points: { show: false } }, { points: { show: false } }] : []))],
    bands: series.filter((one) => one.low).map((one, k) => ({ series: [series.length + 2 * k + 2, series.length + 2 * k + 1], fill: ink(one.color, 0.14) })),
    hooks: { drawClear: [tint(bands)], setCursor: [(/** @type {any} */ plot) => point(plot.cursor.left < 0 ? null : (plot.cursor.idx ?? null), plot.cursor.left)] },
  };
}

/** One chart. Its numbers are also in the page's twin; its name is their present values. @param {ChartProps} props */
export function Chart(props) {
  const { t, series, span, step = 1000, height = 132, unit = String } = props;
  const box = useRef(null), plot = useRef(/** @type {any} */ (null)), tip = useRef(null), dark = use(theme);
  const data = windowed(t, [...series.map((one) => one.values), ...series.flatMap(({ low, high }) => (low && high ? [low, high] : []))], (t.at(-1) ?? now()) - span, step);
  useEffect(() => {
    const place = /** @type {HTMLElement} */ (/** @type {unknown} */ (box.current));
    plot.current = new UPlot(options(props, place.clientWidth, (at, left) => point(plot.current, tip.current, series, unit, at, left)), data, place);
    const watcher = new ResizeObserver(() => plot.current.setSize({ width: place.clientWidth, height }));
    watcher.observe(place);
    return () => {
      watcher.disconnect();
      plot.current.destroy();
    };
  }, [dark, height, span, series.map((one) => one.name + Boolean(one.low)).join()]);
  useEffect(() => plot.current?.setData(data), [t.length, t.at(-1), span]);
  const label = series.map((one) => `${one.name}: ${one.values.length ? unit(one.values.at(-1)) : UNKNOWN}`).join(", ");
  return html`<div class="chart" ref=${box} role="img" aria-label=${label || "nothing to show yet"}><div class="tip" hidden ref=${tip}></div></div>`;
}

/** Move the tip that names the values below the crosshair. @param {any} plot @param {any} tip @param {Series[]} series @param {(value: any) => string} unit @param {number|null} at @param {number} left */
function point(plot, tip, series, unit, at, left) {
  if (!tip) return;
  tip.hidden = at === null;
  if (at === null || !plot) return;
  const lines = [["", clock(plot.data[0][at] * 1000)], ...series.map((one, k) => [one.color, `${one.name} ${plot.data[k + 1][at] == null ? UNKNOWN : unit(plot.data[k + 1][at])}`])];
  tip.replaceChildren(...lines.map(([color, text]) => {
    const line = document.createElement(color ? "b" : "span");
    line.textContent = text;
    if (color) line.style.color = `var(${color})`;
    return line;
  }));
  tip.style.left = `${Math.max(0, Math.min(left + 66, plot.width - tip.offsetWidth - 4))}px`;
}

/** A column of a history as values of a series; by the minute with its band. @param {any} history @param {string} name @returns {{values: Values, low?: Values, high?: Values}} */
export const column = (history, name) => ({ values: history[name] ?? [], low: history[`${name}_min`], high: history[`${name}_max`] });

const KEPT_POINTS = 1500; // 24 h by the minute
/**
 * Columns for a range: those of the page while they reach back far enough, else asked of the server
 * once, and gone on with what the frames bring. Where points are missing the server is asked again:
 * it may have them, if only this page was away.
 * @param {any} section with `t` and columns @param {string} path of the route that tells more @param {string} range
 * @returns {{t: number[], step: number, [name: string]: any}}
 */
export function useHistory(section, path, range) {
  const [older, setOlder] = useState(/** @type {any} */ (null));
  const span = spanOf(range), step = span > 15 * 60e3 ? "1m" : "1s", step_ms = step === "1m" ? 60e3 : 1000, reaches = span <= 2 * 60e3;
  const here = { ...section, t: section?.t ?? [], step: 1000 };
  const whole = older?.of !== range ? here : { ...followed(older, here), step: step_ms }, gap = reaches || older?.of !== range ? 0 : gapIn(whole.t, step_ms);
  useEffect(() => {
    if (reaches) return undefined;
    let gone = false;
    const ask = async () => {
      const answer = await api("GET", `${path}${path.includes("?") ? "&" : "?"}step=${step}&since=${Math.round(now() - span)}`);
      if (!gone && answer.ok) setOlder((/** @type {any} */ old) => ({ ...(old?.of === range ? extended(old, answer.data, KEPT_POINTS) : answer.data), of: range }));
    };
    ask();
    const timer = step === "1m" ? setInterval(ask, 60e3) : 0;
    return () => {
      gone = true;
      clearInterval(timer);
    };
  }, [range, gap]);
  return whole;
}
