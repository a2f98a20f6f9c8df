"""The command line: its outputs, its exit codes, and that no user mistake shows a traceback."""

import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from search.cli import main
from search.describe import metadata_in_words

ISOTROPE = [sys.executable, "-c", "from search.cli import main; main()"]
ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Done:
    """A finished command."""

    returncode: int
    stdout: str
    stderr: str


def isotrope(*arguments: str | Path, stdin: str = "") -> Done:
    """Run a command in this process, because a new one spends seconds on imports. Exceptions propagate."""
    out, errors, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(errors):
        patch.setattr(sys, "argv", ["isotrope", *map(str, arguments)])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    return Done(code, out.getvalue(), errors.getvalue())


@pytest.fixture(scope="module")
def settings(request: pytest.FixtureRequest) -> list[str]:
    model = request.getfixturevalue("tiny_model")("bert")
    return ["--set", f"encoder.model={model}", "--set", "encoder.max_length=32", "--set", "store.part_documents=4"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "docs.jsonl"
    rows = [
        {"_id": f"d{n}", "title": f"Title {n}", "text": f"Text about thing {n}.", "year": 2000 + n} for n in range(9)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def index(settings: list[str], corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("built") / "index"
    done = isotrope("build", corpus, path, *settings)
    assert done.returncode == 0, done.stderr
    return path


def test_build_reports_on_stdout_and_remarks_on_stderr(index: Path, corpus: Path, settings: list[str]) -> None:
    done = isotrope("build", corpus, index, *settings)
    assert (done.returncode, done.stdout) == (0, f"{index} is up to date: 9 documents, generation 1.\n")


def test_build_json_holds_the_report(corpus: Path, settings: list[str], tmp_path: Path) -> None:
    done = isotrope("build", corpus, tmp_path / "i", *settings, "--json")
    report = json.loads(done.stdout)
    assert (report["documents"], report["parts_encoded"], report["up_to_date"]) == (9, 3, False)
    assert report["quality"]["self_hit"]["value"] == 1.0
    assert "fitted on 9 texts" in done.stderr


def test_query_json_is_one_line_a_query(index: Path) -> None:
    done = isotrope("query", index, "thing 3", "thing 5", "-k", "2", "--json")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["query"] for line in lines] == ["thing 3", "thing 5"]
    for line in lines:
        assert set(line) == {"query", "hits"}
        assert [hit["rank"] for hit in line["hits"]] == [1, 2]
        assert set(line["hits"][0]) == {"rank", "id", "score", "title", "text", "metadata"}
    assert done.returncode == 0


def test_query_reads_one_query_a_line_and_answers_each_line(index: Path) -> None:
    done = isotrope("query", index, "-", "--json", stdin="thing 1\n\n  \nthing 2\n")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert ["error" in line for line in lines] == [False, True, True, False]
    assert (lines[3]["query"], done.returncode) == ("thing 2", 0)


def test_a_blank_query_alone_fails(index: Path) -> None:
    done = isotrope("query", index, "  ", "--json")
    assert done.returncode == 1
    assert "error" in json.loads(done.stdout)


def test_a_query_that_starts_with_a_dash_follows_two_dashes(index: Path) -> None:
    done = isotrope("query", index, "--json", "-k", "1", "--", "-O2")
    assert json.loads(done.stdout)["query"] == "-O2"


def test_query_prints_a_table_for_people(index: Path) -> None:
    done = isotrope("query", index, "thing 3", "-k", "3")
    assert done.stdout.startswith("thing 3\n")
    assert "Title" in done.stdout


def test_queries_of_a_file_are_answered_as_those_of_the_command_line(index: Path, tmp_path: Path) -> None:
    (tmp_path / "queries.jsonl").write_text('{"_id": "q1", "text": "thing 3"}\n{"_id": "q2", "text": "thing 5"}\n')
    (tmp_path / "queries.txt").write_text("thing 3\n\nthing 5\n")
    asked = isotrope("query", index, "thing 3", "thing 5", "--json")
    for name in ("queries.jsonl", "queries.txt"):
        done = isotrope("query", index, "--queries", tmp_path / name, "--json")
        assert (done.returncode, done.stdout) == (0, asked.stdout)
        assert ("1 blank line of queries.txt left out" in done.stderr) == (name == "queries.txt")


def test_answers_go_to_a_file_as_json_lines(index: Path, tmp_path: Path) -> None:
    asked = isotrope("query", index, "thing 3", "thing 5", "-k", "2", "--json").stdout
    out = tmp_path / "answers.jsonl"
    done = isotrope("query", index, "thing 3", "thing 5", "-k", "2", "-o", out)
    assert (done.returncode, done.stdout, out.read_text()) == (0, f"{out}: 2 answers.\n", asked)
    done = isotrope("query", index, "thing 3", "-o", out)
    assert (done.returncode, "pass --force to overwrite" in done.stderr, out.read_text()) == (1, True, asked)
    assert isotrope("query", index, " ", "-o", out, "--force").returncode == 1
    assert out.read_text() == asked, "what no query was answered in does not replace it"


def test_a_number_that_json_has_no_word_for_is_null_in_print_and_in_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from search.cli.output import print_json
    from search.evaluation.result import write_result

    result = {"spearman": float("nan"), "ends": [float("inf"), 0.5]}
    print_json(result)
    write_result(tmp_path / "result.json", result)
    told = {"spearman": None, "ends": [None, 0.5]}
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "result.json").read_text()) == told


