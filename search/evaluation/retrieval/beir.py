"""Judged queries of a BEIR folder: queries.jsonl (`search.queries`) and the judgements in qrels/, every line checked.

    folder/corpus.jsonl        {"_id": ..., "title": ..., "text": ...}, read by `indexer.corpus`
    folder/queries.jsonl       {"_id": ..., "text": ...}, optionally with a "title"
    folder/qrels/test.tsv      query-id, corpus-id, score; or TREC's four columns: query 0 document score

Files can be compressed (.gz, .bz2, .zst). Scores above 0 are relevant, and are the gains of nDCG.
"""

import re
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from pathlib import Path

from indexer.corpus.readers.streams import ByteStream, decode_line, numbered_lines
from indexer.corpus.row import BadRow
from indexer.corpus.sources import COMPRESSIONS, SourceFile
from indexer.errors import EvaluationError, as_argument
from indexer.typed_arguments import checked
from search.formatting import counted
from search.queries import QUERIES, find_beir_file, read_beir_queries, read_items
from search.result_files import file_hash

Qrels = dict[str, dict[str, int]]
"""Query id -> document id -> relevance."""
_HEADINGS = {"score", "rel", "relevance", "label", "judgment", "judgement", "grade"}
_QRELS_TYPES = (".tsv", ".txt", ".qrels")
_SHOWN = 3  # ids in a message


@dataclass(frozen=True)
class JudgedQueries:
    """Queries with at least one relevant document, in the order of their file."""

    name: str  # of the folder
    queries: dict[str, str]  # id -> text
    judgements: Qrels
    files: dict[str, str]  # name in the folder -> sha256
    notes: tuple[str, ...] = ()

    def match(self, documents: Set[str]) -> tuple[str, ...]:
        """Return notes on judged documents that are not among `documents`.

        They stay in the denominator of recall, MAP and the ideal ranking, as in trec_eval. Raises EvaluationError if
        all are missing: the ids then belong to another collection.
        """
        judged = {document for relevances in self.judgements.values() for document in relevances}
        missing = sorted(judged - documents)
        if not missing:
            return ()
        if len(missing) == len(judged):
            raise EvaluationError(
                f"{self.name}: none of the {counted(len(judged), 'judged document')} ({_some(missing)}) is among the "
                f"{len(documents):,} searched documents ({_some(sorted(documents))}): the ids do not match. Fix: use "
                "the corpus of these judgements, or an index of it."
            )
        return (
            f"{len(missing):,} of {counted(len(judged), 'judged document')} {_are(len(missing))} not among the "
            f"searched documents ({_some(missing)}); the relevant ones count as not found",
        )


@dataclass
class _Judged:
    """Judgements and the line of each."""

    judgements: Qrels = field(default_factory=dict)
    lines: dict[tuple[str, str], int] = field(default_factory=dict)
    repeated: int = 0


@checked
def read_judged(folder: str | Path, split: str = "test") -> JudgedQueries:
    """Read the judged queries of a BEIR folder.

    Raises EvaluationError, with file and line, for unreadable lines, judged queries without a text, and a split
    without a relevant document.
    """
    folder = Path(folder)
    queries_file, qrels_file = find_beir_file(folder, QUERIES), _qrels_file(folder, split)
    texts, judged = read_beir_queries(queries_file), _judgements(qrels_file)
    if not judged.judgements:
        raise EvaluationError(f"{qrels_file}: contains no judgements; expected lines of query-id, corpus-id, score.")
    _require_texts(texts, judged, queries_file, qrels_file)
    relevant = {query: scores for query, scores in judged.judgements.items() if max(scores.values()) > 0}
    if not relevant:
        raise EvaluationError(
            f"{qrels_file}: no document is judged relevant (a score above 0) for any of "
            f"{counted(len(judged.judgements), 'query', 'queries')}. Fix: check the score column, or choose another "
            f"{as_argument('split')}."
        )
    qrels = qrels_file.relative_to(folder).as_posix()
    return JudgedQueries(
        folder.resolve().name,
        {query: text for query, text in texts.items() if query in relevant},
        {query: relevant[query] for query in texts if query in relevant},
        {queries_file.name: file_hash(queries_file), qrels: file_hash(qrels_file)},
        tuple(_notes(len(texts), judged, len(relevant), qrels)),
    )


