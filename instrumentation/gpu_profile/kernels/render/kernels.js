"use strict";
// Blocks of this page are operations as well as regions: they have no regime, and words and colours of their own.

const KINDS = { communication: "r-COMMUNICATION_BOUND", transfer: "r-TRANSFER_BOUND", copy: "r-MEMORY_BOUND", set: "r-IDLE" };
const MEMORY = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];
const inks = Page.prototype.inks, about = Page.prototype.about, plainly = reading;

Page.prototype.inks = function () {
  inks.call(this);
  const style = getComputedStyle(document.documentElement);
  this.regions.forEach((entry, i) => {
    if (entry.what === "region") return;
    if (KINDS[entry.what]) this.byRegion[i] = style.getPropertyValue("--" + KINDS[entry.what]).trim();
    this.byRegime[i] = this.byRegion[i];
  });
};

Page.prototype.about = function (block) {
  const found = about.call(this, block), entry = this.regions[block.lanes.region[block.i]];
  found[0][0] = entry.what;
  if (block.lanes.marked && found[1][0] === "here") found[1][1] = found[1][1].replace("executions", "operations").replace("this region", "this one");
  return found;
};

// A small program's memory would be 0.00 GiB.
reading = function (chart, value) {
  if (chart.unit !== "By") return plainly(chart, value);
  const [size, unit] = MEMORY.find(([least]) => value >= least) || [1, "B"];
  return (value / size).toPrecision(3) + " " + unit;
};

if (page) { page.inks(); page.redraw(); }
