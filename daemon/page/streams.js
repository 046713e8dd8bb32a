/* streams.js: the list of streams: a thousand rows of which only those in sight exist. */
class Streams {
  constructor(choose) {
    this.box = $("streams"); this.height = 28; this.choose = choose;
    this.all = []; this.rows = []; this.before = new Map(); this.sort = "name"; this.up = true; this.active = 0; this.chosen = "";
    this.box.addEventListener("scroll", () => this.draw());
    this.box.addEventListener("keydown", e => this.key(e));
    this.box.addEventListener("click", e => { const row = e.target.closest(".row"); if (row) { this.active = +row.dataset.at; this.pick(); } });
    addEventListener("resize", () => this.draw());
    $("search").addEventListener("input", () => { this.active = 0; this.box.scrollTop = 0; this.order(); });
    $("cols").addEventListener("click", e => { const by = e.target.dataset.sort; if (by) this.sortBy(by); });
    this.sortBy("name");
  }
  sortBy(by) {
    this.up = this.sort === by && this.all.length ? !this.up : by === "name";
    this.sort = by;
    for (const b of $("cols").children) { b.setAttribute("aria-pressed", b.dataset.sort === by); b.textContent = b.textContent.replace(/ [↑↓]$/, "") + (b.dataset.sort === by ? (this.up ? " ↑" : " ↓") : ""); }
    this.order();
  }
  /* rows as /api/status gives them, and the seconds since the last ones */
  set(list, passed) {
    const now = new Map();
    this.all = list.map(([model, stream, client, frames, gaps, missing, flight, age]) => {
      const name = model + "/" + stream, then = this.before.get(name);
      now.set(name, frames);
      return { name, client, frames, gaps, missing, flight, age, rate: then === undefined || !passed ? null : Math.max(0, frames - then) / passed };
    });
    this.before = now;
    this.order();
  }
  order() {
    const q = $("search").value.trim(), by = this.sort, sign = this.up ? 1 : -1;
    const kept = this.rows[this.active]?.name;
    this.rows = q ? this.all.filter(s => s.name.includes(q)) : this.all.slice();
    const value = s => by === "name" ? s.name : by === "rate" ? s.rate ?? -1 : by === "age" ? s.age : s.missing;
    const names = new Intl.Collator("en", { numeric: true });
    this.rows.sort((a, b) => (by === "name" ? sign * names.compare(a.name, b.name) : sign * (value(a) - value(b)) || names.compare(a.name, b.name)));
    const at = this.rows.findIndex(s => s.name === kept);
    this.active = at >= 0 ? at : Math.min(this.active, Math.max(0, this.rows.length - 1));
    this.draw();
  }
  key(e) {
    const page = Math.max(1, Math.floor(this.box.clientHeight / this.height) - 1);
    const move = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -1e9, End: 1e9 }[e.key];
    if (e.key === "Enter" || e.key === " ") this.pick();
    else if (move) {
      this.active = Math.max(0, Math.min(this.rows.length - 1, this.active + move));
      const top = this.active * this.height;
      if (top < this.box.scrollTop) this.box.scrollTop = top;
      if (top + this.height > this.box.scrollTop + this.box.clientHeight) this.box.scrollTop = top + this.height - this.box.clientHeight;
      this.draw();
    } else return;
    e.preventDefault();
  }
  pick() {
    const row = this.rows[this.active];
    if (!row) return;
    this.chosen = row.name;
    this.draw();
    this.choose(row.name);
  }
  row(at) {
    const s = this.rows[at], row = document.createElement("div");
    row.className = "row" + (at === this.active ? " active" : "");
    row.id = "stream-" + at; row.dataset.at = at; row.style.top = at * this.height + "px";
    row.setAttribute("role", "option"); row.setAttribute("aria-selected", s.name === this.chosen);
    row.setAttribute("aria-posinset", at + 1); row.setAttribute("aria-setsize", this.rows.length);
    row.title = s.name + (s.client ? " from " + s.client : "") + ": " + s.frames + " frames, " + s.gaps + " gaps, " + s.missing + " missing";
    const cells = [s.name, s.rate === null ? "–" : count(s.rate), s.age < 0.05 ? "now" : s.age < 1 ? s.age.toFixed(1) + " s" : seconds(s.age), s.missing ? count(s.missing) : "–"];
    cells.forEach((text, i) => { const c = document.createElement("span"); c.textContent = text; if (i === 3 && s.missing) c.className = "gap"; row.append(c); });
    return row;
  }
  draw() {
    const first = Math.max(0, Math.floor(this.box.scrollTop / this.height) - 2), last = Math.min(this.rows.length, Math.ceil((this.box.scrollTop + this.box.clientHeight) / this.height) + 2);
    const end = document.createElement("div"), shown = [];
    end.style.height = this.rows.length * this.height + "px";
    for (let at = first; at < last; at++) shown.push(this.row(at));
    if (!this.rows.length) end.append(Object.assign(document.createElement("p"), { className: "soft", textContent: this.all.length ? "no stream has this in its name" : "no stream is open" }));
    this.box.replaceChildren(end, ...shown);
    this.box.setAttribute("aria-activedescendant", this.rows.length ? "stream-" + this.active : "");
  }
}
