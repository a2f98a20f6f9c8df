"""STS sets: the task and subset of each file, and the place of errors."""

import gzip
import hashlib
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from indexer.errors import EvaluationError, MachineError
from search.evaluation.sts.data import TASKS, Task, read_tasks

HEADER = "score\tsentence1\tsentence2\n"
ROWS = "1.5\ta cat\ta dog\n4\tone\tuno\n"
Faked = Callable[..., list[tuple[str, str]]]  # its requests


def write(folder: Path, **files: str) -> Path:
    """Files by stem, each as .tsv below the header."""
    folder.mkdir(exist_ok=True)
    for stem, rows in files.items():
        (folder / f"{stem}.tsv").write_text(HEADER + rows)
    return folder


def layout(tasks: list[Task]) -> dict[str, list[str]]:
    return {task.name: [subset.name for subset in task.subsets] for task in tasks}


# --- TSV


def test_a_row_is_a_score_and_two_sentences(tmp_path: Path) -> None:
    (task,) = read_tasks(write(tmp_path, stsb=ROWS))
    (subset,) = task.subsets
    assert subset.scores.tolist() == [1.5, 4.0]
    assert (subset.first, subset.second) == (("a cat", "one"), ("a dog", "uno"))
    assert task.files == {"stsb.tsv": hashlib.sha256((tmp_path / "stsb.tsv").read_bytes()).hexdigest()}
    assert task.notes == ()


def test_files_of_a_year_are_its_subsets_and_the_concatenation_is_none(tmp_path: Path) -> None:
    folder = write(tmp_path, **{"sts12.MSRpar": ROWS, "sts12.surprise.OnWN": ROWS, "sts12.all": ROWS + ROWS})
    (task,) = read_tasks(folder)
    assert layout([task]) == {"STS12": ["MSRpar", "surprise.OnWN"]}
    assert list(task.files) == ["sts12.MSRpar.tsv", "sts12.surprise.OnWN.tsv"]
    assert task.notes == ("STS12 has 2 of its 5 subsets: MSRpar, surprise.OnWN",)


def test_a_year_with_all_its_subsets_needs_no_remark(tmp_path: Path) -> None:
    whole = {f"sts13.{name}": ROWS for name in ("FNWN", "headlines", "OnWN")}
    assert read_tasks(write(tmp_path, **whole))[0].notes == ()


def test_a_concatenation_of_another_size_is_said(tmp_path: Path) -> None:
    folder = write(tmp_path, **{"sts12.MSRpar": ROWS, "sts12.OnWN": ROWS, "sts12.all": ROWS})
    (task,) = read_tasks(folder)
    assert task.notes == (
        "sts12.all.tsv has 2 pairs, its subsets together have 4 and were used",
        "STS12 has 2 of its 5 subsets: MSRpar, OnWN",
    )


@pytest.mark.parametrize("stem", ["sts12.all", "STS12"])
def test_a_concatenation_alone_is_the_single_subset(stem: str, tmp_path: Path) -> None:
    (task,) = read_tasks(write(tmp_path, **{stem: ROWS}))
    assert layout([task]) == {"STS12": ["all"]}
    assert "no subsets" in task.notes[0]


@pytest.mark.parametrize(
    ("stem", "name"),
    [("stsb", "STSB"), ("STSBenchmark", "STSB"), ("sts-b", "STSB"), ("sickr", "SICK"), ("SICK-R", "SICK"),
     ("sick", "SICK"), ("My.Pairs", "My.Pairs"), ("sts17", "sts17")],
)  # fmt: skip
def test_a_file_names_its_task(stem: str, name: str, tmp_path: Path) -> None:
    assert layout(read_tasks(write(tmp_path, **{stem: ROWS}))) == {name: ["all"]}


def test_tasks_come_in_the_paper_s_order_and_others_after_them(tmp_path: Path) -> None:
    folder = write(tmp_path, zebra=ROWS, ape=ROWS, sts16=ROWS, sts12=ROWS, sick=ROWS, stsb=ROWS)
    assert list(layout(read_tasks(folder))) == ["STSB", "SICK", "STS12", "STS16", "ape", "zebra"]


def test_quotes_are_literal(tmp_path: Path) -> None:
    (task,) = read_tasks(write(tmp_path, x='1\t"a\tb" "c\n2\t"d"\te\n'))
    assert task.subsets[0].first == ('"a', '"d"')
    assert task.subsets[0].second == ('b" "c', "e")


