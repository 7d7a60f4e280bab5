"use strict";
// Draws one group of the timeline, a device or the host, on its canvas. Time is in steps from the recording's start.

// Values of a chart are in parts of its top, `LEVELS` of them unless the chart has another number.
const LEVELS = 65535;
const GUTTER = 148, CHART = 46, LANE = 17, GAP = 12, PAD = 6;
const UNITS = { W: "W", By: "B", Hz: "Hz" };
const PREFIXES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "µ"], [1e-9, "n"]];

function si(value, unit) {
  if (!value) return "0 " + unit;
  const [scale, prefix] = PREFIXES.find(([s]) => Math.abs(value) >= s * 0.9995) || PREFIXES[PREFIXES.length - 1];
  const scaled = value / scale;
  return scaled.toFixed(Math.abs(scaled) >= 99.95 ? 0 : Math.abs(scaled) >= 9.995 ? 1 : 2) + " " + prefix + unit;
}

function reading(chart, value) {
  if (chart.unit === "1") return (value * 100).toFixed(value > 0.9995 ? 0 : 1) + " %";
  if (chart.unit === "By") return (value / 2 ** 30).toFixed(value < 100 * 2 ** 30 ? 2 : 0) + " GiB";
  return si(value, UNITS[chart.unit] || chart.unit);
}

