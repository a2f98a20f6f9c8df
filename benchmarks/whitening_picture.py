"""The picture of the page on whitening: what it does to the spectrum and to the cosines of random pairs.

    python -m benchmarks.whitening_picture --of TITLE INDEX [--of TITLE INDEX ...] [-o docs/images/whitening.svg]

Each index gives a row of two plots, drawn from its stored embeddings: as they are, and whitened at each of `STRENGTHS`.
The table has the mean and the standard deviation of the cosines, the share of the variance in the ten leading
directions, and IsoScore (`search.evaluation.report.statistics`).
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from indexer.recipe.config import WhiteningConfig
from indexer.transforms.whitening import fit_whitening
from search.cli.output import print_table
from search.evaluation.plots.drawing import write_plot
from search.evaluation.report.statistics import VectorStatistics, measure_cloud
from search.index import Index, LiveRows

STRENGTHS = ("none", 0.25, 1.0)
_NAMES = {"none": "raw", 0.25: "strength 0.25", 1.0: "strength 1"}
_COLOURS = {"none": "#e08214", 0.25: "#4f8ff7", 1.0: "#1b7837"}
_ROWS = 10_000  # vectors, at most
_SHIFTS = range(1, 5)  # pairs are neighbours at these distances in the order of id hashes, which is random
_STYLE = {"svg.fonttype": "none", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False}


@dataclass(frozen=True)
class Row:
    """The figures of one index, for each strength."""

    title: str
    clouds: dict[Any, VectorStatistics]

    @classmethod
    def of(cls, title: str, path: Path) -> "Row":
        """Measure an index."""
        with closing(Index.open(path)) as index:
            rows = LiveRows(index).sample("all")
            moments, sample = rows.moments(), rows.sampling_order[:_ROWS]
            clouds = {}
            for strength in STRENGTHS:
                transform = fit_whitening(moments, WhiteningConfig(strength=strength))  # type: ignore[arg-type]
                vectors = rows.vectors(transform, sample).astype(np.float64)
                pairs = [np.einsum("nk,nk->n", vectors[shift:], vectors[:-shift]) for shift in _SHIFTS]
                clouds[strength] = measure_cloud(lambda vectors=vectors: [vectors], np.concatenate(pairs))  # type: ignore[misc]
        return cls(title, clouds)

    def cells(self) -> list[list[str]]:
        """Return the lines of the table."""
        return [
            [f"{self.title}, {_NAMES[strength]}", f"{cloud.mean_cosine:.3f}", f"{cloud.cosine_deviation:.3f}",
             f"{100 * (cloud.leading(10) or 0):.0f} %", f"{cloud.isoscore or 0:.2f}"]
            for strength, cloud in self.clouds.items()
        ]  # fmt: skip

    def draw(self, cosines: Any, spectrum: Any) -> None:
        """Fill both plots."""
        bins = np.linspace(-0.5, 1, 76)
        for strength, cloud in self.clouds.items():
            look = {"color": _COLOURS[strength], "label": _NAMES[strength]}
            weights = np.full(len(cloud.cosines), 1 / len(cloud.cosines))
            cosines.hist(cloud.cosines, bins, weights=weights, histtype="step", linewidth=1.5, **look)
            spectrum.plot(np.arange(1, cloud.dim + 1), cloud.spectrum, linewidth=1.5, **look)
        cosines.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
        cosines.set(xlabel="cosine of two random documents", ylabel="share of the pairs")
        spectrum.set_yscale("log")
        spectrum.set_ylim(bottom=1e-5)
        spectrum.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
        spectrum.set(xlabel="principal direction", ylabel="share of the variance")
        cosines.set_title(self.title, loc="left")


@click.command()
@click.option("--of", "indexes", type=(str, click.Path(path_type=Path)), multiple=True, required=True)
@click.option("-o", "--output", type=click.Path(path_type=Path))
def main(indexes: Sequence[tuple[str, Path]], output: Path | None) -> None:
    """Draw and print what whitening does to the embeddings of some indexes."""
    rows = [Row.of(title, path) for title, path in indexes]

    def draw(figure: Any) -> None:
        axes = figure.subplots(len(rows), 2, squeeze=False)
        for row, places in zip(rows, axes, strict=True):
            row.draw(*places)
        axes[0, 0].legend(frameon=False)

    if output:
        write_plot(output, (8.4, 2.9 * len(rows)), draw, force=True, style=_STYLE)
    columns = ["embeddings", "mean cosine", "deviation", "in ten directions", "IsoScore"]
    print_table(columns, [cells for row in rows for cells in row.cells()])


if __name__ == "__main__":
    main()