def test_only_a_newline_ends_a_line(tmp_path: Path) -> None:
    (task,) = read_tasks(write(tmp_path, x="1\ta\u2028b\tc\x0bd\n2\te\tf\n"))
    assert task.subsets[0].first == ("a\u2028b", "e")


@pytest.mark.parametrize(
    "text",
    [
        "sentence2\tscore\tid\tsentence1\nb\t1\t7\ta\nd\t2\t8\tc\n",
        "pair_ID\tsentence_A\tsentence_B\trelatedness_score\n1\ta\tb\t1\n2\tc\td\t2\n",
        "1\ta\tb\n2\tc\td",
        "\ufeffscore\tsentence1\tsentence2\r\n1\ta\tb\r\n2\tc\td\r\n\r\n",
    ],
    ids=["any order", "SICK's names", "no header", "windows"],
)
def test_columns_are_found_by_their_header_or_else_by_their_place(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_bytes(text.encode())
    (task,) = read_tasks(tmp_path)
    (subset,) = task.subsets
    assert (subset.scores.tolist(), subset.first, subset.second) == ([1.0, 2.0], ("a", "c"), ("b", "d"))


def test_a_compressed_file_is_read_like_a_plain_one(tmp_path: Path) -> None:
    (tmp_path / "sts12.MSRpar.tsv.gz").write_bytes(gzip.compress((HEADER + ROWS).encode()))
    assert layout(read_tasks(tmp_path)) == {"STS12": ["MSRpar"]}


def test_files_named_one_by_one_are_like_their_folder(tmp_path: Path) -> None:
    folder = write(tmp_path, **{"sts12.MSRpar": ROWS, "sts12.OnWN": ROWS, "sts12.all": ROWS + ROWS, "stsb": ROWS})
    assert layout(read_tasks(*sorted(folder.iterdir()))) == {"STSB": ["all"], "STS12": ["MSRpar", "OnWN"]}


def test_a_file_that_is_no_table_is_named_and_what_is_plainly_none_is_not(tmp_path: Path) -> None:
    folder = write(tmp_path, stsb=ROWS, sick=ROWS)
    for name in ("README", "manifest.json", "NOTES.md", ".hidden", "extra.csv", "LICENSE.txt"):
        (folder / name).write_text("x")
    first, second = read_tasks(folder)
    assert first.notes == (f"{folder}: skipped, because they are not .tsv files: extra.csv",)
    assert second.notes == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x.tsv: the file is empty"),
        ("\n\n", "x.tsv: the file is empty"),
        ("a cat\ta dog\n", "x.tsv:1: sentences without scores"),
        ("sentence1\tsentence2\na\tb\n", "x.tsv:1: sentences without scores"),
        ("score\tsentence1\n1\ta\n", "x.tsv:1: the header has no column sentence2 or sentence_b"),
        ("score\tsentence1\tsentence1\n1\ta\tb\n", "x.tsv:1: the header has more than one column sentence1"),
        ("only one\n", "x.tsv:1: 1 column without a header"),
        ("1\ta\tb\tc\n", "x.tsv:1: 4 columns without a header"),
        (HEADER + "1\ta\tb\n2\ta\n", "x.tsv:3: 2 columns; expected 3"),
        (HEADER + "1\ta\tb\n\n2\ta\tb\n", "x.tsv:3: 1 column; expected 3"),
        (HEADER + "1\ta\tb\tc\n", "x.tsv:2: 4 columns; expected 3"),
        (HEADER + "1\ta\tb\nhigh\tc\td\n", 'x.tsv:3: the score "high" is not a finite number'),
        (HEADER + "nan\ta\tb\n", 'x.tsv:2: the score "nan" is not a finite number'),
        (HEADER + "1e999\ta\tb\n", 'x.tsv:2: the score "1e999" is not a finite number'),
        (HEADER + "\ta\tb\n", 'x.tsv:2: the score "" is not a finite number'),
        (HEADER + "1\ta\tb\n2\t \tb\n", "x.tsv:3: the first sentence is blank"),
        (HEADER + "1\ta\tb\n2\ta\t\n", "x.tsv:3: the second sentence is blank"),
        (HEADER, "x.tsv: no pair in task x;"),
        (HEADER + "1\ta\tb\n", "x.tsv: only one pair in task x;"),
        (HEADER + "2\ta\tb\n2.0\tc\td\n", "x.tsv: all 2 scores of task x are 2; with constant scores"),
    ],
)
def test_a_fault_is_told_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    path.write_text(text)
    with pytest.raises(EvaluationError) as failure:
        read_tasks(path)
    assert f"{tmp_path}/{message}" in str(failure.value)


