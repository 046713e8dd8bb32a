/* page.js: what the daemon says once a second, on the page. Nothing is asked for while the page is hidden. */
const KEEP = 180, STAGES = ["queue", "copy", "compute", "publish"];
const past = []; /* a row a second: what the charts need */
let last = null, stage = "compute", source = null, chosen = "", search = "", paused = false, pictureAt = 0;
const heat = new Heat("heat", innerWidth < 620 ? 160 : 320);
const streams = new Streams(name => { location.hash = name; });

/* The value that the part q of what fell into the buckets does not exceed; null when nothing did. */
function quantile(le, counts, q) {
  const all = counts.reduce((a, b) => a + b, 0);
  let seen = 0;
  if (!all) return null;
  for (let i = 0; i < le.length; i++) {
    if (counts[i] && seen + counts[i] >= q * all) return (le[i - 1] || 0) + (le[i] - (le[i - 1] || 0)) * (q * all - seen) / counts[i];
    seen += counts[i];
  }
  return Infinity;
}
const minus = (a, b) => a.map((n, i) => n - b[i]);
function spread(now, then) {
  const counts = minus(now.counts, then.counts), p50 = quantile(now.le, counts, 0.5);
  return p50 === null ? null : { p50, p90: quantile(now.le, counts, 0.9), p99: quantile(now.le, counts, 0.99) };
}

function pill(text, kind) { const p = $("pill"); if (p.textContent !== text) p.textContent = text; p.className = kind; }
function put(id, text) { const e = $(id); if (e.textContent !== text) e.textContent = text; }

function bar(name, part, text, full) {
  const row = document.createElement("div"), track = document.createElement("div"), fill = document.createElement("i");
  row.className = "bar";
  fill.style.width = (100 * Math.min(1, part || 0)).toFixed(1) + "%";
  if (full) fill.className = "full";
  track.append(fill);
  const [a, b] = [document.createElement("span"), document.createElement("span")];
  a.textContent = name; b.textContent = text;
  return [row, a, track, b];
}
function bars(id, rows, textFirst) {
  $(id).replaceChildren(...rows.map(r => { const [row, a, track, b] = bar(...r); row.append(...(textFirst ? [a, b, track] : [a, track, b])); return row; }));
}

function tiles(s, then, passed) {
  const rate = (a, b) => (a - b) / passed, now = s.ledger, was = then.ledger;
  const p = past[past.length - 1], lost = ["failed", "refused", "expired", "orphaned"].map(k => [k, rate(now[k], was[k])]).filter(x => x[1] > 0);
  put("rate", count(rate(now.ok, was.ok)));
  const sum = STAGES.map(k => p.stages[k] && { k, ...p.stages[k] }).filter(Boolean), slow = sum.reduce((a, b) => a && a.p99 >= b.p99 ? a : b, null);
  put("latency-now", sum.length ? seconds(sum.reduce((a, b) => a + b.p50, 0)) : "–");
  put("latency-parts", sum.length ? "99 %: " + seconds(slow.p99) + " in " + slow.k : "no result in this second");
  put("in-flight", count(now.in_flight));
  put("lost", count(lost.reduce((a, b) => a + b[1], 0)));
  $("lost").className = "value" + (lost.length ? " bad" : "");
  put("lost-why", lost.length ? lost.map(x => x[0] + " " + count(x[1])).join(", ") : "since start: " + count(now.failed + now.refused + now.expired + now.orphaned));
  const batches = now.batches - was.batches;
  put("batch-mean", batches ? ((now.batch_frames - was.batch_frames) / batches).toFixed(1) : "–");
  put("batch-rate", count(batches / passed) + " batches a second");
  put("clients", s.sessions + " · " + s.streams_open);
  put("subscribers", s.subscribers + " subscribers, " + s.viewers + (s.viewers === 1 ? " viewer" : " viewers"));
  line("rate-line", past.map(x => x.rate), span());
  line("flight-line", past.map(x => x.flight), span());
}

