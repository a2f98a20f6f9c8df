"""`isotrope dedup --verify` proves correct results and reports every change."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from indexer import BuildConfig, Document, build_index
from indexer.errors import ConfigError, MismatchError
from indexer.recipe.config import EncoderConfig
from indexer.recipe.index_config import StoreConfig
from search.dedup import brute_force
from search.dedup.duplicates_file import Duplicates, read_duplicates, write_duplicates
from search.dedup.findings import DedupVerifyReport
from search.dedup.pairs import tile_scores
from search.dedup.settings import DedupSettings, JoinOptions
from search.dedup.verify import verify_duplicates
from search.index import Index, LiveRows
from tests.dedup_oracles import duplicates_slowly

WORDS = ["whale", "bridge", "bread", "star", "river", "clock", "bee", "glass", "map", "sand", "deep", "old", "steel"]


def corpus() -> list[Document]:
    """Return 39 texts: 30 random texts, then copies, near copies and copies in other characters."""
    draw = np.random.default_rng(1)
    texts = [" ".join(draw.choice(WORDS, 8)) for _ in range(30)]
    other = texts[8].replace(" ", " \N{LATIN SMALL LIGATURE FI} ", 1)  # another token than "fi", but equal text
    texts += [
        texts[3],
        texts[3],
        f"{texts[5]}  ",
        texts[7].replace(" ", "\u2003"),
        other,
        other.replace("\ufb01", "fi"),
    ]
    texts += [f"{texts[9]} old", f"{texts[10]} map", texts[11].replace("a", "\uff41")]  # full width
    return [Document(f"d{n}", text, metadata={"v": n * 7 % 11}) for n, text in enumerate(texts)]


def other_corpus() -> list[Document]:
    """Return some of these texts with some of these ids, one twice."""
    texts = [document.text for document in corpus()]
    chosen = [texts[0], texts[0], f"{texts[2]} sand", texts[5], texts[35]]
    return [Document(f"d{n}", text) for n, text in enumerate(chosen)]


@pytest.fixture(scope="module")
def folder(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build two indexes of one encoder, `index` and `other`, once."""
    root = tmp_path_factory.mktemp("verify")
    encoder = EncoderConfig(model=str(tiny_model("bert")), max_length=32)
    config = BuildConfig(encoder=encoder, store=StoreConfig(part_documents=16))
    build_index(corpus(), root / "index", config)
    build_index(other_corpus(), root / "other", config)
    return root


@pytest.fixture
def right(folder: Path) -> Duplicates:
    """A correct result with every reason of one index, and clusters of several sizes."""
    found = duplicates_slowly(folder / "index", DedupSettings(0.6, text_duplicates="drop"))
    assert set(found.facts["reasons"]) == {"similar", "text"}
    assert len(found.facts["cluster_sizes"]) > 1
    return found


@pytest.fixture
def right_against(folder: Path) -> Duplicates:
    """A correct result against the other index, with every reason."""
    found = duplicates_slowly(folder / "index", DedupSettings(0.6), folder / "other")
    assert set(found.facts["reasons"]) == {"similar", "text", "against", "against-text"}
    return found


def proof_of(found: Duplicates, folder: Path, **named: Any) -> DedupVerifyReport:
    path = folder / "duplicates.parquet"
    write_duplicates(path, found, force=True)
    if found.facts["against"]:
        named.setdefault("against", folder / "other")
    return verify_duplicates(path, folder / "index", **named)


def with_column(found: Duplicates, name: str, change: Callable[[list[Any]], list[Any]]) -> Duplicates:
    """Return the result with one changed column and unchanged facts."""
    table = found.table
    place = table.column_names.index(name)
    values = pa.array(change(table.column(name).to_pylist()), table.schema.field(name).type)
    return Duplicates(found.facts, table.set_column(place, name, values))


def at(row: int, value: Any) -> Callable[[list[Any]], list[Any]]:
    """Replace a value of one row, by a value or a function of the old value."""
    return lambda values: [*values[:row], value(values[row]) if callable(value) else value, *values[row + 1 :]]


def recounted(found: Duplicates, kept_by: dict[str, str]) -> Duplicates:
    """Return a result with these representatives and consistent counts, which only comparisons can refute.

    Scores and reasons must be in the table already, under the same ids.
    """
    known = {row["id"]: row for row in found.table.to_pylist()}
    order = [document.id for document in corpus()]
    clusters = {name: n for n, name in enumerate(sorted(set(kept_by.values()), key=order.index))}
    rows = [
        {"score": np.nan, "reason": "similar"} | known.get(name, {})
        | {"id": name, "kept_id": kept, "cluster": clusters[kept]}
        for name, kept in kept_by.items()
    ]  # fmt: skip
    rows.sort(key=lambda row: (row["cluster"], order.index(row["id"])))
    reasons = [row["reason"] for row in rows]
    sizes = [list(kept_by.values()).count(kept) + 1 for kept in clusters]
    facts = {
        "dropped": len(rows),
        "kept": len(order) - len(rows),
        "clusters": len(clusters),
        "reasons": {name: reasons.count(name) for name in reasons},
        "cluster_sizes": {str(size): sizes.count(size) for size in sizes},
    }
    return Duplicates({**found.facts, **facts}, pa.Table.from_pylist(rows, found.table.schema))


