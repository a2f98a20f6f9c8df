"""Kinds of index that a choice is made among, as FAISS factory strings.

Codes of four bits are scanned with the processor's table look-ups (`x4fs`), each a table of 16 for a few dimensions,
and the best of them scored again by finer codes or whole vectors (`Refine(SQ8)`, `RFlat`). "IVF1" is one list of
everything: unlike the same codes without lists, it can be searched for some rows only.
"""

import math

_DIMENSIONS_A_CODE = 4  # one bit a dimension
_LEAST_FOR_LISTS = 100_000  # rows below which scanning all codes takes less than choosing among lists
_LINKS = 32
_FINER = ("RFlat", "Refine(SQ8)")
_COARSER = ("Refine(SQ6)", "Refine(SQ4)")  # they take less memory, and find less


def candidate_factories(rows: int, dim: int, limited: bool) -> list[str]:
    """Factory strings worth measuring for `rows` vectors of `dim` dimensions; `limited`: where memory is."""
    scan = f"PQ{_codes(dim)}x4fs"
    lists = ["IVF1", *([f"IVF{lists_for(rows)}"] if rows >= _LEAST_FOR_LISTS else [])]
    refined = [f"{_padded(dim)}{some},{scan},{finer}" for some in lists for finer in _FINER]
    found = [*refined, f"HNSW{_LINKS}", f"HNSW{_LINKS}_SQ8", "IVF1,RaBitQfs,Refine(SQ8)"]
    if rows >= _LEAST_FOR_LISTS:
        found.append(f"IVF{lists_for(rows)},Flat")
    if limited:
        found += [f"{_padded(dim)}IVF1,{scan},{coarser}" for coarser in _COARSER]
        found += [f"RR{dim},IVF1,RaBitQfs{bits}" for bits in (6, 4)]
        found += ["SQ8", "SQ6", "SQ4"]
    return found


def lists_for(rows: int) -> int:
    """Inverted lists for so many rows: the power of two nearest to four times the square root."""
    return int(2 ** round(math.log2(4 * math.sqrt(rows))))


def _codes(dim: int) -> int:
    return -(-dim // _DIMENSIONS_A_CODE)


def _padded(dim: int) -> str:
    """Zeros put behind vectors whose dimensions do not divide into codes."""
    wide = _codes(dim) * _DIMENSIONS_A_CODE
    return f"Pad{wide}," if wide != dim else ""