function batchCard(s) {
  const then = past[Math.max(0, past.length - 60)].s, counts = minus(s.batch_size.counts, then.batch_size.counts), all = counts.reduce((a, b) => a + b, 0);
  const le = s.batch_size.le, end = Math.max(...counts.map((n, i) => n ? i : 0), 3);
  bars("batches", le.slice(0, end + 1).map((n, i) => [i < 2 ? String(n) : le[i - 1] + 1 + "–" + n, all ? counts[i] / Math.max(...counts) : 0, all ? Math.round(100 * counts[i] / all) + " %" : ""]));
  const causes = ["full", "deadline", "idle", "flush"].map(c => [c, s.ledger["batch_" + c] - then.ledger["batch_" + c]]);
  bars("causes", causes.map(([c, n]) => [c, all ? n / all : 0, all ? Math.round(100 * n / all) + " %" : ""]));
}

function useCard(s) {
  const rows = [["slots", "slots", String], ["clients' windows", "window", String], ["inputs waiting", "queue_bytes", bytes], ["results not taken", "result_bytes", bytes]];
  bars("use", rows.map(([text, k, f]) => { const [used, limit] = s.use[k]; return [text, limit ? used / limit : 0, f(used) + " of " + f(limit), used > 0.9 * limit]; }), true);
}

function models(s, then, passed) {
  $("models").replaceChildren(...s.models.map(m => {
    const was = then.models.find(x => x.name === m.name) || m, tr = document.createElement("tr"), n = m.ok - was.ok;
    const cells = [m.name, m.in_channels + " → " + m.out_channels, m.kernel_size + (m.stride > 1 ? " / " + m.stride : ""), count(n / passed), count(m.ok), count(m.failed + m.refused + m.expired + m.orphaned), m.in_flight,
      n ? seconds((m.queue_s - was.queue_s) / n) : "–", n ? seconds((m.compute_s - was.compute_s) / n) : "–", m.generation, m.digest.slice(0, 12)];
    cells.forEach((text, i) => { const c = document.createElement(i ? "td" : "th"); if (!i) c.scope = "row"; c.textContent = text; tr.append(c); });
    return tr;
  }));
}

function ledger(s) {
  const l = s.ledger, flat = Object.entries(l).filter(([, v]) => typeof v === "number");
  for (const group of ["refused_by", "malformed", "cuts"]) flat.push(...Object.entries(l[group]).filter(x => x[1]).map(([k, v]) => [group.replace("_by", "") + ": " + k, v]));
  const sum = l.ok + l.failed + l.refused + l.expired + l.orphaned + l.in_flight;
  put("identity", `received ${l.received} = ok ${l.ok} + failed ${l.failed} + refused ${l.refused} + expired ${l.expired} + orphaned ${l.orphaned} + in flight ${l.in_flight}` + (sum === l.received ? "" : "  — does not add up"));
  if (!$("ledger").open) return;
  $("counters").replaceChildren(...flat.map(([k, v]) => { const d = document.createElement("div"); for (const t of [k.replaceAll("_", " "), v]) d.append(Object.assign(document.createElement("span"), { textContent: t })); return d; }));
}

/* How many seconds the charts show: whole minutes, as many as there are. */
function span() { return Math.min(KEEP, 60 * Math.ceil(past.length / 60) || 60); }

function latency() {
  const now = past[past.length - 1]?.stages[stage];
  put("latency-span", "last " + (span() > 60 ? span() / 60 + " minutes" : "minute"));
  bands("latency", past.map(x => x.stages[stage]), span());
  $("latency").setAttribute("aria-label", stage + (now ? ": half below " + seconds(now.p50) + ", 90 % below " + seconds(now.p90) + ", 99 % below " + seconds(now.p99) : ": no frame in this second"));
  for (const b of $("stages").children) b.setAttribute("aria-pressed", b.dataset.stage === stage);
}

