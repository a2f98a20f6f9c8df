"""Comparison of a static table with a transformer and with its peers: documents a second, including tokenising.

    python -m benchmarks.static TABLE CORPUS [--texts 5000] [--transformer-texts 300] [--rounds 5] [-o FILE]

TABLE is a model2vec folder. The encoders take turns in one process, and medians are compared; the transformer gets the
first of the same texts. Rows of Isotrope and the peers are compared after normalisation. Isotrope caches words: the
first row of the table has an empty cache at the start of each run, the second a cache with all words, which is close to
the state in the middle of a large corpus.
"""

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from benchmarks.encode import documents
from benchmarks.interleaved import machine, run_in_turns, save
from indexer.encoders.load import load_encoder
from indexer.encoders.protocol import Encoder
from indexer.encoders.static.word_cache import remember_words
from indexer.recipe.config import EncoderConfig
from indexer.recipe.run_options import RunOptions
from search.cli.output import print_table

Rows = npt.NDArray[np.floating]
OURS, TRANSFORMER = "Isotrope, static", "Isotrope, all-MiniLM-L6-v2"
REMEMBERS = f"{OURS}, words met before"
_PEERS = ("model2vec", "sentence-transformers")


@click.command()
@click.argument("table", type=click.Path(path_type=Path))
@click.argument("corpus", nargs=-1, required=True)
@click.option("--texts", type=int, default=5000, show_default=True)
@click.option("--transformer-texts", type=int, default=300, show_default=True)
@click.option("--rounds", type=int, default=5, show_default=True)
@click.option("--threads", type=int, default=os.cpu_count() or 1, show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path))
def main(
    table: Path, corpus: tuple[str, ...], texts: int, transformer_texts: int, output: Path | None, **given: int
) -> None:
    """Compare a static table with its peers and with a transformer."""
    rounds, threads = given["rounds"], given["threads"]
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    drawn = documents(corpus, texts)
    static = load_encoder(EncoderConfig(kind="static", model=str(table)))
    ways: dict[str, Callable[[], Rows]] = {
        OURS: partial(_encode_uncached, static, drawn),
        REMEMBERS: partial(_encode, static, drawn),
        **peers(table, drawn),
    }
    slow = load_encoder(EncoderConfig(precision="float32"), RunOptions(threads=threads))
    ways[TRANSFORMER] = partial(_encode, slow, drawn[:transformer_texts])
    timed = run_in_turns(ways, rounds)
    counts = {name: transformer_texts if name == TRANSFORMER else len(drawn) for name in ways}
    rates = {name: counts[name] / run.median for name, run in timed.items()}
    results = [
        {
            "way": name,
            "texts": counts[name],
            "documents_per_second": rate,
            "times_transformer": rate / rates[TRANSFORMER],
            "least_cosine_to_ours": None
            if name in (OURS, REMEMBERS, TRANSFORMER)
            else cosine(timed[OURS], timed[name]),
        }
        for name, rate in rates.items()
    ]
    about = machine(threads, _PEERS) | {"transformer_backend": slow.backend}
    _show(results, about)
    if output:
        save(output, {"machine": about, "command": sys.argv[1:], "results": results})


def peers(table: Path, texts: Sequence[str]) -> dict[str, Callable[[], Rows]]:
    """Return the installed peers that encode with the same table."""
    ways: dict[str, Callable[[], Rows]] = {}
    try:
        from model2vec import StaticModel

        model = StaticModel.from_pretrained(str(table))
        ways["model2vec, encode"] = lambda: np.asarray(model.encode(list(texts), max_length=None))
    except ImportError:
        click.echo("model2vec is not installed. Install it: pip install model2vec", err=True)
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer

    rows = load_encoder(EncoderConfig(kind="static", model=str(table))).table.vectors  # type: ignore[attr-defined]
    module = StaticEmbedding(
        Tokenizer.from_file(str(table / "tokenizer.json")), embedding_weights=np.array(rows, np.float32)
    )
    other = SentenceTransformer(modules=[module], device="cpu")
    ways["sentence-transformers, StaticEmbedding"] = lambda: other.encode(list(texts), batch_size=1024)
    return ways


def cosine(ours: Any, theirs: Any) -> float:
    """Return the lowest cosine between two encoders' rows of a text, except rows of zeros."""
    first, second = (rows.result / np.linalg.norm(rows.result, axis=1, keepdims=True) for rows in (ours, theirs))
    return float(np.nanmin(np.einsum("nd,nd->n", first, second)))


def _encode_uncached(encoder: Any, texts: Sequence[str]) -> Rows:
    """Encode with an empty cache of words."""
    encoder.cached_tokenizer = remember_words(encoder.tokenizer)
    return _encode(encoder, texts)


def _encode(encoder: Encoder, texts: Sequence[str]) -> Rows:
    return encoder.encode(texts, "document")


def _show(results: Sequence[dict[str, Any]], about: dict[str, Any]) -> None:
    cells = [
        [
            row["way"],
            f"{row['documents_per_second']:,.0f}",
            f"{row['times_transformer']:,.0f}",
            "" if row["least_cosine_to_ours"] is None else f"{row['least_cosine_to_ours']:.4f}",
        ]
        for row in results
    ]
    print_table(["encoder", "documents/s", "x transformer", "lowest cosine to Isotrope"], cells)
    click.echo(f"{about['processor']}, {about['threads']} threads, {about['date']}, {about['versions']}")


if __name__ == "__main__":
    main()
