// Text of documents as nodes: words of the query marked, metadata in rows and chips.

import { element } from "./dom.js";

const LONGEST_VALUE = 64; // characters of a value in a chip
const MOST_CHIPS = 6;
const MOST_NODES = 10_000; // of one text, for speed; the rest is shown without marks
const LONGEST_STRETCH = 1000; // characters of a stretch whose long names may break
const LONG_NAME = /\S{16,}/g;
const JOINT = /(?<=[._:/])(?=[\p{L}\p{N}])/gu;

/** The text from start to end as nodes, with <mark> around `marks`; adjacent marks are merged. */
export function marked(text, marks, start = 0, end = text.length) {
  const joints = end - start > LONGEST_STRETCH ? [] : jointsOf(text.slice(start, end)).map((joint) => start + joint);
  const nodes = [];
  let at = start;
  let opened = start; // where the mark that ends at `at` begins
  const close = () => at > opened && nodes.push(element("mark", {}, ...pieces(text, opened, at, joints)));
  for (const [first, last] of marks) {
    if (first < at || last > end) continue;
    if (nodes.length > MOST_NODES) break;
    if (first > at) {
      close();
      nodes.push(...pieces(text, at, first, joints));
      opened = first;
    }
    at = last;
  }
  close();
  if (at < end) nodes.push(...pieces(text, at, end, joints));
  return nodes;
}

/** A text whose long names may break between their parts. */
export function breakable(text) {
  return marked(text, []);
}

/** The places where a long name may break: after dots, underscores and the like, not inside words. */
function jointsOf(text) {
  return [...text.matchAll(LONG_NAME)].flatMap((name) => [...name[0].matchAll(JOINT)].map((joint) => name.index + joint.index));
}

function pieces(text, start, end, joints) {
  const nodes = [];
  let at = start;
  for (const joint of joints) {
    if (joint < at || joint >= end) continue;
    nodes.push(text.slice(at, joint), element("wbr"));
    at = joint;
  }
  nodes.push(text.slice(at, end));
  return nodes;
}

/** Metadata as [label, value] pairs, without empty values; fields of objects as column.field. */
export function factsOf(metadata, before = "") {
  return Object.entries(metadata ?? {}).flatMap(([name, value]) => {
    const label = before + name;
    if (value === null || value === "" || (Array.isArray(value) && !value.length)) return [];
    if (typeof value === "object" && !Array.isArray(value)) return factsOf(value, `${label}.`);
    return [[label, shown(value)]];
  });
}

function shown(value) {
  if (Array.isArray(value)) return value.map((item) => (item !== null && typeof item === "object" ? JSON.stringify(item) : String(item))).join(", ");
  return String(value);
}

/** Small labelled values, except of constant columns; null if there are none. */
export function chips(metadata, constant) {
  const facts = factsOf(metadata).filter(([label]) => !constant.has(label));
  if (!facts.length) return null;
  const few = facts.length > MOST_CHIPS + 1 ? MOST_CHIPS : facts.length;
  const made = facts.slice(0, few).map(([label, value]) => {
    const bare = value.replace(/^https?:\/\//i, "");
    const short = bare.length > LONGEST_VALUE ? `${bare.slice(0, LONGEST_VALUE).trimEnd()}…` : bare;
    return element("li", { title: short === value ? null : value.slice(0, 1000) }, element("span", { class: "label" }, ...breakable(label)), valueNode(value, short));
  });
  if (facts.length > few) made.push(element("li", {}, `${facts.length - few} more`));
  return element("ul", { class: "chips", "aria-label": "Metadata" }, ...made);
}

/** All names and values in full; null if there are none. */
export function factList(metadata) {
  const facts = factsOf(metadata);
  if (!facts.length) return null;
  const rows = facts.map(([label, value]) => element("div", {}, element("dt", {}, ...breakable(label)), element("dd", {}, valueNode(value, value))));
  return element("dl", { class: "facts" }, ...rows);
}

/** A value; a link if it is a web address and nothing else. */
function valueNode(value, text) {
  const address = /^https?:\/\/\S+$/i.test(value) ? webAddress(value) : null;
  if (!address) return element("bdi", {}, ...breakable(text));
  return element("a", { href: address, target: "_blank", rel: "noopener noreferrer nofollow" }, element("bdi", {}, ...breakable(text)));
}

function webAddress(value) {
  try {
    const url = new URL(value);
    return ["http:", "https:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}