function onStatus(s) {
  const then = last && s.uptime_s > last.uptime_s ? last : null, passed = then ? s.unix_s - then.unix_s : 0;
  if (!then) past.length = 0;
  last = s;
  s.ready ? pill("ready", "good") : pill(s.reason, "warn");
  put("what", [s.version, s.backend + (s.variant ? " " + s.variant : ""), s.precision, "up " + seconds(s.uptime_s)].join(" · "));
  const stages = Object.fromEntries(STAGES.map(k => [k, then ? spread(s.latency[k], then.latency[k]) : null]));
  past.push({ s: { batch_size: s.batch_size, ledger: s.ledger }, rate: then ? (s.ledger.ok - then.ledger.ok) / passed : null, flight: s.ledger.in_flight, stages });
  if (past.length > KEEP) past.shift();
  streams.set(s.streams, passed);
  put("streams-count", s.streams_shown < s.streams_open && !search ? s.streams_shown + " of " + s.streams_open + ": search for others" : s.streams_open + " open");
  if (then) { tiles(s, then, passed); models(s, then, passed); }
  batchCard(s); useCard(s); ledger(s); latency();
  put("foot", "process: " + seconds(s.process.cpu_s) + " of CPU time, " + bytes(s.process.rss_bytes) + " in memory, " + s.process.fds + " descriptors, " + s.process.threads + " threads" + (s.reload.last ? " · last reload: " + s.reload.last + (s.reload.why ? ", " + s.reload.why : "") : ""));
  if (!chosen && !location.hash && s.streams.length) { const busy = streams.all.reduce((a, b) => b.age < a.age ? b : a); choose(busy.name); }
  else if (chosen && pictureAt && performance.now() - pictureAt > 2000) put("heat-facts", "no result for " + seconds((performance.now() - pictureAt) / 1000));
}

function onPicture(p) {
  if (paused) return;
  pictureAt = performance.now();
  heat.add(p);
  heat.draw();
  put("scale-low", "−" + heat.scale.toPrecision(3)); put("scale-high", "+" + heat.scale.toPrecision(3));
  put("heat-facts", `${p.channels} channels × ${p.steps} steps · seq ${p.seq} · compute ${seconds(p.compute_us / 1e6)}` + (p.passed ? ` · 1 of ${p.passed + 1} shown` : ""));
  $("heat").dataset.pictures = 1 + +($("heat").dataset.pictures || 0);
}

function listen() {
  source?.close();
  source = null;
  if (document.hidden) return;
  source = new EventSource("/events?" + new URLSearchParams({ stream: chosen, q: search }));
  source.addEventListener("status", e => onStatus(JSON.parse(e.data)));
  source.addEventListener("picture", e => onPicture(JSON.parse(e.data)));
  source.onerror = () => pill("no connection, trying again", "bad");
}
function choose(name) {
  chosen = streams.chosen = name;
  pictureAt = 0;
  heat.reset();
  put("heat-name", name || "choose a stream");
  put("heat-facts", name ? "waiting for a result" : "");
  streams.draw();
  listen();
}

$("stages").addEventListener("click", e => { if (e.target.dataset.stage) { stage = e.target.dataset.stage; latency(); } });
$("pause").addEventListener("click", () => { paused = !paused; $("pause").setAttribute("aria-pressed", paused); });
$("ledger").addEventListener("toggle", () => last && ledger(last));
let typing = 0;
$("search").addEventListener("input", () => { /* those that were not sent are the daemon's to find */
  clearTimeout(typing);
  typing = setTimeout(() => { if (last && last.streams_open > last.streams.length || search) { search = $("search").value.trim(); listen(); } }, 400);
});
addEventListener("hashchange", () => choose(decodeURIComponent(location.hash.slice(1))));
document.addEventListener("visibilitychange", listen);
addEventListener("resize", () => { heat.draw(); if (last) latency(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { heat.draw(); latency(); });
choose(decodeURIComponent(location.hash.slice(1)));