@pytest.mark.parametrize("started", [["-m", "isotrope"], ["-c", "import isotrope; isotrope.main()"]])
def test_files_of_the_working_directory_are_not_imported(started: list[str], tmp_path: Path) -> None:
    """Even if the directory is on Python's path: by -m, or by an empty entry of PYTHONPATH."""
    for name in ("search.py", "indexer.py"):
        (tmp_path / name).write_text("raise SystemExit('the file of the user')")
    env = os.environ | {"PYTHONPATH": f":{Path(__file__).parents[3]}"}
    call = [sys.executable, *started, "--version"]
    done = subprocess.run(call, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split(",")[0]) == (0, "isotrope"), done.stderr


def test_the_version_is_told() -> None:
    from importlib.metadata import version

    assert isotrope("--version").stdout == f"isotrope, version {version('isotrope')}\n"


def test_an_over_long_query_is_said(index: Path) -> None:
    done = isotrope("query", index, "word " * 500, "--json")
    assert done.returncode == 0
    assert "was cut at 32" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["query", "{index}", "x", "-k", "0"], 1, "k is 0"),
        (["query", "{tmp}/nothing", "x"], 1, "no such index"),
        (["query", "{index}", "x", "--device", "cuda:9"], 1, "cuda"),
        (["query", "{index}", "x", "--model", "{tmp}"], 1, "config.json"),
        (["query", "{tmp}/coffee"], 2, "coffee: is the argument INDEX, but no such index exists. Usage: isotrope"),
        (["query", "{index}"], 2, "Expected exactly one of TEXT, --like and --queries"),
        (["build", "{tmp}/nothing.jsonl", "{tmp}/i"], 1, "nothing.jsonl"),
        (["build", "{corpus}", "{index}"], 1, "another recipe"),
        (["build", "{corpus}", "{tmp}/i", "--set", "whitening.strenght=1"], 1, 'did you mean "whitening.strength"'),
        (["build", "{corpus}", "{tmp}/i", "--config", "{tmp}/no.toml"], 1, "no such recipe"),
        (["build", "{corpus}", "{tmp}/i", "--config", "{tmp}/../nothing/../e5"], 1, "no such recipe"),
        (["build", "{corpus}", "{tmp}/i", "--config", "./e5"], 1, "no such recipe"),
        (["build", "{corpus}", "{tmp}/i", "--set", "query_prompt=a: "], 1, "did you mean encoder.query_prompt?"),
        (["build", "{corpus}", "{tmp}/i", "--set", "encoder.model={tmp}"], 1, "config.json"),
        (["build", "{corpus}", "{tmp}/i", "--text-column", "body"], 1, "body"),
        (["build", "{corpus}", "{tmp}/i", "--column", "year"], 1, "name:type"),
        (["build", "{corpus}", "{tmp}/i", "--workers", "0"], 1, "workers is 0"),
        (["build", "{corpus}", "{tmp}/i", "--workers", "16", "--ray-address", "auto"], 2, "add --executor ray"),
        (["build", "{corpus}", "{tmp}/i", "--gpus-per-worker", "1"], 2, "--gpus-per-worker is for workers of Ray"),
        (["build", "{corpus}", "{tmp}/i", "--executor", "ray", "--gpus-per-worker=-3"], 1, "gpus_per_worker is -3"),
        (["dedup", "{index}", "-o", "{tmp}/d.csv", "--threshold", "1", "--ray-address", "x"], 2, "add --executor ray"),
        (["build", "-", "{tmp}/i"], 1, "--format"),
        (["build", "{corpus}"], 2, "Missing argument SOURCE"),
        (["inspect", "{tmp}"], 1, "Build one with: isotrope build SOURCE {tmp}"),
        (["inspect", "{corpus}"], 1, "To build one from these files: isotrope build {corpus} INDEX"),
        (["verify", "{tmp}"], 1, "not an index"),
        (["convert", "{tmp}/nothing", "-o", "{tmp}/new"], 1, "nothing"),
        (["query", "{index}", "x", "-o", "{tmp}/a.CSV"], 2, "a.CSV: expected a file of JSON lines, such as a.jsonl."),
        (["demo-corpus", "-o", "{corpus}"], 1, "already exists. Fix: choose another file, or pass --force"),
        (["qeury"], 2, "No such command 'qeury'. Did you mean 'query'?"),
        (["evaluate", "recal", "{index}"], 2, "Did you mean 'recall'?"),
        (["query", "{index}", "x", "--grup-by", "year"], 2, "Did you mean '--group-by'?"),
        (["query", "{index}", "x", "--group-by", "yaer"], 1, 'did you mean "year"?'),
        (["query", "{index}", "x", "--where", "yaer > 2000"], 1, "did you mean"),
        (["delete", "{index}", "d88"], 1, '(did you mean "d8"?)'),
        (["query", "{index}", "--like", "d88"], 1, '(did you mean "d8"?)'),
        (["query", "{index}", "--like", "nothing-like-it"], 1, 'no document with id "nothing-like-it".\n'),
        (["build", "{corpus}", "{tmp}/i", "--config", "minilmm"], 1, 'did you mean "minilm"'),
    ],
)
def test_mistakes_get_one_clear_line_and_the_right_exit_code(
    arguments: list[str], code: int, message: str, index: Path, corpus: Path, tmp_path: Path
) -> None:
    done = isotrope(*(part.format(index=index, corpus=corpus, tmp=tmp_path) for part in arguments))
    assert (done.returncode, done.stdout) == (code, "")
    assert message.replace("{tmp}", str(tmp_path)).replace("{corpus}", str(corpus)) in done.stderr


