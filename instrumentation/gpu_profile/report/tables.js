"use strict";
// Tables of results: a click on a column's name sorts by it, and long tables have a field that keeps matching rows.

const LONG_TABLE = 8;
const SCALES = { T: 1e12, G: 1e9, M: 1e6, k: 1e3, m: 1e-3, "µ": 1e-6, n: 1e-9 };

// The number that a cell begins with, in base units: "~3.98 s", "1.70 kJ", "58.3 % ±12.4", "-2.4 %", "1.234e+04". NaN
// without one.
function amount(text) {
  const found = /^[~≥]?\s*([+\-−]?[\d,]*\.?\d+(?:e[+\-]?\d+)?)\s?([TGMkmµn](?=[A-Za-z]|$))?/.exec(text);
  return found ? Number(found[1].replace(/,/g, "").replace("−", "-")) * (SCALES[found[2]] || 1) : NaN;
}

// Numbers before words, unknown values last, whichever the order.
function inOrder(a, b, falling) {
  const x = amount(a), y = amount(b), sign = falling ? -1 : 1;
  const rank = (text, number) => text === "–" || text === "" ? 2 : Number.isNaN(number) ? 1 : 0;
  if (rank(a, x) !== rank(b, y)) return rank(a, x) - rank(b, y);
  return sign * (rank(a, x) ? a.localeCompare(b) : x - y);
}

function sortable(table) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  const shown = (row, place) => row.cells[place].textContent.trim();
  let by = -1;
  // Sorts rows, which come in their own order. Only a changed order moves rows, so that the focus stays.
  table.resort = rows => {
    const falling = by >= 0 && heads[by].ariaSort === "descending";
    const order = by < 0 ? rows : [...rows].sort((a, b) => inOrder(shown(a, by), shown(b, by), falling));
    if (order.some((row, place) => body.rows[place] !== row)) body.append(...order);
  };
  heads.forEach((head, place) => {
    if (!head.textContent) return;
    const button = document.createElement("button");
    button.textContent = head.textContent;
    button.title = "sort by it";
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const numbers = [...body.rows].some(row => !Number.isNaN(amount(shown(row, place))));
      // Numbers begin with the largest, names with the first.
      const falling = head.ariaSort ? head.ariaSort === "ascending" : numbers;
      for (const each of heads) each.ariaSort = null;
      head.ariaSort = falling ? "descending" : "ascending";
      by = place;
      table.resort([...body.rows]);
    });
  });
  // A narrow screen shows each row as a block, with the names beside the values.
  for (const row of body.rows) [...row.cells].forEach((cell, place) => { cell.dataset.name = heads[place].textContent; });
  table.classList.add("named");
  if (body.rows.length < LONG_TABLE) return;
  const field = document.createElement("input");
  field.type = "search";
  field.placeholder = "only rows with …";
  field.setAttribute("aria-label", "show only rows with this text");
  field.addEventListener("input", () => {
    const wanted = field.value.toLowerCase();
    for (const row of body.rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  });
  table.parentElement.before(field);
}

for (const table of document.querySelectorAll(".wide > table")) sortable(table);