def kept_by(found: Duplicates) -> dict[str, str]:
    return dict(zip(found.table.column("id").to_pylist(), found.table.column("kept_id").to_pylist(), strict=True))


# --- correct results


@pytest.mark.parametrize("threshold", [-0.9, 0.6, 1.0])
@pytest.mark.parametrize("prefer", ["first", "longest", "column:v:desc"])
@pytest.mark.parametrize("texts", ["keep", "drop"])
@pytest.mark.parametrize("mode", ["alone", "against", "only"])
def test_a_right_result_is_proved(threshold: float, prefer: str, texts: Any, mode: str, folder: Path) -> None:
    settings = DedupSettings(threshold, prefer, text_duplicates=texts, only_against=mode == "only")
    other = None if mode == "alone" else folder / "other"
    found = duplicates_slowly(folder / "index", settings, other)
    proof = proof_of(found, folder)
    assert proof.problems == []
    assert proof.passed
    assert (proof.documents, proof.dropped) == (39, found.table.num_rows)
    assert proof.compared > 0


@pytest.mark.parametrize("texts", ["keep", "drop"])
@pytest.mark.parametrize("mode", ["alone", "against", "only"])
def test_what_the_search_finds_is_the_one_right_result(texts: Any, mode: str, folder: Path) -> None:
    deduplicate_index = pytest.importorskip("search.dedup.deduplication").deduplicate_index
    settings = DedupSettings(0.6, "longest", text_duplicates=texts, only_against=mode == "only")
    other = None if mode == "alone" else folder / "other"
    found = deduplicate_index(folder / "index", settings, against=other)
    expected = duplicates_slowly(folder / "index", settings, other)
    assert found.table.equals(expected.table)
    assert dict(found.facts) == dict(expected.facts)


