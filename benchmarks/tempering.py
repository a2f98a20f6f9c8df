"""The strength in closed form (Spectral Tempering) beside strengths that are tried, for fewer and fewer dimensions.

    python -m benchmarks.tempering --of INDEX FOLDER [--of INDEX FOLDER ...] [-o FILE]

FOLDER is a judged collection in BEIR's layout; INDEX was built from it. nDCG@10 of the judged queries by vectors alone,
centred as the recipe has it.
"""

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from benchmarks.interleaved import machine, save
from benchmarks.judged import encoder_name, judged_options
from search.cli.output import print_table
from search.evaluation.settings import Setting, Strength
from search.evaluation.target import Target
from search.evaluation.tune.judged import QrelsJudge
from search.evaluation.tune.tempering import tempered

STRENGTHS = (0.0, 0.125, 0.25, 0.375, 0.5, 0.75, 1.0)
SHARES = ("1", "3/4", "1/2", "1/3", "1/4", "1/6", "1/8")  # of the dimensions there are


def rows_of(index: Path, folder: Path) -> Iterator[dict[str, Any]]:
    """A row for each number of dimensions: nDCG@10 x 100 by strength, and of the one in closed form."""
    target = Target.of_index(index)
    judge = QrelsJudge(target, folder)
    judge.prepare([target.own])
    moments = judge.moments(target.own.key)
    (whole,) = judge.measure([_with(target.own, 0.0, 0)])
    about = {"collection": folder.resolve().name, "encoder": encoder_name(target.config)}
    for share in SHARES:
        dim = 0 if share == "1" else round(Fraction(share) * whole.dim / 8) * 8
        tried = [_with(target.own, strength, dim) for strength in STRENGTHS]
        formula = [_with(target.own, one.whitening.strength, dim) for one in tempered(target.own, moments, dim)]
        values = [100 * one.score for one in judge.measure([*tried, *formula])]
        found = {"strength": formula[0].whitening.strength, "nDCG@10": values.pop()} if formula else None
        by_strength = dict(zip(map(str, STRENGTHS), values, strict=True))
        yield about | {"way": share, "dimensions": dim or whole.dim, "strengths": by_strength, "closed form": found}


def _with(own: Setting, strength: Strength, dim: int) -> Setting:
    whitening = dataclasses.replace(own.whitening, strength=strength, dim=dim, shrinkage=0.0)
    return dataclasses.replace(own, whitening=whitening)


@click.command()
@judged_options
def main(judged: Sequence[tuple[Path, Path]], output: Path | None) -> None:
    """The strength in closed form beside strengths that are tried."""
    results = []
    for number, (index, folder) in enumerate(judged):
        rows = list(rows_of(index, folder))
        results += rows
        click.echo("\n" * bool(number), nl=False)
        heads = ["dimensions", *map("{:g}".format, STRENGTHS), "closed form", ""]
        cells = [
            [str(row["dimensions"]), *(f"{one:.1f}" for one in row["strengths"].values()), *_formula(row)]
            for row in rows
        ]
        print_table(heads, cells, f"{rows[0]['collection']}, {rows[0]['encoder']}: nDCG@10 x 100 by strength")
    if output:
        save(output, {"machine": machine(1), "command": sys.argv[1:], "results": results})


def _formula(row: dict[str, Any]) -> list[str]:
    found = row["closed form"]
    return [f"{found['strength']:g}", f"{found['nDCG@10']:.1f}"] if found else ["", ""]


if __name__ == "__main__":
    main()
