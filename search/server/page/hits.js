// The hits of an answer as a list.

import { button, counted, element, number, plainly } from "./dom.js";
import { marksOf, passageOf, unitsUpTo } from "./marks.js";
import { beside, outward, placeLine } from "./place.js";
import { breakable, chips, marked } from "./text.js";

const PASSAGE = 280; // characters shown of a text
const LONGEST_TITLE = 300;

/** The list items of an answer. `view`: terms, ids that are `opened`,
 *  columns that are `constant`, `links`, and what to do. */
export function hitItems(hits, view) {
  const best = Math.max(...hits.map((hit) => hit.score));
  return hits.map((hit) => item(hit, { ...view, best }));
}

function item(hit, view) {
  const article = element(
    "article",
    { class: "hit", "data-id": hit.id },
    element("div", { class: "head" }, heading(hit, view), score(hit, view.best)),
    placeLine(hit),
    element("div", { class: "passage" }),
    chips(hit.place ? beside(hit.metadata) : hit.metadata, view.constant),
    element("div", { class: "actions" }, ...actions(hit, view)),
  );
  layPassage(article, hit, view);
  return element("li", {}, article);
}

function heading(hit, view) {
  const text = (hit.title || hit.id).slice(0, LONGEST_TITLE);
  const link = element("a", { class: "open", href: view.links.document(hit.id) }, ...marked(text, marksOf(text, view.terms)));
  if (hit.link) for (const [name, value] of Object.entries(outward(hit.link))) link.setAttribute(name, value);
  else link.addEventListener("click", plainly(() => view.open(hit)));
  return element("h2", { dir: "auto" }, link);
}

/** The score and its bar; when open, its parts. Hybrid scores are comparable only within a query. */
function score({ score: value, parts, rerank_score: reranked }, best) {
  const bar = element("span", { class: "fill" });
  bar.style.width = `${Math.round(100 * Math.min(1, Math.max(0, (parts ? value / best : value) || 0)))}%`;
  const figure = element("span", { class: "figure" }, element("span", { class: "hidden" }, "Score "), value.toFixed(parts && value < 0.1 ? 4 : 3));
  const rows = parts
    ? [["meaning", parts.vector.toFixed(3), "cosine similarity"], ["words", parts.bm25.toFixed(1), "BM25"]]
    : [["meaning", value.toFixed(3), "cosine similarity, 1 is identical"]];
  if (typeof reranked === "number") rows.push(["order", reranked.toFixed(3), "by a cross-encoder"]);
  const said = rows.map(([name, part, what]) => element("div", {}, element("dt", {}, name), element("dd", {}, element("span", { class: "figure" }, part), ` ${what}`)));
  const track = element("span", { class: "track", "aria-hidden": "true" }, bar);
  return element("details", { class: "score", name: "score" }, element("summary", { title: "Parts of the score" }, figure, track), element("dl", {}, ...said));
}

/** The best passage of the text, and an action that shows all of it. */
function layPassage(article, hit, view) {
  const text = hit.text ?? "";
  const place = article.querySelector(".passage");
  if (!text.trim() || text.trim() === hit.title?.trim()) {
    place.remove();
    return;
  }
  const marks = marksOf(text, view.terms);
  const [start, end] = stretch(hit, marks);
  const lay = () => {
    const whole = view.opened.has(hit.id);
    place.classList.toggle("whole", whole);
    place.replaceChildren(...(whole ? marked(text, marks) : cutOut(text, marks, start, end)));
    more.textContent = whole ? "Show less" : "Show all";
    more.setAttribute("aria-expanded", String(whole));
  };
  const more = button("", () => (view.opened.delete(hit.id) || view.opened.add(hit.id), lay()), { class: "action" });
  place.setAttribute("dir", "auto");
  lay();
  if (start > 0 || end < text.length) article.querySelector(".actions").prepend(more);
}

/** The document's best window, or the best passage of it: [start, end) in its text. */
function stretch(hit, marks) {
  const [start, end] = windowOf(hit) ?? [0, hit.text.length];
  const inside = marks.filter(([first, last]) => first >= start && last <= end).map(([first, last, term]) => [first - start, last - start, term]);
  const [first, last] = passageOf(hit.text.slice(start, end), inside, PASSAGE);
  return [start + first, start + last];
}

/** The range of the matching window in the text, in UTF-16 units; null without one. */
export function windowOf(hit) {
  const span = hit.window?.columns?.text;
  return span ? [unitsUpTo(hit.text, span[0]), unitsUpTo(hit.text, span[1])] : null;
}

function cutOut(text, marks, start, end) {
  const dots = (text, isCut) => (isCut ? [element("span", { class: "cut" }, text)] : []);
  return [...dots("… ", start > 0), ...marked(text, marks, start, end), ...dots(" …", end < text.length)];
}

function actions(hit, view) {
  const like = element("a", { class: "action", href: view.links.like(hit.id) }, "More like this");
  like.addEventListener("click", plainly(() => view.like(hit.id)));
  return [hit.link && preview(hit, view), like, folded(hit, view)].filter(Boolean);
}

/** The document on this page, of a hit whose title leads elsewhere. */
function preview(hit, view) {
  const link = element("a", { class: "action", href: view.links.document(hit.id) }, "Preview");
  link.addEventListener("click", plainly(() => view.open(hit)));
  return link;
}

/** The near-duplicates folded under a hit. */
function folded(hit, view) {
  if (!hit.folded?.length) return null;
  const count = hit.folded_count ?? hit.folded.length;
  const rows = hit.folded.map((near) => {
    const link = element("a", { href: view.links.document(near.id) }, element("bdi", {}, ...breakable((near.title || near.id).slice(0, LONGEST_TITLE))));
    link.addEventListener("click", plainly(() => view.open(near)));
    const id = near.title ? element("span", { class: "id" }, element("bdi", {}, ...breakable(near.id))) : null;
    return element("li", {}, link, id, element("span", { class: "figure", title: "Cosine similarity to the hit above: 1 is identical" }, near.similarity === undefined || near.similarity === null ? "" : `${near.similarity.toFixed(3)} alike`));
  });
  if (count > rows.length) rows.push(element("li", {}, `and ${number(count - rows.length)} more`));
  return element("details", { class: "folded" }, element("summary", {}, counted(count, "near-duplicate")), element("ul", {}, ...rows));
}
