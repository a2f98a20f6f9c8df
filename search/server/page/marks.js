// The words of a query in a text, and the passage of a long text with most of them.
// Search is by meaning, so marks only partly explain a hit; they guide the eye.

const WORD = /[\p{L}\p{N}][\p{L}\p{M}\p{N}]*/gu;
const SPACELESS = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}\p{Script=Myanmar}]/u;
const LATIN = /^[a-z0-9]+$/;
const COMMON = new Set(
  "a an and are as at be by can do does for from had has have how i in is it its of on or than that the their this to was were what when where which who why will with you".split(" "),
);
const ENDINGS = new Set(["", "s", "e", "es", "d", "ed", "r", "er", "ers", "rs", "ing", "ings", "y", "ies", "ly"]);
const LONGEST_TEXT = 400_000; // characters that are searched for words
const MOST_WORDS = 200; // of a query

/** A word without case and accents, for comparisons. */
export function folded(word) {
  return word.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
}

/** The marked words of a query. The last word may be incomplete, so it also matches longer words. */
export function termsOf(query) {
  const words = [...query.matchAll(WORD)].slice(0, MOST_WORDS).flatMap((match) => split(match[0])).slice(0, MOST_WORDS);
  const rare = words.filter((word) => !COMMON.has(word));
  const terms = [...new Set(rare.length ? rare : words)];
  const last = /[\p{L}\p{N}]$/u.test(query) ? (words.at(-1) ?? "") : "";
  return { terms, open: last.length >= 3 && terms.includes(last) ? last : "" };
}

/** The words of a run of letters; several in scripts without spaces. */
function split(word) {
  if (!SPACELESS.test(word) || !Intl.Segmenter) return [folded(word)];
  const segments = new Intl.Segmenter(undefined, { granularity: "word" }).segment(word);
  return [...segments].filter((segment) => segment.isWordLike).map(({ segment }) => folded(segment));
}

/** Marks of a text: [start, end, number of the term], in order, without overlap. */
export function marksOf(text, { terms, open }) {
  if (!terms.length) return [];
  const known = new Map();
  const marks = [];
  const piece = text.slice(0, LONGEST_TEXT);
  for (const match of piece.matchAll(WORD)) {
    const word = folded(match[0]);
    if (!known.has(word)) known.set(word, terms.findIndex((term) => isSame(word, term) || (term === open && word.startsWith(term))));
    if (known.get(word) >= 0) marks.push([match.index, match.index + match[0].length, known.get(word)]);
    else if (SPACELESS.test(match[0])) marks.push(...within(match[0], match.index, terms));
  }
  return marks;
}

/** Terms inside a run of a script without spaces. */
function within(run, start, terms) {
  const marks = [];
  const small = run.toLowerCase();
  for (const [number, term] of terms.entries()) {
    if (!SPACELESS.test(term)) continue;
    for (let at = small.indexOf(term); at >= 0; at = small.indexOf(term, at + term.length)) {
      marks.push([start + at, start + at + term.length, number]);
    }
  }
  marks.sort((first, second) => first[0] - second[0] || second[1] - first[1]);
  let reach = 0; // the end of the last kept mark, because marks can overlap
  return marks.filter(([first, last]) => {
    if (first < reach) return false;
    reach = last;
    return true;
  });
}

/** Whether two folded words are forms of one word: the same beginning, and endings of one stem. */
export function isSame(one, other) {
  if (one === other) return true;
  let shared = 0;
  while (shared < one.length && one[shared] === other[shared]) shared += 1;
  const rests = [one.slice(shared), other.slice(shared)];
  if (shared < 3) return false;
  if (!LATIN.test(one) || !LATIN.test(other)) return shared >= 4 && Math.max(rests[0].length, rests[1].length) <= 2 && !/\p{N}/u.test(one);
  if (/\d/.test(one) || /\d/.test(other)) return false;
  if (shared === 3) return rests.every((rest) => rest === "" || rest === "s");
  const doubled = one[shared - 1];
  return rests.every((rest) => ENDINGS.has(rest) || (rest.length > 2 && rest[0] === doubled && ENDINGS.has(rest.slice(1))));
}

/** The passage [start, end) of about `length` characters with most words of the query. */
export function passageOf(text, marks, length) {
  if (text.length <= length * 1.3) return [0, text.length];
  const [first, last] = densest(marks, length);
  if (last <= length) return [0, cutAt(text, length, length - 40)];
  const spare = Math.max(0, length - (last - first));
  const start = sentenceStart(text, Math.max(0, last - length), first) ?? Math.max(0, first - Math.round(spare / 3));
  const end = Math.min(text.length, start + length);
  return [start === 0 || /\s/.test(text[start - 1]) ? start : afterSpace(text, start, first), end === text.length ? end : cutAt(text, end, Math.max(last, end - 40))];
}

/** The range of the best group of marks: most distinct terms, then most marks. */
function densest(marks, length) {
  let best = [0, 0];
  let most = 0;
  let worth = 0; // of the group: 5 for a term's first mark, 1 for each of the next three
  const counts = new Map();
  const value = (count) => (count === 1 ? 5 : count <= 4 ? 1 : 0);
  let left = 0;
  for (const [, end, term] of marks) {
    counts.set(term, (counts.get(term) ?? 0) + 1);
    worth += value(counts.get(term));
    while (left < marks.length - 1 && end - marks[left][0] > length && marks[left][1] < end) {
      const gone = marks[left][2];
      worth -= value(counts.get(gone));
      counts.set(gone, counts.get(gone) - 1);
      left += 1;
    }
    if (worth > most) [best, most] = [[marks[left][0], Math.min(end, marks[left][0] + length)], worth];
  }
  return best;
}

/** The start of the last sentence that begins in [low, high]; null if none does. */
function sentenceStart(text, low, high) {
  const end = [...text.slice(low, high).matchAll(/[.!?。]["')\]]?\s+|\n\s*\n\s*/g)].at(-1);
  return end ? low + end.index + end[0].length : null;
}

/** The end of the last whole word before `end`, but not before `least`. */
function cutAt(text, end, least) {
  for (let at = end; at > least; at -= 1) if (/\s/.test(text[at])) return at;
  return whole(text, end);
}

/** The start of the first whole word after `start`, but not after `most`. */
function afterSpace(text, start, most) {
  for (let at = start; at < Math.min(most, start + 40); at += 1) if (/\s/.test(text[at])) return at + 1;
  return whole(text, start);
}

/** A place outside of characters of two units. */
function whole(text, at) {
  return /[\uDC00-\uDFFF]/.test(text[at] ?? "") && /[\uD800-\uDBFF]/.test(text[at - 1] ?? "") ? at + 1 : at;
}

/** The UTF-16 units of a number of code points, by which Python counts. */
export function unitsUpTo(text, characters) {
  if (!/[\uD800-\uDBFF]/.test(text)) return Math.min(characters, text.length);
  let at = 0;
  for (let left = characters; left > 0 && at < text.length; left -= 1) at += text.codePointAt(at) > 0xffff ? 2 : 1;
  return at;
}
