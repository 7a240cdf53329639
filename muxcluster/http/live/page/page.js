// The live page: asks for /v1/cluster/live each second and draws it. Whatever the server says is
// put into the document as text, never as HTML.
"use strict";

const PERIOD_MS = 1000;
const PATIENCE_MS = 8000;
const BATCHES_EVERY = 5; // snapshots
const PLAN_EVERY = 5;
const PLAN_PATIENCE_MS = 120000; // a what-if plan takes seconds
const MOST_MOVES = 30;
const MOST_NAMED = 12; // models and phases in the legend of a unit
const SVG = "http://www.w3.org/2000/svg";
const GOOD = ["up", "resident", "ready", "completed"];
const SOON = ["loading", "recovering", "waking", "parking", "starting", "in_progress", "validating", "finalizing", "cancelling"];
const IDLE = ["parked", "cold", "cancelled"];

const page = {
  key: "",
  snapshot: null,
  answeredAt: 0,
  problem: "",
  turns: 0,
  sort: { column: "name", descending: false },
  filter: "",
  model: null, // the model that is shown by unit
  colours: new Map(),
  buttons: new Map(), // of the table of models, by key
  plan: null, // the plan in force
  whatIf: null, // the one that would be made after changes
  isPressed: false, // the mouse, or a finger
};

// Document

function at(id) {
  return document.getElementById(id);
}

function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    element.setAttribute(name, value);
  }
  element.append(...nodes(children));
  return element;
}

function text(value) {
  return document.createTextNode(String(value));
}

// Elements as they are, all other values as text.
function nodes(children) {
  return children.map((child) => (typeof child === "object" ? child : text(child)));
}

function fill(id, ...children) {
  at(id).replaceChildren(...nodes(children));
}

// Values

function known(value) {
  return value !== null && value !== undefined;
}

function count(value) {
  if (!known(value)) return "–";
  return value >= 100000 ? `${Math.round(value / 1000)}k` : String(Math.round(value));
}

function rate(value) {
  if (!known(value)) return "–";
  return value >= 100 || value === 0 ? count(value) : value.toFixed(1);
}

function seconds(value) {
  if (!known(value)) return "–";
  return value < 1 ? `${(value * 1000).toFixed(value < 0.01 ? 1 : 0)} ms` : `${value.toFixed(2)} s`;
}

function percent(value) {
  return known(value) ? `${Math.round(value * 100)}%` : "–";
}

function clock(timeS) {
  return new Date(timeS * 1000).toLocaleTimeString();
}

function tone(state) {
  if (GOOD.includes(state)) return "good";
  if (SOON.includes(state)) return "soon";
  return IDLE.includes(state) ? "faint" : "bad";
}

// A colour for each model, the same in every place: neighbours in the list are far apart.
function colours(models) {
  const found = new Map();
  models.forEach((model, i) => found.set(model.name, `hsl(${Math.round((i * 137.508) % 360)} 60% 50%)`));
  return found;
}

function colourOf(name) {
  return page.colours.get(name) || "hsl(0 0% 55%)";
}

function swatch(name, opacity) {
  const mark = make("span", { class: "swatch" });
  mark.style.background = colourOf(name);
  mark.style.opacity = String(opacity);
  return mark;
}

// Units

