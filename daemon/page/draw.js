/* draw.js: numbers as text, and the canvases. Knows nothing of the daemon. */
const $ = id => document.getElementById(id);
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function count(n) {
  if (n === null || n === undefined || Number.isNaN(n)) return "–";
  for (const [size, unit] of [[1e9, " G"], [1e6, " M"], [1e4, " k"]]) if (n >= size) return (n / (unit === " k" ? 1e3 : size)).toFixed(n / size < 10 && unit !== " k" ? 2 : 1) + unit;
  return n >= 100 || Number.isInteger(n) ? Math.round(n).toString() : n.toFixed(1);
}
function seconds(s) {
  if (s === null || s === undefined || Number.isNaN(s)) return "–";
  if (s === Infinity) return "> 10 s";
  if (s < 1e-3) return Math.round(s * 1e6) + " µs";
  if (s < 1) return (s * 1e3).toFixed(s < 0.01 ? 2 : s < 0.1 ? 1 : 0) + " ms";
  if (s < 120) return s.toFixed(s < 10 ? 1 : 0) + " s";
  if (s < 7200) return Math.floor(s / 60) + " min";
  return s < 172800 ? Math.floor(s / 3600) + " h" : Math.floor(s / 86400) + " d";
}
function bytes(n) {
  for (const [size, unit] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) if (n >= size) return (n / size).toFixed(n / size < 10 ? 1 : 0) + " " + unit;
  return n + " B";
}

/* A canvas' context in CSS pixels, cleared. */
function canvas(id) {
  const c = $(id), r = devicePixelRatio || 1, w = c.clientWidth, h = c.clientHeight;
  if (c.width !== Math.round(w * r) || c.height !== Math.round(h * r)) { c.width = Math.round(w * r); c.height = Math.round(h * r); }
  const g = c.getContext("2d");
  g.setTransform(r, 0, 0, r, 0, 0);
  g.clearRect(0, 0, w, h);
  return { g, w, h };
}

function line(id, values, most) {
  const { g, w, h } = canvas(id), top = Math.max(...values.filter(v => v !== null), 1e-9), step = w / (most - 1);
  const x = i => w - (values.length - 1 - i) * step, y = v => h - 2 - (h - 4) * v / top;
  g.beginPath();
  values.forEach((v, i) => v === null ? 0 : g.lineTo(x(i), y(v)));
  g.strokeStyle = css("--p50"); g.lineWidth = 1.5; g.lineJoin = "round"; g.stroke();
  g.lineTo(w, h); g.lineTo(x(0), h); g.globalAlpha = 0.12; g.fillStyle = css("--p50"); g.fill(); g.globalAlpha = 1;
}

/* Points of {p50, p90, p99} or null, oldest first, a second each; logarithmic, in whole decades. */
function bands(id, points, most) {
  const { g, w, h } = canvas(id), left = 52, bottom = 6, full = points.filter(Boolean);
  const cap = v => Math.min(v, 20);
  let low = -5, high = -2;
  if (full.length) {
    low = Math.floor(Math.log10(Math.min(...full.map(p => Math.max(p.p50, 1e-5)))));
    high = Math.ceil(Math.log10(Math.max(...full.map(p => cap(p.p99)))) + 1e-9);
    if (high - low < 2) high = low + 2;
  }
  const y = v => h - bottom - (h - bottom - 8) * (Math.log10(Math.max(cap(v), 10 ** low)) - low) / (high - low);
  const step = (w - left) / (most - 1), x = i => w - (points.length - 1 - i) * step;
  g.font = "12px system-ui, sans-serif"; g.textAlign = "right"; g.textBaseline = "middle"; g.lineWidth = 1;
  for (let e = low; e <= high; e++) {
    g.fillStyle = css("--soft"); g.strokeStyle = css("--line");
    g.fillText(e < -3 ? 10 ** (e + 6) + " µs" : e < 0 ? 10 ** (e + 3) + " ms" : 10 ** e + " s", left - 8, y(10 ** e));
    g.beginPath(); g.moveTo(left, y(10 ** e) + 0.5); g.lineTo(w, y(10 ** e) + 0.5); g.stroke();
  }
  for (const [key, colour] of [["p99", "--p99"], ["p90", "--p90"], ["p50", "--p50"]]) {
    g.fillStyle = css(colour);
    points.forEach((p, i) => { if (p) g.fillRect(x(i) - step / 2, y(p[key]), step + 0.6, h - bottom - y(p[key])); });
  }
}

function rgb(name) {
  const n = parseInt(css(name).slice(1), 16);
  return [n >> 16, n >> 8 & 255, n & 255];
}

/* The last results side by side: a column is some steps of one result, a row some channels. */
class Heat {
  constructor(id, columns) { this.id = id; this.most = columns; this.reset(); }
  reset() { this.rows = 0; this.columns = []; this.scale = 0; this.draw(); }
  add(p) {
    const code = atob(p.cells), step = (p.high - p.low) / 254;
    if (p.rows !== this.rows) { this.rows = p.rows; this.columns = []; this.scale = 0; }
    for (let c = 0; c < p.columns; c++) {
      const column = new Float32Array(p.rows);
      for (let r = 0; r < p.rows; r++) { const n = code.charCodeAt(r * p.columns + c); column[r] = n === 255 ? NaN : p.low + n * step; }
      this.columns.push(column);
    }
    if (this.columns.length > this.most) this.columns.splice(0, this.columns.length - this.most);
    const peak = Math.max(Math.abs(p.low), Math.abs(p.high));
    this.scale = Math.max(this.scale * 0.99, peak, 1e-30);
  }
  draw() {
    const { g, w, h } = canvas(this.id);
    if (!this.rows) return;
    const small = this.small ||= document.createElement("canvas");
    small.width = this.most; small.height = this.rows;
    const s = small.getContext("2d"), image = s.createImageData(this.most, this.rows);
    const zero = rgb("--zero"), ends = [rgb("--neg"), rgb("--pos")], nan = rgb("--nan"), first = this.most - this.columns.length;
    this.columns.forEach((column, i) => {
      for (let r = 0; r < this.rows; r++) {
        const v = column[r] / this.scale, a = Math.min(Math.abs(v), 1) ** 0.8, end = ends[v > 0 ? 1 : 0], at = 4 * (r * this.most + first + i);
        for (let k = 0; k < 3; k++) image.data[at + k] = Number.isNaN(v) ? nan[k] : zero[k] + a * (end[k] - zero[k]);
        image.data[at + 3] = 255;
      }
    });
    s.putImageData(image, 0, 0);
    g.imageSmoothingEnabled = false;
    g.drawImage(small, 0, 0, w, h);
  }
}
