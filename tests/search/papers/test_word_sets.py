"""Word-level sets in their published files: the content determines the kind, and errors name the line."""

from pathlib import Path

import pytest

from indexer.errors import EvaluationError
from search.papers.word_sets import Analogies, Categories, Similarity, WordSet, read_word_sets

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
        ("a.txt", "a b 1 2\nc d 3 x\n", r'a.txt:2: "x" is not a number'),
        ("a.txt", "a b 1\n", r"a.txt: one pair; a correlation needs two different scores"),
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
        ("a.txt", "take remove V 6.81 SYNONYMS\n", r'a.txt:1: "6.81" is not a word of an analogy'),
        ("a.questions", "a b c\n", r"a.questions: questions without answers; expected them in .*a.answers"),
        ("a.answers", "X d\n", r"a.answers: answers without questions. Fix: name a.questions too"),
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