def test_bad_rows_stop_the_build_or_are_left_out_and_listed(settings: list[str], tmp_path: Path) -> None:
    (tmp_path / "docs.jsonl").write_text(
        '{"id": "a", "text": "x"}\n{"id": "b", "text": null}\n{"id": "c", "text": "z"}\n'
    )
    done = isotrope("build", tmp_path / "docs.jsonl", tmp_path / "i", *settings)
    assert done.returncode == 1
    assert 'docs.jsonl:2: "text" is null (id "b")' in done.stderr
    assert "--on-error skip" in done.stderr
    done = isotrope("build", tmp_path / "docs.jsonl", tmp_path / "i", *settings, "--on-error", "skip", "--json")
    assert (done.returncode, json.loads(done.stdout)["documents"]) == (0, 2)
    assert "1 row was skipped (1 text)" in done.stderr
    assert json.loads((tmp_path / "i.rejects.jsonl").read_text())["id"] == "b"


def test_standard_input_is_a_corpus(settings: list[str], tmp_path: Path) -> None:
    done = isotrope(
        "build", "-", tmp_path / "i", "--format", "text", *settings, "--json", stdin="one line\n\nand another\n"
    )
    assert json.loads(done.stdout)["documents"] == 2
    assert "2 documents had no id and got one from their content; if a column has their ids, build with" in done.stderr
    assert "1 blank lines were skipped" in done.stderr
    hits = json.loads(isotrope("query", tmp_path / "i", "line", "--json").stdout)["hits"]
    assert {hit["text"] for hit in hits} == {"one line", "and another"}
    # the same documents again, in a file of the corpus's own: there already
    (tmp_path / "lines.txt").write_text("and another\none line\none more\n")
    added = json.loads(isotrope("add", tmp_path / "i", tmp_path / "lines.txt", "--json").stdout)
    assert (added["added"], added["replaced"], added["unchanged"]) == (1, 0, 2)


