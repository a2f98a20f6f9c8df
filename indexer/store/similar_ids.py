"""Search for the id that an unknown id was probably meant to be."""

import difflib

import pyarrow as pa

_COMPARED = 8  # ids with the longest common prefix, and again with the longest common suffix
_LONGEST = 256  # characters of an unknown id; comparing takes quadratic time


def most_similar(ids: pa.Array, unknown: str) -> str:
    """Return the id most similar to `unknown`, which is not in `ids`; empty if none is similar.

    Servers do this for each unknown id, so only the ids with the longest common prefix and suffix are compared. After a
    single typing error, half of the id or more is still such a prefix or suffix.
    """
    if len(unknown) > _LONGEST:
        return ""
    near = [name for at_end in (False, True) for name in _sharing_most(ids, unknown, at_end)]
    return next(iter(difflib.get_close_matches(unknown, near, n=1)), "")


def _sharing_most(ids: pa.Array, unknown: str, at_end: bool) -> list[str]:
    """Return the first ids that share the longest prefix, or suffix, with `unknown`."""
    import pyarrow.compute as pc  # slow to import, so not before the first query

    text = unknown.encode(errors="ignore").decode()
    least, most, sharing = 0, len(text), ids.slice(0, 0)
    while least < most:  # ids that share a prefix share all shorter ones
        length = (least + most + 1) // 2
        pattern = text[-length:] if at_end else text[:length]
        matches = ids.filter(pc.ends_with(ids, pattern) if at_end else pc.starts_with(ids, pattern))
        if len(matches):
            least, ids, sharing = length, matches, matches
        else:
            most = length - 1
    near: list[str] = sharing.slice(0, _COMPARED).to_pylist()
    return [name for name in near if len(name) <= 2 * _LONGEST]