function moment(seconds, step) {
  if (step >= 1 && seconds >= 120) {
    const whole = Math.round(seconds), minutes = Math.floor(whole / 60);
    const two = n => String(n).padStart(2, "0");
    return minutes >= 60 ? `${Math.floor(minutes / 60)}:${two(minutes % 60)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
  }
  const digits = Math.max(0, Math.min(9, -Math.floor(Math.log10(step) + 1e-9)));
  return seconds.toFixed(digits) + " s";
}

function tickStep(length) {
  const whole = [15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 604800];
  if (length > 120) return whole.find(step => length / step <= 10) || length / 8;
  const size = 10 ** Math.floor(Math.log10(length));
  for (const part of [1, 2, 5, 10, 20]) if (length / (size / part) >= 6) return size / part;
  return size / 50;
}

// The first place in a sorted column whose value is above `value`.
function after(column, value, from = 0, to = column.length) {
  while (from < to) {
    const middle = (from + to) >> 1;
    if (column[middle] > value) to = middle; else from = middle + 1;
  }
  return from;
}

// The latest end up to each block of its lane. Blocks that overlap begin in order, but need not end in order.
function reaches({ lane, t1 }) {
  const reach = Array.from(t1);
  for (let i = 1; i < reach.length; i++) if (lane[i] === lane[i - 1]) reach[i] = Math.max(reach[i], reach[i - 1]);
  return reach;
}

class Group {
  constructor(data, canvas) {
    this.data = data;
    this.canvas = canvas;
    this.layout();
  }

  layout() {
    const { data, canvas } = this;
    this.rows = [];
    let y = PAD;
    for (const chart of data.charts) {
      this.rows.push({ kind: "chart", chart, y, height: CHART });
      y += CHART + GAP;
    }
    for (const lanes of data.lanes) {
      lanes.from = [];
      for (let lane = 0; lane <= lanes.count; lane++) lanes.from.push(after(lanes.lane, lane - 1));
      lanes.reach = reaches(lanes);
      for (let lane = 0; lane < lanes.count; lane++) {
        this.rows.push({ kind: "lane", lanes, lane, y, height: LANE });
        y += LANE + 2;
      }
    }
    this.height = y + PAD;
    canvas.style.height = this.height + "px";
  }

  draw(view) {
    const ratio = window.devicePixelRatio || 1, width = this.canvas.clientWidth;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(this.height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(this.height * ratio);
    }
    const pen = this.canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, this.height);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    this.grid(pen, view, width);
    for (const row of this.rows) {
      if (row.kind === "chart") this.chart(pen, view, row, width); else this.lane(pen, view, row, width);
    }
    this.label(pen, view);
    for (const [at, , tone] of this.data.events) {
      const x = view.x(at);
      if (x < GUTTER || x > width) continue;
      pen.fillStyle = view.ink[tone || "bad"];
      pen.fillRect(x - 0.75, 0, 1.5, this.height);
      pen.beginPath(); pen.moveTo(x - 5, 0); pen.lineTo(x + 5, 0); pen.lineTo(x, 7); pen.fill();
    }
    if (view.cursor !== null) {
      pen.fillStyle = view.ink.soft;
      pen.fillRect(Math.round(view.x(view.cursor)), 0, 1, this.height);
    }
    if (view.drag) {
      const [a, b] = view.drag.map(t => view.x(t));
      pen.fillStyle = view.ink.select;
      pen.fillRect(Math.min(a, b), 0, Math.abs(b - a), this.height);
    }
  }

  grid(pen, view, width) {
    pen.fillStyle = view.ink.grid;
    for (const { x } of view.ticks) pen.fillRect(Math.round(x), 0, 1, this.height);
  }

  label(pen, view) {
    pen.clearRect(0, 0, GUTTER - 4, this.height);
    let first = true;
    for (const row of this.rows) {
      if (row.kind === "chart") {
        pen.textAlign = "left";
        pen.fillStyle = view.ink.ink;
        pen.fillText(row.chart.label, 2, row.y + CHART / 2);
        pen.textAlign = "right";
        pen.fillStyle = view.ink.soft;
        pen.fillText(row.chart.unit === "1" ? "100 %" : reading(row.chart, row.chart.top), GUTTER - 8, row.y + 5);
        pen.fillText("0", GUTTER - 8, row.y + CHART - 4);
        continue;
      }
      pen.textAlign = "left";
      pen.fillStyle = view.ink.ink;
      const name = row.lanes.names[row.lane];
      // Stacked accents must not reach into other rows.
      pen.save();
      pen.beginPath(); pen.rect(0, row.y, GUTTER - 4, row.height); pen.clip();
      if (name !== undefined) pen.fillText(clipped(pen, name, GUTTER - 12), 2, row.y + LANE / 2 + 1);
      else if (first) pen.fillText(row.lanes.marked ? "regions, on the GPU" : "regions, by the host", 2, row.y + LANE / 2 + 1);
      else if (row.lanes.folded && row.lane === row.lanes.count - 1) pen.fillText("and more at once", 2, row.y + LANE / 2 + 1);
      pen.restore();
      first = false;
    }
  }

  chart(pen, view, row, width) {
    const { chart, y } = row, base = y + CHART, levels = chart.levels || LEVELS, colour = view.ink[chart.key];
    const height = value => base - (value / levels) * (CHART - 1);
    pen.save();
    pen.beginPath(); pen.rect(GUTTER, y, width - GUTTER, CHART); pen.clip();
    const from = after(chart.t1, view.from), to = Math.min(chart.t0.length, after(chart.t0, view.to));
    // Per pixel: lowest, highest and mean by time; a wide row is its own stretch. Paths, for there may be thousands.
    const area = new Path2D(), band = new Path2D(), line = new Path2D();
    let column = -1, low = 0, high = 0, mass = 0, time = 0, over = NaN;
    const flush = () => {
      if (time > 0) bar(column, column + 1, low, mass / time, high);
      time = 0;
    };
    const bar = (a, b, lowest, mean, highest) => {
      const here = height(mean);
      b = Math.max(b, a + 1);
      if (a - over < 1.5) line.lineTo(a, here);
      else {
        area.lineTo(over, base);
        area.moveTo(a, base);
        line.moveTo(a, here);
      }
      area.lineTo(a, here);
      area.lineTo(b, here);
      line.lineTo(b, here);
      if (highest > lowest) band.rect(a, height(highest), b - a, height(lowest) - height(highest));
      over = b;
    };
    for (let i = from; i < to; i++) {
      const a = Math.max(GUTTER - 2, view.x(chart.t0[i])), b = Math.min(width + 2, view.x(chart.t1[i]));
      if (b - a >= 1.5) { flush(); bar(a, b, chart.low[i], chart.mean[i], chart.high[i]); continue; }
      const pixel = Math.floor(b);
      if (pixel !== column) { flush(); column = pixel; low = Infinity; high = mass = 0; }
      const length = Math.max(1, chart.t1[i] - chart.t0[i]);
      low = Math.min(low, chart.low[i]); high = Math.max(high, chart.high[i]);
      mass += chart.mean[i] * length; time += length;
    }
    flush();
    area.lineTo(over, base);
    pen.fillStyle = pen.strokeStyle = colour;
    pen.lineWidth = 1.2;
    pen.globalAlpha = 0.28;
    pen.fill(area);
    pen.globalAlpha = 0.45;
    pen.fill(band);
    pen.globalAlpha = 1;
    pen.stroke(line);
    for (let i = 0; i < chart.gaps.length; i += 2) hatch(pen, view, view.x(chart.gaps[i]), view.x(chart.gaps[i + 1]), y, CHART, width);
    pen.restore();
    pen.fillStyle = view.ink.line;
    pen.fillRect(GUTTER, base, width - GUTTER, 1);
  }

  lane(pen, view, row, width) {
    const { lanes, lane, y } = row, first = lanes.from[lane], last = lanes.from[lane + 1];
    pen.save();
    pen.beginPath(); pen.rect(GUTTER, y, width - GUTTER, LANE); pen.clip();
    let pixel = -1, filled = 0, region = -1, most = 0;
    const flush = () => {
      if (pixel < 0 || filled <= 0) return;
      pen.fillStyle = view.colour(region);
      pen.globalAlpha = view.faint(region) * Math.min(1, 0.25 + 0.75 * filled);
      pen.fillRect(pixel, y, 1, LANE);
      filled = most = 0;
    };
    for (let i = after(lanes.reach, view.from, first, last); i < last && lanes.t0[i] < view.to; i++) {
      const left = view.x(lanes.t0[i]), right = view.x(lanes.t1[i]);
      if (right < GUTTER) continue;
      const a = Math.max(GUTTER - 2, left), b = Math.min(width + 2, right), fill = lanes.fill[i] / 255;
      if (b - a < 2) {
        const place = Math.floor(a), share = Math.max(0.15, b - a) * fill;
        if (place !== pixel) { flush(); pixel = place; }
        filled += share;
        if (share >= most) { most = share; region = lanes.region[i]; }
        continue;
      }
      flush(); pixel = -1;
      const number = lanes.region[i];
      pen.fillStyle = view.colour(number);
      pen.globalAlpha = view.faint(number) * (lanes.n[i] > 1 ? 0.2 + 0.65 * fill : 0.9);
      pen.fillRect(a, y, Math.max(1, b - a - 0.75), LANE);
      if (b - a > 34) {
        pen.globalAlpha = 1;
        pen.fillStyle = view.faint(number) < 1 ? view.ink.soft : lanes.n[i] > 1 ? view.ink.ink : view.ink.onBlock;
        pen.textAlign = "left";
        const start = Math.max(a, GUTTER) + 4, name = view.regions[number].name;
        let text = clipped(pen, name, b - start - 3);
        if (lanes.n[i] > 1) {
          const many = lanes.n[i].toLocaleString("en") + " ×";
          text = [many + " " + name, many].find(each => pen.measureText(each).width <= b - start - 3) || "";
        }
        pen.fillText(text, start, y + LANE / 2 + 1);
      }
    }
    flush();
    pen.restore();
    if (view.picked && view.picked.lanes === lanes && lanes.lane[view.picked.i] === lane) {
      pen.strokeStyle = view.ink.ink;
      pen.lineWidth = 2;
      const a = view.x(lanes.t0[view.picked.i]), b = view.x(lanes.t1[view.picked.i]);
      if (b >= GUTTER && a <= width) pen.strokeRect(Math.max(GUTTER, a) - 1, y - 1, Math.max(3, Math.min(width, b) - Math.max(GUTTER, a)) + 2, LANE + 2);
    }
  }

  // What lies under a point: the block of a lane, or null.
  block(view, y, t) {
    const row = this.rows.find(each => y >= each.y && y < each.y + each.height + 2);
    if (!row || row.kind !== "lane") return null;
    const { lanes, lane } = row;
    const reach = 3 * (view.to - view.from) / (view.width - GUTTER);
    let best = null, near = reach;
    const first = after(lanes.reach, t - reach, lanes.from[lane], lanes.from[lane + 1]);
    for (let i = after(lanes.t0, t + reach, first, lanes.from[lane + 1]) - 1; i >= first; i--) {
      const away = t < lanes.t0[i] ? lanes.t0[i] - t : t > lanes.t1[i] ? t - lanes.t1[i] : 0;
      if (away <= near) { near = away; best = { lanes, i }; }
      if (!away) break;
    }
    return best;
  }

  // What each chart says at a moment: null where nothing was measured.
  readings(t) {
    return this.data.charts.map(chart => {
      const i = after(chart.t1, t - 1);
      const there = i < chart.t0.length && chart.t0[i] <= t;
      const of = level => (level / (chart.levels || LEVELS)) * chart.top;
      return { chart, mean: there ? of(chart.mean[i]) : null, low: there ? of(chart.low[i]) : null, high: there ? of(chart.high[i]) : null };
    });
  }
}

function hatch(pen, view, a, b, y, height, width) {
  a = Math.max(GUTTER, a); b = Math.min(width, Math.max(b, a + 2));
  if (b <= a) return;
  pen.save();
  pen.beginPath(); pen.rect(a, y, b - a, height); pen.clip();
  pen.fillStyle = view.ink.gap;
  pen.fillRect(a, y, b - a, height);
  pen.strokeStyle = view.ink.hatch;
  pen.lineWidth = 1;
  pen.beginPath();
  // Lines keep their place on the screen, so that neighbouring gaps join.
  for (let x = Math.floor((a - height) / 6) * 6; x < b; x += 6) { pen.moveTo(x, y + height); pen.lineTo(x + height, y); }
  pen.stroke();
  pen.restore();
}

function clipped(pen, text, width) {
  if (width <= 8) return "";
  if (pen.measureText(text).width <= width) return text;
  let low = 0, high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (pen.measureText(text.slice(0, middle) + "…").width <= width) low = middle; else high = middle - 1;
  }
  return low > 1 ? text.slice(0, low) + "…" : "";
}