def test_a_constant_subset_is_named_though_the_others_vary(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="all 2 scores of STS12 MSRpar are 3"):
        read_tasks(write(tmp_path, **{"sts12.MSRpar": "3\ta\tb\n3\tc\td\n", "sts12.OnWN": ROWS}))


def test_bytes_that_are_not_utf8_are_told_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_bytes(HEADER.encode() + b"1\tcaf\xe9\tb\n")
    with pytest.raises(EvaluationError, match=r"x\.tsv:2: not UTF-8 \(byte 0xe9\)"):
        read_tasks(tmp_path)


def test_a_cut_gzip_file_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "x.tsv.gz").write_bytes(gzip.compress((HEADER + ROWS).encode())[:-9])
    with pytest.raises(EvaluationError, match="not a complete gzip file"):
        read_tasks(tmp_path)


def test_the_same_task_twice_is_refused(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one", stsb=ROWS), write(tmp_path / "two", stsb=ROWS)
    with pytest.raises(EvaluationError, match=r"STSB is in .*one and in .*two"):
        read_tasks(one, two)
    with pytest.raises(EvaluationError, match="are both STSB"):
        read_tasks(write(tmp_path / "three", stsb=ROWS, stsbenchmark=ROWS))


def test_a_missing_path_names_its_neighbour(tmp_path: Path) -> None:
    write(tmp_path / "stsfolder", stsb=ROWS)
    with pytest.raises(EvaluationError, match=r'no such file or folder; did you mean ".*stsfolder"\?'):
        read_tasks(tmp_path / "stsfoldr")
    with pytest.raises(EvaluationError, match="hf://"):
        read_tasks(tmp_path / "nothing-like-it")


def test_a_folder_without_sets_and_no_source_at_all_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(EvaluationError, match="no STS set in this folder"):
        read_tasks(tmp_path)
    with pytest.raises(EvaluationError, match=r"notes\.txt: expected a \.tsv file"):
        read_tasks(tmp_path / "notes.txt")
    with pytest.raises(EvaluationError, match="no STS source"):
        read_tasks()


# --- SentEval


@pytest.fixture
def senteval(tmp_path: Path) -> Path:
    """A download with two years, the benchmark and SICK, each of two or three pairs."""
    sts, sick = tmp_path / "downstream" / "STS", tmp_path / "downstream" / "SICK"
    for year, subset in (("STS12", "MSRpar"), ("STS12", "SMTeuroparl"), ("STS16", "headlines")):
        folder = sts / f"{year}-en-test"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"STS.input.{subset}.txt").write_text('a "cat\ta dog\nnot scored\teither\none\tuno\tsource\n')
        (folder / f"STS.gs.{subset}.txt").write_text("1.5\n\n4\n")
        (folder / "STS.gs.ALL.txt").write_text("1.5\n\n4\n")
    (sts / "STSBenchmark").mkdir()
    columns = "main-captions\tMSRvid\t2012test\t{n}\t{score}\tfirst {n}\tsecond {n}"
    rows = [columns.format(n=1, score=2.5), columns.format(n=2, score=5) + "\tsource\tsource"]
    (sts / "STSBenchmark" / "sts-test.csv").write_text("\n".join(rows) + "\n")
    (sts / "STSBenchmark" / "sts-train.csv").write_text("not read")
    sick.mkdir()
    names = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
    (sick / "SICK_test_annotated.txt").write_text(names + "1\ta\tb\t3.3\tNEUTRAL\n2\tc\td\t4\tENTAILMENT\n")
    return tmp_path


@pytest.mark.parametrize("below", [".", "downstream"])
def test_a_senteval_download_is_read(senteval: Path, below: str) -> None:
    tasks = read_tasks(senteval / below)
    assert layout(tasks) == {
        "STSB": ["all"],
        "SICK": ["all"],
        "STS12": ["MSRpar", "SMTeuroparl"],
        "STS16": ["headlines"],
    }
    benchmark, sick, year, _ = (task.subsets[0] for task in tasks)
    assert (benchmark.scores.tolist(), benchmark.first) == ([2.5, 5.0], ("first 1", "first 2"))
    assert (sick.scores.tolist(), sick.second) == ([3.3, 4.0], ("b", "d"))
    assert (year.scores.tolist(), year.first, year.second) == ([1.5, 4.0], ('a "cat', "one"), ("a dog", "uno"))


