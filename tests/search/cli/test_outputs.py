"""Files that commands write: checked before work begins, never over an input or an index, over others with --force.

The tables here contain every command that writes a file.
"""

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer import BuildConfig
from indexer.errors import ConfigError, ExistsError, IsotropeError, StoreError
from indexer.store.layout import is_index_folder
from indexer.system import output_files as module
from indexer.system.output_files import check_output, descriptor_of, is_stdout, is_stream, open_output
from search.cli import cli
from search.cli.demo_corpus import write_stdlib_corpus
from search.evaluation.result import Clock, write_result
from search.result_files import check_outputs, read_by
from tests.directories import snapshot
from tests.documents import DOCUMENTS
from tests.search.cli.test_cli import isotrope


def refused(call: str) -> IsotropeError:
    """Return the error of a command that must fail and change nothing in the current folder."""
    before = snapshot(Path())
    with pytest.raises(IsotropeError) as caught:
        cli.main(call.split(), standalone_mode=False)
    assert snapshot(Path()) == before, call
    return caught.value


TREC_RUN = "export index --to trec-run --queries"
READ = [
    "tune docs.jsonl --config recipe.toml -o docs.jsonl",
    "tune docs.jsonl --config recipe.toml -o link.jsonl",
    "tune docs.jsonl --config recipe.toml -o recipe.toml",
    "tune docs.jsonl --config recipe.toml -o q.txt",
    "tune index -o model/config.json",
    "tune index --beir beir -o beir/qrels/test.tsv",
    "report index --results r.json -o r.json",
    "report index -o model/tokenizer.json",
    "report index --duplicates pairs.tsv -o pairs.tsv",
    "evaluate recall index --queries q.txt -o q.txt",
    "evaluate recall index --queries q.txt -o ./model/../q.txt",
    "evaluate recall index -o model/config.json",
    "evaluate sts stsb.tsv -o stsb.tsv",
    "evaluate sts stsb.tsv -o hard.tsv",
    "evaluate sts stsb.tsv --fit corpus:docs.jsonl -o docs.jsonl",
    "evaluate methods stsb.tsv --method mean --corpus docs.jsonl -o docs.jsonl",
    "evaluate sts stsb.tsv --set encoder.model=model -o model/config.json",
    "evaluate layers stsb.tsv --plot hard.svg -o stsb.tsv",
    "evaluate rte dev.tsv -o dev.tsv",
    "evaluate rte dev.tsv --threshold-from train.tsv -o train.tsv",
    "evaluate words men.txt -o men.txt",
    "evaluate words men.txt --corpus docs.jsonl -o docs.jsonl",
    "evaluate retrieval beir -o beir/corpus.jsonl",
    "evaluate retrieval beir --per-query beir/qrels/test.tsv",
    "evaluate retrieval beir --run beir/queries.jsonl",
    "evaluate retrieval beir --index index --query-vectors v.npy -o v.ids.txt",
    "query index --queries q.txt -o q.txt",
    "query index whales -o model/config.json",
    f"{TREC_RUN} q.txt -o q.txt",
    f"{TREC_RUN} q.txt -o model/config.json",
    f"{TREC_RUN} beir -o beir/queries.jsonl",
    "dedup docs.jsonl --threshold 0.9 --kept link.jsonl",
    "dedup docs.jsonl --threshold 0.9 --config recipe.toml -o recipe.toml",
    "dedup index --threshold 0.9 --from-pairs pairs.tsv -o pairs.tsv",
    "build docs.jsonl new --on-error skip --rejects link.jsonl",
    "build docs.jsonl new --config recipe.toml --on-error skip --rejects q.txt",
    "add index bad.jsonl --on-error skip --rejects model/config.json",
    "add index docs.jsonl --on-error skip --rejects docs.jsonl",
]


@pytest.mark.parametrize("call", READ)
def test_no_output_overwrites_what_the_run_reads(call: str, place: Path) -> None:
    said = refused(f"{call} --force")
    assert isinstance(said, ConfigError)
    assert "is an input of this run" in str(said) or "is part of" in str(said)


