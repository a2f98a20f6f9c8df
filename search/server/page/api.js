// The server's API, asked with the key where there is one. All failures are `ApiError`.

const KEY = "isotrope-key";
let key = storages().map((storage) => storage.getItem(KEY) ?? "").find(isKey) ?? "";
let lasting = false; // whether the key that was given is to be kept on this device

/** This tab's storage and the device's; none in a browser that keeps nothing: there a key lasts until the page is left. */
function storages() {
  try {
    return [sessionStorage, localStorage];
  } catch {
    return [];
  }
}

/** Whether a server can have such a key: visible ASCII characters, as only those can be sent. */
export function isKey(text) {
  return /^[!-~]+$/.test(text);
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

/** Send this key from now on. Once the server has accepted it, it is kept: on this device, or until the tab is closed. */
export function setKey(value, onDevice) {
  key = value;
  lasting = onDevice;
  for (const storage of storages()) storage.removeItem(KEY);
}

/** Send no key any more, neither from here nor from other tabs that share the one of the device. */
export function forgetKey() {
  setKey("", false);
}

/** Keep the key that the server has accepted, where it was given in this tab. */
function keep() {
  const [tab, device] = storages();
  if (!tab || tab.getItem(KEY) === key || device.getItem(KEY) === key) return;
  try {
    (lasting ? device : tab).setItem(KEY, key);
  } catch {
    // no room, or a browser that keeps nothing
  }
}

addEventListener("storage", (event) => {
  if (event.key === KEY && event.oldValue === key && !event.newValue) key = ""; // forgotten in another tab
});

/** POST /v1/search for one question: its result, and the index it is from. */
export async function search(body, signal) {
  const answer = await post("v1/search", body, signal);
  return { ...answer.results[0], index: answer.index };
}

/** POST /v1/facets: what columns hold of the documents that meet a condition. */
export async function countValues(body, signal) {
  return (await post("v1/facets", body, signal)).columns;
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

function post(path, body, signal) {
  return request(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal });
}

async function request(path, given) {
  const sent = key;
  const headers = { ...given.headers, ...(sent ? { Authorization: `Bearer ${sent}` } : {}) };
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
  if (sent && sent === key && answer.status === 401) for (const storage of storages()) storage.removeItem(KEY);
  if (sent && sent === key && answer.ok) keep();
  if (answer.ok && body !== null) return body;
  const after = Number.parseInt(answer.headers.get("Retry-After") ?? "", 10);
  const message = body?.error?.message ?? `The server answered ${answer.status} ${answer.statusText}`.trim();
  throw new ApiError(answer.ok ? 502 : answer.status, message, Number.isFinite(after) ? after : null);
}
