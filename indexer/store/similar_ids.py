"""Finds the id that was probably meant by an unknown one."""

import difflib

import pyarrow as pa

_COMPARED = 8  # ids with the longest common prefix, and as many with the longest common suffix
_LONGEST = 256  # characters of an unknown id; comparing takes quadratic time


def most_similar(ids: pa.Array, unknown: str) -> str:
    """The id most similar to `unknown`, which is not among `ids`; empty if none is similar.

    Servers look for a similar id at each unknown one, so only the ids with the longest common prefix and suffix are
    compared. After a single typing error, half of an id or more is still such a prefix or suffix.
    """
    if len(unknown) > _LONGEST:
        return ""
    near = [name for at_end in (False, True) for name in _sharing_most(ids, unknown, at_end)]
    return next(iter(difflib.get_close_matches(unknown, near, n=1)), "")


def _sharing_most(ids: pa.Array, unknown: str, at_end: bool) -> list[str]:
    """The first ids that share the longest prefix, or suffix, with `unknown`."""
    import pyarrow.compute as pc  # here, because importing it would delay the first question

    text = unknown.encode(errors="ignore").decode()
    least, most, sharing = 0, len(text), ids.slice(0, 0)
    while least < most:  # ids that share a prefix share all shorter ones
        length = (least + most + 1) // 2
        pattern = text[-length:] if at_end else text[:length]
        found = ids.filter(pc.ends_with(ids, pattern) if at_end else pc.starts_with(ids, pattern))
        if len(found):
            least, ids, sharing = length, found, found
        else:
            most = length - 1
    near: list[str] = sharing.slice(0, _COMPARED).to_pylist()
    return [name for name in near if len(name) <= 2 * _LONGEST]
