"use strict";
// The table of the costs of LLM engines: a row for each engine, then its tenants and the energy of no tenant. The row
// of an engine has a button that folds its others: they are then in the table for a search only. If there are many
// rows, engines are folded unless a click unfolded them.

const MOST_UNFOLDED = 100;

const count = value => value === null ? "–" : value < 10_000 ? value.toLocaleString("en") : si(value, "");
const inUnit = (value, unit) => value === null ? "–" : si(value, unit);
const percent = share => (100 * share).toFixed(share < 0.001 ? 3 : 1) + " %";

class CostTable extends LiveTable {
  constructor(page) {
    super("costs", ["left long", "left", ...Array(8).fill(""), "left long"]);
    this.page = page;
    // By engine: whether a click unfolded or folded it.
    this.unfolded = new Map();
  }

  clear() {
    super.clear();
    this.shown = "";
  }

  fill(wanted) {
    const { serving } = this.page.answer;
    this.section.hidden = !serving;
    if (!serving) return;
    // Most answers have the rows of the one before.
    const { engines, over_s, number } = serving, shown = number + " " + wanted;
    if (shown === this.shown) return;
    this.shown = shown;
    const many = engines.reduce((sum, each) => sum + each.tenants.length + each.unallocated.length, 0) > MOST_UNFOLDED;
    const rows = engines.map(each => this.rowsOf(each)), open = engines.map(({ name }) => this.unfolded.get(name) ?? !many);
    const over = over_s < 120 ? `${over_s} s` : `${Math.round(over_s / 60)} min`;
    const means = `Sums of the last ${over}: the rows of an engine add up to its energy. ±: half of the 95 % interval. `
      + "Per 1,000 tokens: of requests with a complete cost. –: not known.";
    this.update(rows.flatMap((some, i) => wanted || open[i] ? some : some.slice(0, 1)), means, wanted);
    engines.forEach(({ name }, i) => {
      this.rows.get(JSON.stringify([name])).querySelector("button").ariaExpanded = String(open[i]);
    });
  }

  rowsOf({ name, whole, tenants, unallocated, remark, waiting }) {
    const joules = whole[4];
    const energies = energy => [inUnit(energy, "J"), energy === null ? "–" : percent(energy / joules)];
    const values = ([, requests, prefill, decode, energy, half, perPrefill, perDecode, time]) => {
      const [text, share] = energies(energy);
      return [name, count(requests), count(prefill), count(decode), text + (half === null ? "" : " ±" + si(half, "J")), share,
        inUnit(perPrefill, "J"), inUnit(perDecode, "J"), time === null ? "–" : time.toLocaleString("en", { maximumSignificantDigits: 3 }) + " s"];
    };
    const wait = waiting && [waiting[2] === null ? "" : `costs up to ${waiting[2]} s ago`,
      `${count(waiting[0])} iteration${waiting[0] === 1 ? "" : "s"} and ${si(waiting[1], "J")} wait`];
    const words = [remark, ...(wait || [])].filter(part => part).join("; ");
    return [
      { key: JSON.stringify([name]), cells: ["", ...values(whole), words], first: () => this.button(name) },
      ...tenants.map(row => ({
        key: JSON.stringify([name, row[0]]), cells: [row[0], ...values(row), ""],
        first: row[0] ? undefined : () => make("i", "requests without a span"),
      })),
      ...unallocated.map(([reason, energy, remedy]) => ({
        key: JSON.stringify([name, reason, ""]), cells: ["", name, "", "", "", ...energies(energy), "", "", "", remedy],
        first: () => make("i", "unallocated: " + reason),
      })),
    ];
  }

  button(engine) {
    const button = make("button", "all of " + engine, "fold");
    button.addEventListener("click", () => {
      this.unfolded.set(engine, button.ariaExpanded !== "true");
      this.shown = "";
      this.page.fill();
    });
    return button;
  }
}