function unitCard(unit) {
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

// Models

const COLUMNS = [
  { id: "name", title: "model", value: (m) => m.name },
  { id: "state", title: "state", value: (m) => [m.state, ...m.orders].join(", ") },
  { id: "running", title: "running", value: (m) => m.running, show: count },
  { id: "waiting", title: "waiting", value: (m) => m.waiting, show: count },
  { id: "output", title: "output tok/s", value: (m) => m.output_tokens_per_s, show: rate },
  { id: "prompt", title: "prompt tok/s", value: (m) => m.prompt_tokens_per_s, show: rate, extra: true },
  { id: "ttft", title: "TTFT p50", value: (m) => m.recent.ttft.p50_s, show: seconds },
  { id: "ttft99", title: "p99", value: (m) => m.recent.ttft.p99_s, show: seconds, target: (m) => m.targets && m.targets.ttft_s },
  { id: "tpot", title: "TPOT p50", value: (m) => m.recent.tpot.p50_s, show: seconds, extra: true },
  { id: "tpot99", title: "p99", value: (m) => m.recent.tpot.p99_s, show: seconds, extra: true, target: (m) => m.targets && m.targets.tpot_s },
  { id: "within", title: "in time", value: (m) => m.recent.attainment, show: percent },
  { id: "refused", title: "refused", value: (m) => m.recent.num_refused, show: count, extra: true },
  { id: "kv", title: "KV of quota", value: (m) => (m.quota_blocks ? m.used_blocks / m.quota_blocks : null), show: percent },
  { id: "cached", title: "cached", value: (m) => m.cached_blocks, show: count, extra: true },
  { id: "units", title: "units", value: (m) => m.units.length, show: count, extra: true },
];

function compared(a, b) {
  if (!known(a) || !known(b)) return known(a) ? -1 : known(b) ? 1 : 0; // what is not known is last
  const order = typeof a === "string" ? a.localeCompare(b) : a - b;
  return page.sort.descending ? -order : order;
}

function shownModels() {
  const column = COLUMNS.find((each) => each.id === page.sort.column);
  return page.snapshot.models
    .filter((model) => model.name.toLowerCase().includes(page.filter))
    .sort((a, b) => compared(column.value(a), column.value(b)));
}

function headCell(column) {
  const sorts = button(`sort ${column.id}`, column.title, () => {
    const again = page.sort.column === column.id;
    page.sort = { column: column.id, descending: again ? !page.sort.descending : column.id !== "name" };
    drawModels();
  });
  const cell = make("th", column.extra ? { class: "extra" } : null, sorts);
  if (page.sort.column === column.id) cell.setAttribute("aria-sort", page.sort.descending ? "descending" : "ascending");
  return cell;
}

function modelCell(column, model) {
  const value = column.value(model);
  const cell = make("td", column.extra ? { class: "extra" } : null);
  if (column.id === "name") {
    const opens = button(`model ${model.name}`, model.name, () => {
      page.model = page.model === model.name ? null : model.name;
      drawModels();
    });
    opens.setAttribute("title", model.name);
    cell.append(swatch(model.name, 1), opens);
  } else if (column.id === "state") {
    cell.append(make("span", { class: tone(model.state) }, value));
  } else {
    const target = column.target ? column.target(model) : null;
    const shown = known(target) ? `${column.show(value)} of ${column.show(target)}` : column.show(value);
    const isLate = known(target) && known(value) && value > target;
    cell.append(make("span", isLate ? { class: "bad" } : null, shown));
  }
  return cell;
}

function drawModels() {
  // a button that is replaced keeps the keyboard's focus
  const focused = document.activeElement ? document.activeElement.getAttribute("data-key") : null;
  page.buttons = new Map();
  fill("model-head", ...COLUMNS.map(headCell));
  fill("model-rows", ...shownModels().map((model) => make("tr", null, ...COLUMNS.map((column) => modelCell(column, model)))));
  const model = page.snapshot.models.find((each) => each.name === page.model);
  fill("model", ...(model ? [modelCard(model)] : []));
  if (focused && page.buttons.has(focused)) page.buttons.get(focused).focus({ preventScroll: true });
}

function button(key, label, onClick) {
  const made = make("button", { type: "button", "data-key": key }, label);
  made.addEventListener("click", onClick);
  page.buttons.set(key, made);
  return made;
}

function modelCard(model) {
  const titles = ["unit", "unit is", "weights", "order", "running", "waiting", "used", "batch", "cached", "quota", "lending requests", "req/s", "expected wait"];
  const rows = page.snapshot.units.flatMap((unit) =>
    unit.models.filter((each) => each.name === model.name).map((each) => [
      unit.id,
      unit.state,
      each.weights || "–",
      each.order || "–",
      count(each.running),
      count(each.waiting),
      count(each.used_blocks),
      count(each.batch_blocks),
      count(each.cached_blocks),
      count(each.quota_blocks),
      count(each.lent_requests),
      rate(each.rate_per_s),
      seconds(each.expected_wait_s),
    ]),
  );
  const recent = model.recent;
  return make(
    "article",
    { class: "card" },
    make("h3", null, model.name),
    make("p", { class: "faint" }, `${recent.num_ended} interactive requests ended within ${recent.window_s} s, ${recent.num_failed} failed; ${recent.num_refused} were refused`),
    make(
      "table",
      null,
      make("thead", null, make("tr", null, ...titles.map((title) => make("th", null, title)))),
      make("tbody", null, ...rows.map((row) => make("tr", null, ...row.map((value) => make("td", null, value))))),
    ),
  );
}

// The plan

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

function drawPlan() {
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
async function askForPlan() {
  try {
    const { body } = await ask("/v1/cluster/plan");
    if (!body) return;
    page.plan = body;
    drawPlan();
  } catch (error) {
    return;
  }
}

async function tryWhatIf() {
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

// The rest

function problems(snapshot) {
  const found = [];
  const cluster = snapshot.cluster;
  if (cluster.error) found.push(`controller: ${cluster.error}`);
  for (const node of cluster.nodes || []) if (!node.alive) found.push(`node ${node.name} is not reachable`);
  for (const unit of snapshot.units) if (tone(unit.state) === "bad") found.push(`unit ${unit.id} is ${unit.state}${unit.reason ? `: ${unit.reason}` : ""}`);
  if ((cluster.missing_units || []).length) found.push(`not running as planned: ${cluster.missing_units.join(", ")}`);
  if ((cluster.unplaced || []).length) found.push(`no room for: ${cluster.unplaced.join(", ")}`);
  for (const model of snapshot.models) {
    const { num_refused: refused, window_s: windowS } = model.recent;
    if (refused) found.push(`${model.name}: ${refused} requests refused within ${windowS} s`);
  }
  return found;
}

function eventLine(event) {
  const place = event.unit ? `unit ${event.unit}` : "server";
  const subject = event.model ? `${event.model} on ${event.unit}` : place;
  const what = { weights: "", state: "", order: " order", sharing: " SM sharing" }[event.what];
  return `${clock(event.time_s)} ${subject}${what === undefined ? ` ${event.what}` : what}: ${event.before || "new"} → ${event.after || "gone"}`;
}

function drawBatchCounts(batches) {
  at("batches").hidden = !batches;
  if (!batches) return;
  const states = Object.entries(batches.by_status).filter(([, number]) => number);
  const lines = Object.entries(batches.num_lines).map(([what, number]) => `${count(number)} lines ${what}`);
  fill("batch-counts", text([...states.map(([state, number]) => `${number} ${state}`), ...lines].join(", ") || "none"));
}

function batchRow(batch) {
  const counts = batch.request_counts || {};
  const estimate = (batch.metadata || {}).estimated_finish_at;
  const bar = make("progress", { max: String(Math.max(1, counts.total || 0)), value: String((counts.completed || 0) + (counts.failed || 0)) });
  return make(
    "tr",
    null,
    make("td", null, batch.id),
    make("td", null, make("span", { class: tone(batch.status) }, batch.status)),
    make("td", null, count(counts.completed)),
    make("td", null, count(counts.failed)),
    make("td", null, count(counts.total)),
    make("td", null, bar),
    make("td", null, estimate && tone(batch.status) === "soon" ? clock(Number(estimate)) : ""),
  );
}

function draw() {
  const snapshot = page.snapshot;
  page.colours = colours(snapshot.models);
  fill("problems", ...problems(snapshot).map((problem) => make("li", null, problem)));
  fill("units", ...snapshot.units.map(unitCard));
  if (!page.isPressed) drawModels(); // a button that is replaced while it is pressed is not clicked
  drawBatchCounts(snapshot.batches);
  fill("events", ...snapshot.events.map((event) => make("li", null, eventLine(event))));
}

function drawStatus() {
  const snapshot = page.snapshot;
  document.body.classList.toggle("stale", Boolean(page.problem));
  if (page.problem) {
    const since = page.answeredAt ? `; last answer at ${clock(page.answeredAt / 1000)}` : "";
    fill("status", make("span", { class: "bad" }, `${page.problem}${since}; trying again`));
  } else if (snapshot) {
    const nodes = snapshot.cluster.nodes || [];
    const up = snapshot.units.filter((unit) => unit.state === "up").length;
    const parts = [`${up} of ${snapshot.units.length} units up`, `${snapshot.models.length} models`, clock(snapshot.time_s), snapshot.version];
    if (nodes.length) parts.unshift(`${nodes.filter((node) => node.alive).length} of ${nodes.length} nodes`);
    fill("status", make("span", { class: snapshot.ready ? "good" : "bad" }, snapshot.ready ? "ready" : "not ready"), ` · ${parts.join(" · ")}`);
  }
}

// Asking

// Returns the status, the body where all is well, and else what the server says is wrong. data: is
// posted.
async function ask(path, data, patienceMs) {
  const headers = page.key ? { Authorization: `Bearer ${page.key}` } : {};
  const control = new AbortController();
  const timer = setTimeout(() => control.abort(), patienceMs || PATIENCE_MS);
  const options = { headers, signal: control.signal, cache: "no-store", credentials: "omit" };
  if (data) {
    headers["Content-Type"] = "application/json";
    Object.assign(options, { method: "POST", body: JSON.stringify(data) });
  }
  try {
    const answer = await fetch(path, options);
    if (answer.ok) return { status: answer.status, body: await answer.json(), error: "" };
    const refused = data ? await answer.json().catch(() => null) : null; // a proxy's own is HTML
    return { status: answer.status, body: null, error: refused && refused.error ? refused.error.message : "" };
  } finally {
    clearTimeout(timer);
  }
}

function askForKey(status) {
  at("key-form").hidden = false;
  at("main").hidden = true;
  fill("status", text("this server asks for a key"));
  const wrong = status === 403 ? "This key may not see it: the admin key is needed." : "This key is not known.";
  fill("key-problem", ...(page.key ? [text(wrong)] : []));
}

// One snapshot. Returns whether to go on: false while a key is needed.
async function turn() {
  let body = null;
  try {
    const answer = await ask("/v1/cluster/live");
    if (answer.status === 401 || answer.status === 403) {
      askForKey(answer.status);
      return false;
    }
    body = answer.body;
    page.problem = body ? "" : `the server answers ${answer.status}`;
    const number = page.turns++;
    if (body && body.has_plan && number % PLAN_EVERY === 0) askForPlan();
    if (body && body.batches && number % BATCHES_EVERY === 0) askForBatches();
  } catch (error) {
    page.problem = error.name === "SyntaxError" ? "the answer is not JSON" : "the server does not answer";
  }
  if (body) show(body);
  drawStatus();
  return true;
}

function show(snapshot) {
  page.snapshot = snapshot;
  page.answeredAt = Date.now();
  at("main").hidden = false;
  try {
    draw();
  } catch (error) {
    page.problem = "this page cannot show the answer: reload it"; // as after an upgrade of the server
  }
}

// As askForPlan: where the head is away batches are not told.
async function askForBatches() {
  try {
    const { body } = await ask("/v1/batches?limit=10");
    if (body) fill("batch-rows", ...body.data.map(batchRow));
  } catch (error) {
    return;
  }
}

async function run() {
  for (;;) {
    const startedMs = Date.now();
    if (!document.hidden && !(await turn())) return;
    await new Promise((resolve) => setTimeout(resolve, Math.max(200, PERIOD_MS - (Date.now() - startedMs))));
  }
}

at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  page.key = at("key").value.trim();
  at("key").value = "";
  at("key-form").hidden = true;
  run();
});
for (const [event, isPressed] of [["pointerdown", true], ["pointerup", false], ["pointercancel", false]]) {
  document.addEventListener(event, () => (page.isPressed = isPressed));
}
at("what-if-form").addEventListener("submit", (event) => {
  event.preventDefault();
  tryWhatIf();
});
at("what-if-end").addEventListener("click", () => {
  page.whatIf = null;
  fill("what-if-problem");
  drawPlan();
});
at("filter").addEventListener("input", () => {
  page.filter = at("filter").value.toLowerCase();
  if (page.snapshot) drawModels();
});
run();
