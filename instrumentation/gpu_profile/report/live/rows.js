"use strict";
// The rows that the live page keeps: of one signal of one device, and of one region on one device. `timeline.js` draws
// them. Times are in ms from the page's `base`.

const LATE_MS = 5_000;
const COLUMNS = ["lane", "t0", "t1", "region", "n", "fill", "open"];

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

// The executions of one region on one device, by their beginnings: a lane of its own. Late ones come after newer ones,
// and executions may overlap.
class LiveLane {
  constructor(region, name) {
    Object.assign(this, { own: region, names: [name], marked: true, folded: false, count: 1, running: 0, from: [0, 0], reach: [] });
    for (const column of COLUMNS) this[column] = [];
  }

  push(start, end, n, fill, open = 0) {
    const place = after(this.t0, start), row = [0, start, end, this.own, n, fill, open];
    COLUMNS.forEach((column, i) => { this[column].splice(place, 0, row[i]); });
    this.running += open;
    this.settle(place);
  }

  // Executions that still run are drawn up to now; the next answer replaces them.
  clearOpen() {
    if (!this.running) return;
    const kept = this.open.map(open => !open);
    for (const column of COLUMNS) this[column] = this[column].filter((_, i) => kept[i]);
    this.running = 0;
    this.settle(0);
  }

  trim(first) {
    const many = after(this.reach, first);
    for (const column of COLUMNS) this[column].splice(0, many);
    this.settle(0);
  }

  settle(place) {
    this.from[1] = this.reach.length = this.t0.length;
    for (let i = place; i < this.reach.length; i++) this.reach[i] = Math.max(this.t1[i], i ? this.reach[i - 1] : -Infinity);
  }

  // The time that executions fill, in ms.
  get filled() { return this.t1.reduce((sum, end, i) => sum + (end - this.t0[i]) * this.fill[i] / 255, 0); }

  // The place of the execution with this beginning; -1 without one.
  find(start) {
    const place = after(this.t0, start) - 1;
    return this.t0[place] === start ? place : -1;
  }
}