WRITING = {
    "tune index -o {}": "one",
    "report index -o {}": "one",
    "evaluate recall index -o {}": "one",
    "evaluate sts stsb.tsv -o {}": "one",
    "evaluate layers stsb.tsv -o {}": "one",
    "evaluate rte dev.tsv -o {}": "one",
    "evaluate words men.txt -o {}": "one",
    "evaluate retrieval beir --index index -o {}": "one",
    "evaluate retrieval beir --index index --per-query {}": "one",
    "evaluate retrieval beir --index index --run {}": "one",
    "export index --to faiss -o {}": "two",
    "export index --to parquet -o {}": "one",
    f"{TREC_RUN} q.txt -o {{}}": "one",
    "dedup index --threshold 0.9 -o {}": "one",
    "dedup index --threshold 0.9 --kept {}": "one",
    "dedup index --threshold 0.9 --save-pairs {}": "one",
    "query index whales -o {}": "one",
    "inspect index -o {}": "one",
    "demo-corpus -o {}": "one",
}
REJECTS = ["build bad.jsonl new --on-error skip --rejects {}", "add index bad.jsonl --on-error skip --rejects {}"]
FOLDERS = [
    "export index --to sentence-transformers -o {}",
    "convert model -o {}",
    "train latte-mix docs.jsonl -o {}",
    "build docs.jsonl {}",
    "dedup docs.jsonl --threshold 0.9 --keep-index {}",
    "evaluate sts stsb.tsv --cache {}",
]


@pytest.mark.parametrize("call", [*WRITING, *REJECTS, *FOLDERS])
def test_nothing_is_written_inside_an_index(call: str, place: Path) -> None:
    """Neither over its files nor next to them, in the index that is read or in another, published or unfinished."""
    Path("link").symlink_to("other")
    for name in ("index/segments/0001-00.faiss", "other/manifests/00000001.json", "link/parts/00007", "begun/x/y"):
        if call in FOLDERS and Path(name).exists():
            continue
        force = " --force" if call not in FOLDERS else ""
        assert "is inside the index" in str(refused(call.format(name) + force))


def test_nothing_is_written_into_an_index_that_the_run_makes(place: Path) -> None:
    said = refused("build bad.jsonl new --on-error skip --rejects new/r.jsonl")
    assert "new, which this run creates" in str(said)
    said = refused("dedup docs.jsonl --threshold 1 --keep-index new -o new/d.parquet")
    assert "new, which this run creates" in str(said)
    assert not Path("new").exists()


@pytest.mark.parametrize("call", [*WRITING, *REJECTS])
def test_a_file_that_is_there_is_overwritten_only_by_force(call: str, place: Path) -> None:
    said = refused(call.format("mine.txt"))
    if "--kept" in call:
        said = refused(call.format("r.json"))
    assert isinstance(said, ExistsError)
    assert "already exists. Fix: choose another file, or pass --force to overwrite it" in str(said)


def test_the_ids_beside_a_faiss_file_are_an_output_too(place: Path) -> None:
    Path("out.ids.parquet").write_text("mine")
    assert "out.ids.parquet already exists" in str(refused("export index --to faiss -o out"))
    cli.main(["export", "index", "--to", "faiss", "-o", "out", "--force"], standalone_mode=False)
    assert Path("out.ids.parquet").read_bytes()[:4] == b"PAR1"


def test_two_options_need_two_files(place: Path) -> None:
    Path("one").symlink_to("two.parquet")
    for first, second in (("one", "two.parquet"), ("two.parquet", "x/../two.parquet"), ("-", "/dev/stdout")):
        call = f"dedup index --threshold 0.9 -o {first} --save-pairs {second}"
        assert "name the same file" in str(refused(call)) or "expected a file" in str(refused(call))
    Path("runs").mkdir()
    said = refused("evaluate retrieval beir --index index --run runs -o runs/BM25.run")
    assert "--run (BM25) and -o name the same file" in str(said)
    both = {"-o": Path("-"), "--kept": Path("/dev/fd/1")}
    with pytest.raises(ConfigError, match="-o and --kept name the same file"):
        check_outputs(both)
    check_outputs(dict.fromkeys(both, Path(os.devnull)))


def test_an_index_is_known_by_what_only_an_index_has(place: Path) -> None:
    """A user's folder named manifests is not an index."""
    Path("deploy/manifests").mkdir(parents=True)
    Path("deploy/manifests/service.yaml").touch()
    assert [is_index_folder(Path(name)) for name in ("index", "begun", "deploy", "beir")] == [True, True, False, False]
    check_output(Path("deploy/result.json"))
    check_output(Path("deploy/manifests/result.json"))


