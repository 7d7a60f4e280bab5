"use strict";
// The tables of the live page, with `cost_table.js`: regions, processes and holders, events. A renewal leaves rows that
// stay alone.

const MOST_MARKS = 100;

const make = (tag, text, className) => {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
};

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

class LiveTables {
  constructor(page) {
    const words = many => Array(many).fill("");
    this.page = page;
    this.regions = new LiveTable("regions", ["left long", "left", ...words(4), "left", "", "left long"]);
    this.users = new LiveTable("users", ["left long", "left", "left", "", ""]);
    this.costs = new CostTable(page);
    this.marks = new LiveTable("marks", ["left long", "left", ""]);
  }

  clear() { for (const table of [this.regions, this.users, this.costs, this.marks]) table.clear(); }

  // Shows the rows of the newest answer that contain the text `wanted`.
  fill(wanted) {
    this.fillRegions(wanted);
    this.costs.fill(wanted);
    this.fillUsers(wanted);
    this.fillMarks(wanted);
  }

  fillRegions(wanted) {
    const { answer, labels, regions } = this.page;
    const about = (value, uncertain, text) => value === null ? "–" : (uncertain ? "~" : "") + text(value);
    const rows = answer.regions.map(row => {
      const regime = row.regime === "UNKNOWN" || row.confidence === null ? row.regime : `${row.regime} ${(row.confidence * 100).toFixed(0)} %`;
      return {
        key: `${row.region} ${row.device} ${regions[row.region].name}`,
        title: row.whole && row.whole !== row.regime ? `over the whole run: ${row.whole}` : "",
        first: () => this.regionButton(row.region),
        cells: ["", labels.get(row.device) || row.device || "–",
          about(row.share, row.uncertain, value => (value * 100).toFixed(1) + " %"),
          about(row.power_w, row.uncertain, value => si(value, "W")),
          about(row.energy_j, row.uncertain, value => si(value, "J")),
          row.calls_per_s === null ? "–" : row.calls_per_s.toFixed(row.calls_per_s < 10 ? 2 : 0),
          regime, row.since_ms === null ? "–" : clock(row.since_ms), row.next],
      };
    });
    const more = answer.regions_left_out ? ` ${answer.regions_left_out} more regions are not listed.` : "";
    const means = "Share, power and calls are those of the last minute; energy is the total. ~: shared out by time.";
    this.regions.update(rows, rows.length ? means + more : answer.region_note, wanted);
  }

  regionButton(number) {
    const button = make("button"), swatch = make("span", undefined, "swatch");
    swatch.style.setProperty("--of-region", `var(--hue-${number % HUES})`);
    button.dataset.region = number;
    button.setAttribute("aria-pressed", "false");
    button.append(swatch, this.page.regions[number].name);
    button.addEventListener("click", () => this.page.choose(number));
    return button;
  }

  fillUsers(wanted) {
    const { answer, devices, labels } = this.page, rows = [];
    for (const [uuid, { state }] of devices) {
      state.holders.forEach(([kind, name]) => rows.push({ key: `${uuid} ${kind} ${name}`, cells: [name, labels.get(uuid), kind, "", ""] }));
      for (const [pid, name, memory, busy] of state.processes) {
        const cells = [name ? `${name} (${pid})` : `process ${pid}`, labels.get(uuid), "process",
          memory === null ? "–" : (memory / 2 ** 30).toFixed(2) + " GiB", busy === null ? "–" : (busy * 100).toFixed(0) + " %"];
        rows.push({ key: `${uuid} ${pid}`, cells });
      }
    }
    this.users.update(rows, rows.length ? "" : answer.user_note, wanted);
  }

  fillMarks(wanted) {
    const { base, labels, marks } = this.page;
    const rows = marks.slice(-MOST_MARKS).reverse().map(({ t, uuid, tone, text }) => ({
      key: `${t} ${uuid} ${text}`, cells: [(tone === "soft" ? "" : tone === "bad" ? "✕ " : "▲ ") + text, labels.get(uuid) || uuid, clock(base + t)],
    }));
    this.marks.update(rows, rows.length ? "" : "No event in the last minutes.", wanted);
  }
}
