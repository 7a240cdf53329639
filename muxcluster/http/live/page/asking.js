// Requests to the server.
import { page } from "./state.js";

const PATIENCE_MS = 8000;

// Returns the status, the body where all is well, and else what the server says is wrong. data: is
// posted.
export async function ask(path, data, patienceMs) {
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
