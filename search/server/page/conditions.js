// From choices to a condition in SQL. Values that do not fit the type of their column are dropped, because anybody can
// write an address, and the server would refuse the whole condition.

import { isTree } from "./folders.js";

const NUMBER = /^-?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
const DATE = /^\d{4,6}-\d\d-\d\d$/;
const TIME = /^\d\d:\d\d(:\d\d(\.\d+)?)?$/;
const HASHES = ["sha256", "etag"]; // of files, which say nothing to people
const FEW = 8; // distinct numbers that are listed as values

/** The control of a column: "values", "range", or null if neither helps. */
export function choiceOf(column) {
  const values = HASHES.includes(column.name) ? 0 : (column.values?.length ?? 0);
  if (column.kind === "numbers" && (!values || column.distinct > FEW)) return isSpread(column) ? "range" : null;
  if (["dates", "dates with a time of day", "times of day"].includes(column.kind)) return isSpread(column) ? "range" : null;
  if (!values || (column.distinct === 1 && column.values[0].count === column.documents && column.kind !== "lists")) return null;
  const isUseful = values <= FEW || column.values[0].count > 1 || isTree(column); // not if every document has its own value
  return isUseful ? "values" : null;
}

/** Whether any column has a control; else conditions can only be written. */
export function isChoice(columns) {
  return columns.some((column) => choiceOf(column));
}

function isSpread(column) {
  return column.least !== null && column.least !== undefined && column.least !== column.most;
}

/** The columns for grouping. */
export function groupable(columns) {
  const kinds = ["text", "numbers", "true or false", "dates"];
  return columns.filter(
    (column) => kinds.includes(column.kind) && !column.sql.includes(".") && column.distinct !== 1 && column.distinct !== column.documents,
  );
}

/** The condition of all picks and the written filter; "" for none. */
export function conditionOf(question, columns) {
  const parts = columns.map((column) => pickedOf(question.picks[column.name], column)).filter(Boolean);
  const written = question.where.trim();
  if (!parts.length) return written;
  return [...(written ? [`(${written})`] : []), ...parts].join(" AND ");
}

function pickedOf(pick, column) {
  if (!pick) return "";
  const parts = [];
  const values = pick.values.map((value) => literalOf(value, column.elements ?? column.kind)).filter(Boolean);
  if (values.length && column.kind === "lists") {
    parts.push(anyOf(values.map((value) => `list_contains(${column.sql}, ${value})`)));
  } else if (values.length && isTree(column)) {
    parts.push(anyOf(pick.values.map((value) => `(${column.sql} = ${literalOf(value, "text")} OR starts_with(${column.sql}, ${literalOf(`${value}/`, "text")}))`)));
  } else if (values.length) {
    parts.push(values.length > 1 ? `${column.sql} IN (${values.join(", ")})` : `${column.sql} = ${values[0]}`);
  }
  if (column.kind !== "lists") parts.push(...rangeOf(pick, column));
  return parts.join(" AND ");
}

function rangeOf(pick, column) {
  const least = literalOf(pick.least, column.kind);
  const most = literalOf(pick.most, column.kind);
  const parts = least ? [`${column.sql} >= ${least}`] : [];
  if (most && column.kind === "dates with a time of day") parts.push(`${column.sql} < '${dayAfter(pick.most)}'`);
  else if (most) parts.push(`${column.sql} <= ${most}`);
  return parts;
}

/** A value as an SQL literal; "" if it is not of this type. */
export function literalOf(value, kind) {
  if (value === "") return "";
  if (kind === "text") return `'${value.replaceAll("'", "''")}'`;
  if (kind === "true or false") return ["true", "false"].includes(value) ? value : "";
  if (kind === "numbers") return NUMBER.test(value) ? value : "";
  const form = { dates: DATE, "dates with a time of day": DATE, "times of day": TIME }[kind];
  return form?.test(value) && (form !== DATE || dayAfter(value)) ? `'${value}'` : "";
}

/** The day after an ISO date, the exclusive end of that day. "" if there is no such day. */
function dayAfter(day) {
  const date = new Date(`${day}T00:00:00Z`);
  if (Number.isNaN(date.getTime())) return "";
  date.setUTCDate(date.getUTCDate() + 1);
  return date.toISOString().slice(0, 10);
}

function anyOf(conditions) {
  return conditions.length > 1 ? `(${conditions.join(" OR ")})` : conditions[0];
}
