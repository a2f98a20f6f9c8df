// Notices in place of hits or next to them: the situation, and possible actions.

import { choiceOf } from "./conditions.js";
import { button, counted, element, number } from "./dom.js";
import { isFiltered } from "./question.js";

/** The notice before the first query: the index, and how to search it. `link(patch)` is the address of a changed query. */
export function welcome(info, link) {
  if (!info) return element("div", { class: "welcome" });
  const what = info.documents ? `Search ${counted(info.documents, "document")}` : "No documents yet";
  const words = info.encoder?.kind !== "vectors"; // else the corpus contained vectors, and there is no model
  const ask = words
    ? "Ask in your own words. Results are ordered by meaning, so they need not contain the words you type."
    : "This index has no model for text. Find documents similar to a stored one: add ?like=ID to the address.";
  const how = info.documents ? ask : "Documents appear here once they are added to the index.";
  return element(
    "div",
    { class: "welcome" },
    element("h2", {}, what),
    element("p", {}, how),
    info.examples?.length ? examples(info.examples, words, link) : null,
    info.documents && words ? hints(info) : null,
  );
}

/** Example queries; without a model for text, example documents. */
function examples(all, words, link) {
  const links = all.map(({ id, text }) => element("a", { class: "action", href: link(words ? { query: text } : { like: id }) }, element("bdi", {}, text)));
  return element("div", { class: "examples", role: "group", "aria-label": "Examples" }, element("span", {}, words ? "Try" : "Start from"), ...links);
}

function hints(info) {
  const names = (info.columns ?? []).filter(choiceOf).map((column) => column.name);
  const rows = [
    ["A question, a sentence or a few words", "finds the documents closest in meaning"],
    ["More like this", "starts from a document instead of words"],
    ["Match words too", "also ranks by the words themselves: good for names and codes"],
    ...(names.length ? [["Filters", `narrow it down by ${listed(names)}`]] : []),
  ];
  return element("dl", { class: "hints" }, ...rows.map(([name, what]) => element("div", {}, element("dt", {}, name), element("dd", {}, what))));
}

function listed(names) {
  if (names.length > 4) return `${names.slice(0, 3).join(", ")} and ${names.length - 3} more`;
  return names.length > 1 ? `${names.slice(0, -1).join(", ")} or ${names.at(-1)}` : names[0];
}

/** The notice for filters without a query. */
export function waiting() {
  return element("p", { class: "notice" }, "Type a query: the filters will apply to its results.");
}

/** The notice for an invalid condition: the reason, and a button to remove it. */
export function refused(why, remove) {
  const said = element("p", {}, element("strong", {}, "The condition in SQL is invalid. "), why);
  return element("div", { class: "notice bad", role: "alert" }, said, element("div", { class: "ways" }, button("Remove the condition", remove, { class: "action" })));
}

/** The notice for no hits. `loosen`: [label, action]. */
export function nothing(loosen) {
  const ways = loosen.map(([text, act]) => button(text, act, { class: "action" }));
  const advice = ways.length ? "No document meets all the filters." : "The index contains no matching document.";
  return element("div", { class: "notice" }, element("p", {}, element("strong", {}, "Nothing found. "), advice), ways.length ? element("div", { class: "ways" }, ...ways) : null);
}

/** Notes on an answer. */
export function remarks(answer, hybrid) {
  const said = [];
  if (answer.unknown) {
    said.push(
      hybrid
        ? "The model knows none of these words, so only the words themselves were compared."
        : "The model knows none of these words, so this order is meaningless. Try other words.",
    );
  }
  if (answer.truncated) {
    const { tokens, limit } = answer.truncated;
    said.push(`The query is too long: the model read the first ${number(limit)} of its ${number(tokens)} tokens.`);
  }
  return said.map((text) => element("p", { class: "notice" }, text));
}

/** The number of hits and documents, and the time. */
export function statusOf({ hits, question, took }, info) {
  const filtered = isFiltered(question) ? " that meet the filters" : "";
  const time = `${number(Math.max(1, Math.round(took)))} ms`;
  if (hits.length < question.k) return `${counted(hits.length, "document")}${filtered} · ${time}`;
  return `The ${number(hits.length)} closest${filtered || (info ? ` of ${number(info.documents)}` : "")} · ${time}`;
}

/** The message of a failure, for users. */
export function failureText(error) {
  if (error.status === 0) return "The server does not answer.";
  if (error.status === 429) return "The server is busy.";
  if (error.status === 504) return "The answer took too long.";
  if (error.status === 401) return "This index requires a key.";
  return sentence(error.message);
}

/** A failure as a notice; `again`: seconds until the automatic retry, null without one. */
export function failure(error, again, act) {
  const label = error.status === 401 ? "Enter a key" : "Try now";
  const after = again === null ? "" : ` Trying again ${again > 1 ? `in ${again} seconds` : "now"}.`;
  const retry = error.status === 422 || error.status === 404 ? null : button(again === null && error.status !== 401 ? "Try again" : label, act, { class: "action" });
  return element("div", { class: "notice bad", role: "alert" }, element("p", {}, element("strong", {}, failureText(error)), after), retry && element("div", { class: "ways" }, retry));
}

function sentence(text) {
  const first = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(first) ? first : `${first}.`;
}

/** The build of the index; `forget` removes the key, null without one. */
export function about(info, forget) {
  const { encoder = {}, transform = {} } = info;
  const facts = [
    ["model", `${info.model ?? "none"}${encoder.kind ? ` (${[encoder.kind, encoder.pooling].filter(Boolean).join(", ")})` : ""}`],
    ["transform", [transform.kind, transform.dim && `${transform.dim} dimensions`].filter(Boolean).join(", ")],
    ["index", info.index_type],
    ["recall@10", info.recall_at_10 === null || info.recall_at_10 === undefined ? "" : info.recall_at_10.toFixed(3)],
    ["generation", `${info.generation}, ${String(info.created ?? "").slice(0, 10)}`],
  ];
  const rows = facts.filter(([, value]) => value).map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value)));
  return [
    element("dl", {}, ...rows),
    element("p", {}, element("a", { href: "openapi.json" }, "API"), ` · Isotrope ${info.version ?? ""}`, forget && " · ", forget && button("Forget the key", forget, { class: "link" })),
  ];
}
