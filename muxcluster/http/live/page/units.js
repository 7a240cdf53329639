// A card for each unit: its state, its KV pool, who had its SMs lately.
import { make } from "./document.js";
import { colourOf, count, known, percent, swatch, tone } from "./values.js";

const MOST_NAMED = 12; // models and phases in the legend of a unit
const SVG = "http://www.w3.org/2000/svg";

export function unitCard(unit) {
  const place = known(unit.node) ? `${unit.node}, GPU ${(unit.gpus || []).join(", ")}` : "";
  const words = [unit.draining ? "draining" : unit.state];
  if (unit.reason) words.push(unit.reason);
  if (known(unit.report_age_s) && unit.report_age_s > 2) words.push(`silent for ${Math.round(unit.report_age_s)} s`);
  const sharing = unit.sharing && !unit.sharing.is_on ? "; SMs are not shared now" : "";
  const card = make(
    "article",
    { class: "card" },
    make("h3", null, unit.id),
    make(
      "p",
      null,
      make("span", { class: tone(unit.draining ? "draining" : unit.state) }, words.join(": ")),
      make("span", { class: "faint" }, ` ${[place, unit.device, unit.lane].filter(known).filter(Boolean).join("; ")}${sharing}`),
    ),
  );
  if (known(unit.num_blocks)) card.append(...poolParts(unit));
  if (unit.sm) card.append(...timelineParts(unit.sm));
  return card;
}

function poolParts(unit) {
  const bar = make("div", { class: "pool", role: "img", "aria-label": "KV pool by model" });
  const whole = Math.max(1, unit.num_blocks);
  for (const model of unit.models) {
    const parts = [
      [(model.used_blocks || 0) + (model.batch_blocks || 0), 1, "in use"],
      [model.cached_blocks || 0, 0.4, "cached"],
    ];
    for (const [blocks, opacity, what] of parts) {
      if (blocks <= 0) continue;
      const part = make("span", { title: `${model.name}: ${blocks} blocks ${what}, quota ${model.quota_blocks}` });
      part.style.width = `${(100 * blocks) / whole}%`;
      part.style.background = colourOf(model.name);
      part.style.opacity = String(opacity);
      bar.append(part);
    }
  }
  const free = known(unit.free_blocks) ? unit.free_blocks : 0;
  return [make("p", { class: "faint" }, `KV pool: ${count(free)} of ${count(unit.num_blocks)} blocks free`), bar];
}

function timelineParts(sm) {
  const numBins = sm.series.length ? sm.series[0].shares.length : 0;
  const drawing = document.createElementNS(SVG, "svg");
  drawing.setAttribute("viewBox", `0 0 ${Math.max(1, numBins)} 100`);
  drawing.setAttribute("preserveAspectRatio", "none");
  drawing.setAttribute("role", "img");
  drawing.setAttribute("aria-label", "SM shares by model and phase, the last half minute");
  const floors = new Array(numBins).fill(0);
  const highest = Math.max(1, ...stackedHeights(sm.series, numBins));
  for (const series of sm.series) {
    const shape = document.createElementNS(SVG, "path");
    shape.setAttribute("d", areaPath(series.shares, floors, highest));
    shape.setAttribute("fill", colourOf(series.model));
    shape.setAttribute("fill-opacity", String(phaseOpacity(series.phase)));
    drawing.append(shape);
    series.shares.forEach((share, i) => (floors[i] += share));
  }
  const ago = Math.round(numBins * sm.bin_s);
  const scale = make("div", { class: "scale" }, make("span", null, numBins ? `${ago} s ago` : "nothing ran lately"), make("span", null, `SM share, up to ${percent(highest)}`), make("span", null, "now"));
  return [drawing, scale, legendOf(sm.series)];
}

// The series with most of the SMs lately, each with its share of the last second.
function legendOf(series) {
  const sum = (shares) => shares.reduce((total, share) => total + share, 0);
  const largest = [...series].sort((a, b) => sum(b.shares) - sum(a.shares)).slice(0, MOST_NAMED);
  const legend = make("ul", { class: "legend" });
  for (const { model, phase, shares } of largest) {
    const latest = shares.slice(-4);
    const now = percent(sum(latest) / Math.max(1, latest.length));
    legend.append(make("li", null, swatch(model, phaseOpacity(phase)), `${model} ${phase} ${now}`));
  }
  if (series.length > MOST_NAMED) legend.append(make("li", null, `and ${series.length - MOST_NAMED} more`));
  return legend;
}

function phaseOpacity(phase) {
  return phase === "prefill" ? 1 : phase === "mixed" ? 0.75 : 0.5;
}

function stackedHeights(series, numBins) {
  const heights = new Array(numBins).fill(0);
  for (const each of series) each.shares.forEach((share, i) => (heights[i] += share));
  return heights;
}

// The steps of one series over those below it; the y axis points down.
function areaPath(shares, floors, highest) {
  const y = (share) => (100 - (100 * share) / highest).toFixed(2);
  let above = "";
  let below = "";
  shares.forEach((share, i) => {
    above += `${i ? "L" : "M"}${i} ${y(floors[i] + share)}L${i + 1} ${y(floors[i] + share)}`;
    below = `L${i + 1} ${y(floors[i])}L${i} ${y(floors[i])}` + below;
  });
  return above ? `${above}${below}Z` : "";
}
