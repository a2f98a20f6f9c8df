"""nDCG@10 of an index on a BEIR folder with relevance judgements.

    python benchmarks/ndcg.py INDEX BEIR_FOLDER

Gain is the judgement itself and the discount log2(rank + 1), as in trec_eval's ndcg_cut_10. Queries without a
relevant document are left out.
"""

import json
import math
import sys
from collections import defaultdict
from pathlib import Path

from search import SearchEngine

DEPTH = 10


def judgements(folder: Path) -> dict[str, dict[str, int]]:
    """Query id -> document id -> relevance."""
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for line in (folder / "qrels/test.tsv").read_text(encoding="utf-8").splitlines():
        query, document, relevance = line.split("\t")
        if relevance.isdigit():  # the first line is a header
            found[query][document] = int(relevance)
    return {query: relevances for query, relevances in found.items() if any(relevances.values())}


def ndcg(ranked: list[str], relevant: dict[str, int]) -> float:
    """One query's nDCG at `DEPTH`."""
    return _gain([relevant.get(name, 0) for name in ranked]) / _gain(sorted(relevant.values(), reverse=True))


def _gain(relevances: list[int]) -> float:
    return sum(value / math.log2(rank + 1) for rank, value in enumerate(relevances[:DEPTH], start=1))


def main() -> None:
    index, folder = map(Path, sys.argv[1:])
    relevant = judgements(folder)
    lines = (folder / "queries.jsonl").read_text(encoding="utf-8").splitlines()
    queries = {row["_id"]: row["text"] for row in map(json.loads, lines) if row["_id"] in relevant}
    with SearchEngine(index) as engine:
        answers = engine.search_many(list(queries.values()), k=DEPTH)
    scores = [ndcg([hit.id for hit in hits], relevant[query]) for query, hits in zip(queries, answers, strict=True)]
    print(f"nDCG@{DEPTH} {100 * sum(scores) / len(scores):.2f} over {len(scores)} queries")


if __name__ == "__main__":
    main()
