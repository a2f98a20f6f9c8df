"""Retrieval measures with trec_eval's definitions: computed by trec_eval's own code, through ir_measures.

nDCG@k   gain is the judgement itself, discount log2(rank + 1), ideal over all judged documents (Jarvelin and
         Kekalainen, ACM TOIS 20(4), 2002)
MAP      mean over queries of average precision, over the whole ranking given
R@k      relevant documents among the first k, of all relevant ones
MRR      mean of 1 / rank of the first relevant document, over the whole ranking given

Documents that nobody judged are not relevant, nor are those with a score of 0 or below.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from indexer.errors import ConfigError
from search.extras import require_extra

Array = npt.NDArray[np.float64]
MAP, MRR = "MAP", "MRR"


def measure_names(cutoffs: Sequence[int]) -> list[str]:
    """What `measure` gives for these k, in order: nDCG at each, MAP, recall at each, MRR."""
    return [*(f"nDCG@{k}" for k in cutoffs), MAP, *(f"R@{k}" for k in cutoffs), MRR]


def parse_cutoffs(text: str) -> tuple[int, ...]:
    """ "10,100" to (10, 100), each once. Raises ConfigError."""
    try:
        cutoffs = tuple(dict.fromkeys(int(number) for number in text.split(",")))
    except ValueError:
        cutoffs = ()
    if not cutoffs or min(cutoffs) < 1:
        raise ConfigError(f'-k "{text}" is not a list of ranks; expected whole numbers above 0, such as 10,100.')
    return cutoffs


def measure(
    judgements: Mapping[str, Mapping[str, int]], ranked: Mapping[str, Sequence[str]], cutoffs: Sequence[int]
) -> dict[str, Array]:
    """Measure -> one value from 0 to 1 a query, (queries,), in the order of `judgements`.

    `ranked` maps query ids to document ids, best first; a query that is not in it found nothing and counts 0.
    Raises MachineError when ir_measures is not installed.
    """
    ir_measures = require_extra("ir_measures", "eval")
    require_extra("pytrec_eval", "eval")
    wanted = dict(zip(_trec_measures(cutoffs), measure_names(cutoffs), strict=True))
    evaluator = ir_measures.pytrec_eval.evaluator(list(wanted), {query: dict(of) for query, of in judgements.items()})
    places = {query: place for place, query in enumerate(judgements)}
    values = {name: np.zeros(len(places)) for name in wanted.values()}
    for found in evaluator.iter_calc({query: _falling_scores(ids) for query, ids in ranked.items()}):
        values[wanted[found.measure]][places[found.query_id]] = found.value
    return values


def _trec_measures(cutoffs: Sequence[int]) -> list[object]:
    from ir_measures import AP, RR, R, nDCG

    return [*(nDCG @ k for k in cutoffs), AP, *(R @ k for k in cutoffs), RR]


def _falling_scores(ids: Sequence[str]) -> dict[str, float]:
    """Scores by rank. trec_eval sorts by score again and puts ties in descending order of id, where the engine has
    them ascending: handed the engine's own scores it would judge another ranking than the one users see."""
    return {name: float(len(ids) - rank) for rank, name in enumerate(ids)}
