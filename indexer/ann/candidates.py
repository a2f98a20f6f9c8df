"""Kinds of index that a choice is made among, as FAISS factory strings.

Codes of four bits are scanned with the processor's table look-ups (`x4fs`), each a table of 16 for a few dimensions,
and the best of them scored again by codes of 8 or 16 bits a dimension: `Refine(SQ8)` finds up to 99 % of the ten best,
`Refine(SQfp16)` 99.9 %, with half the bytes of `RFlat`. "Pad384" deals the dimensions out to the codes. "IVF1" is one
list of everything: unlike the same codes without lists, it can be searched for some rows only.
"""

import math

_DIMENSIONS_A_CODE = 4  # one bit a dimension
_LEAST_FOR_LISTS = 100_000  # rows below which scanning all codes takes less than choosing among lists
_LINKS = 32
_REGISTER = 16  # dimensions that vector instructions take at once
_FINER = ("Refine(SQ8)", "Refine(SQfp16)")
_COARSER = ("Refine(SQ6)", "Refine(SQ4)")  # they take less memory, and find less


def candidate_factories(rows: int, dim: int, limited: bool) -> list[str]:
    """Factory strings worth measuring for `rows` vectors of `dim` dimensions; `limited`: where memory is.

    Those that take longest to measure come last: they may be out of reach by then.
    """
    wide = -(-dim // _REGISTER) * _REGISTER
    pad, scan = f"Pad{wide}", f"PQ{wide // _DIMENSIONS_A_CODE}x4fs"
    lists = ["IVF1", *([f"IVF{lists_for(rows)}"] if rows >= _LEAST_FOR_LISTS else [])]
    refined = [f"{pad},{some},{scan},{finer}" for some in lists for finer in _FINER]
    found = [*refined, "IVF1,RaBitQfs,Refine(SQ8)"]
    if rows >= _LEAST_FOR_LISTS:
        found.append(f"IVF{lists_for(rows)},Flat")
    if limited:
        found += [f"{pad},IVF1,{scan},{coarser}" for coarser in _COARSER]
        found += [f"RR{dim},IVF1,RaBitQfs{bits}" for bits in (6, 4)]
        found += ["SQ8", "SQ6", "SQ4"]
    return [*found, f"HNSW{_LINKS}", f"HNSW{_LINKS}_SQ8"]


def lists_for(rows: int) -> int:
    """Inverted lists for so many rows: the power of two nearest to four times the square root."""
    return int(2 ** round(math.log2(4 * math.sqrt(rows))))
