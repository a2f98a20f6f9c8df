"""The structure of source code, with grammars and without."""

import sys
import typing
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.corpus.files.markup import FILE_KINDS
from indexer.corpus.files.outline_code import DEFINITION, LINE, MEMBER, definitions_of, outline_code
from indexer.corpus.files.structure import Outline

LANGUAGES = sorted({kind.language for kind in FILE_KINDS.values() if kind.language})

PYTHON = '''"""A module."""
import os

# How cold it is.
# In degrees.
@dataclass(frozen=True)
class Ice:
    """Frozen water."""

    def melt(self, degrees: float) -> "Water":
        return Water(degrees)

    melted = melt

    async def crack(self): ...

LIMIT = 3

def größe():
    def inner(): pass
    return inner
'''
SNIPPETS = {
    "javascript": (
        "/** Doc. */\nexport class A {\n  f(x) { return 1 }\n}\nconst g = (x) => { return x }\n",
        ["export class A", "f", "const g"],
    ),
    "typescript": (
        "interface I { m(): void }\n@Dec()\nexport abstract class B<T> {\n  f(): T { return 1 }\n}\n",
        ["interface I", "abstract class B", "f"],
    ),
    "c": (
        "/* c */\nstatic char *f(int a) { return a; }\nstruct s { int x; };\nint g(void);\n#define M(x) x\n",
        ["static char *f", "struct s", "int g(void);", "#define M"],
    ),
    "cpp": (
        "namespace n {\nclass A { void f() {} };\n// t\ntemplate<class T>\nT g(T x) { return x; }\n}\nint A::h() {}\n",
        ["namespace n", "class A", "void f", "T g", "int A::h"],
    ),
    "go": (
        "package p\n// doc\nfunc f(a int) int { return 1 }\nfunc (s *S) M() {}\ntype S struct { x int }\n",
        ["func f", "func (s *S) M", "type S"],
    ),
    "rust": (
        "// a\n#[derive(X)]\npub struct S { x: i32 }\nimpl T for S {\n  fn f(&self) {}\n}\n",
        ["pub struct S", "impl T for S", "fn f"],
    ),
    "java": (
        "/** d */\npublic class A {\n  public A() {}\n  int f() { return 1; }\n}\n",
        ["public class A", "public A", "int f"],
    ),
    "bash": ("# c\nf() { echo; }\nfunction g { echo; }\n", ["f", "function g"]),
}


def titles(outline: Outline) -> list[str]:
    return [heading.title for heading in outline.headings]


def needs(language: str) -> None:
    module = pytest.importorskip("indexer.corpus.files.outline_code")
    if module._grammar(language) is None:
        pytest.skip(f"the grammar of {language} is not installed")


def test_definitions_of_python_are_headings_by_their_nesting() -> None:
    needs("python")
    outline = outline_code(PYTHON, "python")
    assert [(heading.level, heading.title) for heading in outline.headings] == [
        (1, "class Ice"), (2, "def melt"), (1, "class Ice"), (2, "async def crack"), (1, "LIMIT = 3"), (1, "def größe"),
        (2, "def inner"), (1, "def größe"),
    ]  # fmt: skip
    assert outline.path(PYTHON.index("import os")) == ()
    assert outline.path(PYTHON.index("return Water")) == ("class Ice", "def melt")
    assert outline.path(PYTHON.index("melted")) == ("class Ice",)  # code after a method belongs to the class
    assert outline.path(PYTHON.index("3\n")) == ("LIMIT = 3",)


def test_comments_and_decorators_belong_to_the_definition_below_them() -> None:
    needs("python")
    outline = outline_code(PYTHON, "python")
    assert outline.headings[0].start == PYTHON.index("# How cold")
    ranks = {each.at: each.rank for each in outline.breaks}
    assert ranks[PYTHON.index("# How cold")] == DEFINITION
    assert ranks[PYTHON.index("    def melt")] == MEMBER
    assert ranks[PYTHON.index("# In degrees")] == LINE
    code = "x = 1  # of x\ndef f(): pass\n"
    assert outline_code(code, "python").headings[0].start == code.index("def")