def test_blocks_and_memory_change_nothing_but_what_is_looked_at_together(
    right_against: Duplicates, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = proof_of(right_against, folder)
    monkeypatch.setattr(brute_force, "_BLOCK", 3)
    monkeypatch.setattr(brute_force, "_CELLS", 4)
    monkeypatch.setattr(brute_force, "_GATHERED", 2)
    found = proof_of(right_against, folder, options=JoinOptions(threads=1, memory=1 << 26))
    assert found.passed
    assert found.compared <= expected.compared  # tiles follow the diagonal more closely


def test_nothing_is_left_in_the_temporary_folder(
    right: Duplicates, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert proof_of(right, folder).passed
    assert list(tmp_path.iterdir()) == []


def test_the_other_index_may_have_moved(right_against: Duplicates, folder: Path, tmp_path: Path) -> None:
    (folder / "other").rename(tmp_path / "moved")
    try:
        assert proof_of(right_against, folder, against=tmp_path / "moved").passed
    finally:
        (tmp_path / "moved").rename(folder / "other")


# --- changed rows and facts


@pytest.mark.parametrize("towards", [-np.inf, np.inf])
def test_every_score_is_checked_to_the_last_bit(towards: float, right: Duplicates, folder: Path) -> None:
    for row in range(right.table.num_rows):
        changed = with_column(
            right, "score", at(row, lambda score: np.nextafter(np.float32(score), np.float32(towards)))
        )
        proof = proof_of(changed, folder)
        assert proof.violations == {"score": 1}
        assert f'"{right.table.column("id")[row]}" -> ' in proof.problems[0]


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_a_score_that_is_none_is_found(value: float, right: Duplicates, folder: Path) -> None:
    assert proof_of(with_column(right, "score", at(1, value)), folder).violations == {"score": 1}


@pytest.mark.parametrize("result", ["right", "right_against"])
def test_every_row_needs_the_kept_document_it_names(result: str, folder: Path, request: pytest.FixtureRequest) -> None:
    """The other id may be of a kept or dropped document, of itself, or unknown."""
    found: Duplicates = request.getfixturevalue(result)
    names = [*(document.id for document in corpus()[::6]), "nobody", ""]
    for row in range(0, found.table.num_rows, 3):
        for name in [*names, found.table.column("id")[row].as_py()]:
            changed = with_column(found, "kept_id", at(row, name))
            assert proof_of(changed, folder).passed == changed.table.equals(found.table)


@pytest.mark.parametrize("name", ["nobody", "", "d3"])
def test_every_id_must_be_that_of_the_dropped_document(name: str, right: Duplicates, folder: Path) -> None:
    for row in range(right.table.num_rows):
        assert not proof_of(with_column(right, "id", at(row, name)), folder).passed


def test_ids_that_name_nobody_or_somebody_twice_are_told(right: Duplicates, folder: Path) -> None:
    unknown = proof_of(with_column(right, "id", at(0, "nobody")), folder)
    assert unknown.problems == [f'unknown id: row 0: "nobody" -> "{right.table.column("kept_id")[0]}": '
                                "the index has no such dropped document"]  # fmt: skip
    twice = proof_of(with_column(right, "id", lambda values: [*values[:-1], values[0]]), folder)
    assert twice.violations["dropped twice"] == 1
    itself = proof_of(with_column(right, "kept_id", at(0, right.table.column("id")[0].as_py())), folder)
    assert itself.violations["not kept"] == 1


REASONS = ["similar", "text", "against", "against-text", "because", ""]


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("result", ["right", "right_against"])
def test_every_reason_is_checked(reason: str, result: str, folder: Path, request: pytest.FixtureRequest) -> None:
    """Each row gets two of the reasons."""
    found: Duplicates = request.getfixturevalue(result)
    for row in range(REASONS.index(reason) % 3, found.table.num_rows, 3):
        changed = with_column(found, "reason", at(row, reason))
        assert proof_of(changed, folder).passed == changed.table.equals(found.table)


def test_a_wrong_reason_is_found_also_if_it_is_counted(right: Duplicates, folder: Path) -> None:
    row = right.table.column("reason").to_pylist().index("similar")
    changed = recounted(with_column(right, "reason", at(row, "text")), kept_by(right))
    assert proof_of(changed, folder).violations == {"reason": 1}


def test_every_cluster_number_and_the_order_of_rows_are_checked(right: Duplicates, folder: Path) -> None:
    for row in range(right.table.num_rows):
        assert proof_of(with_column(right, "cluster", at(row, lambda n: n + 1)), folder).violations == {"cluster": 1}
    assert proof_of(with_column(right, "cluster", lambda values: [n + 1 for n in values]), folder).violations == {
        "cluster": right.table.num_rows
    }
    backwards = Duplicates(right.facts, right.table.take(pa.array(range(right.table.num_rows)[::-1])))
    assert proof_of(backwards, folder).violations == {"order": 1}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("threshold", 0.61),
        ("lowest", 0.5),
        ("documents", 38),
        ("kept", 1),
        ("dropped", 1),
        ("reasons", {}),
        ("reasons", {"similar": 1}),
        ("clusters", 2),
        ("cluster_sizes", {"2": 1}),
        ("cluster_sizes", {}),
    ],
)
def test_every_count_among_the_facts_is_checked(name: str, value: Any, right: Duplicates, folder: Path) -> None:
    proof = proof_of(Duplicates({**right.facts, name: value}, right.table), folder)
    assert proof.violations["facts"] == 1
    assert any(line.startswith('facts: "') for line in proof.problems)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"threshold": 0.2}, "kept pairs"),
        ({"threshold": 0.999}, "no duplicate"),
        ({"prefer": "last"}, "dropped wrongly"),
        ({"text_duplicates": "keep"}, "no duplicate"),
        ({"only_against": True}, "own document"),
    ],
)
def test_a_result_of_other_settings_is_found(
    change: dict[str, Any], kind: str, right: Duplicates, folder: Path
) -> None:
    lowest = {"lowest": float(DedupSettings(change.get("threshold", 0.6)).lowest)}
    proof = proof_of(Duplicates({**right.facts, **change, **lowest}, right.table), folder)
    assert proof.violations[kind] > 0
    assert "facts" not in proof.violations


def test_equal_texts_alone_are_no_reason_unless_they_are_to_be_dropped(folder: Path) -> None:
    found = duplicates_slowly(folder / "index", DedupSettings(0.8, text_duplicates="drop"))
    proof = proof_of(Duplicates({**found.facts, "text_duplicates": "keep"}, found.table), folder)
    assert proof.violations["no duplicate"] > 0


def test_a_result_that_keeps_equal_texts_is_no_result_of_dropping_them(folder: Path) -> None:
    found = duplicates_slowly(folder / "index", DedupSettings(0.8))
    proof = proof_of(Duplicates({**found.facts, "text_duplicates": "drop"}, found.table), folder)
    assert proof.violations["kept texts"] > 0
    assert any("has the text of a kept document before it" in line for line in proof.problems)


# --- other decisions with consistent counts


