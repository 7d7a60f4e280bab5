"use strict";
// The page's state and what people do with it: zoom, pan, hover, keys, colours. `timeline.js` draws.

const TYPES = { t0: Uint32Array, t1: Uint32Array, low: Uint16Array, mean: Uint16Array, high: Uint16Array, gaps: Uint32Array,
  lane: Uint8Array, region: Uint16Array, n: Uint32Array, fill: Uint8Array,
  t: Float64Array, d: Float32Array, v: Float32Array };
const INKS = ["ink", "soft", "line", "grid", "gap", "hatch", "select", "bad", "warn", "onBlock", "busy", "power", "memory", "clock"];
const HUES = 10;

function unpack(columns) {
  for (const [key, type] of Object.entries(TYPES)) {
    if (typeof columns[key] !== "string") continue;
    const text = atob(columns[key]), bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    columns[key] = new type(bytes.buffer);
  }
  return columns;
}

function remembered(key, value) {
  try {
    if (value !== undefined) localStorage.setItem("gpu-profile-" + key, value);
    return localStorage.getItem("gpu-profile-" + key);
  } catch { return null; }  // a page opened as a file may not have it
}

class Page {
  constructor(data) {
    this.data = data;
    this.box = document.getElementById("timeline");
    this.tip = document.getElementById("tip");
    this.said = document.getElementById("said");
    this.axis = document.getElementById("axis");
    this.from = 0;
    this.to = data.length;
    this.cursor = this.drag = this.picked = null;
    this.region = -1;
    this.by = document.documentElement.dataset.by;
    this.regions = data.regions;
    this.groups = data.groups.map((group, place) => {
      group.charts.forEach(unpack);
      group.lanes.forEach(unpack);
      return new Group(group, document.getElementById("group-" + place));
    });
    this.inks();
    this.listen();
    this.linked();
    this.redraw();
  }

  // A link may end in the seconds to show, such as #12.5-14.
  linked() {
    const found = /^#([\d.]+)-([\d.]+)$/.exec(location.hash), step = this.data.step_s;
    if (found && Number(found[2]) > Number(found[1])) this.show(Number(found[1]) / step, Number(found[2]) / step);
  }

  // ---------------------------------------------------------------- scales and colours

  // The first and the last moment of the data, in steps.
  get first() { return 0; }
  get last() { return this.data.length; }
  get width() { return this.axis.clientWidth; }
  x(t) { return GUTTER + (t - this.from) / (this.to - this.from) * (this.width - GUTTER); }
  t(x) { return this.from + (x - GUTTER) / (this.width - GUTTER) * (this.to - this.from); }
  colour(region) { return this.by === "regime" ? this.byRegime[region] : this.byRegion[region]; }
  faint(region) { return this.region < 0 || this.region === region ? 1 : 0.22; }

  inks() {
    const style = getComputedStyle(document.documentElement);
    const value = name => style.getPropertyValue("--" + name).trim();
    this.ink = Object.fromEntries(INKS.map(name => [name, value(name)]));
    this.byRegime = this.regions.map(region => value("r-" + (region.regime || "DIFFERS")) || value("r-UNKNOWN"));
    this.byRegion = this.regions.map((_, i) => value("hue-" + i % HUES));
  }

  // ---------------------------------------------------------------- the view

  show(from, to) {
    const all = this.last - this.first, least = Math.min(all, Math.max(20, 1e-7 / this.data.step_s));
    const length = Math.min(all, Math.max(least, to - from));
    from = Math.min(Math.max(this.first, from + (to - from - length) / 2), this.last - length);
    this.from = from;
    this.to = from + length;
    this.redraw();
  }
  zoom(factor, around = (this.from + this.to) / 2) {
    const share = (around - this.from) / (this.to - this.from), length = (this.to - this.from) * factor;
    this.show(around - share * length, around + (1 - share) * length);
  }
  pan(share) { const by = share * (this.to - this.from); this.show(this.from + by, this.to + by); }

  redraw() {
    if (this.asked) return;
    this.asked = requestAnimationFrame(() => { this.asked = 0; this.draw(); });
  }

  draw() {
    const step_s = this.data.step_s, step = tickStep((this.to - this.from) * step_s);
    this.ticks = [];
    for (let i = Math.ceil(this.from * step_s / step - 1e-9); i * step <= this.to * step_s * (1 + 1e-12); i++) {
      this.ticks.push({ x: this.x(i * step / step_s), text: this.tick(i * step, step) });
    }
    this.drawAxis();
    for (const group of this.groups) {
      const place = group.canvas.getBoundingClientRect();
      if (place.width && place.bottom > -200 && place.top < innerHeight + 200) group.draw(this);
    }
  }

