"use strict";
// The live page. It asks for the rows after its cursor, keeps the last minutes, and draws them on the timeline of all
// pages. Times are in ms from `base`, a whole hour, so that marks of the axis are round on the clock.

const SHOWN_MS = 120_000, LEAST_MS = 20_000, LATE_MS = 5_000, TIMEOUT_MS = 10_000, LONGEST_PAUSE_MS = 30_000, SLACK_MS = 20_000;
const MOST_MARKS = 100, MOST_ROWS = 28, HOUR_MS = 3_600_000;
const LAMPS = { ok: "●", late: "▲", lost: "✕", paused: "‖", wait: "○" };

const clock = ms => new Date(ms).toLocaleTimeString([], { hourCycle: "h23" });
const make = (tag, text, className) => {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
};
// Leaves a text that is the same alone: selections, focus and the reader of a screen are not disturbed.
const write = (element, text) => { if (element.textContent !== text) element.textContent = text; };

// One signal of one device, in the form that `timeline.js` draws.
class LiveChart {
  constructor({ key, label, unit }, interval_s) {
    Object.assign(this, { key, label, unit, source: key, top: 1, levels: 1, t0: [], t1: [], mean: [], gaps: [], settled: 0 });
    this.low = this.high = this.mean;
    // The time between two rows is at first the interval of the readings. The rows then correct it.
    this.usual = Math.max(1000, 1000 * interval_s);
  }

  // A longer time between two rows is a gap.
  get widest() { return Math.max(400, 2.5 * this.usual); }

  append({ t, d, v }, base) {
    this.gaps.length = this.settled;
    for (let i = 0; i < t.length; i++) {
      const end = t[i] - base, before = this.t1.at(-1);
      let start = end - d[i];
      if (before !== undefined) {
        if (start - before > this.widest) this.gaps.push(before, start); else start = before;
        this.usual += 0.1 * (Math.min(end - before, 3 * this.usual) - this.usual);
      }
      this.t0.push(start); this.t1.push(end); this.mean.push(v[i]);
    }
    this.settled = this.gaps.length;
  }

  // Hatches the time since the newest row, if rows should have arrived.
  until(now) {
    this.gaps.length = this.settled;
    const last = this.t1.at(-1);
    if (last !== undefined && now - last > this.widest + LATE_MS) this.gaps.push(last, now);
  }

  trim(first) {
    const many = after(this.t1, first);
    for (const column of [this.t0, this.t1, this.mean]) column.splice(0, many);
    while (this.settled && this.gaps[1] < first) { this.gaps.splice(0, 2); this.settled -= 2; }
  }

  // The mean of the last second; null if the newest row is old.
  now(now) {
    const last = this.t1.at(-1);
    if (last === undefined || now - last > this.widest + LATE_MS) return null;
    let mass = 0, time = 0;
    for (let i = this.t1.length - 1; i >= 0 && this.t1[i] > last - 1000; i--) {
      const length = Math.max(1, this.t1[i] - this.t0[i]);
      mass += this.mean[i] * length; time += length;
    }
    return mass / time;
  }
}

// The executions of one region on one device: a lane of its own.
class LiveLane {
  constructor(region, name) {
    Object.assign(this, { own: region, names: [name], marked: true, folded: false, count: 1, open: 0, from: [0, 0] });
    for (const column of ["lane", "t0", "t1", "region", "n", "fill"]) this[column] = [];
  }

  push(start, end, region, n, fill) {
    this.lane.push(0); this.t0.push(start); this.t1.push(end); this.region.push(region); this.n.push(n); this.fill.push(fill);
    this.from[1] = this.t0.length;
  }

  // Executions that still run are drawn up to now; the next answer replaces them.
  clearOpen() {
    for (const column of ["lane", "t0", "t1", "region", "n", "fill"]) this[column].length -= this.open;
    this.open = 0;
    this.from[1] = this.t0.length;
  }

  trim(first) {
    const many = after(this.t1, first);
    for (const column of ["lane", "t0", "t1", "region", "n", "fill"]) this[column].splice(0, many);
    this.from[1] = this.t0.length;
    return many;
  }
}

class LiveTable {
  constructor(id, columns) {
    this.section = document.getElementById(id);
    this.table = this.section.querySelector("table");
    this.note = this.section.querySelector(".note");
    this.columns = columns;
    this.rows = new Map();
    columns.forEach((name, place) => { this.table.tHead.rows[0].cells[place].className = name; });
  }

  clear() {
    for (const row of this.rows.values()) row.remove();
    this.rows.clear();
  }

