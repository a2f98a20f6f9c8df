"""Quality of the choice of `isotrope tune` without labels, with and without its margin for other centres.

    python -m benchmarks.centres --of INDEX FOLDER [--of INDEX FOLDER ...] [-o FILE]

FOLDER is a judged collection in BEIR's layout; INDEX was built from it. Every setting that tune tries on the index is
measured twice: by the mean reciprocal rank of 1,500 queries drawn from the documents, which tune uses, and by nDCG@10
of the judged queries. The first table shows nDCG@10 of the recipe's setting, of tune's choice without and with the
margin, and of the best setting. The second table compares centres: the difference between the best setting (by the
drawn queries) of each other centre and the best with the recipe's centre, by both measures, with 95 % intervals.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import click
import numpy as np

from benchmarks.interleaved import machine, save
from benchmarks.judged import encoder_name, judged_options
from search.cli.output import print_table
from search.evaluation.bootstrap import draw_counts
from search.evaluation.sweep import Sweep
from search.evaluation.target import Target
from search.evaluation.tune.choice import MeasuredSetting, choose
from search.evaluation.tune.judged import QrelsJudge
from search.evaluation.tune.tune import tune
from search.evaluation.tune.unlabelled import CENTRE_MARGIN, UnlabelledJudge

SAMPLE = 1500
_CHOSEN = ("without margin", "with margin")
Centre = Literal["role", "common", "none"]


def row_of(index: Path, folder: Path) -> dict[str, Any]:
    """Measure one index by drawn and by judged queries."""
    subject = Target.of_index(index)
    opened = subject.index
    if opened is None:
        raise ValueError("a target of an index has one")
    unlabelled = UnlabelledJudge(subject, opened.documents.all_documents, "retrieval", SAMPLE)
    drawn = tune(unlabelled, subject, Sweep()).measured
    judge = QrelsJudge(subject, folder)
    settings = [measured.setting for measured in drawn]
    judge.prepare(settings)
    judged = list(judge.measure(settings))
    own = subject.own
    chosen = [choose(drawn, own, margin).taken.setting for margin in (0.0, CENTRE_MARGIN)]
    places = {
        "own": settings.index(own),
        **{name: settings.index(setting) for name, setting in zip(_CHOSEN, chosen, strict=True)},
        "best": int(np.argmax([measured.score for measured in judged])),
    }
    return {
        "index": index.resolve().name,
        "encoder": encoder_name(subject.config),
        "drawn questions": len(drawn[0].values),
        "judged queries": len(judged[0].values),
        "settings": {
            name: {
                "setting": drawn[place].setting.label,
                "MRR": 100 * drawn[place].score,
                "nDCG@10": 100 * judged[place].score,
            }
            for name, place in places.items()
        },
        "centres": list(_centres(drawn, judged, own.whitening.centre)),
    }


def _centres(
    drawn: Sequence[MeasuredSetting], judged: Sequence[MeasuredSetting], own: Centre
) -> Iterator[dict[str, Any]]:
    """Yield the difference between the best setting of each other centre and the best with the recipe's centre."""
    best: dict[Centre, int] = {}
    for place, measured in enumerate(drawn):
        centre = measured.setting.whitening.centre
        if not measured.setting.raw and (centre not in best or measured.score > drawn[best[centre]].score):
            best[centre] = place
    for centre, place in best.items():
        if centre != own:
            pairs = {name: (by[best[own]], by[place]) for name, by in (("MRR", drawn), ("nDCG@10", judged))}
            gains = {name: _gain(*pair) for name, pair in pairs.items()}
            yield {"own": drawn[best[own]].setting.label, "other": drawn[place].setting.label, **gains}


def _gain(own: MeasuredSetting, other: MeasuredSetting) -> dict[str, Any]:
    return other.less(own, draw_counts(len(own.values), "tune")).to_dict()


def _interval(gain: dict[str, Any]) -> str:
    return f"{100 * gain['value']:+.1f} [{100 * gain['low']:+.1f}, {100 * gain['high']:+.1f}]"


@click.command()
@judged_options
def main(judged: Sequence[tuple[Path, Path]], output: Path | None) -> None:
    """Evaluate tune's choice without labels by judged queries."""
    rows = []
    for index, folder in judged:
        rows.append(row_of(index, folder))
        click.echo(f"{index.name}", err=True)
        if output:
            save(output, {"machine": machine(1), "command": sys.argv[1:], "margin": CENTRE_MARGIN, "results": rows})
    names = ("own", *_CHOSEN, "best")
    settings = [[row["settings"][name] for name in names] for row in rows]
    cells = [
        [row["index"], *(f"{setting['nDCG@10']:.1f}: {setting['setting']}" for setting in of_row)]
        for row, of_row in zip(rows, settings, strict=True)
    ]
    print_table(["index", *names], cells, "nDCG@10 x 100")
    cells = [
        [row["index"], pair["own"], pair["other"], _interval(pair["MRR"]), _interval(pair["nDCG@10"])]
        for row in rows
        for pair in row["centres"]
    ]
    print_table(["index", "recipe's centre", "other", "drawn", "judged"], cells, "Other centres, x 100")


if __name__ == "__main__":
    main()
