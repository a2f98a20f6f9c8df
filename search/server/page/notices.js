// What is said where there are no hits, or something beside them: what is the case, and what can be done.

import { choiceOf } from "./conditions.js";
import { button, counted, element, number } from "./dom.js";
import { isFiltered } from "./question.js";

/** Before anything is asked: what is searched here, and how. `link(patch)` is the address of a changed question. */
export function welcome(info, link) {
  if (!info) return element("div", { class: "welcome" });
  const what = info.documents ? `Search ${counted(info.documents, "document")}` : "No documents yet";
  const words = info.encoder?.kind !== "vectors"; // else the documents came with vectors, and there is no model
  const ask = words
    ? "Ask in your own words. Results are ordered by meaning, so they need not contain the words you type."
    : "This index has no model for words. Ask for what is like a document, by its id: ?like=ID in the address.";
  const how = info.documents ? ask : "Documents that are added to the index appear here by themselves.";
  return element(
    "div",
    { class: "welcome" },
    element("h2", {}, what),
    element("p", {}, how),
    info.examples?.length ? examples(info.examples, words, link) : null,
    info.documents && words ? hints(info) : null,
  );
}

/** Questions to click on; where there is no model for words, documents to start from. */
function examples(all, words, link) {
  const links = all.map(({ id, text }) => element("a", { class: "action", href: link(words ? { query: text } : { like: id }) }, element("bdi", {}, text)));
  return element("div", { class: "examples", role: "group", "aria-label": "Examples" }, element("span", {}, words ? "Try" : "Start from"), ...links);
}

function hints(info) {
  const names = (info.columns ?? []).filter(choiceOf).map((column) => column.name);
  const rows = [
    ["A question, a sentence or a few words", "each finds what is closest in meaning"],
    ["More like this", "starts from a document instead of words"],
    ["Match words too", "also counts the words themselves: good for names and codes"],
    ...(names.length ? [["Filters", `narrow it down by ${listed(names)}`]] : []),
  ];
  return element("dl", { class: "hints" }, ...rows.map(([name, what]) => element("div", {}, element("dt", {}, name), element("dd", {}, what))));
}

function listed(names) {
  if (names.length > 4) return `${names.slice(0, 3).join(", ")} and ${names.length - 3} more`;
  return names.length > 1 ? `${names.slice(0, -1).join(", ")} or ${names.at(-1)}` : names[0];
}

/** Filters are on, and nothing is asked. */
export function waiting() {
  return element("p", { class: "notice" }, "Type a question: the filters will apply to its answers.");
}

/** The condition that was written cannot be used: why, and a way to go on without it. */
export function refused(why, remove) {
  const said = element("p", {}, element("strong", {}, "The condition in SQL cannot be used. "), why);
  return element("div", { class: "notice bad", role: "alert" }, said, element("div", { class: "ways" }, button("Remove the condition", remove, { class: "action" })));
}

/** Nothing was found. `loosen`: [what can be done, do it]. */
export function nothing(loosen) {
  const ways = loosen.map(([text, act]) => button(text, act, { class: "action" }));
  const advice = ways.length ? "No document meets all the filters." : "There is no document to be found.";
  return element("div", { class: "notice" }, element("p", {}, element("strong", {}, "Nothing found. "), advice), ways.length ? element("div", { class: "ways" }, ...ways) : null);
}

/** What the reader should know of an answer that has come. */
export function remarks(answer, hybrid) {
  const said = [];
  if (answer.unknown) {
    said.push(
      hybrid
        ? "None of these words is known to the model, so only the words themselves were compared."
        : "None of these words is known to the model, so this order means nothing. Try other words.",
    );
  }
  if (answer.truncated) {
    const { tokens, limit } = answer.truncated;
    said.push(`The question is long: the model read the first ${number(limit)} of its ${number(tokens)} tokens.`);
  }
  return said.map((text) => element("p", { class: "notice" }, text));
}

/** How many were found, of how many, and how long it took. */
export function statusOf({ hits, question, took }, info) {
  const filtered = isFiltered(question) ? " that meet the filters" : "";
  const time = `${number(Math.max(1, Math.round(took)))} ms`;
  if (hits.length < question.k) return `${counted(hits.length, "document")}${filtered} · ${time}`;
  return `The ${number(hits.length)} closest${filtered || (info ? ` of ${number(info.documents)}` : "")} · ${time}`;
}

/** What went wrong, in words for whoever asked. */
export function failureText(error) {
  if (error.status === 0) return "The server does not answer.";
  if (error.status === 429) return "The server is busy.";
  if (error.status === 504) return "The answer took too long.";
  if (error.status === 401) return "This index needs a key.";
  return sentence(error.message);
}

/** A failure as a notice; `again` seconds until it is tried again by itself, null if it is not. */
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

/** How what is searched was built; `forget` lets go of the key, null where none is needed. */
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
