// The live page: asks for /v1/cluster/live each second and draws it.
import { ask } from "./asking.js";
import { at, fill, make, text } from "./document.js";
import { drawModels } from "./models.js";
import { askForPlan, drawPlan, tryWhatIf } from "./plan.js";
import { batchRow, drawBatchCounts, eventLine, problems } from "./reports.js";
import { page } from "./state.js";
import { unitCard } from "./units.js";
import { clock, colours } from "./values.js";

const PERIOD_MS = 1000;
const BATCHES_EVERY = 5; // snapshots
const PLAN_EVERY = 5;

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
