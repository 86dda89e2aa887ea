// Keeps a page alive: says `news` when the cluster's log grew, and `tick` every other second for what moves without
// events. Parts of the page listen (hx-trigger). A page that nobody sees holds no connection: browsers have few.
"use strict";
(() => {
  const NEWS_MS = 700, TICK_MS = 2000, AGAIN_MS = 3000;
  const body = document.body, shown = document.getElementById("stream");
  let source = null, ticking = 0, waiting = 0, last = 0, owed = false;

  const say = (name) => body.dispatchEvent(new CustomEvent(name, { bubbles: true }));
  const state = (name, text) => {
    if (shown) { shown.dataset.state = name; shown.textContent = text; }
  };

  // The first event is told at once, those soon after it together.
  function news() {
    if (waiting) return;
    const wait = Math.max(0, last + NEWS_MS - Date.now());
    waiting = setTimeout(() => { waiting = 0; last = Date.now(); say("news"); }, wait);
  }

  function open() {
    if (source || document.hidden) return;
    const query = new URLSearchParams();
    if (body.dataset.job) query.set("job", body.dataset.job);
    // From where the page was made; later on, what was missed is looked at in one go.
    const fresh = body.dataset.seq !== undefined;
    if (fresh) query.set("after", body.dataset.seq);
    delete body.dataset.seq;
    source = new EventSource("/api/v1/stream?" + query);
    source.onopen = () => { state("on", "live"); if (!fresh) news(); };
    source.onmessage = news;
    source.onerror = () => {
      state("lost", "reconnecting");
      if (source && source.readyState === EventSource.CLOSED) { close(); setTimeout(knock, AGAIN_MS); }
    };
    ticking = setInterval(tick, TICK_MS);
  }

  function tick() {
    if (!shown || shown.dataset.state !== "on") return;
    if (owed) news(); else say("tick");
    owed = false;
  }

  function close() {
    if (source) source.close();
    clearInterval(ticking);
    clearTimeout(waiting);
    source = null; ticking = 0; waiting = 0;
  }

  // The stream was refused: signed out, or the service is away.
  async function knock() {
    try {
      if ((await fetch("/healthz")).status === 401) { location.reload(); return; }
      open();
    } catch { setTimeout(knock, AGAIN_MS); }
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { close(); state("off", "paused"); } else open();
  });
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);

  // Errors come as sentences too, when they are asked for as HTML.
  body.addEventListener("htmx:configRequest", (event) => { event.detail.headers["Accept"] = "text/html"; });

  // What did not change is left alone, and so is what somebody types in, or marks to copy.
  const before = new WeakMap();
  body.addEventListener("htmx:beforeSwap", (event) => {
    const { target, requestConfig, serverResponse, xhr } = event.detail;
    if (!requestConfig || requestConfig.verb !== "get" || xhr.status !== 200) return;
    const marked = getSelection(), active = document.activeElement;
    const typing = active && target.contains(active) && active.matches("input, select, textarea");
    const copying = marked && !marked.isCollapsed && target.contains(marked.anchorNode);
    const asking = target.querySelector("details[open]");
    if (before.get(target) === serverResponse) event.detail.shouldSwap = false;
    else if (typing || copying || asking) { event.detail.shouldSwap = false; owed = true; }
    else before.set(target, serverResponse);
  });

  // A question that was answered is closed, so that what it stands in may change again.
  body.addEventListener("htmx:beforeRequest", (event) => {
    const { elt, requestConfig } = event.detail, asked = elt.closest("details");
    if (asked && requestConfig.verb === "post") asked.open = false;
  });

  open();
})();