def test_inspect_shows_the_figures_and_json_holds_them(index: Path) -> None:
    shown = isotrope("inspect", index).stdout
    for word in ("9 in 3 parts", "fingerprint", "whitening", "self_hit 1", "year int64"):
        assert word in shown
    facts: dict[str, Any] = json.loads(isotrope("inspect", index, "--json").stdout)
    assert (facts["documents"], facts["config"]["whitening"]["strength"]) == (9, 0.25)
    columns = {"year": "int64", "tags": {"list": "string"}, "by": {"struct": {"name": "string"}}}
    assert metadata_in_words({"metadata": columns}) == "year int64, tags list of string, by struct (name string)"
    assert metadata_in_words({"metadata": {}}) == "none"
    assert facts["bytes"]["total"] == sum(count for name, count in facts["bytes"].items() if name != "total")


def test_verify_says_what_is_wrong_and_exits_with_one(index: Path, tmp_path: Path) -> None:
    assert isotrope("verify", index).returncode == 0
    broken = Path(shutil.copytree(index, tmp_path / "broken"))
    (broken / "parts/00001/moments.npz").write_bytes(b"")
    done = isotrope("verify", broken)
    assert (done.returncode, done.stderr) == (1, "")
    assert "parts/00001/moments.npz" in done.stdout
    done = isotrope("verify", broken, "--json")
    assert (done.returncode, done.stderr) == (1, "")
    found = json.loads(done.stdout)
    assert (found["passed"], len(found["problems"])) == (False, 1)


def test_convert_makes_a_folder_that_builds(
    tiny_model: Callable[[str], Path], corpus: Path, settings: list[str], tmp_path: Path
) -> None:
    import torch
    from safetensors.torch import load_file

    old = Path(shutil.copytree(tiny_model("bert"), tmp_path / "old"))
    torch.save(load_file(old / "model.safetensors"), old / "pytorch_model.bin")
    (old / "model.safetensors").unlink()
    model = ["--set", f"encoder.model={old}"]
    done = isotrope("build", corpus, tmp_path / "i", *settings, *model)
    assert (done.returncode, f"isotrope convert {old}" in done.stderr) == (1, True)
    assert isotrope("convert", old, "-o", tmp_path / "new").returncode == 0
    done = isotrope("build", corpus, tmp_path / "i", *settings, "--set", f"encoder.model={tmp_path / 'new'}")
    assert done.returncode == 0


@pytest.mark.check
def test_ctrl_c_exits_with_130_and_the_build_goes_on(settings: list[str], tmp_path: Path) -> None:
    lines = "".join(f"document number {n} about something\n" for n in range(6_000))
    (tmp_path / "docs.txt").write_text(lines)
    command = [*ISOTROPE, "build", str(tmp_path / "docs.txt"), str(tmp_path / "i"), *settings]
    command += ["--set", "store.part_documents=150"]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    while running.poll() is None and not list(tmp_path.glob("i/parts/*/part.json")):
        os.sched_yield()
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 130, errors
    assert "run the same command again to continue" in errors
    assert "Traceback" not in errors
    complete = len(list(tmp_path.glob("i/parts/*/part.json")))
    assert 0 < complete < 40
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True, cwd=ROOT)
    report = json.loads(done.stdout)
    assert (report["documents"], report["parts_kept"]) == (6_000, complete)


def on_a_terminal(*arguments: str) -> tuple["subprocess.Popen[bytes]", int]:
    """Return a command whose standard input is a terminal that can interrupt it, and the other end of the terminal."""
    ours, theirs = os.openpty()
    code = f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); {ISOTROPE[-1]}"
    asked = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    return asked, ours


