// The place of a hit in its file: the path with lines or a page, the headings, and the address.

import { element } from "./dom.js";
import { breakable } from "./text.js";

const SHOWN = new Set(["path", "folder", "suffix", "sections", "sha256", "etag"]); // shown by the line of the place, or for machines
const LONGEST_HEADING = 120;

/** The id, with lines or page, and the headings below the title; null if the title says it all. */
export function placeLine({ id, title, place }) {
  const where = whereOf(place);
  const headings = (place?.section ?? []).filter((heading, level) => level || heading !== title);
  if (!title && !where && !headings.length) return null;
  const name = title ? element("bdi", {}, ...breakable(id)) : null;
  const section = headings.length ? element("span", { class: "section" }, element("bdi", {}, headings.map((heading) => heading.slice(0, LONGEST_HEADING)).join(" > "))) : null;
  return element("p", { class: "id" }, name, " ", where && element("span", { class: "where" }, where), " ", section);
}

function whereOf(place) {
  if (place?.lines) return place.lines[0] === place.lines[1] ? `line ${place.lines[0]}` : `lines ${place.lines[0]}-${place.lines[1]}`;
  return place?.page ? `page ${place.page}` : "";
}

/** The metadata of a file that the line of its place does not show. */
export function beside(metadata) {
  return Object.fromEntries(Object.entries(metadata).filter(([name]) => !SHOWN.has(name)));
}

/** Attributes of a link to the file; the server has checked its scheme. */
export function outward(href) {
  return { href, target: "_blank", rel: "noopener noreferrer" };
}
