// Problems, events and batch jobs.
import { at, fill, make, text } from "./document.js";
import { clock, count, tone } from "./values.js";

export function problems(snapshot) {
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

export function eventLine(event) {
  const place = event.unit ? `unit ${event.unit}` : "server";
  const subject = event.model ? `${event.model} on ${event.unit}` : place;
  const what = { weights: "", state: "", order: " order", sharing: " SM sharing" }[event.what];
  return `${clock(event.time_s)} ${subject}${what === undefined ? ` ${event.what}` : what}: ${event.before || "new"} → ${event.after || "gone"}`;
}

export function drawBatchCounts(batches) {
  at("batches").hidden = !batches;
  if (!batches) return;
  const states = Object.entries(batches.by_status).filter(([, number]) => number);
  const lines = Object.entries(batches.num_lines).map(([what, number]) => `${count(number)} lines ${what}`);
  fill("batch-counts", text([...states.map(([state, number]) => `${number} ${state}`), ...lines].join(", ") || "none"));
}

export function batchRow(batch) {
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
