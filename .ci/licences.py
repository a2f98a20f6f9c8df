"""Print docs/reference/licences.md: the licence of every package that Isotrope and its extras install.

Run it with the interpreter of an environment that has all extras (make licences).
"""

from collections import Counter, defaultdict
from importlib.metadata import Distribution, PackageNotFoundError, distribution, requires

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

SPDX = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
NOT_FOR_USERS = {"all", "bench", "dev"}
PAGE = """\
# Licences of dependencies

Isotrope's own licence is [Apache-2.0](https://github.com/isotrope/isotrope/blob/main/LICENSE).
This page lists the {count} packages that `pip install` adds: {always} always, the others with the extras named.

`make licences` writes this page from the metadata of the installed packages, including dependencies of dependencies.
It ran with the CPU wheel of torch. On Linux, PyPI's torch also installs CUDA libraries under NVIDIA's own licences.
{missing}
Copyleft: {copyleft}. All other licences are permissive.

| licence | packages |
| --- | --- |
{counts}

| package | version | licence | installed |
| --- | --- | --- | --- |
{rows}
"""


def closure(name: str, extras: frozenset[str], seen: set[tuple[str, frozenset[str]]]) -> None:
    """Add to `seen` every package, with its extras, that a package needs on this machine."""
    if (name, extras) in seen:
        return
    seen.add((name, extras))
    try:
        lines = requires(name) or []
    except PackageNotFoundError:
        return
    for requirement in map(Requirement, lines):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras or {""}):
            closure(canonicalize_name(requirement.name), frozenset(requirement.extras), seen)


def licence(package: Distribution) -> str:
    """Return the licence expression of a package, or the licences in its classifiers, or its licence in words."""
    metadata = package.metadata
    if "License-Expression" in metadata:
        return metadata["License-Expression"]
    classifiers = [line for line in metadata.get_all("Classifier") or [] if line.startswith("License ::")]
    names = [line.rpartition(" :: ")[2] for line in classifiers if not line.endswith("OSI Approved")]
    names = names or [(metadata.get("License") or "not stated").strip().splitlines()[0]]
    return ", ".join(SPDX.get(name, name) for name in names)


def main() -> None:
    installed_by = defaultdict[str, list[str]](list)
    for extra in ("", *sorted(set(distribution("isotrope").metadata.get_all("Provides-Extra") or []) - NOT_FOR_USERS)):
        seen: set[tuple[str, frozenset[str]]] = set()
        closure("isotrope", frozenset({extra}) if extra else frozenset(), seen)
        for name in sorted({name for name, _ in seen} - {"isotrope"}):
            installed_by[name].append(extra or "always")
    rows, counts, missing, copyleft = list[str](), Counter[str](), list[str](), list[str]()
    for name, extras in sorted(installed_by.items()):
        try:
            package = distribution(name)
        except PackageNotFoundError:
            missing.append(name)
            continue
        counts[licence(package)] += 1
        if "GPL" in licence(package) or "MPL" in licence(package):
            copyleft.append(f"{name} ({licence(package)})")
        by = "always" if "always" in extras else ", ".join(extras)
        rows.append(f"| {package.metadata['Name']} | {package.version} | {licence(package)} | {by} |")
    note = f"\nNot installed when the page was written: {', '.join(missing)}.\n" if missing else ""
    text = PAGE.format(
        count=len(rows),
        always=sum(row.endswith("| always |") for row in rows),
        missing=note,
        copyleft=", ".join(copyleft) or "none",
        counts="\n".join(f"| {name} | {count} |" for name, count in counts.most_common()),
        rows="\n".join(rows),
    )
    print(text, end="")


if __name__ == "__main__":
    main()
