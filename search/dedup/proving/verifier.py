"""Proving a file of duplicates right, from the file and the index alone.

What is proved, of the documents in priority order (those of the other index first, which all stay):

1. For every dropped document stands a kept one that scores at least the threshold with it, as stated, bit by bit; no
   kept document scores higher, or as high and comes before that one. (Where equal texts are dropped: or the two have
   the same normalised text, and then no kept document scores enough, and none with that text comes before.)
2. No two kept documents score the threshold or more (or, there, have the same text).
3. Every dropped document has a duplicate that is kept and comes before it.

2 and 3 leave one set of kept documents only, that of the rule "in priority order a document is kept unless a kept one
is its duplicate". For take two such sets and the first document in which they differ: what comes before it is alike,
so either it has a kept duplicate before it, and 2 forbids to keep it, or it has none, and 3 forbids to drop it. 1 then
leaves one document to stand for each dropped one. So nothing else than this file could be right.

No step of the search is used for it: every document is compared with every kept one. Of that search the verifier
shares what defines a score and the priority order, and how vectors are read.
"""

import hashlib
import tempfile
import unicodedata
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from indexer.corpus.document import joined_text
from indexer.errors import ConfigError
from indexer.progress import NoProgress, Progress
from search.dedup.deciding.order import priority
from search.dedup.files.duplicates_file import read_duplicates
from search.dedup.files.origin import check_origin, check_other, require_same_encoder
from search.dedup.pairs import Rows, Vectors
from search.dedup.proving.brute_force import Evidence
from search.dedup.proving.judgement import Case
from search.dedup.proving.proof import DedupProof, Findings
from search.dedup.proving.stated import Stated, check_facts, read_stated
from search.dedup.scratch import scratch_vectors
from search.dedup.settings import DedupSettings, JoinOptions
from search.opened import OpenIndex
from search.stored import StoredRows


def verify_duplicates(
    path: Path,
    index: str | Path | OpenIndex,
    progress: Progress | None = None,
    against: str | Path | OpenIndex | None = None,
    options: JoinOptions = JoinOptions(),  # noqa: B008 - frozen
) -> DedupProof:
    """Check a file of duplicates as the module says, on the CPU; what is wrong is listed, not raised.

    `against` is the other index, if there was one. A result of an approximate search is held to the same
    guarantees: pairs that it missed are violations. Raises MismatchError when the file was made from another index or
    generation, and what `read_duplicates`, opening an index and `scratch_vectors` raise.
    """
    if options.device not in ("auto", "cpu"):
        raise ConfigError(f"device is {options.device}; the proof is made on the CPU, on purpose. Leave it at auto.")
    duplicates, opened, progress = read_duplicates(path), _opened(index), progress or NoProgress()
    facts = duplicates.facts
    check_origin(facts, opened, path)
    other = None if against is None else _opened(against)
    check_other(facts, other, path)
    if other is not None:
        require_same_encoder(opened, other)
    settings = DedupSettings(
        facts["threshold"], facts["prefer"], facts["method"]["name"], facts["text_duplicates"], facts["only_against"]
    )
    proof = DedupProof(path, opened.path, settings.threshold, settings.method, opened.manifest.documents)
    found = Findings()
    stated = read_stated(duplicates, opened, other, found)
    if stated is not None:
        proof.dropped = len(stated.dropped)
        check_facts(facts, stated, found)
        _judge(proof, stated, (opened, other), settings, found, options, progress)
    proof.violations, proof.problems = found.counts, found.lines()
    return proof


def _judge(
    proof: DedupProof,
    stated: Stated,
    indexes: tuple[OpenIndex, OpenIndex | None],
    settings: DedupSettings,
    found: Findings,
    options: JoinOptions,
    progress: Progress,
) -> None:
    opened, other = indexes
    with tempfile.TemporaryDirectory(prefix="isotrope-verify-") as folder:
        progress.phase("reading vectors", None)
        own = _vectors(opened, opened, Path(folder) / "own")
        foreign = _vectors(other, opened, Path(folder) / "other") if other else own[:0]
        kept_by = np.full(len(stated.ids), -1)
        kept_by[stated.dropped] = stated.kept_by
        ranks = np.concatenate([np.arange(stated.others), stated.others + priority(opened, settings.prefer)])
        document_of = np.concatenate([_documents_of(other), _documents_of(opened) + stated.others])
        evidence = Evidence(own, foreign, document_of, ranks, kept_by, settings.lowest, settings.only_against)
        progress.phase("reading texts", None)
        texts = _number_texts([index for index in (other, opened) if index is not None])
        comparison = Case(stated, evidence, texts, settings, found).judge(options, progress)
        proof.compared, proof.exact = comparison.compared, comparison.exact


def _opened(index: str | Path | OpenIndex) -> OpenIndex:
    return index if isinstance(index, OpenIndex) else OpenIndex.open(index)


def _documents_of(index: OpenIndex | None) -> Rows:
    """The document of each row."""
    return index.numbering.documents_of(np.arange(index.manifest.rows)) if index else np.zeros(0, np.int64)


def _vectors(index: OpenIndex, transformed_by: OpenIndex, folder: Path) -> Vectors:
    """All vectors of an index, by the transform of the index that was deduplicated."""
    folder.mkdir()
    return scratch_vectors(StoredRows(index), folder, transformed_by.transform)


def _number_texts(indexes: Iterable[OpenIndex]) -> Rows:
    """A number for each text, the same for those that are equal in NFKC with white space folded; -1: blank."""
    digests, blank = bytearray(), bytearray()
    for index in indexes:
        for document in index.documents.all_documents():
            words = unicodedata.normalize("NFKC", joined_text(document, index.config.corpus.text)).split()
            digests += hashlib.sha256(" ".join(words).encode("utf-8", "surrogatepass")).digest()[:16]
            blank.append(not words)
    _, numbers = np.unique(np.frombuffer(digests, "V16"), return_inverse=True)
    found: Rows = np.where(np.frombuffer(blank, bool), -1, numbers)
    return found
