"""Where results may be written: never over what they are made from."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from indexer.errors import ConfigError
from search.opened import is_index
from search.provenance import check_output


def check_places(written: Mapping[str, Path], indexes: Iterable[Path] = (), read: Iterable[Path] = ()) -> None:
    """Raises ConfigError for a file that cannot be written, or is to be written twice or over something it needs.

    `written` maps options to files; `indexes` are indexes, folders or files of a corpus, `read` other files.
    """
    sources = [path for path in (*indexes, *read) if path.exists()]
    taken: dict[Path, str] = {}
    for option, path in written.items():
        if path.name == "-":
            raise ConfigError(f"{option} - would be a file of that name; results go to files, so name one.")
        check_output(path, option)
        place = path.resolve()
        if place in taken:
            raise ConfigError(f"{taken[place]} and {option} name the same file, {path}; name two.")
        taken[place] = option
        for source in sources:
            if place == source.resolve() or (path.exists() and path.samefile(source)):
                raise ConfigError(f"{option} {path} is what the result is made from; name another file.")
            if is_index(source) and source.resolve() in place.parents:
                raise ConfigError(f"{option} {path} lies inside the index {source}; name a file elsewhere.")
