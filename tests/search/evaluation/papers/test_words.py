"""Word vectors on word-level sets: files as published, figures by hand, and a slow oracle for each fast path."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer import BuildConfig
from indexer.chunking import TokenOffsets
from indexer.config import RunOptions
from indexer.errors import ConfigError, EvaluationError
from indexer.progress import NoProgress
from search.cli.evaluate import COMMANDS
from search.evaluation.papers.word_scores import (
    answered_right,
    k_means,
    purity,
    score,
    score_categories,
    score_similarity,
)
from search.evaluation.papers.word_sets import Analogies, Categories, Similarity, WordSet, read_word_sets
from search.evaluation.papers.word_vectors import (
    ContextOptions,
    ReadingLog,
    WordFinder,
    WordVectors,
    context_vectors,
    principal_component,
    read_contexts,
    table_vectors,
)
from search.evaluation.papers.words import VectorSource, WordsOptions, choose_sources, evaluate_words, measure_words
from search.evaluation.target import Target
from tests.search.cli.test_cli import Done, isotrope

Array = npt.NDArray[np.float64]

SIMLEX = "word1\tword2\tPOS\tSimLex999\tconc(w1)\nold\tnew\tA\t1.58\t2.72\nsmart\twise\tA\t9.2\t1.75\n"
WORDSIM_CSV = "Word 1,Word 2,Human (mean)\r\nlove,sex,6.77\r\ntiger,cat,7.35\r\n"
WORDSIM_GOLD = "tiger\tcat\t7.35\nplane\tcar\t5.77\n"
MEN = "sun sunlight 50.000000\nauthor writer 49.000000\n"
MEN_LEMMA = "sun-n sunlight-n 50.000000\nbeautiful-j look-v 20.000000\n"
RW = "squishing\tsquirt\t5.88\t7\t6\nundated\tundatable\t5.83\t10\t9\n"
GOOGLE = ": capitals\nAthens Greece Baghdad Iraq\nAthens Greece Oslo Norway\n: family\nboy girl king queen\n"
MSR = "good better rough JJ_JJR rougher\nbetter good rougher JJR_JJ rough\ngood better bad JJ_JJR worse\n"
BLESS = (
    "alligator-n\tamphibian_reptile\tattri\taggressive-j\n"
    "alligator-n\tamphibian_reptile\tcoord\tfrog-n\n"
    "turtle-n\tamphibian_reptile\trandom-n\tpen-n\n"
    "axe-n\ttool\thyper\tobject-n\n"
)
AP = "# Almuhareb and Poesio\nacne illness\nflu illness\noak tree\n"


def read(folder: Path, name: str, text: str) -> WordSet:
    (folder / name).write_bytes(text.encode())
    return read_word_sets([folder / name])[0]


# Files


@pytest.mark.parametrize(
    ("name", "text", "pairs", "scores"),
    [
        ("SimLex-999.txt", SIMLEX, [("old", "new"), ("smart", "wise")], [1.58, 9.2]),
        ("combined.csv", WORDSIM_CSV, [("love", "sex"), ("tiger", "cat")], [6.77, 7.35]),
        ("combined.tab", WORDSIM_CSV.replace(",", "\t"), [("love", "sex"), ("tiger", "cat")], [6.77, 7.35]),
        ("wordsim_similarity_goldstandard.txt", WORDSIM_GOLD, [("tiger", "cat"), ("plane", "car")], [7.35, 5.77]),
        ("MEN_dataset_natural_form_full", MEN, [("sun", "sunlight"), ("author", "writer")], [50.0, 49.0]),
        ("MEN_dataset_lemma_form_full", MEN_LEMMA, [("sun", "sunlight"), ("beautiful", "look")], [50.0, 20.0]),
        ("rw.txt", RW, [("squishing", "squirt"), ("undated", "undatable")], [5.88, 5.83]),
    ],
)
def test_pairs_with_scores(
    tmp_path: Path, name: str, text: str, pairs: list[tuple[str, str]], scores: list[float]
) -> None:
    found = read(tmp_path, name, text)
    assert isinstance(found, Similarity)
    assert list(zip(found.first, found.second, strict=True)) == pairs
    assert found.scores.tolist() == scores
    assert found.name == name.partition(".")[0]
    assert list(found.files) == [str(tmp_path / name)]


def test_googles_analogies_have_sections(tmp_path: Path) -> None:
    found = read(tmp_path, "questions-words.txt", GOOGLE)
    assert isinstance(found, Analogies)
    assert found.sections == {
        "capitals": (("Athens", "Greece", "Baghdad", "Iraq"), ("Athens", "Greece", "Oslo", "Norway")),
        "family": (("boy", "girl", "king", "queen"),),
    }


def test_analogies_of_microsoft_are_the_same_in_one_file_and_in_two(tmp_path: Path) -> None:
    one = read(tmp_path, "EN-MSR.txt", MSR)
    lines = [line.split() for line in MSR.splitlines()]
    (tmp_path / "wr.answers").write_text("".join(f"{tag} {d}\n" for *_, tag, d in lines))
    (tmp_path / "wr.questions").write_text("".join(f"{a} {b} {c}\n" for a, b, c, *_ in lines))
    two, *others = read_word_sets([tmp_path / "wr.answers", tmp_path / "wr.questions"])
    assert isinstance(one, Analogies)
    assert isinstance(two, Analogies)
    assert one.sections == two.sections
    assert one.sections["JJ_JJR"] == (("good", "better", "rough", "rougher"), ("good", "better", "bad", "worse"))
    assert [Path(file).name for file in two.files] == ["wr.questions", "wr.answers"]
    assert others == []


def test_analogies_without_sections_are_one_section(tmp_path: Path) -> None:
    found = read(tmp_path, "a.txt", "boy girl king queen\nman woman king queen\n")
    assert isinstance(found, Analogies)
    assert {name: len(questions) for name, questions in found.sections.items()} == {"all": 2}


@pytest.mark.parametrize(
    ("name", "text", "classes"),
    [
        ("BLESS.txt", BLESS, {"alligator": "amphibian_reptile", "turtle": "amphibian_reptile", "axe": "tool"}),
        ("ap.txt", AP, {"acne": "illness", "flu": "illness", "oak": "tree"}),
        ("essli.csv", "hen,bird\nowl,bird\nelm,tree\n", {"hen": "bird", "owl": "bird", "elm": "tree"}),
    ],
)
def test_words_with_classes(tmp_path: Path, name: str, text: str, classes: dict[str, str]) -> None:
    found = read(tmp_path, name, text)
    assert isinstance(found, Categories)
    assert found.classes == classes


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "", r"a.txt: the file is empty"),
        ("a.txt", "one\n", r"a.txt:1: 1 column of no known kind; expected pairs with a score"),
        ("a.txt", "a b c\n", r"a.txt:1: 3 columns of no known kind; expected pairs with a score.*a .questions file"),
        ("a.txt", "a b 1\nc d\n", r"a.txt:2: 2 columns; expected 3 columns, as in the lines before"),
        ("a.txt", "a b 1\nc d much\n", r'a.txt:2: the score "much" is not a finite number'),
        ("a.txt", "a b 1\nc d nan\n", r'a.txt:2: the score "nan" is not a finite number'),
        ("a.txt", "a\tb\t1\n\td\t2\n", r"a.txt:2: column 1 is empty"),
        ("a.txt", "a b 1 2\nc d 3 x\n", r'a.txt:2: "x" is no number'),
        ("a.txt", "a b 1\n", r"a.txt: one pair; a correlation needs two scores that differ"),
        ("a.txt", "a b 1\nc d 1\n", r"a.txt: 2 pairs of one score"),
        (
            "a.txt",
            "word1\tword2\tPOS\n",
            r"a.txt:1: the header has no column simlex999 or.*its columns are word1, word2",
        ),
        ("a.txt", "word1\tword2\tscore\n", r"a.txt: no pair"),
        ("a.txt", ": x\na b c d\ne f g\n", r"a.txt:3: 3 columns; expected 4"),
        ("a.txt", ": x\n: y\n", r"a.txt: no question under its titles"),
        ("a.txt", "a b c d\n: x\n", r"a.txt:2: the title of a section; expected 4 columns"),
        ("a.txt", "take remove V 6.81 SYNONYMS\n", r'a.txt:1: "6.81" is no word of an analogy'),
        ("a.questions", "a b c\n", r"a.questions: questions without answers; expected them in .*a.answers"),
        ("a.answers", "X d\n", r"a.answers: answers without questions; name a.questions instead"),
        ("a.txt", "a x\nb x\na y\n", r'a.txt:3: "a" is of class y here and of x in .*a.txt:1'),
        ("a.txt", "a x\nb x\n", r"a.txt: 2 words in 1 classes, read as word and class"),
        ("a.txt", "a x\nb y\n", r"a.txt: 2 words in 2 classes"),
        ("a.txt", BLESS + "a-n\tx\tlikes\tb-n\n", r'a.txt:5: relation "likes"; expected one of attri, coord'),
    ],
)
def test_what_cannot_be_read_is_said_with_its_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        read(tmp_path, name, text)


def test_a_number_of_answers_that_is_not_that_of_the_questions_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.answers").write_text("X d\nX e\n")
    with pytest.raises(EvaluationError, match=r"a.answers: 2 answers to 1 questions of a.questions"):
        read(tmp_path, "a.questions", "a b c\n")


def test_two_sets_of_one_name_are_refused(tmp_path: Path) -> None:
    read(tmp_path, "combined.csv", WORDSIM_CSV)
    read(tmp_path, "combined.tab", WORDSIM_CSV.replace(",", "\t"))
    with pytest.raises(EvaluationError, match=r"combined.csv and .*combined.tab are both combined"):
        read_word_sets([tmp_path / "combined.csv", tmp_path / "combined.tab"])


# Figures


def vectors_of(**words: Sequence[float]) -> WordVectors:
    return WordVectors(np.array(list(words.values()), np.float32), {word: row for row, word in enumerate(words)})


def test_similarity_by_hand() -> None:
    """Cosines 1, 0, -1 and 0.6 against human scores 4, 2, 3 and 1: ranks 4 2 1 3 and 4 2 3 1; rho = 1 - 6 * 8 / 60."""
    pairs = Similarity("s", ("a", "a", "a", "a", "a"), ("b", "c", "d", "e", "lost"), np.array([4.0, 2, 3, 1, 9]))
    found = score_similarity(pairs, vectors_of(a=(1, 0), b=(2, 0), c=(0, 5), d=(-3, 0), e=(3, 4)))
    assert (found.items, found.covered) == (5, 4)
    assert found.figure is not None
    assert found.figure.value == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("known", "why"),
    [
        ({}, "a correlation needs two pairs, there are 0"),
        ({"a": (1, 0), "b": (1, 1)}, "a correlation needs two pairs, there are 1"),
        ({"a": (1, 0), "b": (1, 1), "c": (1, 1)}, "all 2 cosines are 0.707107"),
    ],
)
def test_a_similarity_that_is_not_defined_says_why(known: dict[str, tuple[float, float]], why: str) -> None:
    pairs = Similarity("s", ("a", "a"), ("b", "c"), np.array([1.0, 2.0]))
    found = score_similarity(pairs, vectors_of(**known))
    assert found.figure is None
    assert why in found.why


def three_cos_add(vectors: Array, question: tuple[int, int, int, int]) -> bool:
    """Word by word, from the definition."""

    def cosine(x: Array, y: Array) -> float:
        return float(x @ y / np.sqrt(x @ x) / np.sqrt(y @ y))

    a, b, c, d = question
    best, most = -1, -np.inf
    for row, vector in enumerate(vectors):
        if row in (a, b, c):
            continue
        found = cosine(vector, vectors[b]) - cosine(vector, vectors[a]) + cosine(vector, vectors[c])
        if found > most:
            best, most = row, found
    return best == d


@given(st.integers(4, 20), st.integers(2, 6), st.integers(0, 10**6))
def test_analogies_are_answered_by_3cosadd(count: int, dim: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(count, dim)) * random.uniform(0.1, 9, size=(count, 1))
    questions = random.integers(0, count, (30, 4))
    expected = [three_cos_add(vectors.astype(np.float32).astype(np.float64), tuple(row)) for row in questions.tolist()]
    assert answered_right(vectors.astype(np.float32), questions).tolist() == expected


def test_questions_are_answered_alike_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    vectors, questions = random.normal(size=(12, 3)), random.integers(0, 12, (50, 4))
    whole = answered_right(vectors, questions)
    monkeypatch.setattr("search.evaluation.papers.word_scores._LARGEST", 36)
    assert answered_right(vectors, questions).tolist() == whole.tolist()
    assert 0 < whole.sum() < 50


PLANE = vectors_of(
    man=(1, 0, 0), woman=(1, 1, 0), king=(1, 0, 1), queen=(1, 1, 1), boy=(1, 0, -1), girl=(1, 1, -1), stone=(-1, 0, 0)
)


def test_analogies_by_hand() -> None:
    """Right: queen, girl. Wrong: stone. Left out: two questions with a word that has no vector."""
    analogies = Analogies(
        "a",
        {
            "people": (("man", "woman", "king", "queen"), ("king", "queen", "boy", "girl"), ("a", "b", "c", "man")),
            "things": (("man", "woman", "king", "stone"),),
            "lost": (("man", "woman", "king", "lost"),),
        },
    )
    found = {one.section: one for one in score(analogies, PLANE)}
    assert {name: (one.covered, one.items) for name, one in found.items()} == {
        "all": (3, 5),
        "people": (2, 3),
        "things": (1, 1),
        "lost": (0, 1),
    }
    values = {name: one.figure.value for name, one in found.items() if one.figure}
    assert values == pytest.approx({"all": 2 / 3, "people": 1, "things": 0})
    assert "no question has vectors" in found["lost"].why
    assert found["all"].figure is not None
    assert (found["all"].figure.low, found["all"].figure.high) == pytest.approx((2 / 3, 2 / 3))  # within sections


def test_one_section_is_the_whole() -> None:
    assert [one.section for one in score(Analogies("a", {"x": (("man", "woman", "king", "queen"),)}), PLANE)] == ["all"]


def slow_purity(clusters: Sequence[int], classes: Sequence[int]) -> float:
    members: dict[int, list[int]] = {}
    for cluster, kind in zip(clusters, classes, strict=True):
        members.setdefault(cluster, []).append(kind)
    return sum(Counter(kinds).most_common(1)[0][1] for kinds in members.values()) / len(classes)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=30))
def test_purity_is_the_share_of_the_commonest_classes(items: list[tuple[int, int]]) -> None:
    clusters, classes = (np.array(side, np.intp) for side in zip(*items, strict=True))
    assert purity(clusters, classes) == pytest.approx(slow_purity(clusters.tolist(), classes.tolist()))


def test_purity_by_hand() -> None:
    """Clusters of 3, 2 and 1 items, of which 2, 1 and 1 are of the commonest class."""
    assert purity(np.array([0, 0, 0, 1, 1, 2]), np.array([0, 0, 1, 0, 1, 1])) == pytest.approx(4 / 6)


def test_categories_that_lie_apart_are_found_whatever_the_lengths() -> None:
    directions = {"bird": (1, 0, 0), "tree": (0, 1, 0), "tool": (0, 0, 1)}
    random = np.random.default_rng(0)
    classes: dict[str, str] = {}
    vectors: dict[str, list[float]] = {}
    for kind, direction in directions.items():
        for number in range(6):
            word = f"{kind}{number}"
            classes[word] = kind
            vectors[word] = (random.uniform(0.1, 50) * (direction + random.normal(scale=0.1, size=3))).tolist()
    found = score_categories(Categories("c", classes | {"lost": "tree"}), vectors_of(**vectors))
    assert (found.covered, found.items) == (18, 19)
    assert found.figure is not None
    assert (found.figure.value, found.figure.low) == (1.0, None)


def test_categories_of_one_class_have_no_purity() -> None:
    found = score_categories(Categories("c", {"man": "x", "king": "x", "lost": "y"}), PLANE)
    assert found.figure is None
    assert "two classes, there are 1" in found.why


def test_clusters_are_those_of_the_run_with_the_least_sum_of_squares() -> None:
    """Each run starts from centres drawn as k-means++ draws them, and goes on until none moves."""
    points = np.random.default_rng(3).random((40, 2))
    runs = []
    for seed in range(10):
        random = np.random.default_rng(seed)
        centres = [points[random.integers(40)]]
        while len(centres) < 7:
            nearest = np.array([min(((point - centre) ** 2).sum() for centre in centres) for point in points])
            centres.append(points[random.choice(40, p=nearest / nearest.sum())])
        for _ in range(300):
            distances = np.array([[((point - centre) ** 2).sum() for centre in centres] for point in points])
            clusters = distances.argmin(axis=1)
            centres = [points[clusters == number].mean(axis=0) for number in range(7)]
        runs.append((distances.min(axis=1).sum(), clusters.tolist()))
    assert len({round(squares, 9) for squares, _ in runs}) > 1
    assert k_means(points, 7).tolist() == min(runs)[1]


@settings(max_examples=20)
@given(st.integers(1, 20), st.integers(1, 5), st.integers(0, 10**6))
def test_clusters_are_the_same_each_time_also_of_points_all_alike(count: int, clusters: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    points = random.integers(0, 3, (count, 2)).astype(np.float64)
    found = k_means(points, min(clusters, count))
    assert found.tolist() == k_means(points, min(clusters, count)).tolist()
    assert 0 <= found.min() <= found.max() < clusters


# Vectors


class Table:
    """A table of four words, one of them in upper case."""

    words = ("the", "whale", "Oslo", "sea")
    vectors = np.arange(12, dtype=np.float32).reshape(4, 3)

    def row_of(self, word: str) -> int | None:
        return self.words.index(word) if word in self.words else None


def test_words_of_a_table_are_looked_up_as_written_then_lower_cased() -> None:
    found = table_vectors(Table(), ["Whale", "whale", "Oslo", "oslo", "lost", "sea"])
    assert {word: found.vectors[row].tolist() for word, row in found.rows.items()} == {
        "Whale": [3, 4, 5],
        "whale": [3, 4, 5],
        "Oslo": [6, 7, 8],
        "sea": [9, 10, 11],
    }
    assert len(found.vectors) == 3


@pytest.mark.parametrize(("candidates", "rows"), [(0, 1), (1, 2), (2, 3), (4, 4), (99, 4)])
def test_the_first_rows_of_a_table_are_candidates_too(candidates: int, rows: int) -> None:
    found = table_vectors(Table(), ["Oslo"], candidates)
    assert len(found.vectors) == rows
    assert found.vectors[found.rows["Oslo"]].tolist() == [6, 7, 8]


def power_iteration(rows: Array) -> Array:
    vector: Array = rows.sum(axis=0)
    for _ in range(1000):
        total = np.zeros(rows.shape[1])
        for row in rows:
            total += float(row @ vector) * row
        vector = total / np.linalg.norm(total)
    return vector


@pytest.mark.parametrize(("count", "seed"), [(1, 0), (2, 1), (5, 2), (40, 3)])
def test_the_first_principal_component_is_that_of_the_power_iteration(count: int, seed: int) -> None:
    rows = np.random.default_rng(seed).normal(size=(count, 6)) + np.array([2.0, 0, 0, 1, 0, 0])
    np.testing.assert_allclose(principal_component(rows), power_iteration(rows), atol=1e-9)


def test_the_first_principal_component_by_hand() -> None:
    """Two rows along (3, 4), of which the longer one points the other way: the mean, and so the sign, is its own."""
    np.testing.assert_allclose(principal_component(np.array([[3.0, 4], [-6, -8]])), [-0.6, -0.8])
    np.testing.assert_allclose(principal_component(np.array([[0.0, 5]])), [0, 1])


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
def test_vectors_without_a_direction_are_refused(value: float) -> None:
    with pytest.raises(EvaluationError, match='vectors of "whale" hold NaN or infinity, or are all zero'):
        context_vectors([("whale", np.full((3, 4), value))], ["whale"])


def test_words_of_contexts_are_found_whatever_their_case() -> None:
    found = context_vectors(
        iter([("oslo", np.array([[0.0, 2]])), ("sea", np.array([[4.0, 0]]))]), ["Oslo", "oslo", "x"]
    )
    assert found.rows == {"Oslo": 0, "oslo": 0}
    assert found.vectors.tolist() == [[0, 1], [1, 0]]


# Contexts


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The WHALE, whales.", [("whale", "WHALE")]),
        ("new-york York", [("york", "york"), ("york", "York"), ("new-york", "new-york")]),
        ("a.new-yorker", []),
        ("whale_ İwhale whale\u00e9", []),
        ("İ whale", [("whale", "whale")]),
        ("", []),
    ],
)
def test_whole_words_are_found_whatever_their_case(text: str, found: list[tuple[str, str]]) -> None:
    places = WordFinder(["whale", "York", "New-York"])(text)
    assert [(word, text[start:end]) for word, start, end in places] == found


class Letters:
    """A token for every two characters of each run of letters; its vector: how many texts before, and its place."""

    def __init__(self, most: int = 99, from_left: bool = False, space_before: bool = False, prefix: str = "") -> None:
        self.most, self.from_left, self.before, self.prefix = most, from_left, space_before, prefix
        self.seen: list[str] = []

    def offsets(self, texts: Sequence[str]) -> list[TokenOffsets]:
        return [self._marks(text) for text in texts]

    def _marks(self, text: str) -> TokenOffsets:
        starts, words = [], []
        for number, (start, end) in enumerate(match.span() for match in re.finditer(r"\w+", text)):
            first = max(start - 1, 0) if self.before else start
            starts += [first, *range(start + 2, end, 2)]
            words += [number] * len(range(start, end, 2))
        return TokenOffsets(np.array(starts, np.int32), np.array(words, np.int32))

    def __call__(
        self, texts: Sequence[str], layers: Sequence[int]
    ) -> Iterator[tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]]:
        for text in texts:
            count = len(self._marks(self.prefix + text).starts)
            rows = np.array([[len(self.seen), place] for place in range(count)], np.float32).reshape(-1, 2)
            rows = rows[-self.most :] if self.from_left else rows[: self.most]
            yield rows, np.array([0, len(rows)])
            self.seen.append(text)


def contexts(outputs: Letters, texts: list[str], words: list[str], most: int = 100, **more: Any) -> dict[str, Any]:
    return {
        word: rows.tolist() for word, rows in read_contexts(outputs, texts, words, ContextOptions((0,), most, **more))
    }


@pytest.mark.parametrize("space_before", [False, True])
def test_a_word_has_the_mean_of_its_pieces(space_before: bool) -> None:
    texts = ["the whale sings", "nothing here at all", "a sea of whale, whale"]
    outputs = Letters(space_before=space_before)
    assert contexts(outputs, texts, ["Whale", "sea", "lost"]) == {
        "whale": [[0, 3], [1, 5], [1, 8]],  # of pieces 2 to 4; 4 to 6 and 7 to 9
        "sea": [[1, 1.5]],
    }
    assert outputs.seen == [texts[0], texts[2]]


def test_the_first_places_count_and_nothing_is_read_after_the_last_one() -> None:
    texts = ["sea", "sea whale", "sea", "sea whale", "sea", "sea whale", "sea whale"]
    log, outputs = ReadingLog(), Letters()
    found = dict(read_contexts(outputs, texts, ["sea", "whale"], ContextOptions((0,), 3), log))
    assert found["sea"][:, 0].tolist() == [0, 1, 2]
    assert found["whale"][:, 0].tolist() == [1, 3, 4]
    assert outputs.seen == ["sea", "sea whale", "sea", "sea whale", "sea whale"]
    assert (log.texts, log.encoded, log.places) == (6, 5, {"sea": 3, "whale": 3})


def test_reading_ends_when_every_word_is_complete() -> None:
    log = ReadingLog()
    texts = ("sea" for _ in range(10_000))
    dict(read_contexts(Letters(), texts, ["sea"], ContextOptions((0,), 1500), log))
    assert (log.texts, log.encoded, log.places["sea"]) == (1500, 1500, 1500)


@pytest.mark.parametrize(("from_left", "sea"), [(False, [[0, 0.5]]), (True, [])])
def test_places_behind_the_cut_are_not_seen(from_left: bool, sea: list[list[float]]) -> None:
    """Seven pieces, of which four are kept: the first or the last, so that the whale is whole at one end only."""
    log, outputs = ReadingLog(), Letters(most=4, from_left=from_left)
    reading = ContextOptions((0,), from_left=from_left)
    found = dict(read_contexts(outputs, ["sea a whales"], ["sea", "whales", "a"], reading, log))
    assert found.get("sea", np.empty((0, 2))).tolist() == sea
    assert ("whales" in found) == from_left
    assert log.truncated == 1


def test_a_prefix_is_no_place_for_a_word() -> None:
    outputs = Letters(prefix="sea: ")
    assert contexts(outputs, ["whale sea"], ["sea"], prefix="sea: ") == {"sea": [[0, 5.5]]}


@given(st.lists(st.lists(st.sampled_from(["sea", "whale", "song", "x"]), max_size=4), max_size=12), st.integers(1, 4))
def test_contexts_are_the_first_places_of_each_word(texts: list[list[str]], most: int) -> None:
    words = ["sea", "whale", "song"]
    found = contexts(Letters(), [" ".join(text) for text in texts], words, most)
    counts = Counter(word for text in texts for word in text if word != "x")
    assert {word: len(rows) for word, rows in found.items()} == {w: min(n, most) for w, n in counts.items()}


# The evaluation


SETS: list[WordSet] = [
    Similarity("pairs", ("man", "man", "king", "man"), ("woman", "stone", "queen", "lost"), np.array([3.0, 1, 2, 9])),
    Analogies("analogies", {"a": (("man", "woman", "king", "queen"),), "b": (("king", "queen", "boy", "girl"),)}),
    Categories("classes", {"man": "male", "king": "male", "woman": "female", "queen": "female"}),
]


def given_source(vectors: WordVectors) -> VectorSource:
    return VectorSource("given", None, lambda words: vectors)


def test_results_name_what_was_measured_and_on_how_much() -> None:
    rows, notes = measure_words([given_source(PLANE)], SETS)
    named = [(row["task"], row["section"], row["measure"], row["covered"], row["items"]) for row in rows]
    assert named == [
        ("pairs", "all", "spearman", 3, 4),
        ("analogies", "all", "accuracy", 2, 2),
        ("analogies", "a", "accuracy", 1, 1),
        ("analogies", "b", "accuracy", 1, 1),
        ("classes", "all", "purity", 4, 4),
    ]
    assert [row["candidates"] for row in rows] == [None, 7, 7, 7, None]
    assert rows[0]["unknown"] == ["lost"]
    assert notes == ["given: 1 of 8 words without a vector"]
    json.dumps(rows, allow_nan=False)


def test_a_set_without_a_figure_is_noted_and_no_figure_at_all_is_an_error() -> None:
    rows, notes = measure_words([given_source(vectors_of(man=(1, 0), woman=(0, 1), king=(1, 1)))], [SETS[0], SETS[2]])
    assert [row["value"] is None for row in rows] == [True, False]
    assert "given, pairs: no figure: a correlation needs two pairs, there are 1" in notes
    with pytest.raises(EvaluationError, match=r"no set has a figure. given: 6 of 6 words without a vector"):
        measure_words([given_source(WordVectors(np.empty((0, 0)), {}))], SETS[:1])


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """The words of `PLANE` as a file of word vectors, and many others."""
    path = tmp_path / "plane.txt"
    lines = [f"{word} {' '.join(map(str, PLANE.vectors[row].tolist()))}" for word, row in PLANE.rows.items()]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    texts = {
        "pairs.txt": "man woman 3\nman stone 1\nking queen 2\nman lost 9\n",
        "analogies.txt": ": a\nman woman king queen\n: b\nking queen boy girl\n",
        "classes.txt": "man male\nking male\nwoman female\nqueen female\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return [tmp_path / name for name in texts]


def words_command(*arguments: str | Path) -> Done:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(COMMANDS, "words", ("search.cli.evaluate.papers:words", "Static word vectors."))
        return isotrope("evaluate", "words", *arguments, "--quiet")


def test_a_table_gives_the_figures_of_its_rows(table: Path, files: list[Path], tmp_path: Path) -> None:
    named = ["--set", "encoder.kind=static", "--set", f"encoder.model={table}"]
    done = words_command(*files, *named, "--candidates", "5", "-o", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out.json").read_text())
    expected, _ = measure_words([given_source(PLANE)], SETS)
    for row, other in zip(result["results"], expected, strict=True):
        assert row["value"] == pytest.approx(other["value"])
        assert {key: row[key] for key in ("task", "section", "items", "covered")} == {
            key: other[key] for key in ("task", "section", "items", "covered")
        }
    assert result["provenance"]["vectors"] == {"table": {"from": "table", "candidates": 5, "rows": 7}}
    assert set(result["provenance"]["data"]) == {str(path) for path in files}
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["pairs", "spearman", "50.00", "3", "of", "4"] in [[*line[:3], *line[-3:]] for line in lines if line]
    assert ["a", "accuracy", "100.00", "[100.00,", "100.00]", "1", "of", "1"] in lines
    assert "note: table: 1 of 8 words without a vector" in done.stderr


TEXTS = ["the whale in the deep sea", "Whale songs", "data of a library", "a deep songs", "the library of the sea"]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    return path


def occurrences(folder: Path, word: str, layer: int) -> Array:
    """The mean of the pieces of a word in each text that has it, by transformers alone."""
    import torch
    import transformers

    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    model: Any = transformers.AutoModel.from_pretrained(folder)
    rows = []
    for text in TEXTS:
        encoded = tokenizer(text, return_offsets_mapping=True, return_tensors="pt")
        offsets = encoded.pop("offset_mapping")[0].tolist()
        start = text.lower().find(word)
        inside = [n for n, (a, b) in enumerate(offsets) if a < b and start <= a < start + len(word)]
        if start >= 0:
            with torch.inference_mode():
                state = model(**encoded, output_hidden_states=True).hidden_states[layer][0]
            rows.append(state[inside].double().mean(dim=0).numpy())
    return np.array(rows)


def test_a_transformer_gives_the_first_principal_component_of_each_layer(
    tiny_config: BuildConfig, corpus: Path
) -> None:
    folder = Path(tiny_config.encoder.model)
    sets: list[WordSet] = [
        Similarity("s", ("Whale", "sea", "deep"), ("songs", "library", "lost"), np.array([1.0, 2.0, 3.0])),
        Similarity("t", ("sea", "library", "songs"), ("data", "of", "deep"), np.array([1.0, 2.0, 3.0])),
    ]
    result = evaluate_words(Target.of_recipe(tiny_config), sets, WordsOptions(corpus, layers=((0,), (1,), (-1,))))
    assert [row["layers"] for row in result["results"]] == [[0], [0], [1], [1], [-1], [-1]]
    words = ("whale", "sea", "deep", "songs", "library", "data", "of")
    for number, (label, layer) in enumerate((("layers 0", 0), ("layers 1", 1), ("layers -1", 2))):
        contexts = [(word, occurrences(folder, word, layer)) for word in words]
        expected, _ = measure_words([given_source(context_vectors(contexts, ["Whale", *words]))], sets)
        found = result["results"][2 * number : 2 * number + 2]
        assert [row["value"] for row in found] == pytest.approx([row["value"] for row in expected])
        assert [row["vectors"] for row in found] == [label] * 2
        assert result["provenance"]["vectors"][label]["texts"] == len(TEXTS)
    assert "layers 0: 1 of 8 words without a vector" in result["notes"]


def test_word_vectors_are_those_of_the_transformer(tiny_config: BuildConfig, corpus: Path) -> None:
    plan, subject = WordsOptions(corpus, layers=((1, -1),), occurrences=2), Target.of_recipe(tiny_config)
    (source,), files = choose_sources(subject, plan, NoProgress())
    found = source.of(["Sea", "library", "songs"])
    for word, row in found.rows.items():
        places = [occurrences(Path(tiny_config.encoder.model), word.lower(), layer)[:2] for layer in (1, 2)]
        expected = power_iteration(np.mean(places, axis=0))
        np.testing.assert_allclose(found.vectors[row], expected, atol=1e-5)
    assert [Path(file).name for file in files] == ["texts.txt"]
    assert source.about["encoded"] == 5


def test_texts_that_are_cut_are_counted(tiny_config: BuildConfig, corpus: Path) -> None:
    config = tiny_config.with_overrides(["encoder.max_length=5"])
    (source,), _ = choose_sources(Target.of_recipe(config), WordsOptions(corpus), NoProgress())
    found = source.of(["whale", "deep"])
    assert found.rows.keys() == {"whale", "deep"}
    assert found.notes == (
        "2 texts were longer than encoder.max_length and cut there: words behind the cut were not seen",
    )


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (WordsOptions(), "pass --corpus PATH"),
        (WordsOptions(Path("-")), "standard input cannot be hashed"),
        (WordsOptions(Path("x"), candidates=5), "--candidates takes the first rows of a static table"),
    ],
)
def test_a_plan_that_does_not_suit_a_transformer_is_refused(
    tiny_config: BuildConfig, plan: WordsOptions, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        evaluate_words(Target.of_recipe(tiny_config), SETS, plan)


def test_other_backends_are_refused(tiny_config: BuildConfig, corpus: Path) -> None:
    with pytest.raises(ConfigError, match='--backend is "numpy"'):
        evaluate_words(Target.of_recipe(tiny_config, RunOptions(backend="numpy")), SETS, WordsOptions(corpus))


@pytest.mark.parametrize("numbers", [{"occurrences": 0}, {"candidates": -1}])
def test_numbers_out_of_range_are_refused(numbers: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        WordsOptions(**numbers)  # type: ignore[arg-type]


def test_what_a_table_has_no_use_for_is_refused(table: Path, files: list[Path]) -> None:
    done = words_command(*files, "--set", "encoder.kind=static", "--set", f"encoder.model={table}", "--layers", "1")
    assert done.returncode == 1
    assert "a static table has vectors of words as it is; leave out --layers" in done.stderr
    assert "Traceback" not in done.stderr


def test_given_embeddings_have_no_word_vectors(files: list[Path]) -> None:
    done = words_command(*files, "--set", "encoder.kind=vectors")
    assert done.returncode == 1
    assert "Word vectors need a static table or a transformer" in done.stderr


def test_the_table_for_people_has_a_part_for_each_average_of_layers(
    tiny_config: BuildConfig, corpus: Path, tmp_path: Path
) -> None:
    (tmp_path / "s.txt").write_text("whale songs 1\nsea library 2\nsea data 3\n")
    named = ["--set", f"encoder.model={tiny_config.encoder.model}", "--set", "encoder.max_length=32"]
    done = words_command(tmp_path / "s.txt", *named, "--corpus", corpus, "--layers", "0", "--layers", "1,-1")
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if "Word vectors" in line] == [
        "Word vectors: layers 0",
        "Word vectors: layers 1,-1",
    ]
    assert done.stdout.count("3 of 3") == 2


def test_a_cache_of_texts_is_refused(files: list[Path], tmp_path: Path) -> None:
    done = words_command(*files, "--cache", tmp_path / "cache")
    assert done.returncode == 1
    assert "--cache keeps embeddings of texts, and none are made here" in done.stderr
