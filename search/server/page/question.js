// The query as one plain value, its address, and its request.

import { conditionOf } from "./conditions.js";

export const STEP = 10; // hits per step
const FOLD = 0.95; // inner product above which two documents are near-duplicates
const LONGEST_PART = 20_000; // characters of one part of an address, because servers refuse long ones
const LONGEST = 100_000; // characters of a text taken from an address

/** The empty query with default options. `picks`: column name -> chosen { values, least, most }. */
export const BLANK = Object.freeze({
  query: "",
  like: "",
  where: "",
  group: "",
  hybrid: false,
  fold: true,
  k: STEP,
  picks: Object.freeze(Object.create(null)), // a column can be named "constructor"
  doc: "",
});

/** The query in the search part of an address, which is treated as data only. */
export function fromAddress(search) {
  const given = new URLSearchParams(search);
  const text = (name) => (given.get(name) ?? "").slice(0, LONGEST);
  const picks = Object.create(null);
  for (const [key, value] of given) {
    const match = /^(is|min|max)\.(.+)$/s.exec(key);
    if (!match || !value) continue;
    const [, kind, name] = match;
    const pick = (picks[name] ??= { values: [], least: "", most: "" });
    if (kind === "min") pick.least = value;
    else if (kind === "max") pick.most = value;
    else if (!pick.values.includes(value)) pick.values.push(value);
  }
  const k = Number.parseInt(given.get("k") ?? "", 10);
  return {
    query: text("like") ? "" : text("q"),
    like: text("like"),
    where: text("where"),
    group: text("group"),
    hybrid: given.get("hybrid") === "1",
    fold: given.get("fold") !== "0",
    k: k > STEP ? Math.ceil(k / STEP) * STEP : STEP,
    picks,
    doc: text("doc"),
  };
}

/** The address of a query, relative to the page, without defaults. */
export function toAddress(question) {
  const made = new URLSearchParams();
  const add = (name, value) => value && encodeURIComponent(whole(value)).length <= LONGEST_PART && made.append(name, whole(value));
  add("q", question.like ? "" : question.query);
  add("like", question.like);
  for (const [name, pick] of Object.entries(question.picks)) {
    for (const value of pick.values) add(`is.${name}`, value);
    add(`min.${name}`, pick.least);
    add(`max.${name}`, pick.most);
  }
  add("where", question.where);
  add("group", question.group);
  add("hybrid", question.hybrid ? "1" : "");
  add("fold", question.fold ? "" : "0");
  add("k", question.k > STEP ? String(question.k) : "");
  add("doc", question.doc);
  const text = made.toString();
  return text ? `?${text}` : "./";
}

/** Text without halves of surrogate pairs, which no address can contain. */
function whole(text) {
  return text.toWellFormed?.() ?? text;
}

/** Whether there is a query. */
export function isAsked(question) {
  return question.like !== "" || question.query.trim() !== "";
}

/** Whether filters are active. */
export function isFiltered(question) {
  return question.where.trim() !== "" || Object.keys(question.picks).length > 0;
}

/** The query without filters. */
export function unfiltered(question) {
  return { ...question, picks: BLANK.picks, where: "" };
}

/** The body of POST /v1/search. `columns` are the facets of /v1/info, with their names in SQL. */
export function toRequest(question, columns, most) {
  const body = { k: Math.min(question.k, most) };
  if (question.like) body.like = question.like;
  else body.query = question.query.trim();
  const where = conditionOf(question, columns);
  if (where) body.where = where;
  if (question.group) body.group_by = question.group;
  if (question.fold) body.fold = FOLD;
  if (question.hybrid && !question.like) body.hybrid = true; // words need a text
  return body;
}

/** The query without a pick: of one value, or (null) of the range. */
export function withoutPick(question, name, value) {
  const pick = question.picks[name];
  const left = value === null ? { ...pick, least: "", most: "" } : { ...pick, values: pick.values.filter((other) => other !== value) };
  return withPick(question, name, left);
}

/** The query with another pick of a column. */
export function withPick(question, name, pick) {
  const picks = Object.assign(Object.create(null), question.picks);
  delete picks[name];
  if (pick.values.length || pick.least || pick.most) picks[name] = pick;
  return { ...question, picks };
}
