"""`deduplicate_index` end to end: one index, two indexes, and stored pairs."""

import csv
import gzip
import io
import json
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from indexer import BuildConfig, Document, ann, build_index
from indexer.corpus.document import joined_text
from indexer.errors import ConfigError, EvaluationError, MismatchError, NotAnIndexError, StoreError
from indexer.recipe.config import EncoderConfig
from indexer.recipe.index_config import StoreConfig
from search.dedup import inputs as inputs_module
from search.dedup.deduplication import Deduplication, deduplicate_index
from search.dedup.distinct import normalised_text
from search.dedup.duplicates_file import SCHEMA, Facts, read_duplicates
from search.dedup.greedy import DedupDocuments
from search.dedup.inputs import open_inputs
from search.dedup.pairs import pair_scores, tile_scores
from search.dedup.settings import (
    DedupSettings,
    JoinOptions,
    PairFiles,
    duplicates_format,
    lowest_score,
    parse_memory,
)
from search.dedup.verify import verify_duplicates
from search.index import Index, LiveRows
from tests.dedup_oracles import decide_slowly
from tests.directories import snapshot

WORDS = [
    "whale", "bridge", "bread", "star", "river", "clock", "bee", "glass", "map", "sand",
    "deep", "old", "steel", "dance", "light", "stone", "wind", "red", "cold",
]  # fmt: skip
Built = Callable[..., Path]


def texts(count: int, seed: int) -> Iterator[str]:
    """Return sentences; about a third are copies with a changed word, other spaces, or no change."""
    draw, found = random.Random(seed), list[str]()
    while len(found) < count:
        kind = draw.random() if found else 1.0
        words = draw.choice(found).split() if kind < 0.45 else draw.choices(WORDS, k=draw.randint(4, 9))
        if kind < 0.3:
            words[draw.randrange(len(words))] = draw.choice(WORDS)
        found.append(("  " if 0.3 <= kind < 0.38 else " ").join(words))
    yield from found


def corpus(count: int = 150, seed: int = 0, prefix: str = "d") -> list[Document]:
    return [
        Document(f"{prefix}{number}", text, title="A title" if number % 3 else None, metadata={"votes": number % 7})
        for number, text in enumerate(texts(count, seed))
    ]


TRAIN = corpus(40, 0, "train") + corpus(50, 1, "more-of-train")