def test_the_folder_sts_alone_is_a_source(senteval: Path) -> None:
    assert list(layout(read_tasks(senteval / "downstream" / "STS"))) == ["STSB", "STS12", "STS16"]


def test_pairs_without_a_score_are_left_out_and_counted(senteval: Path) -> None:
    task = read_tasks(senteval)[-1]
    assert task.notes == (
        "STS.input.headlines.txt: 1 pair without a score left out, as SentEval does",
        "STS16 has 1 of its 5 subsets: headlines",
    )
    assert sorted(task.files) == ["STS16-en-test/STS.gs.headlines.txt", "STS16-en-test/STS.input.headlines.txt"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("STS.gs.headlines.txt", "1.5\n4\n", "2 lines for 3 pairs"),
        ("STS.gs.headlines.txt", "1.5\n\nx\n", r"STS\.gs\.headlines\.txt:3: the score \"x\""),
        ("STS.gs.headlines.txt", "\n\n4\n", "only one pair in"),
        ("STS.input.headlines.txt", "a\tb\n\tc\nonly\n", r"STS\.input\.headlines\.txt:3: 1 column"),
        ("STS.input.headlines.txt", "a\tb\nc\td\n \te\n", r"STS\.input\.headlines\.txt:3: a sentence is blank"),
        ("STS.input.other.txt", "a\tb\n", r"no scores for these pairs; expected them in .*STS\.gs\.other\.txt"),
    ],
)
def test_a_fault_in_a_senteval_file_is_told(senteval: Path, name: str, text: str, message: str) -> None:
    (senteval / "downstream" / "STS" / "STS16-en-test" / name).write_text(text)
    with pytest.raises(EvaluationError, match=message):
        read_tasks(senteval)


def test_scores_without_sentences_are_said(senteval: Path) -> None:
    (senteval / "downstream" / "STS" / "STS12-en-test" / "STS.gs.SMT.txt").write_text("1\n")
    notes = read_tasks(senteval)[2].notes
    assert any("skipped, because their sentences are missing: STS.gs.SMT.txt" in note for note in notes)


def test_a_benchmark_of_another_form_is_refused(senteval: Path) -> None:
    (senteval / "downstream" / "STS" / "STSBenchmark" / "sts-test.csv").write_text("1,a,b\n")
    with pytest.raises(EvaluationError, match=r"sts-test\.csv:1: 1 column; expected genre"):
        read_tasks(senteval)


def test_an_empty_download_is_refused(tmp_path: Path) -> None:
    (tmp_path / "STS" / "STS12-en-test").mkdir(parents=True)
    with pytest.raises(EvaluationError, match=r"expected files STS\.input"):
        read_tasks(tmp_path)
    (tmp_path / "STS" / "STS12-en-test").rmdir()
    with pytest.raises(EvaluationError, match="no test set of SentEval"):
        read_tasks(tmp_path)


# --- Hugging Face


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Faked:
    """Install a module `datasets` whose `load_dataset` knows one data set, or fails."""

    def put(columns: dict[str, list[Any]] | None = None, error: Exception | None = None) -> list[tuple[str, str]]:
        asked: list[tuple[str, str]] = []

        def load_dataset(identity: str, split: str) -> "_Rows":
            asked.append((identity, split))
            if error:
                raise error
            return _Rows(columns or {})

        faked = SimpleNamespace(load_dataset=load_dataset, exceptions=SimpleNamespace(DatasetsError=KeyError))
        monkeypatch.setitem(sys.modules, "datasets", faked)
        return asked

    return put


class _Rows(dict[str, list[Any]]):
    @property
    def column_names(self) -> list[str]:
        return list(self)


@pytest.mark.parametrize(
    ("identity", "name"),
    [("mteb/sts12-sts", "STS12"), ("mteb/stsbenchmark-sts", "STSB"), ("mteb/sickr-sts", "SICK"),
     ("hf://mteb/biosses-sts", "biosses-sts")],
)  # fmt: skip
def test_a_data_set_id_is_read_through_datasets(identity: str, name: str, hub: Faked) -> None:
    asked = hub({"sentence1": ["a", "c"], "sentence2": ["b", "d"], "score": [1, 2.5]})
    (task,) = read_tasks(identity)
    plain = identity.removeprefix("hf://")
    assert asked == [(plain, "test")]
    assert (task.name, task.subsets[0].scores.tolist(), task.subsets[0].second) == (name, [1.0, 2.5], ("b", "d"))
    assert list(task.files) == [plain]
    assert bool(task.notes) == (name == "STS12")  # a note explains that a whole year is one subset


