"use strict";
// The live page. It keeps the last minutes, and draws them on the timeline of all pages. Times are in ms from `base`, a
// whole hour, so that marks of the axis are round on the clock.

const SHOWN_MS = 120_000, LEAST_MS = 20_000, SLACK_MS = 20_000, HOUR_MS = 3_600_000;
const MOST_LANES = 28;

class Live extends AskingPage {
  constructor(setting) {
    super(setting);
    Object.assign(this, { follow: true, span: SHOWN_MS, base: 0, now: 1, marks: [], devices: new Map(), labels: new Map() });
    this.tables = new LiveTables(this);
    this.search = document.getElementById("search");
    this.search.addEventListener("input", () => this.fill());
    this.search.addEventListener("keydown", event => { if (event.key === "Escape") { this.search.value = ""; this.fill(); } });
    addEventListener("keydown", event => {
      if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA)$/.test(event.target.tagName)) return;
      event.preventDefault();
      this.search.focus();
    });
    this.wake();
  }

  // The time axis begins with the oldest sample that is kept.
  get first() {
    if (!this.answer) return 0;
    const oldest = Math.min(...[...this.devices.values()].flatMap(each => each.charts.map(chart => chart.t0[0] ?? this.now)));
    return this.now - Math.min(this.answer.keep_ms, Math.max(LEAST_MS, this.now - oldest));
  }
  get oldest() { return this.now - this.answer.keep_ms; }
  get last() { return this.now === undefined ? this.data.length : this.now; }
  // The end of the newest sample of any device; 0 without samples.
  get newest() { return Math.max(0, ...[...this.devices.values()].map(device => device.newest)); }

  tick(seconds, step) {
    if (!this.base) return "";
    const at = this.base + seconds * 1000, part = step < 0.001 ? 0 : step < 0.01 ? 3 : step < 0.1 ? 2 : step < 1 ? 1 : 0;
    return clock(at) + (part ? (at / 1000 % 1).toFixed(part).slice(1) : "");
  }

  show(from, to) {
    super.show(from, to);
    if (this.now === undefined) return;
    this.follow = this.to >= this.last - 1;
    this.span = this.to - this.from;
  }

  key(event) {
    if (event.key === " " && event.target === this.box) { event.preventDefault(); this.pause(); } else super.key(event);
  }

  // The chosen region has a lane even on a GPU with too many.
  choose(region) {
    super.choose(region);
    if (this.answer) this.settle();
  }

  // ---------------------------------------------------------------- answers

  take(answer) {
    if (this.answer && this.answer.version !== answer.version) { location.reload(); return; }
    const restarted = answer.reset && this.newest, held = this.picked && this.picked.lanes.t0[this.picked.i];
    if (answer.reset) this.clear(answer);
    if (restarted) {
      // An epoch is the server's id, and a number if its history was renewed: that needs no words.
      const [id, epoch] = [/[-.]/, /\.\d+$/].map(end => [answer.cursor, this.position].map(text => text.split(end)[0]));
      const why = id[0] !== id[1] ? "the server was restarted" : epoch[0] === epoch[1] ? "this page was away for too long" : "";
      this.remark(why && `The history begins anew at ${clock(answer.now_ms)}: ${why}.`, answer.now_ms);
    }
    this.answer = answer;
    this.position = answer.cursor;
    this.now = answer.now_ms - this.base;
    for (const [number, name] of answer.names) this.name(number, name);
    // The regimes of this answer only: a regime that changes over time does not differ between devices.
    for (const row of answer.regions) this.regions[row.region].regimes = [];
    for (const row of answer.regions) {
      const region = this.regions[row.region];
      if (!region.regimes.includes(row.regime)) region.regimes.push(row.regime);
      region.regime = region.regimes.length > 1 ? "DIFFERS" : row.regime;
    }
    if (answer.names.length || answer.regions.length) this.inks();
    this.takeDevices(answer);
    for (const [uuid, charts] of Object.entries(answer.samples)) {
      const device = this.devices.get(uuid);
      if (device) for (const chart of device.charts) if (charts[chart.key]) chart.append(unpack(charts[chart.key]), this.base);
    }
    this.takeBlocks(answer);
    for (const [t, uuid, tone, text] of answer.marks) {
      this.marks.push({ t: t - this.base, uuid, tone, text });
      if (tone === "bad" && !answer.reset) write(this.said, `${this.labels.get(uuid) || uuid}: ${text}`);
    }
    while (this.marks.length && (this.marks.length > 500 || this.marks[0].t < this.oldest - SLACK_MS)) this.marks.shift();
    this.settle();
    // Rows before the picked one may have come or gone.
    if (this.picked && (this.picked.i = this.picked.lanes.find(held)) < 0) this.picked = null;
    this.fill();
    if (this.follow) { this.to = this.last; this.from = Math.max(this.first, this.to - this.span); }
    else if (this.from < this.first) super.show(this.first, this.first + this.to - this.from);
    this.redraw();
  }

  clear(answer) {
    this.base = Math.floor(answer.now_ms / HOUR_MS) * HOUR_MS;
    for (const device of this.devices.values()) device.box.remove();
    this.devices.clear();
    this.tables.clear();
    this.groups.length = this.marks.length = this.regions.length = 0;
    this.picked = null;
    this.region = -1;
    this.follow = true;
  }

  // The server gives the number of a name that is not visible any more to another name.
  name(number, name) {
    const old = this.regions[number];
    if (old && old.name === name) return;
    this.regions[number] = { name, regime: "", regimes: [], facts: [] };
    if (!old) return;
    if (this.region === number) super.choose(number);
    for (const device of this.devices.values()) device.lanes.delete(number);
  }

  takeDevices(answer) {
    write(document.getElementById("source"), answer.source);
    document.getElementById("simulated").hidden = !answer.simulated;
    const listed = new Set(answer.devices.map(device => device.uuid));
    for (const [uuid, device] of this.devices) {
      if (listed.has(uuid)) continue;
      device.box.remove();
      this.groups.splice(this.groups.indexOf(device.group), 1);
      this.devices.delete(uuid);
    }
    const tops = {};
    for (const state of answer.devices) {
      this.labels.set(state.uuid, "GPU " + state.label);
      const device = this.devices.get(state.uuid) || this.addDevice(state);
      device.state = state;
      for (const [key, top] of Object.entries(state.tops)) if (top) tops[key] = Math.max(tops[key] || 0, top);
    }
    this.tops = tops;
  }

  addDevice(state) {
    const box = make("details"), summary = make("summary"), canvas = make("canvas");
    const device = { box, state, newest: 0, charts: this.setting.charts.map(each => new LiveChart(each, this.answer.interval_s)), lanes: new Map() };
    device.title = make("span", state.title, "title");
    device.about = make("span", undefined, "now");
    device.status = make("b", undefined, "status");
    device.more = make("p", undefined, "more");
    summary.append(device.title, device.status, device.about);
    box.append(summary, canvas, device.more);
    box.open = true;
    box.title = state.uuid;
    canvas.setAttribute("role", "img");
    document.getElementById("groups").append(box);
    device.group = new Group({ charts: [], lanes: [], events: [] }, canvas);
    this.groups.push(device.group);
    this.devices.set(state.uuid, device);
    this.pointer(canvas, device.group);
    return device;
  }

  lane(device, region) {
    let lane = device.lanes.get(region);
    if (!lane) device.lanes.set(region, lane = new LiveLane(region, this.regions[region].name));
    return lane;
  }

  takeBlocks(answer) {
    for (const device of this.devices.values()) for (const lane of device.lanes.values()) lane.clearOpen();
    for (const [uuid, packed] of Object.entries(answer.blocks)) {
      const device = this.devices.get(uuid), { t, d, region, n, fill } = unpack(packed);
      if (!device) continue;
      for (let i = 0; i < t.length; i++) {
        const end = t[i] - this.base;
        this.lane(device, region[i]).push(end - d[i], end, n[i], fill[i]);
      }
    }
    for (const [uuid, region, start] of answer.running) {
      const device = this.devices.get(uuid);
      if (device) this.lane(device, region).push(Math.min(start - this.base, this.now), this.now, 1, 255, 1);
    }
  }

  // Drops old rows, and arranges each device's charts and lanes.
  settle() {
    for (const [uuid, device] of this.devices) {
      for (const chart of device.charts) {
        device.newest = Math.max(device.newest, chart.t1.at(-1) || 0);
        if (chart.t1[0] < this.oldest - SLACK_MS) chart.trim(this.oldest);
        chart.until(this.now);
        const seen = chart.mean.length ? chart.mean.reduce((a, b) => Math.max(a, b)) : 0;
        if (chart.key !== "busy") this.tops[chart.key] = Math.max(this.tops[chart.key] || 0, seen);
      }
      for (const [region, lane] of device.lanes) {
        if (lane.reach[0] < this.oldest - SLACK_MS) lane.trim(this.oldest);
        if (!lane.t0.length) device.lanes.delete(region);
      }
      const data = device.group.data, charts = device.charts.filter(chart => chart.t1.length), lanes = this.shown(device);
      const same = (a, b) => a.length === b.length && a.every((each, i) => each === b[i]);
      const changed = !same(data.charts, charts) || !same(data.lanes, lanes);
      Object.assign(data, { charts, lanes, events: this.marks.filter(mark => mark.uuid === uuid).map(mark => [mark.t, mark.text, mark.tone]) });
      if (changed) device.group.layout();
    }
    if (this.picked && !this.groups.some(group => group.data.lanes.includes(this.picked.lanes))) this.picked = null;
    for (const device of this.devices.values()) {
      for (const chart of device.charts) if (this.tops[chart.key]) chart.top = chart.levels = this.tops[chart.key];
    }
  }

  // The lanes of a device: of too many those of the chosen region and of the regions that fill the most time.
  shown(device) {
    const all = [...device.lanes.values()], left = all.length - MOST_LANES;
    write(device.more, left > 0 ? `${left} more region${left > 1 ? "s" : ""} without a lane. A click on a region in the table shows its lane.` : "");
    if (left <= 0) return all;
    const rank = new Map(all.map(lane => [lane, lane.own === this.region ? Infinity : lane.filled]));
    const first = new Set([...all].sort((a, b) => rank.get(b) - rank.get(a)).slice(0, MOST_LANES));
    return all.filter(lane => first.has(lane));
  }

  // ---------------------------------------------------------------- words and tables

  fill() {
    if (!this.answer) return;
    const wanted = this.search.value.trim().toLowerCase();
    for (const device of this.devices.values()) {
      this.describe(device);
      const { state } = device, users = [...state.processes.flat(), ...state.holders.flat()];
      const text = [state.title, state.uuid, device.status.textContent, device.about.textContent, ...users, ...[...device.lanes.values()].map(lane => lane.names[0])];
      device.box.hidden = Boolean(wanted) && !text.join(" ").toLowerCase().includes(wanted);
    }
    this.tables.fill(wanted);
    const notes = [this.devices.size || this.answer.reason ? "" : "No GPU is listed.", this.answer.region_note];
    write(document.getElementById("lanes-note"), notes.filter(note => note).join(" "));
    this.redraw();
  }

  describe(device) {
    const { state } = device, values = {};
    for (const chart of device.charts) values[chart.key] = [chart, chart.now(this.now)];
    const text = (key, of) => {
      const [chart, value] = values[key];
      if (value === null) return key === "busy" ? "busy not measured" : "";
      return (key === "busy" ? "busy " : "") + reading(chart, value) + (of && state.tops[key] ? " of " + reading(chart, state.tops[key]) : "");
    };
    const parts = state.reason ? [state.reason] : [text("busy"), text("power", true), text("memory", true), text("clock"),
      state.temperature_c === null ? "" : state.temperature_c.toFixed(0) + " °C",
      state.throttled.length ? "throttled: " + state.throttled.join(", ") : ""];
    const status = state.gone ? this.gone(device) : state.status === "ok" ? "" : state.status.replace("_", " ");
    device.box.dataset.status = state.status;
    device.box.classList.toggle("gone", state.gone);
    write(device.title, state.title);
    write(device.status, status);
    write(device.about, parts.filter(part => part).join(" · "));
    const label = `${state.title} over time: ${[status, device.about.textContent].filter(part => part).join(" · ")}`;
    if (device.group.canvas.getAttribute("aria-label") !== label) device.group.canvas.setAttribute("aria-label", label);
  }

  // A lost device keeps its rows. Its last sample may be of another day.
  gone({ newest }) {
    if (!newest) return "gone";
    const day = this.now - newest < 12 * HOUR_MS ? "" : new Date(this.base + newest).toLocaleDateString() + " ";
    return `gone since ${day}${clock(this.base + newest)}`;
  }
}

function start(setting) { page = new Live(setting); }
