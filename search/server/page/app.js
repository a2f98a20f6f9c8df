// The page: one query at a time, its address, and its answer.

import { ApiError, forgetKey, getInfo, hasKey, search, setKey } from "./api.js";
import { askKey } from "./dialogs.js";
import { isChoice } from "./conditions.js";
import { Counts } from "./counts.js";
import { button, byId, element } from "./dom.js";
import { FilterPanel, activeChips, groupChoice, toggle } from "./filters.js";
import { hitItems } from "./hits.js";
import { listenToKeys } from "./keys.js";
import { termsOf } from "./marks.js";
import { Named } from "./named.js";
import { about, failure, failureText, nothing, refused, remarks, statusOf, waiting, welcome } from "./notices.js";
import { STEP, fromAddress, isAsked, isFiltered, toAddress, toRequest, unfiltered } from "./question.js";
import { Side } from "./side.js";
import { hideDocument, showDocument } from "./sheet.js";

const PAUSE = 150; // milliseconds after the last key before a search
const SETTLED = 1500; // milliseconds after the last key before the next key begins a new entry of the history
const WAITS = [2, 3, 5]; // seconds before each retry at an unreachable server; the last one repeats

let question = fromAddress(location.search);
let info = null;
let answer = null; // the last answer, whose hits are shown
let asked = null; // the pending request: { key, stop }
let opened = new Set(); // ids of hits that show their whole text
let typing = null; // the timer that ends a stretch of typing
let pause = null; // the timer that ends a pause before asking
let retry = null; // the timer of the next attempt
let attempts = 0;
let reveal = 0; // number of hits before more were requested

const panel = new FilterPanel((next, isTyping, rebuild) => {
  change({ ...next, k: STEP }, { isTyping });
  if (rebuild) panel.show(question, columns());
});

const counts = new Counts((facets) => panel.count(facets));
const named = new Named(() => asked || showNamed());
const side = new Side(panel);
const columns = () => info?.columns ?? [];
const most = () => info?.limits?.k ?? 1000;
const keyOf = (query) => JSON.stringify(toRequest(query, columns(), most()));

// --- the query and its address

/** Change the query, its address, its display, and the answer. Continuous typing is one entry of the history. */
function change(next, { isTyping = false, stay = false } = {}) {
  const before = question;
  question = next;
  const address = toAddress(question);
  if (address !== toAddress(before)) {
    try {
      if (stay || (isTyping && typing)) history.replaceState(history.state, "", address);
      else history.pushState({ within: true }, "", address);
    } catch {
      // a browser that limits entries: only the address is not updated
    }
  }
  clearTimeout(typing);
  typing = isTyping ? setTimeout(() => (typing = null), SETTLED) : null;
  reflect();
  askSoon(isTyping ? PAUSE : 0);
}

/** Show the query. */
function reflect() {
  const box = byId("query");
  if (box.value !== question.query && box.value.trim() !== question.query) box.value = question.query;
  box.placeholder = question.like ? "or type a question" : "Search by meaning";
  const like = byId("like");
  like.hidden = !question.like;
  like.replaceChildren(...(question.like ? [likeChip()] : []));
  byId("clear").hidden = !question.query && !question.like;
  const name = info?.name ?? "Search";
  byId("brand").textContent = name;
  document.title = isAsked(question) ? `${question.like ? `Like ${question.like}` : question.query} - ${name}` : name;
  panel.root.childElementCount && panel.follow(question);
  showOptions();
}

function likeChip() {
  const remove = () => change({ ...question, like: "", k: STEP });
  const chip = button("", () => (remove(), byId("query").focus()), { class: "chip", "aria-label": `Stop: more like ${question.like}` });
  chip.append("Like ", element("bdi", {}, question.like), " ×");
  return chip;
}

/** Show the options and active filters of the query. The focused control keeps the focus. */
function showOptions() {
  const options = byId("options");
  options.hidden = !info || !isAsked(question);
  const chips = activeChips(question, (next) => (change({ ...next, k: STEP }), panel.show(question, columns())));
  byId("active").replaceChildren(...chips);
  byId("active").hidden = !chips.length;
  byId("open-filters").textContent = chips.length ? `Filters (${chips.length})` : "Filters";
  const toggles = byId("toggles");
  const patch = (fields) => change({ ...question, ...fields, k: STEP });
  const focused = [...toggles.querySelectorAll("input, select")].indexOf(document.activeElement);
  const parts = [
    toggle("Match words too", question.like ? "Only for typed words" : "Hybrid: fuses the order by meaning with the order by words (BM25)", question.hybrid, (hybrid) => patch({ hybrid }), question.like !== ""),
    toggle("Fold near-duplicates", "Lists documents that say nearly the same under the best of them", question.fold, (fold) => patch({ fold })),
    groupChoice(question, columns(), (group) => patch({ group })),
  ];
  toggles.replaceChildren(...parts.filter(Boolean));
  if (focused >= 0) toggles.querySelectorAll("input, select")[focused]?.focus();
}

// --- asking

