// The charts of a job's page. The server sends columns; here they are only drawn, in the colours of the style sheet.
"use strict";
(() => {
  const root = document.getElementById("charts"), select = document.getElementById("metric");
  const HEIGHT = 190, charts = new Map();
  let data = null, asking = false, again = false;

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const number = (value) => (value == null ? "–" : Number(value.toPrecision(4)).toLocaleString("en"));

  // A moment, as exact as moments `apart` seconds apart need; with its day where there are several in `span` seconds.
  function clock(at, apart, span) {
    const text = new Date(Math.round((at + data.east_s) * 1000)).toISOString();
    const end = apart >= 60 ? 16 : apart >= 1 ? 19 : apart >= 0.1 ? 21 : apart >= 0.01 ? 22 : 23;
    return span > 86400 ? text.slice(5, 16).replace("T", " ") : text.slice(11, end);
  }

  // A figure on an axis, as exact as figures `apart` need.
  function figure(value, apart) {
    if (value == null) return "";
    if (value !== 0 && (apart < 1e-5 || Math.abs(value) >= 1e9)) {
      return value.toExponential(Math.min(10, Math.max(0, Math.ceil(Math.log10(Math.abs(value) / apart)))));
    }
    const places = (String(Number(apart.toPrecision(6))).split(".")[1] || "").length;
    return value.toLocaleString("en", { maximumFractionDigits: places });
  }

  const axis = (more) => ({
    stroke: colour("--faint"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 },
    font: "11px system-ui, sans-serif", ...more,
  });
  const times = () => axis({
    space: 76, size: 32, values: (u, all, k, space, apart) => all.map((at) => clock(at, apart, u.scales.x.max - u.scales.x.min)),
  });
  const values = (size, more) => axis({ size: size || 54, values: (u, all, k, space, apart) => all.map((value) => figure(value, apart)), ...more });
  const WHOLE = [1, 2, 5].flatMap((first) => Array.from({ length: 12 }, (_, power) => first * 10 ** power)).sort((a, b) => a - b);

  // One chart: `kind` says what has to be the same for new data to fit into the old picture.
  function draw(id, kind, columns, describe) {
    const place = document.getElementById(id), known = charts.get(id);
    if (!columns[0] || columns[0].length === 0) { clear(id, data.over ? "Nothing" : "Nothing yet"); return; }
    if (known && known.kind === kind) { known.plot.setData(columns); return; }
    clear(id, "");
    const told = document.createElement("p");
    told.className = "readout small";
    const options = {
      width: place.clientWidth, height: HEIGHT, legend: { show: false }, cursor: { y: false, points: { size: 7 } },
      padding: [8, 26, 0, 0], hooks: { setCursor: [(plot) => read(plot, told)] }, ...describe(),
    };
    charts.set(id, { kind, plot: new uPlot(options, columns, place) });
    place.append(told);
  }

  function clear(id, text) {
    const known = charts.get(id), place = document.getElementById(id);
    if (known) known.plot.destroy();
    charts.delete(id);
    place.replaceChildren();
    if (text) { const line = document.createElement("p"); line.className = "empty"; line.textContent = text; place.append(line); }
  }

  function read(plot, told) {
    const index = plot.cursor.idx;
    if (index == null) { told.textContent = "\u00a0"; return; }
    const x = plot.data[0][index];
    const head = plot.scales.x.time === false ? `step ${figure(x, 1)}` : clock(x, 1, 0);
    const parts = plot.series.slice(1).map((one, k) => [one.label, plot.data[k + 1][index]]).filter((pair) => pair[1] != null);
    told.textContent = `${head}: ` + parts.map(([name, value]) => `${name} ${number(value)}`).join(", ");
  }

  // One point alone makes no line: it is shown as a point.
  const alone = { show: (u, k) => u.data[k].filter((value) => value != null).length === 1, size: 7 };
  const line = (label, name, more) => ({ label, stroke: colour(name), width: 2, points: alone, spanGaps: true, ...more });

  function render() {
    const { metrics, workers, burn, pauses } = data;
    choose(metrics.names);
    const chosen = Math.max(0, metrics.names.indexOf(select.value)), name = metrics.names[chosen];
    draw("chart-metrics", `metric ${name}`, name === undefined ? [[]] : [metrics.step, metrics.values[chosen]], () => ({
      scales: { x: { time: false } }, axes: [values(32, { incrs: WHOLE }), values()],
      series: [{}, line(name, "--ink-1")],
    }));
    draw("chart-burn", "burn", [burn.at, burn.left, burn.plan, burn.line], () => ({
      axes: [times(), values(58)], scales: { y: { range: (u, low, high) => [0, high] } },
      series: [{}, line("left", "--ink-1"), line("planned", "--ink-1", { dash: [3, 5] }), line("evenly", "--ink-2", { dash: [8, 4] })],
    }));
    draw("chart-workers", "workers", [workers.at, workers.count], () => ({
      axes: [times(), values(36, { incrs: WHOLE })],
      scales: { y: { range: (u, low, high) => [0, Math.max(1, high) * 1.05] } },
      series: [{}, line("workers", "--ink-3", { paths: uPlot.paths.stepped({ align: 1 }), fill: colour("--fill-3") })],
    }));
    const sum = pauses.s.reduce((all, one) => all + one, 0);
    document.getElementById("pauses-sum").textContent = pauses.s.length ? `${pauses.s.length}, ${number(sum)} s in all` : "";
    if (!pauses.at.length) clear("chart-pauses", "None");
    else draw("chart-pauses", "pauses", [pauses.at, pauses.s], () => ({
      axes: [times(), values(48)],
      scales: { x: { range: lifetime }, y: { range: (u, low, high) => [0, high * 1.1] } },
      series: [{}, line("seconds", "--ink-2", { paths: uPlot.paths.bars({ size: [0.6, 14, 3] }), points: { show: false }, fill: colour("--ink-2"), width: 0 })],
    }));
  }

  // From the first moment that something is drawn of to the last; not by uPlot, which gives one moment alone years.
  function lifetime() {
    const all = [...data.workers.at, ...data.pauses.at];
    return [Math.min(...all) - 1, Math.max(...all) + 1];
  }

  function choose(names) {
    const had = [...select.options].map((option) => option.value);
    if (had.length === names.length && had.every((one, k) => one === names[k])) return;
    const kept = select.value;
    select.replaceChildren(...names.map((name) => new Option(name, name, false, name === kept)));
    document.getElementById("metric-tools").hidden = names.length === 0;
  }

  async function ask() {
    if (asking) { again = true; return; }
    asking = true;
    try {
      const response = await fetch(root.dataset.url);
      if (response.ok) { data = await response.json(); render(); }
    } catch { /* the page says that it is not live */ }
    asking = false;
    if (again) { again = false; ask(); }
  }

  function anew() { for (const id of [...charts.keys()]) clear(id, ""); if (data) render(); }

  select.addEventListener("change", () => { if (data) render(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", anew);
  new ResizeObserver(() => {
    for (const [id, { plot }] of charts) plot.setSize({ width: document.getElementById(id).clientWidth, height: HEIGHT });
  }).observe(root);
  document.body.addEventListener("news", ask);
  document.body.addEventListener("tick", () => { if (!data || !data.over) ask(); });
  ask();
})();