@pytest.mark.parametrize(
    ("backend", "questions"),
    [("numpy", 2), *(pytest.param("torch", number, marks=pytest.mark.check) for number in range(5))],
)
def test_ctrl_c_while_questions_are_typed_exits_with_130(backend: str, questions: int, index: Path) -> None:
    asked, keyboard = on_a_terminal("query", str(index), "-", "--json", "-k", "1", "--backend", backend)
    assert asked.stdout is not None
    for number in range(questions):
        os.write(keyboard, f"thing {number}\n".encode())
        assert json.loads(asked.stdout.readline())["query"] == f"thing {number}"
    if not questions:  # it says nothing before the first question: wait until it has loaded
        os.write(keyboard, b"\n")
        assert "error" in json.loads(asked.stdout.readline())
    os.write(keyboard, b"\x03")
    _, errors = asked.communicate(timeout=60)
    os.close(keyboard)
    assert asked.returncode == 130, errors.decode()
    assert errors.decode().splitlines()[-1].startswith("Interrupted.")
    assert b"Fatal Python error" not in errors


def test_ctrl_c_does_not_wait_for_what_is_being_loaded() -> None:
    code = """
import threading
from indexer.lazy_imports import LOADER
from search.cli import cli, main
def interrupted(standalone_mode):
    threading.Thread(target=threading.Event().wait, name=f"{LOADER}_0").start()
    print("an answer")
    raise KeyboardInterrupt
cli.main = interrupted
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert (done.returncode, done.stdout) == (130, "an answer\n")
    assert done.stderr.strip().startswith("Interrupted.")


@pytest.mark.check
def test_a_line_that_is_not_utf8_ends_the_run_after_the_answers_before_it(index: Path) -> None:
    command = [*ISOTROPE, "query", str(index), "-", "--json", "-k", "1"]
    lines = b"\xef\xbb\xbfthing 1\r\nthing 2\nna\xefve\nthing 4\n"
    done = subprocess.run(command, input=lines, capture_output=True, cwd=ROOT, check=False)
    assert [json.loads(line)["query"] for line in done.stdout.splitlines()] == ["thing 1", "thing 2"]
    assert done.returncode == 1
    assert "error: standard input:3: byte 3 of the line, 0xef, is not UTF-8" in done.stderr.decode()


def test_an_index_among_the_sources_is_not_read_as_corpus(corpus: Path, settings: list[str], tmp_path: Path) -> None:
    shutil.copy(corpus, tmp_path / "docs.jsonl")
    (tmp_path / "old.rejects.jsonl").write_text("{}\n")
    for _ in range(2):
        done = isotrope("build", tmp_path, tmp_path / "index", *settings, "--json")
        assert (done.returncode, json.loads(done.stdout)["documents"]) == (0, 9)
    assert "2 files or folders that are not corpora were skipped" in done.stderr
    for number in range(5):
        (tmp_path / f"photo{number}.jpg").touch()
    done = isotrope("build", tmp_path, tmp_path / "index", *settings)
    assert re.search(r"7 files or folders .* skipped: .*photo2\.jpg and 2 more", done.stderr)


def test_the_rejects_file_may_not_be_the_corpus(corpus: Path, settings: list[str], tmp_path: Path) -> None:
    before = corpus.read_bytes()
    done = isotrope("build", corpus, tmp_path / "i", *settings, "--on-error", "skip", "--rejects", corpus)
    assert (done.returncode, corpus.read_bytes() == before) == (1, True)
    assert "is part of the corpus" in done.stderr


def test_a_corpus_of_bad_rows_only_says_so(settings: list[str], tmp_path: Path) -> None:
    (tmp_path / "docs.jsonl").write_text('{"id": "a", "text": null}\n')
    done = isotrope("build", tmp_path / "docs.jsonl", tmp_path / "i", *settings, "--on-error", "skip")
    assert (done.returncode, "all rows were left out (1 text)" in done.stderr) == (1, True)


def test_settings_that_name_no_column_are_said(corpus: Path, settings: list[str], tmp_path: Path) -> None:
    done = isotrope("build", corpus, tmp_path / "i", *settings, "--drop-column", "yaer")
    assert (done.returncode, 'no row has a column "yaer"' in done.stderr) == (0, True)


def test_text_cannot_steer_the_terminal_and_dates_are_iso(settings: list[str], tmp_path: Path) -> None:
    row = {"id": "a\x1b[2J", "title": "\x1b]0;owned\x07", "text": "red \x1b[31m", "day": "2020-01-02"}
    (tmp_path / "docs.jsonl").write_text(json.dumps(row) + "\n")
    assert isotrope("build", tmp_path / "docs.jsonl", tmp_path / "i", *settings, "--column", "day:date").returncode == 0
    shown = isotrope("query", tmp_path / "i", "\x1b[5m red").stdout
    assert "\x1b" not in shown
    assert "\\x1b[2J" in shown
    hit = json.loads(isotrope("query", tmp_path / "i", "red", "--json").stdout)["hits"][0]
    assert (hit["id"], hit["metadata"]) == (row["id"], {"day": "2020-01-02"})


@pytest.mark.check
def test_somebody_who_types_gets_an_answer_before_the_next_question(index: Path) -> None:
    command = [*ISOTROPE, "query", str(index), "-", "--json", "-k", "1"]
    asked = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, bufsize=1)
    assert asked.stdin is not None
    assert asked.stdout is not None
    for question in ("thing 1", "thing 2"):
        asked.stdin.write(f"{question}\n")
        assert json.loads(asked.stdout.readline())["query"] == question
    asked.communicate("")
    assert asked.returncode == 0


@pytest.mark.check
def test_output_that_cannot_be_written_is_one_line(index: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*ISOTROPE, "query", str(index), "thing", "--json"],
            stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False,
        )  # fmt: skip
    assert (done.returncode, "Traceback" in done.stderr, "No space left" in done.stderr) == (1, False, True)


class PanicException(BaseException):
    """The exception of a library in Rust that panics."""


@pytest.mark.parametrize(
    ("error", "shown"),
    [(KeyError("a\nfault"), r"KeyError: 'a\nfault'"), (PanicException("a\nfault."), "PanicException: a fault")],
)
def test_what_nobody_foresaw_is_one_line_and_a_traceback_on_request(
    error: BaseException, shown: str, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from search.engine import SearchEngine

    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(SearchEngine, "search_many", broken)
    monkeypatch.delenv("ISOTROPE_TRACEBACK", raising=False)
    done = isotrope("query", index, "thing")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith(f"error: unexpected ({shown}). This is a bug in isotrope; ")
    assert "ISOTROPE_TRACEBACK=1" in done.stderr
    monkeypatch.setenv("ISOTROPE_TRACEBACK", "1")
    done = isotrope("query", index, "thing")
    assert (done.returncode, "Traceback" in done.stderr, "in broken" in done.stderr) == (1, True, True)
    assert done.stderr.splitlines()[-1].startswith("error: unexpected (")


@pytest.mark.check
def test_a_cache_that_cannot_be_written_is_a_note_told_once(corpus: Path, settings: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    away = {"ISOTROPE_CACHE": str(tmp_path / "file")}
    for workers in ("1", "2"):
        command = [*ISOTROPE, "build", str(corpus), str(tmp_path / workers), *settings, "--backend", "numpy"]
        done = subprocess.run(
            [*command, "--workers", workers],
            env=os.environ | away, capture_output=True, text=True, cwd=ROOT, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        told = [line for line in done.stderr.splitlines() if "ISOTROPE_CACHE" in line]
        assert told[0].startswith(f"note: the cache {tmp_path / 'file'} cannot be written (")
        assert 1 <= len(told) <= 3 if workers == "2" else len(told) == 1  # once a process
        assert "Warning" not in done.stderr
        assert ".py" not in done.stderr


@pytest.mark.check
@pytest.mark.parametrize("arguments", [["build", "-", "{tmp}/i", "--format", "text"], ["query", "{index}", "-"]])
def test_a_closed_standard_input_is_no_traceback(
    arguments: list[str], index: Path, settings: list[str], tmp_path: Path
) -> None:
    words = [word.format(index=index, tmp=tmp_path) for word in arguments] + (settings if "build" in arguments else [])
    call = " ".join(["exec", shlex.quote(sys.executable), "-c", shlex.quote(ISOTROPE[-1]), *map(shlex.quote, words)])
    done = subprocess.run(["bash", "-c", f"{call} <&-"], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
