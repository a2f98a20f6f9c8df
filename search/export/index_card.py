"""The page (README.md) of an index on the Hugging Face hub.

`isotrope push` writes a section between two comments. Everything else on the page belongs to its owner and stays.
"""

from search.describe import describe_index, facts_in_words
from search.index import Index

CARD = "README.md"
_BEGIN = "<!-- isotrope push writes this section; changes to it are lost -->"
_END = "<!-- end of the section of isotrope push -->"
_SHOWN = ("documents", "model", "encoder", "prompts", "transform", "query mean", "hybrid", "index type", "recall",
          "other recall", "metadata", "truncated", "size", "fingerprint")  # fmt: skip
# The hub's viewer shows the documents; without this entry it would mix all Parquet files of the index.
_FRONT = """---
tags:
- isotrope
configs:
- config_name: documents
  data_files: parts/*/documents.parquet
---
"""


def with_section(page: bytes | None, index: Index, url: str) -> bytes | None:
    """Return the page with the section of an index; a new page without one, None for a page without a section."""
    if page is None:
        name = url.partition("@")[0].rpartition("/")[2]
        return f"{_FRONT}\n# {name}\n\n{_section(index, url)}\n".encode()
    try:
        before, begin, rest = page.decode().partition(_BEGIN)
    except UnicodeDecodeError:
        return None
    _, end, after = rest.partition(_END)
    return f"{before}{_section(index, url)}{after}".encode() if begin and end else None


def _section(index: Index, url: str) -> str:
    facts = describe_index(index)
    words = dict(facts_in_words(facts))
    rows = [f"| {name} | {_cell(words[name])} |" for name in _SHOWN if words.get(name)]
    published = f"| generation | {facts['generation']}, {facts['created']} |"
    return "\n".join(
        [
            _BEGIN,
            "A searchable index of whitened text embeddings, made by Isotrope.",
            "",
            "| | |",
            "|---|---|",
            *rows,
            published,
            "",
            "Download it and ask a question:",
            "",
            "```sh",
            f"isotrope pull {url} my-index",
            'isotrope query my-index "your question"',
            "```",
            "",
            "```python",
            "from indexer import pull_index",
            "from search import SearchEngine",
            "",
            f'pull_index("{url}", "my-index")',
            'for hit in SearchEngine("my-index").search("your question", k=5):',
            '    print(f"{hit.score:.3f}  {hit.id}  {hit.text[:80]}")',
            "```",
            _END,
        ]
    )


def _cell(text: str) -> str:
    """Return a text without characters that Markdown or HTML read as markup."""
    signs: dict[str, str | int | None] = {
        "&": "&amp;",
        "<": "&lt;",
        "|": "&#124;",
        "`": "&#96;",
        "*": "&#42;",
        "[": "&#91;",
    }
    return " ".join(text.split()).translate(str.maketrans(signs))
