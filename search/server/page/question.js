// What is asked, as one plain value; the address of the page that holds it; the request it becomes.

import { conditionOf } from "./conditions.js";

export const STEP = 10; // hits that come at a time
const FOLD = 0.95; // inner product from which two documents are near-duplicates
const LONGEST_PART = 20_000; // characters of one part of an address: servers refuse long ones
const LONGEST = 100_000; // characters of a text taken from an address

/** No question, and every option as it is at first. `picks`: by column name, { values, least, most } that were chosen. */
export const BLANK = Object.freeze({
  query: "",
  like: "",
  where: "",
  group: "",
  hybrid: false,
  fold: true,
  k: STEP,
  picks: Object.freeze(Object.create(null)), // a column may be named "constructor"
  doc: "",
});

/** The question in the search part of an address; whatever is in there is only ever data. */
export function fromAddress(search) {
  const given = new URLSearchParams(search);
  const text = (name) => (given.get(name) ?? "").slice(0, LONGEST);
  const picks = Object.create(null);
  for (const [key, value] of given) {
    const found = /^(is|min|max)\.(.+)$/s.exec(key);
    if (!found || !value) continue;
    const [, kind, name] = found;
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

/** The address of a question, relative to the page: what is as at first is left out. */
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

/** Text without halves of surrogate pairs, which no address can hold. */
function whole(text) {
  return text.toWellFormed?.() ?? text;
}

/** Whether anything is asked. */
export function isAsked(question) {
  return question.like !== "" || question.query.trim() !== "";
}

/** Whether filters are on. */
export function isFiltered(question) {
  return question.where.trim() !== "" || Object.keys(question.picks).length > 0;
}

/** The same question without any filter. */
export function unfiltered(question) {
  return { ...question, picks: BLANK.picks, where: "" };
}

/** The body of POST /v1/search. `columns` are the facets of /v1/info, which say how filters write each column. */
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

/** The same question without a pick: of one value, or (null) of the range. */
export function withoutPick(question, name, value) {
  const pick = question.picks[name];
  const left = value === null ? { ...pick, least: "", most: "" } : { ...pick, values: pick.values.filter((one) => one !== value) };
  return withPick(question, name, left);
}

/** The same question with another pick of a column. */
export function withPick(question, name, pick) {
  const picks = Object.assign(Object.create(null), question.picks);
  delete picks[name];
  if (pick.values.length || pick.least || pick.most) picks[name] = pick;
  return { ...question, picks };
}