function askSoon(wait) {
  clearTimeout(pause);
  pause = setTimeout(ask, wait);
}

/** Search, unless the answer is shown or pending. Aborts an earlier request. */
async function ask(again = false) {
  clearTimeout(pause);
  clearTimeout(retry);
  if (!isAsked(question)) {
    giveUp();
    named.ask("");
    showNothingAsked();
    return;
  }
  named.ask(question.like ? "" : question.query.trim());
  if (!info && Object.keys(question.picks).length) return; // the columns are needed; `learn` calls again
  const key = keyOf(question);
  if (!again && (asked?.key === key || (!asked && answer?.key === key && !byId("notice").querySelector(".bad")))) return;
  giveUp();
  const mine = (asked = { key, question, stop: new AbortController() });
  byId("main").setAttribute("aria-busy", "true");
  const began = performance.now();
  try {
    const result = await search(JSON.parse(key), mine.stop.signal);
    if (mine !== asked) return;
    attempts = 0;
    show({ ...result, key, question: mine.question, took: performance.now() - began });
  } catch (error) {
    if (mine === asked && error.name !== "AbortError") await fail(error, mine);
  } finally {
    if (mine === asked) {
      giveUp();
      showNamed();
    }
  }
}

function giveUp() {
  asked?.stop.abort();
  asked = null;
  byId("main").removeAttribute("aria-busy");
}

// --- showing

function showNothingAsked() {
  answer = null;
  byId("hits").replaceChildren();
  byId("after").replaceChildren();
  byId("status").textContent = "";
  panel.complain("");
  if (!isFiltered(question)) counts.ask(question, columns());
  byId("notice").replaceChildren(isFiltered(question) ? waiting() : welcome(info, (patch) => toAddress({ ...question, ...patch })));
  side.place(isChoice(columns()));
}

function show(next) {
  if (answer?.question.query !== next.question.query || answer?.question.like !== next.question.like) opened = new Set();
  answer = next;
  panel.complain("");
  counts.ask(answer.question, columns());
  const notes = remarks(answer, answer.question.hybrid);
  byId("notice").replaceChildren(...notes, ...(answer.hits.length ? [] : [nothing(fixes(answer.question))]));
  layHits();
  if (reveal) byId("hits").querySelectorAll("a.open")[reveal]?.focus({ preventScroll: true });
  reveal = 0;
  const full = answer.hits.length === answer.question.k && answer.question.k < most();
  byId("after").replaceChildren(...(full ? [button("More results", more, { class: "more" })] : []));
  side.place(isChoice(columns()));
  if (info && (answer.index.generation !== info.generation || answer.index.fingerprint !== info.fingerprint)) learn(); // for new columns
}

/** Show the document whose id is the query, unless it is the first hit. */
function showNamed() {
  const hits = answer?.key === keyOf(question) ? answer.hits : [];
  named.show(question.like ? "" : question.query.trim(), hits, { link: (doc) => toAddress({ ...question, doc }), open: openDocument });
}

/** Request more hits. The first new hit gets the focus, because the button disappears. */
function more() {
  reveal = answer.hits.length;
  change({ ...question, k: Math.min(question.k + STEP, most()) }, { stay: true });
}

function layHits() {
  byId("hits").replaceChildren(...hitItems(answer.hits, viewOf(answer.question)));
  byId("status").textContent = answer.hits.length ? statusOf(answer, info) : "";
}

function viewOf(of) {
  const link = (patch) => toAddress({ ...of, doc: "", ...patch });
  return {
    terms: termsOf(of.like ? "" : of.query),
    opened,
    constant: new Set(columns().filter((column) => column.distinct === 1 && column.documents === info.documents).map((column) => column.name)),
    links: { document: (id) => link({ doc: id }), like: (id) => link({ query: "", like: id, k: STEP }) },
    open: (hit) => openDocument(hit.id),
    like,
  };
}

/** Changes that would find more: [label, action]. */
function fixes(of) {
  return isFiltered(of) ? [["Remove the filters", () => (change({ ...unfiltered(question), k: STEP }), panel.show(question, columns()))]] : [];
}

// --- failures