  drawAxis() {
    const ratio = window.devicePixelRatio || 1, width = this.width, height = 40, pen = this.axis.getContext("2d");
    this.axis.width = Math.round(width * ratio);
    this.axis.height = Math.round(height * ratio);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    // Above, the whole recording with the part that is shown; beneath, the moments.
    const all = t => GUTTER + (t - this.first) / (this.last - this.first) * (width - GUTTER);
    pen.fillStyle = this.ink.grid;
    pen.fillRect(GUTTER, 4, width - GUTTER, 8);
    pen.fillStyle = this.ink.busy;
    pen.globalAlpha = 0.55;
    pen.fillRect(all(this.from), 4, Math.max(3, all(this.to) - all(this.from)), 8);
    pen.globalAlpha = 1;
    pen.fillStyle = this.ink.soft;
    pen.textAlign = "left";
    const shown = (this.to - this.from) * this.data.step_s;
    pen.fillText((shown < 120 ? si(shown, "s") : moment(shown, 1)) + " shown", 2, 27);
    let used = GUTTER - 30;
    for (const { x, text } of this.ticks) {
      pen.fillStyle = this.ink.line;
      pen.fillRect(Math.round(x), 34, 1, 6);
      const wide = pen.measureText(text).width, left = Math.min(x - wide / 2, width - wide - 1);
      if (left < used + 6) continue;
      pen.fillStyle = this.ink.soft;
      pen.fillText(text, left, 25);
      used = left + wide;
    }
    if (this.cursor !== null) {
      pen.fillStyle = this.ink.soft;
      pen.fillRect(Math.round(this.x(this.cursor)), 18, 1, 22);
    }
  }

  // ---------------------------------------------------------------- words

  tick(seconds, step) { return moment(seconds, step); }
  clock(t) { return this.tick(t * this.data.step_s, Math.max(1e-9, Math.min(0.9, (this.to - this.from) * this.data.step_s / 2000))); }

  lines(group, t, block) {
    const found = [["at", this.clock(t)]];
    for (const { chart, mean, low, high } of group.readings(t)) {
      const spread = high > low ? ` (${reading(chart, low)} to ${reading(chart, high)})` : "";
      found.push([chart.label, mean === null ? "not measured" : reading(chart, mean) + spread]);
    }
    for (const [at, text] of group.data.events) {
      if (Math.abs(this.x(at) - this.x(t)) < 6) found.push(["event", text]);
    }
    if (block) found.push(...this.about(block));
    return found;
  }

  about({ lanes, i }) {
    const region = this.regions[lanes.region[i]], step = this.data.step_s, length = (lanes.t1[i] - lanes.t0[i]) * step;
    const found = [["region", region.name]];
    if (lanes.n[i] > 1) {
      found.push(["here", `${lanes.n[i].toLocaleString("en")} executions within ${si(length, "s")}, ${(lanes.fill[i] / 2.55).toFixed(0)} % of it; mostly this region`]);
    } else found.push(["from", this.clock(lanes.t0[i])], [lanes.marked ? "on the GPU" : "took", si(length, "s")]);
    if (region.regimes.length) found.push(["regime", region.regimes.join(", ")]);
    for (const [key, value] of region.facts) found.push([key, value]);
    return found;
  }

  hint(event, group, t, block) {
    this.tip.replaceChildren(...this.lines(group, t, block).flatMap(([key, value]) => {
      const dt = document.createElement("dt"), dd = document.createElement("dd");
      dt.textContent = key;
      dd.textContent = value;
      return [dt, dd];
    }));
    this.tip.hidden = false;
    const { width, height } = this.tip.getBoundingClientRect();
    const left = event.clientX + 16 + width > innerWidth ? event.clientX - width - 16 : event.clientX + 16;
    this.tip.style.left = Math.max(4, left) + "px";
    this.tip.style.top = Math.max(4, Math.min(innerHeight - height - 4, event.clientY + 14)) + "px";
  }

  // ---------------------------------------------------------------- choosing

  // The next execution of the chosen region (of any, if none is): what there is to step through.
  step(forward) {
    const places = [];
    for (const group of this.groups) for (const lanes of group.data.lanes) {
      for (let i = 0; i < lanes.t0.length; i++) if (this.region < 0 || lanes.region[i] === this.region) places.push({ group, lanes, i });
    }
    if (!places.length) return;
    places.sort((a, b) => a.lanes.t0[a.i] - b.lanes.t0[b.i]);
    const old = this.picked ? places.findIndex(p => p.lanes === this.picked.lanes && p.i === this.picked.i) : -1;
    let next = places[old < 0 ? Math.max(0, places.findIndex(p => p.lanes.t0[p.i] >= this.from)) : (old + (forward ? 1 : -1) + places.length) % places.length];
    this.picked = next;
    const a = next.lanes.t0[next.i], b = next.lanes.t1[next.i], length = this.to - this.from;
    if (b - a > length || a < this.from || b > this.to) this.show((a + b - Math.max(length, (b - a) * 1.5)) / 2, (a + b + Math.max(length, (b - a) * 1.5)) / 2);
    this.said.textContent = this.lines(next.group, (a + b) / 2, next).map(pair => pair.join(" ")).join(" · ");
    this.redraw();
  }