def _qrels_file(folder: Path, split: str) -> Path:
    qrels = folder / "qrels"
    for ending in _QRELS_TYPES:
        for compression in ("", *COMPRESSIONS):
            if (path := qrels / f"{split}{ending}{compression}").is_file():
                return path
    splits = sorted(path.name.partition(".")[0] for path in qrels.iterdir()) if qrels.is_dir() else []
    fix = (
        f"the folder has {', '.join(splits)}. Fix: pass {as_argument('split', splits[0])}"
        if splits
        else "the folder has no qrels"
    )
    raise EvaluationError(f"{qrels / split}.tsv: no such file; {fix}.")


def _lines(file: SourceFile) -> Iterator[tuple[int, str] | BadRow]:
    with ByteStream(file) as stream:
        for item in numbered_lines(stream):
            if isinstance(item, BadRow):
                yield item
                continue
            text = decode_line(item[1], item[0])
            yield text if isinstance(text, BadRow) else (item[0], text)


def _judgements(path: Path) -> _Judged:
    judged, first = _Judged(), True
    for number, line in read_items(path, _lines):
        if not line.strip():
            continue
        fields = [part.strip() for part in (line.split("\t") if "\t" in line else line.split())]
        if not (first and fields[-1].lower() in _HEADINGS):
            _judge(judged, fields, number, path)
        first = False
    return judged


def _judge(judged: _Judged, fields: list[str], number: int, path: Path) -> None:
    if len(fields) not in (3, 4) or not all(fields):
        raise EvaluationError(
            f"{path}:{number}: found {len([part for part in fields if part])} columns; expected three (query-id, "
            "corpus-id, score) or TREC's four (query, 0, document, score), separated by tabs or spaces."
        )
    query, document, score = fields[0], fields[-2], fields[-1]
    if not re.fullmatch(r"[+-]?[0-9]{1,9}", score):
        raise EvaluationError(f'{path}:{number}: the score is "{score}"; expected a whole number such as 0, 1 or 2.')
    of_query = judged.judgements.setdefault(query, {})
    if document in of_query:
        if of_query[document] != int(score):
            raise EvaluationError(
                f'{path}:{number}: query "{query}" and document "{document}" have score {score} here and '
                f"{of_query[document]} in line {judged.lines[query, document]}. Fix: remove one of the lines."
            )
        judged.repeated += 1
    of_query[document] = int(score)
    judged.lines.setdefault((query, document), number)


def _require_texts(texts: dict[str, str], judged: _Judged, queries_file: Path, qrels_file: Path) -> None:
    missing = [query for query in judged.judgements if query not in texts]
    if missing:
        line = judged.lines[missing[0], next(iter(judged.judgements[missing[0]]))]
        queries = counted(len(judged.judgements), "judged query", "judged queries")
        raise EvaluationError(
            f"{qrels_file}:{line}: {len(missing):,} of {queries} ({_some(missing)}) {_are(len(missing))} not in "
            f"{queries_file}, which has {len(texts):,} ({_some(list(texts))}). Fix: use two files with the same query "
            "ids."
        )


def _notes(queries: int, judged: _Judged, relevant: int, qrels: str) -> Iterator[str]:
    if unjudged := queries - len(judged.judgements):
        yield f"{unjudged:,} of {counted(queries, 'query', 'queries')} left out, without a judgement in {qrels}"
    if without := len(judged.judgements) - relevant:
        yield f"{counted(without, 'query', 'queries')} left out of the means, without a relevant document in {qrels}"
    if judged.repeated:
        yield f"{qrels} repeats {counted(judged.repeated, 'line')}"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _some(ids: list[str]) -> str:
    shown = ", ".join(ids[:_SHOWN])
    return f"{shown}, ..." if len(ids) > _SHOWN else shown
