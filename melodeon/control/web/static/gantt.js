// Zoom and move the chart of devices. The server draws every window; until its picture comes, the old one is stretched.
"use strict";
(() => {
  const chart = document.getElementById("gantt"), tools = document.getElementById("gantt-tools");
  const tip = document.getElementById("tip"), follow = tools.querySelector("[data-do=now]");
  const SHORTEST_S = 5, AHEAD = 0.02, MOST_AHEAD = 0.3, WAIT_MS = 150, APART_MS = 600;
  let wanted = null, following = true, asked = 0, shown = 0, timer = 0, drag = null, moved = false;

  const svg = () => chart.querySelector("svg");
  const figure = (name) => Number(svg().dataset[name]);
  const drawn = () => ({ since: figure("since"), until: figure("until") });
  let at = performance.now();
  const now = () => figure("now") + (performance.now() - at) / 1000;
  const view = () => wanted || drawn();
  // How much of a window lies right of now: room for what is planned, where something is.
  const ahead = (span) => span * Math.min(MOST_AHEAD, Math.max(AHEAD, (figure("last") - now()) / span));
  const around = (span) => ({ since: now() - span + ahead(span), until: now() + ahead(span) });

  async function ask() {
    const mine = ++asked, query = new URLSearchParams({ width: Math.max(240, Math.min(4000, chart.clientWidth)) });
    if (wanted && following) wanted = around(wanted.until - wanted.since);
    if (wanted) { query.set("since", wanted.since.toFixed(3)); query.set("until", wanted.until.toFixed(3)); }
    let response;
    try { response = await fetch("/fragments/gantt?" + query); } catch { return; }
    if (!response.ok || mine < shown || drag) return;
    const text = await response.text();
    if (mine < shown || drag) return;
    shown = mine;
    chart.innerHTML = text;
    at = performance.now();
    if (mine === asked) stretch();
  }

  function soon() { clearTimeout(timer); timer = setTimeout(ask, WAIT_MS); }

  function show(since, until) {
    const first = figure("first"), end = now(), longest = Math.max(60, (Math.max(end, figure("last")) - first) * 1.5);
    const middle = (since + until) / 2, span = Math.min(longest, Math.max(SHORTEST_S, until - since));
    since = Math.max(first - span * 0.5, Math.min(middle - span / 2, end - span * 0.1));
    wanted = { since, until: since + span };
    stretch();
    soon();
  }

  // The old picture where the new one will be: x' = a x + b.
  function stretch() {
    const group = chart.querySelector(".moving"), { since, until } = view(), old = drawn();
    if (!group) return;
    const left = figure("left"), wide = figure("right") - left;
    const a = (old.until - old.since) / (until - since);
    const b = left - a * left + ((old.since - since) / (until - since)) * wide;
    if (Math.abs(a - 1) < 1e-6 && Math.abs(b) < 1e-3) group.removeAttribute("transform");
    else group.setAttribute("transform", `matrix(${a} 0 0 1 ${b} 0)`);
  }

  function release() { following = false; follow.setAttribute("aria-pressed", "false"); }

  function zoom(factor, share) {
    const { since, until } = view(), span = (until - since) * factor;
    if (following) { const { since: from, until: to } = around(span); show(from, to); return; }
    const centre = since + (until - since) * share;
    show(centre - span * share, centre + span * (1 - share));
  }

  function move(share) {
    const { since, until } = view(), by = (until - since) * share;
    release();
    show(since + by, until + by);
  }

  const acts = {
    in: () => zoom(0.5, 0.5), out: () => zoom(2, 0.5), back: () => move(-0.25), on: () => move(0.25),
    now: () => {
      following = !following;
      follow.setAttribute("aria-pressed", String(following));
      if (following) ask();
    },
  };
  tools.addEventListener("click", (event) => { const act = acts[event.target.dataset.do]; if (act) act(); });
  const keys = { "+": "in", "=": "in", "-": "out", ArrowLeft: "back", ArrowRight: "on" };
  chart.addEventListener("keydown", (event) => {
    const act = !event.ctrlKey && !event.metaKey && keys[event.key];
    if (act) { event.preventDefault(); acts[act](); }
  });

  const share = (event) => {
    const box = svg().getBoundingClientRect(), scale = svg().viewBox.baseVal.width / box.width;
    const left = figure("left"), x = (event.clientX - box.left) * scale;
    return Math.min(1, Math.max(0, (x - left) / (figure("right") - left)));
  };
  // The wheel belongs to the page, unless somebody has clicked on the chart or holds a key.
  chart.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.shiftKey && document.activeElement !== chart) return;
    event.preventDefault();
    const by = event.deltaY || event.deltaX;
    zoom(Math.exp(Math.max(-1, Math.min(1, by / 300))), share(event));
  }, { passive: false });

  chart.addEventListener("pointerdown", (event) => {
    if (event.button === 0 && svg()) { drag = { x: event.clientX, ...view() }; moved = false; }
  });
  addEventListener("pointermove", (event) => {
    if (!drag) return;
    const box = svg().getBoundingClientRect(), scale = svg().viewBox.baseVal.width / box.width;
    const by = ((event.clientX - drag.x) * scale * (drag.until - drag.since)) / (figure("right") - figure("left"));
    if (!moved && Math.abs(event.clientX - drag.x) < 5) return;
    if (!moved) { moved = true; release(); hide(); chart.classList.add("dragged"); }
    wanted = { since: drag.since - by, until: drag.until - by };
    stretch();
  });
  const drop = () => {
    if (drag) chart.focus({ preventScroll: true });
    if (drag && moved) { drag = null; show(wanted.since, wanted.until); }
    drag = null;
    chart.classList.remove("dragged");
  };
  addEventListener("pointerup", drop);
  addEventListener("pointercancel", drop);
  chart.addEventListener("click", (event) => { if (moved) { event.preventDefault(); moved = false; } }, true);
  chart.addEventListener("dragstart", (event) => event.preventDefault());

  // What a box is, beside the mouse. Its text is the picture's own, for browsers without scripts.
  const hide = () => { tip.hidden = true; };
  chart.addEventListener("pointermove", (event) => {
    const box = event.target.closest ? event.target.closest("a.box") : null;
    if (!box || drag) { hide(); return; }
    const title = box.querySelector("title");
    if (title) { box.dataset.tip = title.textContent; title.remove(); }
    tip.textContent = box.dataset.tip;
    tip.hidden = false;
    const x = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
    const y = Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8);
    tip.style.left = `${Math.max(8, x)}px`;
    tip.style.top = `${Math.max(8, y)}px`;
  });
  chart.addEventListener("pointerleave", hide);

  let looked = 0;
  function look() {
    if (drag || performance.now() - looked < APART_MS) return;
    looked = performance.now();
    ask();
  }
  for (const name of ["news", "tick"]) document.body.addEventListener(name, look);

  new ResizeObserver(soon).observe(chart);
  chart.tabIndex = 0;
  chart.setAttribute("role", "group");
  chart.setAttribute("aria-label", "Chart of devices: arrow keys move it, plus and minus zoom");
  tools.hidden = false;
})();