def test_a_real_data_set_gives_the_same_rows_and_hash(hub: Faked, monkeypatch: pytest.MonkeyPatch) -> None:
    columns: dict[str, list[Any]] = {"sentence_A": ["a", "c"], "sentence_B": ["b", "d"], "relatedness_score": [1.0, 2]}
    hub(columns)
    faked = read_tasks("some/set")[0]
    monkeypatch.undo()
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: datasets.Dataset.from_dict(columns))
    real = read_tasks("some/set")[0]
    assert (real.files, real.subsets[0].first) == (faked.files, faked.subsets[0].first)


def test_other_rows_have_another_hash(hub: Faked) -> None:
    hashes = set()
    for last in ("d", "e"):
        hub({"sentence1": ["a", "c"], "sentence2": ["b", last], "score": [1, 2]})
        hashes |= set(read_tasks("some/set")[0].files.values())
    assert len(hashes) == 2


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": ["a"], "label": [1]}, r"the test split has no column score or .*; its columns are text, label"),
        ({"sentence1": ["a"], "sentence2": ["b"], "score": [None]}, 'some/set test:1: the score "" is not a finite'),
        ({"sentence1": [None], "sentence2": ["b"], "score": [1]}, "some/set test:1: the first sentence is blank"),
    ],
)
def test_a_fault_in_a_data_set_is_told(columns: dict[str, list[Any]], message: str, hub: Faked) -> None:
    hub(columns)
    with pytest.raises(EvaluationError, match=message):
        read_tasks("some/set")


@pytest.mark.parametrize("error", [ConnectionError("no\nroute"), ValueError("Unknown split"), KeyError("broken")])
def test_a_data_set_that_cannot_be_loaded_is_said(error: Exception, hub: Faked) -> None:
    hub(error=error)
    with pytest.raises(EvaluationError, match="no such file or folder, and the data set of this id cannot"):
        read_tasks("some/set")


def test_a_hub_that_cannot_be_reached_is_said_once_with_the_way_out(
    hub: Faked, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub({})
    said = logging.StreamHandler(sys.stderr)
    logger = logging.getLogger("huggingface_hub")
    monkeypatch.setattr(logger, "handlers", [said])

    def unreachable(identity: str, split: str) -> None:
        for name in ("huggingface_hub", "huggingface_hub.utils._http", "datasets.load"):
            logging.getLogger(name).warning("Retrying in 1s")
        raise ConnectionError("no route")

    monkeypatch.setattr(sys.modules["datasets"], "load_dataset", unreachable)
    level = logger.level
    with pytest.raises(
        EvaluationError, match=r"^a/b: no such file or folder, .* no route\. Fix: name an existing folder"
    ):
        read_tasks("a/b")
    assert capsys.readouterr().err == ""
    assert logger.level == level


def test_without_the_package_the_line_that_installs_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MachineError, match=r"pip install '.*isotrope\[datasets\]"):
        read_tasks("some/set")


def test_a_misspelt_path_is_not_asked_of_the_hub(tmp_path: Path, hub: Faked, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = hub({})
    write(tmp_path / "sts", stsb=ROWS)
    monkeypatch.chdir(tmp_path.parent)
    with pytest.raises(EvaluationError, match="did you mean"):
        read_tasks(f"{tmp_path.name}/stss")
    assert asked == []


# --- the sets themselves


def test_the_seven_sets_have_the_pairs_their_manifest_says(shared: Path) -> None:
    folder = shared / "data" / "sts"
    tasks = read_tasks(folder)
    files = {entry["file"]: entry for entry in json.loads((folder / "manifest.json").read_text())["files"].values()}
    assert tuple(task.name for task in tasks) == TASKS
    pairs = {task.name: sum(len(subset.scores) for subset in task.subsets) for task in tasks}
    assert pairs == {
        "STSB": 1379, "SICK": 4927, "STS12": 3108, "STS13": 1500, "STS14": 3750, "STS15": 3000, "STS16": 1186,
    }  # fmt: skip
    assert [len(task.subsets) for task in tasks] == [1, 1, 5, 3, 6, 5, 5]
    for task in tasks:
        assert task.notes == ()
        for subset, (file, sha256) in zip(task.subsets, task.files.items(), strict=True):
            entry = files[file]
            assert sha256 == entry["sha256"]
            assert (len(subset.scores), subset.scores.min(), subset.scores.max()) == (
                entry["rows"], entry["score_min"], entry["score_max"],
            )  # fmt: skip