  choose(region) {
    this.region = this.region === region ? -1 : region;
    this.picked = null;
    for (const button of document.querySelectorAll("button[data-region]")) {
      button.setAttribute("aria-pressed", String(Number(button.dataset.region) === this.region));
    }
    this.redraw();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const actions = {
      ArrowLeft: () => this.pan(-0.2), ArrowRight: () => this.pan(0.2), a: () => this.pan(-0.2), d: () => this.pan(0.2),
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), w: () => this.zoom(0.5), "-": () => this.zoom(2), s: () => this.zoom(2),
      0: () => this.show(this.first, this.last), Home: () => this.show(this.first, this.first + this.to - this.from),
      End: () => this.show(this.last - (this.to - this.from), this.last),
      n: () => this.step(true), p: () => this.step(false),
      Escape: () => { this.picked = null; if (this.region >= 0) this.choose(this.region); this.redraw(); },
    };
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  listen() {
    addEventListener("resize", () => this.redraw());
    addEventListener("hashchange", () => this.linked());
    addEventListener("scroll", () => this.redraw(), { passive: true });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.inks(); this.redraw(); });
    this.box.addEventListener("keydown", event => this.key(event));
    this.box.addEventListener("toggle", () => this.redraw(), true);  // of a group: it does not bubble
    const click = (id, action) => document.getElementById(id).addEventListener("click", action);
    click("in", () => this.zoom(0.5));
    click("out", () => this.zoom(2));
    click("all", () => this.show(this.first, this.last));
    click("colours", () => {
      this.by = document.documentElement.dataset.by = this.by === "regime" ? "region" : "regime";
      document.getElementById("colours").textContent = "colour: " + this.by;
      this.redraw();
    });
    for (const button of document.querySelectorAll("button[data-region]")) {
      button.addEventListener("click", () => this.choose(Number(button.dataset.region)));
    }
    for (const group of this.groups) this.pointer(group.canvas, group);
    this.pointer(this.axis, null);
  }

  pointer(canvas, group) {
    const at = event => this.t(event.clientX - canvas.getBoundingClientRect().left);
    let held = null;
    canvas.addEventListener("pointerdown", event => {
      if (event.button > 1) return;
      canvas.setPointerCapture(event.pointerId);
      const place = canvas.getBoundingClientRect(), y = event.clientY - place.top;
      const pan = event.shiftKey || event.button === 1 || event.pointerType === "touch";
      if (!group && y < 16) {
        const share = (event.clientX - place.left - GUTTER) / (this.width - GUTTER), half = (this.to - this.from) / 2;
        const middle = this.first + share * (this.last - this.first);
        this.show(middle - half, middle + half);
      } else held = { pan, t: at(event), x: event.clientX, from: this.from, to: this.to };
    });
    canvas.addEventListener("pointermove", event => {
      const t = at(event), inside = event.clientX - canvas.getBoundingClientRect().left >= GUTTER;
      this.cursor = inside ? t : null;
      if (held && held.pan) {
        const by = (held.x - event.clientX) / (this.width - GUTTER) * (held.to - held.from);
        this.show(held.from + by, held.to + by);
      } else if (held && Math.abs(event.clientX - held.x) > 3) this.drag = [held.t, t];
      if (group && inside && !this.drag) {
        this.hint(event, group, t, group.block(this, event.offsetY, t));
      } else this.tip.hidden = true;
      this.redraw();
    });
    canvas.addEventListener("pointerup", event => {
      if (this.drag) this.show(Math.min(...this.drag), Math.max(...this.drag));
      else if (held && group && !held.pan) {
        this.picked = group.block(this, event.offsetY, at(event));
        this.said.textContent = this.picked ? this.about(this.picked).map(pair => pair.join(" ")).join(" · ") : "";
      }
      held = this.drag = null;
      this.redraw();
    });
    canvas.addEventListener("pointercancel", () => { held = this.drag = null; this.redraw(); });
    canvas.addEventListener("pointerleave", () => { this.cursor = null; this.tip.hidden = true; this.redraw(); });
    canvas.addEventListener("dblclick", () => this.show(this.first, this.last));
    canvas.addEventListener("wheel", event => {
      if (event.ctrlKey || event.metaKey) this.zoom(Math.exp(Math.sign(event.deltaY) * 0.25), at(event));
      else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan((event.deltaX || event.deltaY) / 800);
      else return;
      event.preventDefault();
    }, { passive: false });
  }
}

const theme = document.getElementById("theme");
function wear(name) {
  if (name === "dark" || name === "light") {
    document.getElementById("dark").media = name === "dark" ? "all" : "not all";
    document.documentElement.style.colorScheme = name;
  }
  const dark = name === "dark" || (name !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  theme.textContent = dark ? "light" : "dark";
}
wear(remembered("theme"));
theme.hidden = false;
const told = document.getElementById("data");
let page = told && new Page(JSON.parse(told.textContent));
theme.addEventListener("click", () => {
  wear(remembered("theme", theme.textContent) || theme.textContent);
  if (page) { page.inks(); page.redraw(); }
});