def test_every_dropped_document_must_be_dropped(right: Duplicates, folder: Path) -> None:
    for name in kept_by(right):
        proof = proof_of(recounted(right, {one: kept for one, kept in kept_by(right).items() if one != name}), folder)
        assert set(proof.violations) & {"kept pairs", "kept texts"}
        assert any(f'"{name}"' in line for line in proof.problems)


def test_every_kept_document_must_be_kept(right: Duplicates, folder: Path) -> None:
    told = kept_by(right)
    kept = [document.id for document in corpus() if document.id not in told]
    for name in kept:
        instead = next(one for one in kept if one != name)
        moved = {one: instead if who == name else who for one, who in told.items()}
        proof = proof_of(recounted(right, moved | {name: instead}), folder)
        assert proof.violations["dropped wrongly"] >= 1
        assert any(line.startswith("dropped wrongly: ") for line in proof.problems)


def test_a_kept_document_that_scores_lower_may_not_stand_for_another(right: Duplicates, folder: Path) -> None:
    """Its score and reason are correct, but another kept document scores more."""
    found = duplicates_slowly(folder / "index", DedupSettings(-0.2))
    scores = scored(folder)
    told = kept_by(found)
    kept = {document.id for document in corpus()} - set(told)
    swaps = 0
    for row, (name, best) in enumerate(told.items()):
        for rival in sorted(kept - {best}):
            if scores[name, rival] >= found.facts["lowest"]:
                changed = with_column(found, "score", at(row, scores[name, rival]))
                changed = recounted(with_column(changed, "reason", at(row, "similar")), told | {name: rival})
                proof = proof_of(changed, folder)
                assert set(proof.violations) == {"representative"}
                assert proof.problems[0].startswith(f'representative: "{name}", "')
                assert proof.problems[0].endswith(f'a better representative than "{rival}"')
                swaps += 1
    assert swaps > 3


def scored(folder: Path) -> dict[tuple[str, str], float]:
    """Return the scores of all pairs of documents."""
    vectors = np.concatenate([block for _, block in LiveRows(Index.open(folder / "index")).vector_blocks()])
    scores = tile_scores(vectors, vectors)
    names = [document.id for document in corpus()]
    return {(one, two): float(scores[n, m]) for n, one in enumerate(names) for m, two in enumerate(names)}


def test_an_empty_result_is_held_against_every_pair(right: Duplicates, folder: Path) -> None:
    proof = proof_of(recounted(right, {}), folder)
    assert set(proof.violations) == {"kept pairs", "kept texts"}
    assert proof.violations["kept pairs"] > 3
    assert [line for line in proof.problems if "in all" in line]  # not all are described


def test_pairs_that_an_approximate_search_missed_are_violations(folder: Path) -> None:
    found = duplicates_slowly(folder / "index", DedupSettings(0.6))
    told = kept_by(found)
    told.pop(next(iter(told)))
    facts = {**found.facts, "method": {"name": "ann", "recall": 0.9}}
    proof = proof_of(recounted(Duplicates(facts, found.table), told), folder)
    assert not proof.passed
    assert set(proof.violations) == {"missed pairs"}
    assert proof.method == "ann"


# --- files of other indexes


def test_a_result_of_another_index_is_refused(right: Duplicates, right_against: Duplicates, folder: Path) -> None:
    path = folder / "duplicates.parquet"
    write_duplicates(path, right, force=True)
    with pytest.raises(MismatchError, match=r"made from vectors of another transform: .*other has"):
        verify_duplicates(path, folder / "other")
    with pytest.raises(MismatchError, match=r"made from another index or generation: generation 2"):
        proof_of(Duplicates({**right.facts, "index": {"generation": 2, "manifest": "0"}}, right.table), folder)
    write_duplicates(path, right, force=True)
    with pytest.raises(MismatchError, match=r"made against no other index; against names .*other"):
        verify_duplicates(path, folder / "index", against=folder / "other")
    write_duplicates(path, right_against, force=True)
    with pytest.raises(MismatchError, match=r"name the same index with against"):
        verify_duplicates(path, folder / "index", against=folder / "index")


@pytest.mark.parametrize("name", ["fingerprint", "transform"])
def test_a_result_of_another_encoder_or_transform_is_refused(name: str, right: Duplicates, folder: Path) -> None:
    with pytest.raises(MismatchError, match=r"made from .* Fix: name the original index"):
        proof_of(Duplicates({**right.facts, name: "0" * 64}, right.table), folder)


def test_a_proof_is_made_on_the_cpu(right: Duplicates, folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"device is cuda; verification runs on the CPU"):
        proof_of(right, folder, options=JoinOptions(device="cuda"))
    assert read_duplicates(folder / "duplicates.parquet").table.equals(right.table)