@pytest.mark.parametrize("language", sorted(SNIPPETS))
def test_each_language_has_its_definitions(language: str) -> None:
    needs(language)
    text, expected = SNIPPETS[language]
    outline = outline_code(text, language)
    assert titles(outline) == expected
    starts = {heading.title: heading.start for heading in outline.headings}
    comment = {"go": "// doc", "cpp": "// t", "typescript": "@Dec"}.get(language)
    owner = {"go": "func f", "cpp": "T g", "typescript": "abstract class B"}.get(language, expected[0])
    assert starts[owner] == (text.index(comment) if comment else 0)


def test_names_are_the_last_word_of_a_title() -> None:
    needs("cpp")
    assert [each.name for each in definitions_of(SNIPPETS["cpp"][0], "cpp")] == ["n", "A", "f", "g", "h"]


def test_code_without_a_grammar_ends_windows_at_unindented_lines() -> None:
    text = "func f() {\n  a()\n\n  b()\n}\n\nfunc g() {\n}\n"
    outline = outline_code(text, "swift")
    assert outline.headings == ()
    assert [(text[each.at : each.at + 6], each.rank) for each in outline.breaks if each.rank < LINE] == [
        ("  b()\n", 2), ("func g", 0),
    ]  # fmt: skip


def test_without_the_extra_code_is_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    from indexer.corpus.files import outline_code as module

    monkeypatch.setitem(sys.modules, "tree_sitter", None)
    module._grammar.cache_clear()
    try:
        assert outline_code(PYTHON, "python").headings == ()
    finally:
        module._grammar.cache_clear()


PIECES = ("def f():", "class A", "{", "}", "(", ")", "\n", "\n\n", "  ", "\t", "#", "/*", "*/", '"', "'''", "@d", "é")
ODD = ("\ud800", "\0", "\r", "\f", "=>", "export ", "const x = ", ";", "a")
CODE = st.lists(st.sampled_from([*PIECES, *ODD])).map("".join)


@given(language=st.sampled_from([*LANGUAGES, "none"]), text=st.one_of(st.text(), CODE))
def test_any_text_has_an_outline(language: str, text: str) -> None:
    outline = outline_code(text, language)
    assert all(0 < each.at < len(text) for each in outline.breaks)
    assert all(first.at < second.at for first, second in pairwise(outline.breaks))
    assert all(first.start <= second.start for first, second in pairwise(outline.headings))
    assert all(0 <= heading.start < len(text) and heading.level > 0 for heading in outline.headings)
    assert outline == outline_code(text, language)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    "pattern", ["(", "{", "[", "a<", "a(", "/*", 'f"{', "def f(", "function f(){", "\0", "\n", "é("]
)
def test_the_work_for_hostile_code_is_limited(language: str, pattern: str) -> None:
    for text in (pattern * 50_000, f"{pattern}\n" * 1000):
        assert outline_code(text, language).breaks == outline_code(text, language).breaks


def test_threads_parse_at_once() -> None:
    needs("javascript")
    texts = [f"function f{n}() {{ return {n} }}\n" * n for n in range(40)]
    expected = [definitions_of(text, "javascript") for text in texts]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads change within the calls of a parser
    try:
        with ThreadPoolExecutor(4) as threads:
            runs = list(threads.map(lambda _: [definitions_of(text, "javascript") for text in texts], range(8)))
    finally:
        sys.setswitchinterval(before)
    assert runs == [expected] * 8


def test_parsed_texts_do_not_stay_in_memory() -> None:
    needs("python")
    text, process = f"def long():\n{'    pass' * 4}\n" * 10_000, psutil.Process()
    definitions_of(text, "python")
    before = process.memory_info().rss
    for number in range(20):
        definitions_of(f"{text}# {number}", "python")
    assert process.memory_info().rss < before + 10 * len(text)  # 20 without the reused buffer


def test_a_module_of_the_standard_library_has_all_its_functions() -> None:
    needs("python")
    import ast

    text = Path(typing.__file__).read_text(encoding="utf-8")
    kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    expected = sorted(node.name for node in ast.walk(ast.parse(text)) if isinstance(node, kinds))
    assert sorted(each.name for each in definitions_of(text, "python")) == expected
