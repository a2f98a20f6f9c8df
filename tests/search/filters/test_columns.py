"""The columns of filters: names, and values that are kept."""

from search.filters.columns import LruCache


def test_what_was_used_longest_ago_goes_first() -> None:
    held: LruCache[str, bytearrays] = LruCache(10)
    for name in ("a", "b"):
        held.keep(name, bytearrays(4))
    held.find("a")
    held.keep("c", bytearrays(4))
    assert [held.find(name) is not None for name in "abc"] == [True, False, True]
    assert held.keep("large", bytearrays(11)).nbytes == 11
    assert [held.find(name) is not None for name in ("a", "c", "large")] == [True, True, False]


def test_long_keys_take_room_too() -> None:
    held: LruCache[str, bytearrays] = LruCache(10, len)
    held.keep("aaaa", bytearrays(1))
    held.keep("bbbb", bytearrays(1))
    held.keep("c" * 10, bytearrays(1))
    assert [held.find(name) is not None for name in ("aaaa", "bbbb", "c" * 10)] == [True, True, False]
    held.keep("d", bytearrays(0))
    assert [held.find(name) is not None for name in ("aaaa", "bbbb", "d")] == [False, True, True]


class bytearrays:  # noqa: N801
    """Something of a size."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
