"use strict";
// The table of the costs of LLM engines: a row for each engine, then its tenants and the energy of no tenant. The row
// of an engine has a button that folds its others. If there are many rows, all engines are folded at first.

const MOST_UNFOLDED = 100;

const count = value => value === null ? "–" : value < 10_000 ? value.toLocaleString("en") : si(value, "");
const inUnit = (value, unit) => value === null ? "–" : si(value, unit);
const percent = share => (100 * share).toFixed(share < 0.001 ? 3 : 1) + " %";

class CostTable extends LiveTable {
  constructor(page) {
    super("costs", ["left long", "left", ...Array(8).fill(""), "left long"]);
    this.page = page;
    // By engine. They outlive their rows, so that an engine stays folded.
    this.buttons = new Map();
  }

  fill(wanted) {
    const { serving } = this.page.answer;
    this.section.hidden = !serving;
    if (!serving) return;
    const { engines, over_s } = serving;
    this.many = engines.reduce((sum, { tenants, unallocated }) => sum + tenants.length + unallocated.length, 0) > MOST_UNFOLDED;
    const over = over_s < 120 ? `${over_s} s` : `${Math.round(over_s / 60)} min`;
    this.update(engines.flatMap(each => this.rowsOf(each)), `Sums of the last ${over}: the rows of an engine add up to its energy. `
      + "±: half of the 95 % interval. Per 1,000 tokens: of requests with a complete cost. –: not known.", wanted);
  }

  rowsOf({ name, whole, tenants, unallocated, remark, waiting }) {
    const joules = whole[4], shut = this.button(name).ariaExpanded === "false";
    const energies = energy => [inUnit(energy, "J"), energy === null ? "–" : percent(energy / joules)];
    const values = ([, requests, prefill, decode, energy, half, perPrefill, perDecode, time]) => {
      const [text, share] = energies(energy);
      return [name, count(requests), count(prefill), count(decode), text + (half === null ? "" : " ±" + si(half, "J")), share,
        inUnit(perPrefill, "J"), inUnit(perDecode, "J"), inUnit(time, "s")];
    };
    const wait = waiting && [waiting[2] === null ? "" : `costs up to ${waiting[2]} s ago`,
      `${count(waiting[0])} iteration${waiting[0] === 1 ? "" : "s"} and ${si(waiting[1], "J")} wait`];
    return [
      { key: name, cells: ["", ...values(whole), [remark, ...(wait || [])].filter(part => part).join("; ")], first: () => this.button(name) },
      ...tenants.map(row => ({
        key: JSON.stringify([name, row[0]]), cells: [row[0], ...values(row), ""], shut,
        first: row[0] ? undefined : () => make("i", "requests without a span"),
      })),
      ...unallocated.map(([reason, energy, remedy]) => ({
        key: JSON.stringify([name, reason, ""]), cells: ["", name, "", "", "", ...energies(energy), "", "", "", remedy], shut,
        first: () => make("i", "unallocated: " + reason),
      })),
    ];
  }

  button(engine) {
    let button = this.buttons.get(engine);
    if (!button) {
      this.buttons.set(engine, button = make("button", engine + ": whole engine", "fold"));
      button.ariaExpanded = String(!this.many);
      button.addEventListener("click", () => {
        button.ariaExpanded = String(button.ariaExpanded !== "true");
        this.page.fill();
      });
    }
    return button;
  }
}
