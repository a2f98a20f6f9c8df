// A whole document in a side sheet.

import { getDocument } from "./api.js";
import { button, byId, cross, element } from "./dom.js";
import { windowOf } from "./hits.js";
import { marksOf } from "./marks.js";
import { outward, placeLine } from "./place.js";
import { factList, marked } from "./text.js";

let asked = null; // the AbortController of the pending document

/** Show a document. `view`: its hit (null if it is none), the query's terms, a `link`, and `like`, `close`, `failed`. */
export async function showDocument(id, view) {
  const sheet = byId("document");
  asked?.abort();
  const mine = (asked = new AbortController());
  sheet.setAttribute("aria-busy", "true");
  lay(sheet, view.hit ?? { id, title: null, text: "", metadata: {} }, view);
  if (!sheet.open) sheet.showModal();
  try {
    const stored = await getDocument(id, mine.signal);
    if (mine !== asked || !sheet.open) return;
    const { window, place, link } = view.hit?.text === stored.text ? view.hit : stored;
    lay(sheet, { ...stored, window, place, link }, view);
  } catch (error) {
    if (error.name === "AbortError" || mine !== asked) return;
    if (!view.hit) body(sheet).replaceChildren(element("p", { class: "notice bad", role: "alert" }, view.failed(error)));
  } finally {
    if (mine === asked) sheet.removeAttribute("aria-busy");
  }
}

/** Close the sheet. */
export function hideDocument() {
  asked?.abort();
  asked = null;
  if (byId("document").open) byId("document").close();
}

function body(sheet) {
  return sheet.querySelector(".sheet-body");
}

function lay(sheet, found, view) {
  const title = (found.title || found.id).slice(0, 1000);
  const head = element(
    "header",
    {},
    element("h2", { id: "document-title", dir: "auto" }, ...marked(title, marksOf(title, view.terms))),
    element("button", { type: "button", class: "tool", "aria-label": "Close", title: "Close (Esc)", on: { click: view.close } }, cross()),
  );
  const tools = element(
    "div",
    { class: "actions" },
    found.link ? element("a", { class: "action", ...outward(found.link) }, "Open file") : null,
    button("More like this", () => view.like(found.id), { class: "action" }),
    navigator.clipboard ? copyButton(new URL(view.link, location.href).href) : null,
  );
  const content = element("div", { class: "sheet-body", tabindex: "0", role: "region", "aria-labelledby": "document-title" }, placeLine(found), tools, factList(found.metadata), text(found, view));
  const kept = body(sheet)?.scrollTop ?? 0;
  sheet.replaceChildren(head, content);
  if (!sheet.open) content.setAttribute("autofocus", "");
  else content.focus({ preventScroll: true });
  content.scrollTop = kept;
  requestAnimationFrame(() => showWindow(content, kept));
}

/** A button that copies the address of the document. */
function copyButton(address) {
  const copy = button("Copy link", async () => {
    await navigator.clipboard.writeText(address).then(() => (copy.textContent = "Copied"), () => (copy.textContent = "Not copied"));
  }, { class: "action", "aria-live": "polite" });
  return copy;
}

/** The whole text, with the matching window highlighted. */
function text(found, view) {
  const whole = found.text ?? "";
  if (!whole.trim()) return null;
  const marks = marksOf(whole, view.terms);
  const [start, end] = (found.window && windowOf(found)) || [0, 0];
  if (end <= start || (start === 0 && end === whole.length)) return element("div", { class: "text", dir: "auto" }, ...marked(whole, marks));
  const best = element("span", { class: "window", title: "The part that matched" }, ...marked(whole, marks, start, end));
  return element("div", { class: "text", dir: "auto" }, ...marked(whole, marks, 0, start), best, ...marked(whole, marks, end));
}

/** Scroll the window into view when a document is opened. */
function showWindow(content, scrolled) {
  const best = content.querySelector(".window");
  if (!best || scrolled) return;
  const below = best.getBoundingClientRect().top - content.getBoundingClientRect().top;
  if (below > content.clientHeight * 0.7) content.scrollTop = below - 48;
}
