"""Ignore files have git's rules: git itself is the oracle."""

import os
import shutil
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from indexer.corpus.files.folder import find_documents
from indexer.errors import CorpusError
from tests.indexer.corpus.corpus_files import write

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is the oracle")
NAMES = st.sampled_from(["a", "b", "ab", "c d", "#x", "!y", "[z]"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
PIECES = st.sampled_from(["a", "b", "ab", "*", "**", "?", "a*", "*.md", "[ab]", "[!a]", "\\#x", "\\!y", "\\[z]", ""])
LINES = st.builds(
    lambda sign, pieces, end: f"{sign}{'/'.join(pieces)}{end}",
    st.sampled_from(["", "", "!", "/", "!/", "#"]),
    st.lists(PIECES, min_size=1, max_size=3),
    st.sampled_from(["", "", "/", " ", "\\ ", "\r"]),
)
RULES = st.dictionaries(st.one_of(st.just(""), PATHS), st.lists(LINES, min_size=1, max_size=4), min_size=1, max_size=3)


def lay_out(folder: Path, paths: list[str], rules: dict[str, list[str]], name: str = ".gitignore") -> None:
    """Write files, each as its path with ".md" at the end, and ignore files into those of the folders that exist."""
    for path in paths:
        write(folder, f"{path}.md", "x")
    for place, lines in rules.items():
        if (folder / place).is_dir():
            write(folder, f"{place}/{name}" if place else name, "\n".join(lines))


def found(folder: Path) -> set[str]:
    try:
        return {file.label for file in find_documents([folder])[0]}
    except CorpusError:
        return set()  # a source without documents


def kept_by_git(folder: Path) -> set[str]:
    git = ["git", "-c", "core.excludesFile=/dev/null", "-C", str(folder)]
    subprocess.run([*git, "init", "-q"], check=True, env=os.environ | {"GIT_CONFIG_GLOBAL": "/dev/null"})
    listed = [*git, "ls-files", "-z", "--others", "--exclude-standard"]
    names = subprocess.run(listed, check=True, capture_output=True).stdout.decode().split("\0")
    return {name for name in names if name.endswith(".md")}


@needs_git
@settings(max_examples=60, deadline=None)
@given(st.lists(PATHS, min_size=1, max_size=8), RULES)
@example(["a/b/x", "a/x"], {"": ["a/**", "!a/b/"], "a": ["!x.md"]})
@example(["a/b/x"], {"": ["*.md"], "a": ["!b/"]})
@example(["a/b/x", "b/x"], {"": ["**/", "!a/", "!b"], "a": ["!b/"]})
@example(["a/b", "c"], {"": ["*", "!*/", "!b.md"]})
def test_the_files_are_those_that_git_does_not_ignore(paths: list[str], rules: dict[str, list[str]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lay_out(folder, paths, rules)
        assert found(folder) == kept_by_git(folder)


@settings(max_examples=20, deadline=None)
@given(st.lists(PATHS, min_size=1, max_size=8), RULES)
def test_both_ignore_files_have_the_same_rules(paths: list[str], rules: dict[str, list[str]]) -> None:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        lay_out(Path(one), paths, rules)
        lay_out(Path(other), paths, rules, ".isotropeignore")
        assert found(Path(one)) == found(Path(other))


def test_isotropeignore_decides_before_gitignore_of_any_level(tmp_path: Path) -> None:
    lay_out(tmp_path, ["build/api", "build/x", "docs/a", "docs/b"], {"": ["build/"], "docs": ["!a.md", "b.md"]})
    write(tmp_path, ".isotropeignore", "!build/\nbuild/x.md\na.md\n")
    files, left_out = find_documents([tmp_path])
    assert [file.label for file in files] == ["build/api.md"]
    ignored = {"ignored by .isotropeignore": 2, "ignored by .gitignore": 1}
    assert left_out.reasons == Counter({"hidden": 3} | ignored)


def test_ignore_files_above_the_source_and_behind_links_are_not_read(tmp_path: Path) -> None:
    write(tmp_path, ".gitignore", "*.md\n")
    write(tmp_path, "docs/a.md", "x")
    write(tmp_path, "docs/sub/b.md", "x")
    (tmp_path / "docs/sub/.gitignore").symlink_to(tmp_path / ".gitignore")
    assert found(tmp_path / "docs") == {"a.md", "sub/b.md"}
    assert found(tmp_path) == set()
