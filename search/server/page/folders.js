// Folders as values of a filter: a folder holds those below it.

/** Whether the values of a column or facet are folders. */
export function isTree({ name, kind }) {
  return name === "folder" && kind === "text";
}

/** Whether a chosen value means documents with this value too. */
export function covers(facet, chosen, value) {
  return value === chosen || (isTree(facet) && value.startsWith(`${chosen}/`));
}

/** The values to choose from, the most frequent first: of folders also those above, if they hold more than one below. */
export function choicesOf(column) {
  const listed = new Map(column.values.map(({ value, count }) => [String(value), count]));
  if (!isTree(column)) return [...listed.keys()];
  const totals = new Map();
  const parents = new Map(); // folder -> those directly below
  for (const [folder, count] of listed) {
    for (let at = folder, below = ""; at; below = at, at = at.slice(0, Math.max(at.lastIndexOf("/"), 0))) {
      totals.set(at, (totals.get(at) ?? 0) + count);
      if (below) parents.set(at, (parents.get(at) ?? new Set()).add(below));
    }
  }
  const useful = [...totals].filter(([folder]) => listed.has(folder) || parents.get(folder).size > 1);
  return useful.sort((first, second) => second[1] - first[1]).map(([folder]) => folder);
}