@pytest.fixture(scope="module")
def built(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build an index with given settings, once a module."""
    made: dict[tuple[str, ...], Path] = {}
    encoder = EncoderConfig(model=str(tiny_model("bert")), max_length=32, precision="float32")
    config = BuildConfig(encoder=encoder, store=StoreConfig(part_documents=64))

    def build(*settings: str, documents: list[Document] | None = None) -> Path:
        key = (*settings, repr(documents))
        if key not in made:
            made[key] = tmp_path_factory.mktemp("dedup") / "index"
            build_index(documents or corpus(), made[key], config.with_overrides(settings))
        return made[key]

    return build


def rows_of(found: Deduplication) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in found.table.to_pylist()}


def by_hand(index: Path, threshold: float, drop_texts: bool = False) -> dict[str, tuple[str, float]]:
    """Return id -> (kept id, score) by the literal rule over the vectors of the index."""
    with open_inputs(index) as inputs:
        vectors = np.array(inputs.vectors)
        ids, text_of = list(inputs.index.documents.all_ids()), inputs.text_of
    everything, scores = np.arange(len(vectors)), tile_scores(vectors, vectors)
    collection = DedupDocuments(everything, everything, text_of, everything, pair_scores(vectors, vectors))
    kept_by = decide_slowly(collection, vectors, lowest_score(threshold), drop_texts).kept_by.tolist()
    return {ids[row]: (ids[kept], float(scores[row, kept])) for row, kept in enumerate(kept_by) if kept >= 0}


@pytest.mark.parametrize("threshold", [0.5, 0.9, 0.97, 1.0])
@pytest.mark.parametrize("texts", ["keep", "drop"])
def test_an_index_is_deduplicated_as_the_rule_says(built: Built, threshold: float, texts: Any) -> None:
    found = deduplicate_index(built(), DedupSettings(threshold, text_duplicates=texts))
    expected = by_hand(built(), threshold, texts == "drop")
    assert {name: (row["kept_id"], row["score"]) for name, row in rows_of(found).items()} == expected
    assert len(expected) > 10
    ids = list(Index.open(built()).documents.all_ids())
    assert [ids[row] for row in found.kept.tolist()] == [name for name in ids if name not in expected]


@pytest.mark.parametrize("texts", ["keep", "drop"])
@pytest.mark.parametrize("prefer", ["first", "last", "longest", "column:votes:desc"])
def test_what_is_found_is_proved(built: Built, tmp_path: Path, prefer: str, texts: Any) -> None:
    found = deduplicate_index(built(), DedupSettings(0.95, prefer, text_duplicates=texts))
    found.write(tmp_path / "duplicates.parquet")
    proof = verify_duplicates(tmp_path / "duplicates.parquet", built())
    assert proof.problems == []
    assert proof.dropped == len(found.table) > 10


def test_the_facts_count_what_the_table_holds(built: Built) -> None:
    found = deduplicate_index(built(), 0.95)
    facts = found.facts
    assert set(facts) == set(Facts.__annotations__)
    assert facts["kept"] + facts["dropped"] == facts["documents"] == 150
    assert facts["dropped"] == found.table.num_rows == sum(facts["reasons"].values())
    sizes = {int(size): many for size, many in facts["cluster_sizes"].items()}
    assert sum(sizes.values()) == facts["clusters"] == len(set(found.table["kept_id"].to_pylist()))
    assert sum((size - 1) * many for size, many in sizes.items()) == facts["dropped"]
    assert found.table.schema.equals(SCHEMA)


def test_rows_are_sorted_by_cluster_and_place(built: Built) -> None:
    found = deduplicate_index(built(), 0.9)
    place = {name: row for row, name in enumerate(Index.open(built()).documents.all_ids())}
    rows = found.table.to_pylist()
    assert [(row["cluster"], place[row["id"]]) for row in rows] == sorted(
        (row["cluster"], place[row["id"]]) for row in rows
    )
    first = {row["cluster"]: place[row["kept_id"]] for row in rows}
    assert [first[cluster] for cluster in range(len(first))] == sorted(first.values())


def test_the_reason_says_whether_the_texts_are_equal(built: Built) -> None:
    documents = {document.id: document for document in corpus()}
    for row in rows_of(deduplicate_index(built(), 0.9)).values():
        one, other = (documents[row[name]] for name in ("id", "kept_id"))
        same = normalised_text(f"{one.title or ''} {one.text}") == normalised_text(f"{other.title or ''} {other.text}")
        assert row["reason"] == ("text" if same else "similar")


def test_equal_texts_that_score_less_are_kept_apart_unless_they_are_to_be_dropped(built: Built) -> None:
    # Full-width letters are equal text after NFKC, but other word pieces.
    wide = "".join(chr(ord(sign) + 0xFEE0) if sign != " " else sign for sign in "whale bridge")
    documents = [*corpus(60), Document("plain", "whale bridge"), Document("wide", wide)]
    index = built(documents=documents)
    kept = rows_of(deduplicate_index(index, 0.9999))
    assert "wide" not in kept
    row = rows_of(deduplicate_index(index, DedupSettings(0.9999, text_duplicates="drop")))["wide"]
    assert (row["kept_id"], row["reason"]) == ("plain", "text")
    assert row["score"] < 0.9999


def test_equal_runs_give_equal_bytes_for_any_threads_and_memory(built: Built, tmp_path: Path) -> None:
    written = set()
    for threads, memory in [(1, 1 << 30), (3, 1 << 26), (2, 1 << 28)]:
        path = tmp_path / f"{threads}.parquet"
        deduplicate_index(built(), 0.9, options=JoinOptions(threads=threads, memory=memory)).write(path)
        written.add(path.read_bytes())
    assert len(written) == 1


def test_deduplicating_changes_nothing_in_the_index(built: Built) -> None:
    before = snapshot(built())
    deduplicate_index(built(), 0.9)
    assert snapshot(built()) == before


@pytest.mark.parametrize("kind", ["HNSW4", "IVF4,Flat"])
def test_vectors_do_not_depend_on_the_kind_of_index(built: Built, kind: str) -> None:
    other = built(f"index.type={kind}", "index.recall=0.01")
    assert deduplicate_index(other, 0.9).table.equals(deduplicate_index(built(), 0.9).table)


def test_vectors_are_those_that_the_index_stores(built: Built) -> None:
    index = Index.open(built())
    [segment] = index.segments
    with open_inputs(built()) as inputs:
        stored = ann.reconstruct(segment.index, np.arange(segment.entry.rows))
        assert np.array_equal(np.array(inputs.vectors), stored)


def test_ann_finds_what_exact_finds_here_and_says_how_sure_it_is(built: Built) -> None:
    found = deduplicate_index(built(), DedupSettings(0.9, method="ann"))
    assert found.table.equals(deduplicate_index(built(), 0.9).table)
    method = found.facts["method"]
    assert method["name"] == "ann"
    assert method["found_pairs"] == method["sampled_pairs"] > 0


# Against another index


def test_against_another_index_its_documents_come_first(built: Built, tmp_path: Path) -> None:
    train = built(documents=TRAIN)
    found = deduplicate_index(built(), 0.9, against=train)
    found.write(tmp_path / "duplicates.parquet")
    assert verify_duplicates(tmp_path / "duplicates.parquet", built(), against=train).problems == []
    rows = rows_of(found)
    foreign = [row for row in rows.values() if "train" in row["kept_id"]]
    assert {row["kept_id"] for row in foreign} & {document.id for document in TRAIN}
    assert {row["reason"] for row in foreign} <= {"against", "against-text"}
    assert not any("train" in name for name in rows)
    assert max(row["cluster"] for row in rows.values() if row not in foreign) < min(row["cluster"] for row in foreign)


def test_the_other_index_is_seen_by_this_ones_transform(built: Built) -> None:
    harder = built("whitening.strength=1.0", documents=TRAIN)
    softer = built(documents=TRAIN)
    assert deduplicate_index(built(), 0.9, against=harder).table.equals(
        deduplicate_index(built(), 0.9, against=softer).table
    )


def test_only_against_leaves_its_own_duplicates_in(built: Built, tmp_path: Path) -> None:
    train = built(documents=TRAIN)
    alone = deduplicate_index(built(), DedupSettings(0.9, only_against=True), against=train)
    both = deduplicate_index(built(), 0.9, against=train)
    assert all("train" in row["kept_id"] for row in rows_of(alone).values())
    assert set(rows_of(alone)) < set(rows_of(both))
    alone.write(tmp_path / "duplicates.parquet")
    assert verify_duplicates(tmp_path / "duplicates.parquet", built(), against=train).problems == []


def test_an_index_against_its_copy_drops_everything_and_against_itself_is_refused(built: Built, tmp_path: Path) -> None:
    copy = shutil.copytree(built(), tmp_path / "copy")
    assert deduplicate_index(built(), 0.95, against=copy).facts["kept"] == 0
    with pytest.raises(ConfigError, match="itself, so no document would be kept"):
        deduplicate_index(copy, 0.95, against=tmp_path / "." / "copy")


def test_an_index_of_another_encoder_is_refused(built: Built, tiny_model: Callable[[str], Path]) -> None:
    other = built(f"encoder.model={tiny_model('roberta')}")
    with pytest.raises(MismatchError, match="different encoders"):
        deduplicate_index(built(), 0.9, against=other)


def test_only_against_nothing_is_refused(built: Built) -> None:
    with pytest.raises(ConfigError, match="against=INDEX"):
        deduplicate_index(built(), DedupSettings(0.9, only_against=True))


# Pairs on disk


@pytest.mark.parametrize("against", [False, True])
def test_stored_pairs_answer_as_the_join_does(built: Built, tmp_path: Path, against: bool) -> None:
    other = built(documents=TRAIN) if against else None
    pairs = tmp_path / "pairs.parquet"
    first = deduplicate_index(built(), 0.95, other, PairFiles(write=pairs, floor=0.8))
    assert first.table.equals(deduplicate_index(built(), 0.95, other).table)
    for threshold in (0.8, 0.9, 0.97, 1.0):
        for prefer, texts in (("first", "keep"), ("longest", "drop")):
            settings = DedupSettings(threshold, prefer, text_duplicates=texts)  # type: ignore[arg-type]
            again = deduplicate_index(built(), settings, other, PairFiles(read=pairs))
            joined = deduplicate_index(built(), settings, other)
            assert again.table.equals(joined.table)
            assert again.facts == joined.facts


def test_stored_pairs_need_no_vectors(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = tmp_path / "pairs.parquet"
    deduplicate_index(built(), 0.95, pairs=PairFiles(write=pairs))

    def refuse(*_: Any) -> None:
        raise AssertionError("vectors were read")

    monkeypatch.setattr(inputs_module, "write_vectors", refuse)
    deduplicate_index(built(), 0.97, pairs=PairFiles(read=pairs))


def test_below_their_floor_stored_pairs_are_refused(built: Built, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.parquet"
    deduplicate_index(built(), 0.95, pairs=PairFiles(write=pairs, floor=0.9))
    with pytest.raises(ConfigError, match=r"0\.9 or more, but the threshold is 0\.89"):
        deduplicate_index(built(), 0.89, pairs=PairFiles(read=pairs))


def test_stored_pairs_of_another_index_are_refused(built: Built, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.parquet"
    deduplicate_index(built(), 0.95, pairs=PairFiles(write=pairs))
    with pytest.raises(MismatchError, match="another"):
        deduplicate_index(built(documents=corpus(90, seed=1)), 0.95, pairs=PairFiles(read=pairs))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (PairFiles(read=Path("a"), write=Path("b")), "cannot be read and written in one run"),
        (PairFiles(floor=0.5), "pass write too"),
        (PairFiles(write=Path("b"), floor=0.99), "above the threshold"),
        (PairFiles(write=Path("b"), floor=-2), "above -1"),
    ],
)
def test_files_of_pairs_that_make_no_sense_are_refused(built: Built, files: PairFiles, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        deduplicate_index(built(), 0.95, pairs=files)


# Edges


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_documents(built: Built, tmp_path: Path, count: int) -> None:
    index = built("whitening.strength=none", documents=[Document(f"{n}", "the same words") for n in range(count)])
    found = deduplicate_index(index, 1.0)
    assert found.facts["kept"] == 1
    assert found.facts["cluster_sizes"] == ({str(count): 1} if count > 1 else {})
    found.write(tmp_path / "duplicates.parquet")
    assert verify_duplicates(tmp_path / "duplicates.parquet", index).passed


def test_one_document_copied_many_times_is_one_group(built: Built, tmp_path: Path) -> None:
    copies = [Document(f"c{number}", "whale bridge star") for number in range(300)]
    index = built(documents=[*corpus(50), *copies])
    pairs = tmp_path / "pairs.parquet"
    found = deduplicate_index(index, 0.999, pairs=PairFiles(write=pairs))
    assert found.facts["cluster_sizes"]["300"] == 1
    assert pq.read_metadata(pairs).num_rows < 700  # not the 44,850 pairs of copies


def test_no_index_no_result(tmp_path: Path) -> None:
    with pytest.raises(NotAnIndexError):
        deduplicate_index(tmp_path / "none", 0.9)


def test_a_full_temporary_folder_is_said_and_nothing_stays(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    index = Path.open

    def full(path: Path, *arguments: Any, **more: Any) -> Any:
        return index(Path("/dev/full") if path.name in ("vectors.npy", "codes") else path, *arguments, **more)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(StoreError, match="TMPDIR"):
        deduplicate_index(built(), 0.9, pairs=PairFiles(write=tmp_path / "pairs.parquet"))
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_nothing_behind(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    class Interrupting:
        def phase(self, name: str, total: int | None) -> None:
            if name == "comparing vectors":
                raise KeyboardInterrupt

        def advance(self, texts: int, tokens: int = 0) -> None:
            pass

    with pytest.raises(KeyboardInterrupt):
        deduplicate_index(built(), 0.9, pairs=PairFiles(write=tmp_path / "pairs.parquet"), progress=Interrupting())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("written", "bytes_"), [("1G", 1 << 30), ("512M", 1 << 29), ("1.5k", 1536), ("2GiB", 1 << 31), ("77", 77)]
)
def test_amounts_of_memory_are_read(written: str, bytes_: int) -> None:
    assert parse_memory(written) == bytes_


@pytest.mark.parametrize("written", ["", "much", "-1G", "1X", "1 000"])
def test_other_amounts_of_memory_are_refused(written: str) -> None:
    with pytest.raises(ConfigError, match="such as 512M or 8G"):
        parse_memory(written)


def test_too_little_memory_or_threads_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 64 MiB"):
        JoinOptions(memory=1000)
    with pytest.raises(ConfigError, match="threads is -1"):
        JoinOptions(threads=-1)


def test_a_file_that_was_written_reads_back(built: Built, tmp_path: Path) -> None:
    found = deduplicate_index(built(), 0.9)
    found.write(tmp_path / "deep" / "duplicates.parquet")
    again = read_duplicates(tmp_path / "deep" / "duplicates.parquet")
    assert again.table.equals(found.table)
    assert dict(again.facts) == found.facts


ODD = 'say "whale", bridge\r\nbread\n=star\rriver\u2028; \tclock \U0001f40b \u0130 \\N'


@pytest.mark.parametrize("name", ["d.csv", "D.CSV.GZ", "d.jsonl", "d.ndjson.gz"])
def test_a_list_has_the_texts_of_both_documents_and_reads_back(built: Built, tmp_path: Path, name: str) -> None:
    train = built(documents=[*TRAIN, Document("odd, 1", ODD)])
    index = built(documents=[*corpus(), Document('odd "2"\n', ODD, title="")])
    found = deduplicate_index(index, 0.9, against=train)
    found.write(tmp_path / name)
    data = (tmp_path / name).read_bytes()
    text = (gzip.decompress(data) if name.lower().endswith(".gz") else data).decode()
    rows: list[dict[str, Any]]
    if "csv" in name.lower():
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
        rows = [row | {"score": float(row["score"]), "cluster": int(row["cluster"])} for row in rows]
    else:
        rows = [json.loads(line) for line in text.split("\n")[:-1]]
    stated = [{**row, "score": np.float32(row["score"])} for row in rows]
    assert [{name: row[name] for name in SCHEMA.names} for row in stated] == found.table.to_pylist()
    reasons = {row["reason"].partition("-")[0] for row in rows}
    assert reasons == {"text", "similar", "against"}  # of both indexes
    own = {one.id: one for one in Index.open(index).documents.all_documents()}
    foreign = {one.id: one for one in Index.open(train).documents.all_documents()}
    for row in rows:
        kept = (foreign if row["reason"].startswith("against") else own)[row["kept_id"]]
        assert row["text"] == joined_text(own[row["id"]], ["title", "text"])
        assert row["kept_text"] == joined_text(kept, ["title", "text"])
    assert [row["text"] == row["kept_text"] == ODD for row in rows if row["id"] == 'odd "2"\n'] == [True]


def test_a_list_states_a_score_that_reaches_the_threshold_in_float64_too(tmp_path: Path, built: Built) -> None:
    found = deduplicate_index(built(), 0.9)
    scores = pa.array([0.95] * len(found.table), pa.float32())
    table = found.table.set_column(SCHEMA.get_field_index("score"), "score", scores)
    replace(found, table=table).write(tmp_path / "d.jsonl")
    assert {json.loads(line)["score"] for line in (tmp_path / "d.jsonl").read_text().splitlines()} == {0.95}


@pytest.mark.parametrize("name", ["d.txt", "d", "d.tsv", "d.arrow", "d.parquet.gz", ".csv"])
def test_a_name_that_does_not_say_a_format_is_refused(built: Built, tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"unknown suffix for a list of duplicates; .* \.parquet .* \.csv or \.jsonl"):
        duplicates_format(tmp_path / name)
    with pytest.raises(ConfigError, match="unknown suffix for a list of duplicates"):
        deduplicate_index(built(), 0.9).write(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_list_cannot_be_verified_and_the_error_says_what_can(built: Built, tmp_path: Path) -> None:
    deduplicate_index(built(), 0.9).write(tmp_path / "d.csv")
    with pytest.raises(EvaluationError, match=r"d\.csv: a list as CSV .* expected a Parquet file\. Fix: .*\.parquet"):
        verify_duplicates(tmp_path / "d.csv", built())


def test_the_stored_blocks_give_the_same_bits_each_time(built: Built) -> None:
    stored = LiveRows(Index.open(built()))
    once, twice = (np.concatenate([block for _, block in stored.vector_blocks()]) for _ in range(2))
    assert once.tobytes() == twice.tobytes()
