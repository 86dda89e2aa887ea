// A job's output as it grows. It is put into the page as text, so nothing in it can be markup; only the end is kept.
"use strict";
(() => {
  const pre = document.getElementById("logs"), state = document.getElementById("log-state");
  const follow = document.getElementById("log-follow"), worker = document.getElementById("log-worker");
  const KEPT = 400000, WAIT_S = 10, AGAIN_MS = 3000;
  let turn = 0, mark = "", size = 0, stop = null;

  const until = (target, name) => new Promise((done) => target.addEventListener(name, done, { once: true }));
  const pause = (ms) => new Promise((done) => setTimeout(done, ms));

  const toFoot = () => { if (follow.checked) pre.scrollTop = pre.scrollHeight; };

  function add(text) {
    if (!text) return;
    pre.append(document.createTextNode(text));
    size += text.length;
    while (size > KEPT && pre.childNodes.length > 1) { size -= pre.firstChild.data.length; pre.firstChild.remove(); }
    toFoot();
  }

  async function read(mine) {
    let wait = 0;
    while (mine === turn) {
      if (document.hidden) { await until(document, "visibilitychange"); continue; }
      stop = new AbortController();
      const query = new URLSearchParams({ from: mark, wait_s: wait });
      if (worker.value) query.set("worker", worker.value);
      let chunk;
      try {
        const response = await fetch(`${pre.dataset.url}?${query}`, { signal: stop.signal });
        chunk = await response.json();
        if (!response.ok) { state.textContent = chunk.error; await pause(AGAIN_MS); continue; }
      } catch {
        if (mine === turn && !document.hidden) { state.textContent = "The service does not answer; trying again."; await pause(AGAIN_MS); }
        continue;
      }
      if (mine !== turn) return;
      add(chunk.text);
      mark = chunk.next;
      wait = chunk.text ? 0 : WAIT_S;
      if (chunk.over) { state.textContent = size ? "That is all." : "It has written nothing."; return; }
      state.textContent = size ? "" : "Nothing is written yet.";
      // What grows fast is shown a few times a second, not at every line.
      if (chunk.text && chunk.text.length < 30000) await pause(250);
    }
  }

  function begin() {
    turn += 1; mark = ""; size = 0;
    if (stop) stop.abort();
    pre.replaceChildren();
    read(turn);
  }

  document.addEventListener("visibilitychange", () => { if (document.hidden && stop) stop.abort(); });
  addEventListener("pagehide", () => { turn += 1; if (stop) stop.abort(); });
  worker.addEventListener("change", begin);
  follow.addEventListener("change", toFoot);
  new ResizeObserver(toFoot).observe(pre);  // lines break elsewhere now
  pre.addEventListener("scroll", () => {
    const foot = pre.scrollHeight - pre.scrollTop - pre.clientHeight < 24;
    if (follow.checked !== foot) follow.checked = foot;
  });
  document.getElementById("log-tools").hidden = false;
  begin();
})();