async function fail(error, mine) {
  byId("status").textContent = "";
  if (error.status === 401) {
    needKey(error);
    return;
  }
  if (error.status === 422 && /^filter \[/.test(error.message) && mine.question.where.trim()) {
    const reason = await complaint(error, mine);
    if (mine !== asked) return;
    answer = answer && { ...answer, key: "" };
    panel.complain(reason);
    byId("notice").replaceChildren(refused(reason, () => (change({ ...question, where: "", k: STEP }), panel.show(question, columns()))));
    byId("after").replaceChildren();
    return;
  }
  const wait = error.passes ? (error.after ?? WAITS[Math.min(attempts, WAITS.length - 1)]) : null;
  attempts += 1;
  if (!error.passes && error.status !== 422) {
    byId("hits").replaceChildren();
    byId("after").replaceChildren();
  }
  byId("notice").replaceChildren(failure(error, wait, () => ask(true)));
  if (wait !== null) retry = setTimeout(recover, 1000 * wait);
}

/** Search again, and load the description of the index if it is missing. */
function recover() {
  if (!info) learn();
  ask(true);
}

/** The fault of the written condition. It is sent alone, because the positions of a combined one differ from the box. */
async function complaint(error, mine) {
  let fault = error;
  if (toRequest(mine.question, columns(), most()).where !== mine.question.where.trim()) {
    try {
      await search({ ...JSON.parse(mine.key), k: 1, where: mine.question.where.trim() }, mine.stop.signal);
    } catch (alone) {
      if (alone instanceof ApiError && alone.status === 422) fault = alone;
    }
  }
  const bare = fault.message.replace(/^filter \[.*?\]: (?=\S)/s, "");
  const reason = bare.replace(/; a filter is one condition such as .*$/s, "."); // example with columns of another index
  return reason.charAt(0).toUpperCase() + reason.slice(1);
}

function needKey(error) {
  const enter = () =>
    askKey(hasKey(), (key, onDevice) => {
      setKey(key, onDevice);
      learn();
      if (isAsked(question)) ask(true);
    });
  byId("notice").replaceChildren(failure(error, null, enter));
  if (!byId("key").open) enter();
}

// --- the index

/** Load the description of the index, and show what depends on it. */
async function learn() {
  try {
    info = await getInfo();
  } catch (error) {
    if (error.status === 401) needKey(error);
    else if (error.passes && !isAsked(question)) {
      byId("notice").replaceChildren(failure(error, 3, learn));
      retry = setTimeout(learn, 3000);
    } else if (error.passes) setTimeout(learn, 3000);
    else byId("notice").replaceChildren(failure(error, null, learn));
    return;
  }
  byId("about").replaceChildren(...about(info, hasKey() ? () => (forgetKey(), location.reload()) : null));
  counts.reset();
  panel.counted = null;
  panel.show(question, columns());
  if (answer) counts.ask(answer.question, columns());
  side.place(isChoice(columns()));
  reflect();
  if (!isAsked(question)) showNothingAsked();
  else if (answer?.hits.length && !byId("hits").querySelector(":focus")) layHits();
  ask();
}

// --- documents

function openDocument(id) {
  change({ ...question, doc: id });
  showSheet();
}

function showSheet() {
  if (!question.doc) {
    hideDocument();
    return;
  }
  const id = question.doc;
  showDocument(id, {
    hit: answer?.hits.find((hit) => hit.id === id) ?? null,
    terms: termsOf(question.like ? "" : question.query),
    link: toAddress({ ...question, doc: id }),
    like,
    close: closeDocument,
    failed: (error) => (error.status === 404 ? "The index contains no document with this id." : failureText(error)),
  });
}

/** Close the sheet: go back in the history if it was opened here, else remove it from the address. */
function closeDocument() {
  if (!question.doc) return;
  if (history.state?.within) history.back();
  else change({ ...question, doc: "" }, { stay: true });
  hideDocument();
}

function like(id) {
  hideDocument();
  change({ ...question, query: "", like: id, doc: "", k: STEP });
  byId("query").value = "";
  byId("hits").focus({ preventScroll: true }); // the focused element disappears; the arrow keys continue here
  scrollTo({ top: 0 });
}

function clearQuestion() {
  byId("query").value = "";
  change({ ...question, query: "", like: "", k: STEP });
}

// --- events

byId("search").addEventListener("submit", (event) => {
  event.preventDefault();
  typing = null;
  ask();
});
byId("query").addEventListener("input", (event) => {
  const text = event.target.value;
  change({ ...question, query: text, like: text.trim() ? "" : question.like, k: STEP }, { isTyping: true });
});
byId("query").addEventListener("keydown", (event) => {
  if (event.key === "Backspace" && !event.target.value && question.like) change({ ...question, like: "", k: STEP });
});
byId("clear").addEventListener("click", () => {
  clearQuestion();
  byId("query").focus();
});
byId("brand").addEventListener("click", (event) => {
  if (event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return;
  event.preventDefault();
  change(fromAddress(""));
  panel.show(question, columns());
  byId("query").focus();
});
byId("document").addEventListener("cancel", (event) => (event.preventDefault(), closeDocument()));
for (const name of ["document", "drawer", "help"]) {
  byId(name).addEventListener("click", (event) => {
    if (event.target !== byId(name)) return; // only the backdrop
    if (name === "document") closeDocument();
    else byId(name).close();
  });
}
addEventListener("popstate", () => {
  const before = question;
  question = fromAddress(location.search);
  typing = null;
  byId("query").value = question.query;
  reflect();
  if (JSON.stringify({ ...before, doc: "" }) !== JSON.stringify({ ...question, doc: "" })) panel.show(question, columns());
  showSheet();
  ask();
});
addEventListener("online", () => retry !== null && recover());

listenToKeys({ like, clear: clearQuestion, isEmpty: () => !question.query && !question.like });
byId("query").value = question.query;
reflect();
learn();
ask();
showSheet();
