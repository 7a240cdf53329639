// The table of models, and one of them by unit.
import { fill, make } from "./document.js";
import { page } from "./state.js";
import { count, known, percent, rate, seconds, swatch, tone } from "./values.js";

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

export function drawModels() {
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
