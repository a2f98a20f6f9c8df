// The server's API, called with the key if there is one. All failures are `ApiError`.

const KEY = "isotrope-key";
let key = storages().map((storage) => storage.getItem(KEY) ?? "").find(isKey) ?? "";
let lasting = false; // whether to store the key on this device

/** The storage of the tab and of the device; none if the browser blocks it, and then a key lasts until the page is left. */
function storages() {
  try {
    return [sessionStorage, localStorage];
  } catch {
    return [];
  }
}

/** Whether a text can be a key: visible ASCII characters, because no others can be sent. */
export function isKey(text) {
  return /^[!-~]+$/.test(text);
}

/** An error response; `status` 0 if the server is unreachable. `after`: seconds to wait, from Retry-After. */
export class ApiError extends Error {
  constructor(status, message, after = null) {
    super(message);
    this.status = status;
    this.after = after;
  }

  /** Whether a retry may succeed. */
  get passes() {
    return [0, 429, 502, 503].includes(this.status);
  }
}

export function hasKey() {
  return key !== "";
}

/** Send this key from now on. Once the server accepts it, it is stored on this device, or until the tab is closed. */
export function setKey(value, onDevice) {
  key = value;
  lasting = onDevice;
  for (const storage of storages()) storage.removeItem(KEY);
}

/** Stop sending a key, here and in other tabs with the key of the device. */
export function forgetKey() {
  setKey("", false);
}

/** Store a key that was entered in this tab, after the server has accepted it. */
function keep() {
  const [tab, device] = storages();
  if (!tab || tab.getItem(KEY) === key || device.getItem(KEY) === key) return;
  try {
    (lasting ? device : tab).setItem(KEY, key);
  } catch {
    // no space, or blocked by the browser
  }
}

addEventListener("storage", (event) => {
  if (event.key === KEY && event.oldValue === key && !event.newValue) key = ""; // forgotten in another tab
});

/** POST /v1/search for one query: its result and index. */
export async function search(body, signal) {
  const answer = await post("v1/search", body, signal);
  return { ...answer.results[0], index: answer.index };
}

/** POST /v1/facets: the facets of columns over the documents that meet a condition. */
export async function countValues(body, signal) {
  return (await post("v1/facets", body, signal)).columns;
}

/** GET /v1/documents/{id}. */
export function getDocument(id, signal) {
  // Slashes are encoded too, else an id such as a/../b would be resolved to another id.
  return request(`v1/documents/${encodeURIComponent(wellFormed(id))}`, { signal });
}

/** GET /v1/documents?id=: the document, or null for an unknown id. */
export function findDocument(id, signal) {
  return request(`v1/documents?id=${encodeURIComponent(wellFormed(id))}&optional=true`, { signal });
}

/** GET /v1/info. */
export function getInfo() {
  return request("v1/info", {});
}

function wellFormed(text) {
  return text.toWellFormed?.() ?? text; // a URL cannot contain half a surrogate pair
}

function post(path, body, signal) {
  return request(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal });
}

async function request(path, options) {
  const sent = key;
  const headers = { ...options.headers, ...(sent ? { Authorization: `Bearer ${sent}` } : {}) };
  let answer;
  let body = null;
  try {
    answer = await fetch(path, { ...options, headers, cache: "no-store" });
    body = await answer.json().catch((error) => {
      if (error instanceof SyntaxError) return null; // from a proxy
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
