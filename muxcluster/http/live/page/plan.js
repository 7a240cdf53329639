// The plan in force, and what it would be after changes.
import { ask } from "./asking.js";
import { at, fill, make } from "./document.js";
import { page } from "./state.js";
import { colourOf, percent, rate, swatch } from "./values.js";

const PLAN_PATIENCE_MS = 120000; // a what-if plan takes seconds
const MOST_MOVES = 30;

function meshText(mesh) {
  return `${mesh.node}, GPU ${mesh.gpus.join(", ")}`;
}

function gibText(bytes) {
  return `${(bytes / 2 ** 30).toFixed(1)} GiB`;
}

function plannedUnit(unit) {
  const card = make("article", { class: "card mesh" }, make("h4", null, `GPU ${unit.gpus.join(", ")}`));
  card.style.flexGrow = String(unit.gpus.length);
  const whole = Math.max(1, unit.models.reduce((sum, model) => sum + model.quota_blocks, 0));
  const bar = make("div", { class: "pool", role: "img", "aria-label": "KV quotas by model" });
  for (const model of unit.models) {
    const part = make("span", { title: `${model.name}: quota ${model.quota_blocks} blocks` });
    part.style.width = `${(100 * model.quota_blocks) / whole}%`;
    part.style.background = colourOf(model.name);
    bar.append(part);
  }
  const list = make("ul", { class: "planned" });
  for (const model of unit.models) {
    const residency = model.residency && model.residency !== "always" ? `, ${model.residency}` : "";
    const words = `${rate(model.throughput)} req/s, prefill ${percent(model.prefill_sm)}, decode ${percent(model.decode_sm)}${residency}`;
    list.append(make("li", null, swatch(model.name, 1), make("span", null, model.name), make("span", { class: "faint" }, ` ${words}`)));
  }
  card.append(bar, list);
  return card;
}

function plannedNode(told, node) {
  const units = told.plan.units.filter((unit) => unit.node === node.name);
  const used = new Set(units.flatMap((unit) => unit.gpus));
  const idle = node.gpus - used.size;
  const cards = units.sort((a, b) => a.gpus[0] - b.gpus[0]).map(plannedUnit);
  if (idle > 0) cards.push(make("p", { class: "faint" }, `${idle} of ${node.gpus} GPUs idle`));
  return make("div", { class: "node" }, make("h3", null, `${node.name} `, make("span", { class: "faint" }, `${node.gpus} × ${node.gpu}`)), make("div", { class: "meshes" }, ...cards));
}

function differenceLines(difference) {
  const [before, after] = difference.throughput;
  const lines = [`${rate(before)} → ${rate(after)} requests/s`];
  for (const move of difference.moves) {
    const from = move.from.length ? ` from ${move.from.map(meshText).join("; ")}` : "";
    const what = !move.from.length ? "new" : move.stays_too ? "replica" : "move";
    lines.push(`${what}: ${move.model}${from} to ${meshText(move.to)}, ${gibText(move.load_bytes)} to load`);
  }
  for (const each of difference.dropped) lines.push(`drop: ${each.model} leaves ${meshText(each.from)}`);
  for (const name of difference.removed) lines.push(`remove: ${name}`);
  for (const each of difference.losers) lines.push(`loses: ${each.model} ${rate(each.before)} → ${rate(each.after)} requests/s`);
  if (lines.length > MOST_MOVES) lines.splice(MOST_MOVES, lines.length, `and ${lines.length - MOST_MOVES} more`);
  lines.push(`${difference.moves.length} ${difference.moves.length === 1 ? "load" : "loads"} of weights, ${gibText(difference.load_bytes)} in all; ${difference.kept.length} models stay where they are`);
  return lines;
}

export function drawPlan() {
  const told = page.whatIf || page.plan;
  at("plan").hidden = !told;
  if (!told) return;
  const unplaced = told.models.filter((model) => !model.placed).map((model) => model.name);
  const words = [`${rate(told.plan.throughput)} requests/s expected on ${told.plan.units.length} ${told.plan.units.length === 1 ? "mesh" : "meshes"}, planned by ${told.plan.method} for ${told.plan.objective}`];
  if (unplaced.length) words.push(`no room for ${unplaced.join(", ")}`);
  fill("plan-summary", page.whatIf ? `What if ${page.whatIf.changes.join(", ")}: ${words.join("; ")}` : words.join("; "));
  fill("plan-difference", ...(page.whatIf ? differenceLines(page.whatIf.difference).map((line) => make("li", null, line)) : []));
  fill("plan-nodes", ...told.nodes.map((node) => plannedNode(told, node)));
  at("what-if-end").hidden = !page.whatIf;
}

// Nobody waits for it: a controller that is away answers late or not at all, and the last plan stays.
export async function askForPlan() {
  try {
    const { body } = await ask("/v1/cluster/plan");
    if (!body) return;
    page.plan = body;
    drawPlan();
  } catch (error) {
    return;
  }
}

export async function tryWhatIf() {
  const changes = at("what-if").value.split("\n").map((line) => line.trim()).filter(Boolean);
  if (!changes.length) return;
  const buttons = [at("what-if-try"), at("what-if-end")];
  for (const each of buttons) each.setAttribute("disabled", "");
  fill("what-if-problem");
  fill("what-if-state", "planning");
  try {
    const { status, body, error } = await ask("/v1/cluster/plan", { changes }, PLAN_PATIENCE_MS);
    if (body) page.whatIf = body;
    fill("what-if-problem", body ? "" : error || `the server answers ${status}`);
  } catch (error) {
    fill("what-if-problem", "the server does not answer");
  }
  fill("what-if-state");
  for (const each of buttons) each.removeAttribute("disabled");
  drawPlan();
}
