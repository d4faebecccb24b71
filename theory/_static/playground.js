// Draws what closed_forms.js computes for the setting of the controls. The setting stands in the address.
"use strict";
(() => {
  const form = document.getElementById("playground-form");
  const control = (name) => form.elements.namedItem(name);
  const NAMES = ["p", "G", "spread", "correlation", "signal", "agreement"];
  const SIZES = Array.from({length: 127}, (_, index) => index + 2);
  const RATES = Array.from({length: 101}, (_, index) => index / 100);

  const setting = () => Object.fromEntries(NAMES.map((name) => [name, Number(control(name).value)]));
  const text = (value) => (Number.isFinite(value) ? String(Number(value.toPrecision(4))) : "∞");

  // ------------------------------------------------------------------ lines, on axes of their own
  const BOX = {left: 44, right: 312, top: 8, bottom: 190};
  const scale = (low, high, from, to, log) => {
    const at = log ? Math.log : (x) => x;
    return (x) => from + (to - from) * (at(x) - at(low)) / (at(high) - at(low));
  };
  const element = (name, attributes, content = "") => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.textContent = content;
    return made;
  };
  // Whole powers of ten, and 2 and 5 times them where there are few.
  const ticks = (low, high, log) => {
    if (!log) {
      const step = [0.25, 0.5, 1, 2, 5, 10, 20].find((size) => (high - low) / size <= 5) || 50;
      const count = Math.floor(high / step + 1e-9) + 1;
      return Array.from({length: count}, (_, index) => index * step).filter((x) => x >= low);
    }
    const decades = [];
    for (let e = Math.floor(Math.log10(low)); e <= Math.log10(high); e += 1) {
      decades.push(...[1, 2, 5].map((digit) => digit * 10 ** e));
    }
    const inside = decades.filter((x) => x >= low && x <= high);
    return inside.length > 5 ? inside.filter((x) => /^1/.test(x.toExponential())) : inside;
  };

  const draw = (name, {x, y, lines, mark, named, xTicks, band}) => {
    const svg = form.querySelector(`[data-plot=${name}]`);
    const across = scale(x.low, x.high, BOX.left, BOX.right, x.log);
    const up = scale(y.low, y.high, BOX.bottom, BOX.top, y.log);
    const held = (value) => up(Math.min(Math.max(value, y.low), y.high));
    const parts = [];
    if (band) {
      const [left, right] = band.map(across);
      parts.push(element("rect", {class: "band", x: left, y: BOX.top, width: Math.max(right - left, 2),
        height: BOX.bottom - BOX.top}));
    }
    for (const value of xTicks) {
      parts.push(element("text", {x: across(value), y: BOX.bottom + 14, "text-anchor": "middle"}, value));
      parts.push(element("path", {class: "axis", d: `M${across(value)} ${BOX.bottom}v4`}));
    }
    for (const value of ticks(y.low, y.high, y.log)) {
      parts.push(element("text", {x: BOX.left - 6, y: up(value) + 4, "text-anchor": "end"}, text(value)));
      parts.push(element("path", {class: "axis", d: `M${BOX.left} ${up(value)}h-4`}));
    }
    parts.push(element("path",
      {class: "axis", d: `M${BOX.left} ${BOX.top}V${BOX.bottom}H${BOX.right}`}));
    parts.push(element("text", {x: (BOX.left + BOX.right) / 2, y: 216, "text-anchor": "middle"}, named));
    for (const [kind, values] of lines) {
      const path = values.map(([at, value]) => `${across(at).toFixed(1)} ${held(value).toFixed(1)}`);
      parts.push(element("path", {class: `line-${kind}`, d: `M${path.join("L")}`}));
    }
    if (mark) {
      parts.push(element("circle", {class: "mark", cx: across(mark[0]), cy: held(mark[1]), r: 5}));
    }
    svg.replaceChildren(...parts);
  };
  // What holds all values, with a little room; a level line gets a decade.
  const extent = (values) => {
    const real = values.filter((value) => Number.isFinite(value) && value > 0);
    if (real.length === 0) return {low: 0.1, high: 1, log: true};
    const [low, high] = [Math.min(...real), Math.max(...real)];
    return {low: Math.min(low / 1.2, high / 10), high: high * 1.2, log: true};
  };

  // ------------------------------------------------------------------ the numbers, and their Python
  const python = (name, size, moments) => `from ustat_pg.moments.record import Moments
from ustat_pg.predictions import gradient_mse

moments = Moments(
    context_probs=[1.0],
    value=[${moments.value}],
    reward_variance=[${moments.rewardVariance}],
    fisher_trace=[1.0],
    norm_advantage=[${moments.normAdvantage}],
    norm_squared_advantage=[${moments.normSquaredAdvantage}],
    gradient_sq=[${moments.gradientSq}],
    mean_gradient_sq=${moments.meanGradientSq},
    reward_range=(0.0, 1.0),
)
found = gradient_mse(moments, "${name}", group_size=${size})
print(found.mse, *found.mean_factor)`;

  const show = () => {
    const [name, now] = [control("estimator").value, setting()];
    const moments = closedForms.momentsOf(now);
    const found = closedForms.evaluate(name, now.G, now);
    const rloo = closedForms.evaluate("grpo", now.G, now);
    const oracle = closedForms.evaluate("oracle", now.G, now);
    const own = closedForms.bestGroup(name, SIZES, now);
    const last = SIZES[SIZES.length - 1];
    const orMore = (size) => (size === last ? `${size} or more` : String(size));
    const ratio = (other) => (other.noise > 0 ? found.noise / other.noise : Infinity);
    const values = {
      weight: found.weight,
      mse: found.mse,
      "over-oracle": ratio(oracle),
      "over-rloo": ratio(rloo),
      silent: found.silent,
      best: own.best,
      real: closedForms.bestReal(now),
    };
    const shown = Object.fromEntries(Object.entries(values).map(([key, v]) => [key, text(v)]));
    shown.silent = `${(100 * found.silent).toPrecision(3)}%`;
    shown.best = orMore(own.best);
    shown.near = own.near[0] === own.near[1] ? "no other" : `${own.near[0]} to ${orMore(own.near[1])}`;
    for (const cell of form.querySelectorAll("[data-result]")) {
      cell.textContent = shown[cell.dataset.result];
      // All digits: what tests, and a curious reader, compare.
      cell.title = String(values[cell.dataset.result] ?? "");
    }
    for (const each of NAMES) {
      form.querySelector(`output[for=play-${each}]`).textContent = control(each).value;
    }
    form.querySelector(".playground-limit").textContent = moments.limited
      ? "Norms cannot be negative: at this pass rate and spread the correlation goes no further."
      : "";
    form.querySelector("code").textContent = python(name, now.G, moments);

    const groups = SIZES.filter((size) => size <= 64);
    const curve = (kind, key) => groups.map((size) => [size, closedForms.evaluate(kind, size, now)[key]]);
    const lines = (key) => [["oracle", curve("oracle", key)], ["rloo", curve("grpo", key)],
      ["own", curve(name, key)]];
    const grid = {x: {low: 2, high: 64, log: true}, xTicks: [2, 4, 8, 16, 32, 64], named: "group size G"};
    const errors = lines("mse");
    draw("mse", {...grid, lines: errors, mark: [now.G, found.mse],
      y: extent(errors.flatMap(([, points]) => points.map((point) => point[1])))});
    const weights = RATES.map((rate) => [rate, closedForms.weight(name, now.G, rate)]);
    const most = Math.max(1.25, ...weights.map((point) => point[1]));
    draw("w", {x: {low: 0, high: 1}, xTicks: [0, 0.25, 0.5, 0.75, 1], named: "pass rate p",
      y: {low: 0, high: most * 1.05}, mark: [now.p, found.weight],
      lines: [["rloo", [[0, 1], [1, 1]]], ["own", weights]]});
    const noises = lines("noise");
    draw("noise", {...grid, lines: noises, mark: [now.G, found.noise],
      band: own.near[0] > 64 ? null : [own.near[0], Math.min(own.near[1], 64)],
      y: extent(noises.flatMap(([, points]) => points.map((point) => point[1])))});
  };

  // ------------------------------------------------------------------ the address, and what is moved
  const write = () => {
    const words = new URLSearchParams({...setting(), estimator: control("estimator").value});
    history.replaceState(null, "", `#${words}`);
  };
  const read = () => {
    for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
      const field = [...NAMES, "estimator"].includes(name) ? control(name) : null;
      if (field && (name === "estimator" ? closedForms.names.includes(value) : value !== "" &&
        Number.isFinite(Number(value)))) field.value = value;
    }
  };
  const moved = () => { show(); write(); };
  form.addEventListener("input", moved);
  form.addEventListener("submit", (event) => event.preventDefault());
  for (const button of form.querySelectorAll("[data-set]")) {
    button.addEventListener("click", () => {
      for (const [name, value] of Object.entries(JSON.parse(button.dataset.set))) {
        control(name).value = value;
      }
      moved();
    });
  }
  window.addEventListener("hashchange", () => { read(); show(); });
  read();
  form.hidden = false;
  show();
})();
