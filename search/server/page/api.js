// The server's API, asked with the key where there is one. All failures are `ApiError`.

const KEY = "isotrope-key";
let key = read();

function read() {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return ""; // a browser that keeps nothing: the key lasts until the page is left
  }
}

/** An answer that is none; `status` 0: the server was not reached. `after`: seconds to wait, where it said so. */
export class ApiError extends Error {
  constructor(status, message, after = null) {
    super(message);
    this.status = status;
    this.after = after;
  }

  /** Whether the same may well be answered a little later. */
  get passes() {
    return [0, 429, 502, 503].includes(this.status);
  }
}

export function hasKey() {
  return key !== "";
}

/** Send this key from now on; it is kept until the tab is closed. */
export function setKey(value) {
  key = value;
  try {
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
  } catch {
    // see read()
  }
}

/** POST /v1/search for one question: its result, and the index it is from. */
export async function search(body, signal) {
  const answer = await request("v1/search", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  return { ...answer.results[0], index: answer.index };
}

/** GET /v1/documents/{id}. */
export function getDocument(id, signal) {
  // Encoded whole: with its slashes as they are, an id such as a/../b would be resolved to another one.
  return request(`v1/documents/${encodeURIComponent(wellFormed(id))}`, { signal });
}

/** GET /v1/documents?id=: the same, of an id that may be none; then null. */
export function findDocument(id, signal) {
  return request(`v1/documents?id=${encodeURIComponent(wellFormed(id))}&optional=true`, { signal });
}

/** GET /v1/info. */
export function getInfo() {
  return request("v1/info", {});
}

function wellFormed(text) {
  return text.toWellFormed?.() ?? text; // half a surrogate pair has no place in an address
}

async function request(path, given) {
  const headers = { ...given.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  let answer;
  let body = null;
  try {
    answer = await fetch(path, { ...given, headers, cache: "no-store" });
    body = await answer.json().catch((error) => {
      if (error instanceof SyntaxError) return null; // from something that stands before the server
      throw error;
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server does not answer.");
  }
  if (answer.ok && body !== null) return body;
  const after = Number.parseInt(answer.headers.get("Retry-After") ?? "", 10);
  const message = body?.error?.message ?? `The server answered ${answer.status} ${answer.statusText}`.trim();
  throw new ApiError(answer.ok ? 502 : answer.status, message, Number.isFinite(after) ? after : null);
}
