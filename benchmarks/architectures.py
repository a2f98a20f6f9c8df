"""Each family of models against sentence-transformers: the largest difference in float32, and the speed in turns.

    python -m benchmarks.architectures [--texts 200] [--rounds 3] [-o benchmarks/results/architectures.json]

The models are random: 6 blocks of width 384, with the tokenizers of the tests, which know few words, so texts are long
in tokens. Speed is a ratio, texts a second of Isotrope by those of `SentenceTransformer.encode_document` in float32,
with the same threads; "default" is the default recipe's class, bfloat16.
"""

import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import click
import numpy as np

from benchmarks.interleaved import machine, run_in_turns, save
from indexer.encoders.load import load_encoder
from indexer.models.hub import quiet_transformers
from indexer.recipe.config import EncoderConfig, Role
from indexer.recipe.run_options import RunOptions
from search.cli.output import print_table
from tests.model_families import FAMILIES, save_family, scaled
from tests.tiny_models import make_tiny_model

_SIZE, _LENGTH = 384, 128
_WORDS = ["the", "whale", "song", "of", "and", "in", "to", "library", "for", "data", "deep", "sea"]
_SETTINGS: dict[str, Any] = {
    "hidden_size": _SIZE, "intermediate_size": 1536, "num_hidden_layers": 6, "num_attention_heads": 12,
    "num_key_value_heads": 4, "head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 64, "local_attention": 64,
    "layer_types": ["sliding_attention", "full_attention"] * 3, "d_model": _SIZE, "d_kv": 32, "d_ff": 1536,
    "num_layers": 6, "num_heads": 12, "n_embd": _SIZE, "n_layer": 6, "n_head": 12,
}  # fmt: skip


@click.command()
@click.option("--texts", type=int, default=200, show_default=True)
@click.option("--rounds", type=int, default=3, show_default=True)
@click.option("--threads", type=int, default=2, show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path))
def main(texts: int, rounds: int, threads: int, output: Path | None) -> None:
    """Compare every family of models with sentence-transformers."""
    random = np.random.default_rng(0)
    drawn = [" ".join(random.choice(_WORDS, random.integers(3, 30))) for _ in range(texts)]
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for name in FAMILIES:
            results.append(measure(name, Path(folder), drawn, rounds, threads))
            click.echo(str(results[-1]), err=True)
    about = machine(threads, ("sentence-transformers", "openvino"))
    columns = list(results[0])
    print_table(columns, [[str(row[column]) for column in columns] for row in results])
    click.echo(f"{about['processor']}, {threads} threads, {about['date']}, {about['versions']}")
    if output:
        save(output, {"machine": about, "command": sys.argv[1:], "results": results})


def measure(name: str, folder: Path, texts: Sequence[str], rounds: int, threads: int) -> dict[str, Any]:
    """Return the figures of a family."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    family = FAMILIES[name]
    source = make_tiny_model(family.architecture, folder / f"{name}-source", **_SETTINGS)
    save_family(family, source, folder / name, _SIZE, _LENGTH)
    with quiet_transformers():
        peer = SentenceTransformer(str(folder / name), device="cpu", local_files_only=True)
    ours = {
        precision: load_encoder(
            EncoderConfig(model=str(folder / name), precision=precision), RunOptions(device="cpu", threads=threads)
        )
        for precision in ("float32", "bfloat16")
    }
    difference = 0.0
    for role in get_args(Role):
        encode = peer.encode_query if role == "query" else peer.encode_document
        want = np.asarray(encode(list(texts[:50]), batch_size=1, show_progress_bar=False))
        rows = scaled(family, ours["float32"].encode(texts[:50], role))
        difference = max(difference, float(np.abs(rows - want).max() / max(1.0, np.abs(want).max())))
    theirs = partial(peer.encode_document, list(texts), show_progress_bar=False)
    timed = run_in_turns(
        {
            "sentence-transformers": theirs,
            **{key: partial(encoder.encode, texts, "document") for key, encoder in ours.items()},
        },
        rounds,
    )
    base = timed["sentence-transformers"].median
    return {
        "family": name,
        "architecture": family.architecture,
        "pooling": family.pooling,
        "backend": ours["float32"].backend.partition(",")[0],
        "largest difference": f"{difference:.1e}",
        "float32": round(base / timed["float32"].median, 2),
        "default": round(base / timed["bfloat16"].median, 2),
    }


if __name__ == "__main__":
    main()