@given(st.lists(st.sampled_from(["a", "b/c", "b", "d.json"]), max_size=3), st.sampled_from(["a", "b/c", "d.json", "e"]))
def test_an_output_is_refused_exactly_where_it_is_read(tmp_path_factory: pytest.TempPathFactory, reads: list[str],
                                                       written: str) -> None:  # fmt: skip
    root = tmp_path_factory.mktemp("law")
    for name in ("a", "b/c", "d.json"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).touch()
    law = any(written == read or written.startswith(f"{read}/") for read in reads)
    try:
        check_outputs({"-o": root / written}, read_by(*(root / read for read in reads)), force=True)
    except ConfigError:
        assert law
    else:
        assert not law


def test_what_is_read_may_be_a_glob_or_no_file_at_all(place: Path) -> None:
    assert sorted(read_by("*.jsonl", "-", None, "mteb/stsb", "v.npy", "new/*.tsv")) == [
        Path("bad.jsonl"), Path("docs.jsonl"), Path("link.jsonl"), Path("v.ids.txt"), Path("v.npy")
    ]  # fmt: skip


# Streams


def test_a_pipe_is_written_to_and_stays(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo("pipe")
    Path("to-pipe").symlink_to("pipe")
    monkeypatch.setattr("search.cli.demo_corpus.stdlib_documents", lambda: iter([{"id": "a"}, {"id": "b"}]))
    for name in ("pipe", "to-pipe"):
        with subprocess.Popen(["cat", "pipe"], stdout=subprocess.PIPE, text=True) as reader:
            assert write_stdlib_corpus(name) == 2
            assert reader.communicate()[0] == '{"id": "a"}\n{"id": "b"}\n'
    with subprocess.Popen(["cat", "pipe"], stdout=subprocess.PIPE, text=True) as reader:
        write_result(Path("pipe"), {"a": 1})
        assert json.loads(reader.communicate()[0]) == {"a": 1}
    assert stat.S_ISFIFO(os.stat("pipe").st_mode)


def test_a_pipe_that_nobody_reads_is_an_error_and_no_hang(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo("pipe")
    monkeypatch.setattr(module, "READER_SECONDS", 0.0)
    with pytest.raises(StoreError, match="pipe: cannot be written: the pipe has no reader; start the reader first"):
        write_result(Path("pipe"), {})


def test_devices_are_never_replaced(place: Path) -> None:
    write_result(Path(os.devnull), {"a": 1})
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
    with pytest.raises(StoreError, match="/dev/full: cannot be written: No space left"):
        write_result(Path("/dev/full"), {})
    for call in ("export index --to faiss -o {}", "dedup index --threshold 0.9 --save-pairs {}"):
        assert "is a stream (a pipe, a device); expected a file" in str(refused(call.format(os.devnull)))
    for call in FOLDERS[:3]:
        assert isinstance(refused(call.format(os.devnull)), ExistsError)
        assert "is standard output; expected a folder" in str(refused(call.format("-")))
    done = isotrope("add", "index", "docs.jsonl", "bad.jsonl", "--on-error", "skip", "--rejects", os.devnull)
    assert (done.returncode, stat.S_ISCHR(os.stat(os.devnull).st_mode)) == (0, True)


def test_a_socket_is_no_output(place: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        with pytest.raises(ConfigError, match="is a socket or a block device; expected a file"):
            check_output(Path("socket"), force=True)


def test_standard_output_has_no_place(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("index")
    check_output(Path("-"))
    with pytest.raises(ConfigError, match="is inside the index"):
        check_output(Path("x"))


def test_names_of_open_files_are_those_files(place: Path) -> None:
    names = {
        "-": 1,
        "/dev/stdout": 1,
        "/dev/stderr": 2,
        "/dev/fd/7": 7,
        f"/proc/{os.getpid()}/fd/9": 9,
        "mine.txt": None,
    }
    assert {name: descriptor_of(Path(name)) for name in names} == names
    Path("out").symlink_to("/dev/stdout")
    Path("circle").symlink_to("circle")
    assert (descriptor_of(Path("out")), descriptor_of(Path("circle"))) == (1, None)
    assert [is_stdout(Path(name)) for name in ("-", "out", "/dev/null", "mine.txt")] == [True, True, False, False]
    assert [is_stream(Path(name)) for name in ("-", "/dev/null", "mine.txt", "nothing")] == [True, True, False, False]
    with open("mine.txt", "a") as file, open_output(Path(f"/dev/fd/{file.fileno()}")) as output:
        output.write(b" and more")
    assert Path("mine.txt").read_text() == "mine and more"
    with open("mine.txt") as file, pytest.raises(ConfigError, match="is not open for writing"):
        check_output(Path(f"/dev/fd/{file.fileno()}"))
    with pytest.raises(ConfigError, match="is not open for writing"):
        check_output(Path("/dev/fd/987"))


STREAMED = [
    "evaluate recall index -k 3 --quiet -o {}",
    "tune many.jsonl --config recipe.toml --sample 50 --quiet --cache cache -o {}",
    f"{TREC_RUN} q.txt -k 2 --json -o {{}}",
    "build docs.jsonl bad.jsonl new --config recipe.toml --quiet --on-error skip --rejects {}",
    "report index --quiet -o {}",
    "query index --queries q.txt --quiet -o {}",
    "dedup index --threshold 0.9 --quiet --kept {}",
]


@pytest.mark.check
@pytest.mark.parametrize("call", STREAMED)
def test_a_result_on_standard_output_stands_there_alone(call: str, place: Path) -> None:
    """Into a pipe or a file, under each of its names; all other output goes to standard error."""
    lines = [
        {"_id": str(number), "text": f"the boat {number} sails home in {number * 37} days"} for number in range(60)
    ]
    Path("many.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    piped = run(call.format("/dev/stdout"), subprocess.PIPE)
    alone(call, piped.stdout)
    shutil.rmtree("new", ignore_errors=True)
    with open("redirected", "w") as file:
        file.write("before\n")
        file.flush()
        run(call.format("-"), file)
    before, written = Path("redirected").read_text().split("\n", 1)
    assert before == "before"
    alone(call, written)


def run(call: str, stdout: Any) -> subprocess.CompletedProcess[str]:
    """A separate process, with its own standard output."""
    script = "from search.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, *call.split()], stdout=stdout, stderr=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, bool(done.stderr)) == (0, True), done.stderr
    return done


def alone(call: str, written: str) -> None:
    lines = written.splitlines()
    if "recall" in call:
        assert json.loads(written)["results"]
    elif "tune" in call:
        import tomllib

        assert tomllib.loads(written)["whitening"]
    elif "trec-run" in call:
        assert [line.split()[1] for line in lines] == ["Q0"] * 4
    elif "query" in call:
        assert [json.loads(line)["query"] for line in lines] == ["whales", "bread"]
    elif "report" in call:
        assert (written[:15].lower(), written.rstrip()[-7:]) == ("<!doctype html>", "</html>")
    else:
        assert all(isinstance(json.loads(line), dict) for line in lines)
        assert len(lines) == (1 if "--rejects" in call else len(DOCUMENTS))


@pytest.mark.check
def test_a_reader_that_leaves_ends_the_run_quietly(place: Path) -> None:
    script = "from search.cli import main; main()"
    call = ["evaluate", "recall", "index", "-k", "3", "--quiet", "-o", "/dev/stdout"]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-c", script, *call], stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_converted_model_is_a_new_folder(place: Path, tiny_model: Callable[[str], Path]) -> None:
    assert "already exists; expected the name of a new folder" in str(refused("convert model -o beir"))


def test_a_command_line_that_is_no_text_is_told_on_one_line_of_text() -> None:
    """File names may contain any bytes but NUL and "/"; notes of recipes and JSON may not."""
    told = Clock().provenance(None, {"a\nb\udcff": "f" * 64}, "isotrope tune 'x\n[corpus]' -o \udcff é")
    assert told["command"] == "isotrope tune 'x\\n[corpus]' -o \\udcff é"
    assert list(told["data"]) == ["a\\nb\\udcff"]
    for section in (
        {"encoder": {"model": "m\udcff"}},
        {"corpus": {"drop": ["a", "\udc80"]}},
        {"corpus": {"columns": {"\udc80": "int"}}},
    ):
        with pytest.raises(ConfigError, match="which is not UTF-8"):
            BuildConfig.from_dict(section)