  // `rows`: key, cells as texts, and `first`, which makes an element for the first cell.
  update(rows, note, wanted) {
    const body = this.table.tBodies[0], present = new Set(rows.map(row => row.key));
    for (const [key, row] of this.rows) if (!present.has(key)) { row.remove(); this.rows.delete(key); }
    rows.forEach(({ key, cells, first, title }) => {
      let row = this.rows.get(key);
      if (!row) {
        row = make("tr");
        cells.forEach((_, place) => {
          const cell = make("td", undefined, this.columns[place]);
          cell.dataset.name = this.table.tHead.rows[0].cells[place].textContent;
          row.append(cell);
        });
        if (first) row.cells[0].append(first());
        this.rows.set(key, row);
        body.append(row);
      }
      cells.forEach((text, place) => { if (place || !first) write(row.cells[place], text); });
      if (row.title !== (title || "")) row.title = title || "";
      row.hidden = Boolean(wanted) && !row.textContent.toLowerCase().includes(wanted);
    });
    if (this.table.resort) this.table.resort(rows.map(({ key }) => this.rows.get(key)));
    this.table.parentElement.hidden = !rows.length;
    write(this.note, note);
    this.note.hidden = !note;
  }
}

class Live extends Page {
  constructor(setting) {
    super({ regions: [], groups: [], length: 1, step_s: 0.001 });
    Object.assign(this, { setting, position: "", failures: 0, paused: false, follow: true, span: SHOWN_MS, base: 0, now: 1 });
    this.devices = new Map();
    this.marks = [];
    this.labels = new Map();
    const words = many => Array(many).fill("");
    this.tables = {
      regions: new LiveTable("regions", ["left long", "left", ...words(4), "left", "", "left long"]),
      users: new LiveTable("users", ["left long", "left", "left", "", ""]),
      marks: new LiveTable("marks", ["left long", "left", ""]),
    };
    this.search = document.getElementById("search");
    this.search.addEventListener("input", () => this.fill());
    this.search.addEventListener("keydown", event => { if (event.key === "Escape") { this.search.value = ""; this.fill(); } });
    addEventListener("keydown", event => {
      if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA)$/.test(event.target.tagName)) return;
      event.preventDefault();
      this.search.focus();
    });
    document.getElementById("pause").addEventListener("click", () => this.pause());
    document.addEventListener("visibilitychange", () => this.wake());
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

  // ---------------------------------------------------------------- asking

  pause() {
    this.paused = !this.paused;
    const button = document.getElementById("pause");
    button.setAttribute("aria-pressed", String(this.paused));
    write(button, this.paused ? "go on" : "pause");
    this.wake();
  }

  // A page that nobody sees asks for nothing, and draws nothing.
  wake() {
    clearTimeout(this.timer); clearInterval(this.ticking);
    this.timer = this.ticking = 0;
    if (document.hidden) return;
    this.ticking = setInterval(() => this.tell(), 1000);
    this.tell();
    if (!this.paused && !this.asking) this.poll();
  }

  async poll() {
    this.asking = true;
    let pause = 1000;
    try {
      // `location.href` is without a name and password: a browser refuses to fetch an address with them.
      const address = new URL(`${this.setting.answers}?after=${encodeURIComponent(this.position)}`, location.href);
      const response = await fetch(address,
        { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
      if (!response.ok) throw new Error(response.status === 401 ? "name and password required" : "HTTP " + response.status);
      const answer = await response.json();
      pause = answer.poll_ms;
      this.failures = 0;
      this.error = "";
      this.answered = performance.now();
      this.take(answer);
    } catch (error) {
      this.failures++;
      this.error = error.message;
      // Randomly longer or shorter, so that many viewers of a restarted server do not ask all at once.
      pause = Math.min(LONGEST_PAUSE_MS, 1000 * 2 ** Math.min(this.failures - 1, 5)) * (0.75 + Math.random() / 2);
    }
    this.asking = false;
    this.next = performance.now() + pause;
    this.tell();
    if (!document.hidden && !this.paused) this.timer = setTimeout(() => this.poll(), pause);
  }

  // The state in words. Its age changes every second, so only a change of state is announced.
  tell() {
    const since = this.answered === undefined ? null : performance.now() - this.answered;
    const newest = Math.max(0, ...[...this.devices.values()].flatMap(each => each.charts.map(chart => chart.t1.at(-1) || 0)));
    const age = since === null ? null : since + (newest ? Math.max(0, this.now - newest) : 0);
    const late = Math.max(LATE_MS, 3000 * (this.answer ? this.answer.interval_s : 0));
    const state = this.paused ? "paused" : this.failures ? "lost" : since === null ? "wait" : age > late || !newest ? "late" : "ok";
    const seconds = ms => (ms / 1000).toFixed(ms < 9950 ? 1 : 0) + " s";
    let words = { paused: "paused", wait: "waiting for the first answer", ok: "live", late: "no new samples", lost: "no answer" }[state];
    if (since !== null) words += `: last update ${seconds(newest ? age : since)} ago`;
    if (state === "lost") words += `, next try in ${seconds(Math.max(0, this.next - performance.now()))}`;
    const box = document.getElementById("state");
    box.dataset.state = state;
    write(document.getElementById("lamp"), LAMPS[state]);
    write(document.getElementById("age"), words);
    const problem = this.failures ? `The server does not answer (${this.error}): these values are old.` : (this.answer && this.answer.reason) || "";
    const more = this.notice && !problem ? this.notice : "";
    write(document.getElementById("trouble"), problem || more);
  }

  // ---------------------------------------------------------------- answers

  take(answer) {
    if (this.answer && this.answer.version !== answer.version) { location.reload(); return; }
    const restarted = answer.reset && this.answer;
    if (answer.reset) this.clear(answer);
    if (restarted) {
      // An epoch is the server's id, and a number if its history was renewed: that needs no words.
      const [id, epoch] = [/[-.]/, /\.\d+$/].map(end => [answer.cursor, this.position].map(text => text.split(end)[0]));
      const why = id[0] !== id[1] ? "the server was restarted" : epoch[0] === epoch[1] ? "this page was away for too long" : "";
      this.notice = why && `The history begins anew at ${clock(answer.now_ms)}: ${why}.`;
    }
    this.answer = answer;
    this.position = answer.cursor;
    this.now = answer.now_ms - this.base;
    for (const name of answer.names) this.regions.push({ name, regime: "", regimes: [], facts: [] });
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
    this.fill();
    if (this.follow) { this.to = this.last; this.from = Math.max(this.first, this.to - this.span); }
    else if (this.from < this.first) super.show(this.first, this.first + this.to - this.from);
    this.redraw();
  }

  clear(answer) {
    this.base = Math.floor(answer.now_ms / HOUR_MS) * HOUR_MS;
    for (const device of this.devices.values()) device.box.remove();
    this.devices.clear();
    for (const table of Object.values(this.tables)) table.clear();
    this.groups.length = this.marks.length = this.regions.length = 0;
    this.picked = null;
    this.region = -1;
    this.follow = true;
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
    const device = { box, state, charts: this.setting.charts.map(each => new LiveChart(each, this.answer.interval_s)), lanes: new Map() };
    device.about = make("span", undefined, "now");
    device.status = make("b", undefined, "status");
    summary.append(make("span", state.title, "title"), device.status, device.about);
    box.append(summary, canvas);
    box.open = true;
    box.title = state.uuid;
    canvas.setAttribute("role", "img");
    document.getElementById("groups").append(box);
    device.group = new Group({ title: state.title, charts: [], lanes: [], events: [] }, canvas);
    this.groups.push(device.group);
    this.devices.set(state.uuid, device);
    this.pointer(canvas, device.group);
    return device;
  }

  lane(device, region) {
    let lane = device.lanes.get(region);
    if (!lane && device.lanes.size >= MOST_ROWS) lane = [...device.lanes.values()].at(-1);
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
        this.lane(device, region[i]).push(end - d[i], end, region[i], n[i], fill[i]);
      }
    }
    for (const [uuid, region, start] of answer.running) {
      const device = this.devices.get(uuid);
      if (!device) continue;
      const lane = this.lane(device, region);
      lane.push(Math.min(start - this.base, this.now), this.now, region, 1, 255);
      lane.open++;
    }
  }

  // Drops old rows, and arranges each device's charts and lanes.
  settle() {
    for (const [uuid, device] of this.devices) {
      for (const chart of device.charts) {
        if (chart.t1[0] < this.oldest - SLACK_MS) chart.trim(this.oldest);
        chart.until(this.now);
        const seen = chart.mean.length ? chart.mean.reduce((a, b) => Math.max(a, b)) : 0;
        if (chart.key !== "busy") this.tops[chart.key] = Math.max(this.tops[chart.key] || 0, seen);
      }
      for (const [region, lane] of device.lanes) {
        if (lane.t1[0] < this.oldest - SLACK_MS) {
          const many = lane.trim(this.oldest);
          if (this.picked && this.picked.lanes === lane && (this.picked.i -= many) < 0) this.picked = null;
        }
        if (!lane.t0.length) device.lanes.delete(region);
      }
      const data = device.group.data, charts = device.charts.filter(chart => chart.t1.length), lanes = [...device.lanes.values()];
      const same = (a, b) => a.length === b.length && a.every((each, i) => each === b[i]);
      const changed = !same(data.charts, charts) || !same(data.lanes, lanes);
      Object.assign(data, { charts, lanes, events: this.marks.filter(mark => mark.uuid === uuid).map(mark => [mark.t, mark.text, mark.tone]) });
      if (changed) device.group.layout();
    }
    for (const device of this.devices.values()) {
      for (const chart of device.charts) if (this.tops[chart.key]) chart.top = chart.levels = this.tops[chart.key];
    }
  }

  // ---------------------------------------------------------------- words and tables

  fill() {
    if (!this.answer) return;
    const wanted = this.search.value.trim().toLowerCase();
    for (const device of this.devices.values()) {
      this.describe(device);
      const { state } = device, users = [...state.processes.flat(), ...state.holders.flat()];
      const text = [state.title, state.uuid, device.about.textContent, ...users, ...[...device.lanes.keys()].map(i => this.regions[i].name)];
      device.box.hidden = Boolean(wanted) && !text.join(" ").toLowerCase().includes(wanted);
    }
    this.fillRegions(wanted);
    this.fillUsers(wanted);
    const marks = this.marks.slice(-MOST_MARKS).reverse().map(({ t, uuid, tone, text }) => ({
      key: `${t} ${uuid} ${text}`, cells: [(tone === "soft" ? "" : tone === "bad" ? "✕ " : "▲ ") + text, this.labels.get(uuid) || uuid, clock(this.base + t)],
    }));
    this.tables.marks.update(marks, marks.length ? "" : "No event in the last minutes.", wanted);
    write(document.getElementById("lanes-note"), this.answer.region_note);
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
    device.box.dataset.status = state.status;
    write(device.status, state.status === "ok" ? "" : state.status.replace("_", " "));
    write(device.about, parts.filter(part => part).join(" · "));
    const label = `${state.title} over time: ${device.about.textContent}`;
    if (device.group.canvas.getAttribute("aria-label") !== label) device.group.canvas.setAttribute("aria-label", label);
  }

  fillRegions(wanted) {
    const about = (value, uncertain, text) => value === null ? "–" : (uncertain ? "~" : "") + text(value);
    const rows = this.answer.regions.map(row => {
      const regime = row.regime === "UNKNOWN" || row.confidence === null ? row.regime : `${row.regime} ${(row.confidence * 100).toFixed(0)} %`;
      return {
        key: `${row.region} ${row.device}`,
        title: row.whole && row.whole !== row.regime ? `over the whole run: ${row.whole}` : "",
        first: () => this.regionButton(row.region),
        cells: ["", this.labels.get(row.device) || row.device || "–",
          about(row.share, row.uncertain, value => (value * 100).toFixed(1) + " %"),
          about(row.power_w, row.uncertain, value => si(value, "W")),
          about(row.energy_j, row.uncertain, value => si(value, "J")),
          row.calls_per_s === null ? "–" : row.calls_per_s.toFixed(row.calls_per_s < 10 ? 2 : 0),
          regime, row.since_ms === null ? "–" : clock(row.since_ms), row.next],
      };
    });
    const more = this.answer.regions_left_out ? ` ${this.answer.regions_left_out} more regions are not listed.` : "";
    const means = "Share, power and calls are those of the last minute; energy is the total. ~: shared out by time.";
    this.tables.regions.update(rows, rows.length ? means + more : this.answer.region_note, wanted);
  }

  regionButton(number) {
    const button = make("button"), swatch = make("span", undefined, "swatch");
    swatch.style.setProperty("--of-region", `var(--hue-${number % HUES})`);
    button.dataset.region = number;
    button.setAttribute("aria-pressed", "false");
    button.append(swatch, this.regions[number].name);
    button.addEventListener("click", () => this.choose(number));
    return button;
  }

  fillUsers(wanted) {
    const rows = [];
    for (const [uuid, { state }] of this.devices) {
      state.holders.forEach(([kind, name]) => rows.push({ key: `${uuid} ${kind} ${name}`, cells: [name, this.labels.get(uuid), kind, "", ""] }));
      for (const [pid, name, memory, busy] of state.processes) {
        const cells = [name ? `${name} (${pid})` : `process ${pid}`, this.labels.get(uuid), "process",
          memory === null ? "–" : (memory / 2 ** 30).toFixed(2) + " GiB", busy === null ? "–" : (busy * 100).toFixed(0) + " %"];
        rows.push({ key: `${uuid} ${pid}`, cells });
      }
    }
    this.tables.users.update(rows, rows.length ? "" : this.answer.user_note, wanted);
  }
}

function start(setting) { page = new Live(setting); }
