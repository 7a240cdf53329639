// How values, states and names of models are shown.
import { make } from "./document.js";
import { page } from "./state.js";

const GOOD = ["up", "resident", "ready", "completed"];
const SOON = ["loading", "recovering", "waking", "parking", "starting", "in_progress", "validating", "finalizing", "cancelling"];
const IDLE = ["parked", "cold", "cancelled"];

export function known(value) {
  return value !== null && value !== undefined;
}

export function count(value) {
  if (!known(value)) return "–";
  return value >= 100000 ? `${Math.round(value / 1000)}k` : String(Math.round(value));
}

export function rate(value) {
  if (!known(value)) return "–";
  return value >= 100 || value === 0 ? count(value) : value.toFixed(1);
}

export function seconds(value) {
  if (!known(value)) return "–";
  return value < 1 ? `${(value * 1000).toFixed(value < 0.01 ? 1 : 0)} ms` : `${value.toFixed(2)} s`;
}

export function percent(value) {
  return known(value) ? `${Math.round(value * 100)}%` : "–";
}

export function clock(timeS) {
  return new Date(timeS * 1000).toLocaleTimeString();
}

export function tone(state) {
  if (GOOD.includes(state)) return "good";
  if (SOON.includes(state)) return "soon";
  return IDLE.includes(state) ? "faint" : "bad";
}

// A colour for each model, the same in every place: neighbours in the list are far apart.
export function colours(models) {
  const found = new Map();
  models.forEach((model, i) => found.set(model.name, `hsl(${Math.round((i * 137.508) % 360)} 60% 50%)`));
  return found;
}

export function colourOf(name) {
  return page.colours.get(name) || "hsl(0 0% 55%)";
}

export function swatch(name, opacity) {
  const mark = make("span", { class: "swatch" });
  mark.style.background = colourOf(name);
  mark.style.opacity = String(opacity);
  return mark;
}
