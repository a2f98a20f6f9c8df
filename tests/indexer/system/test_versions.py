"""Versions of installed libraries, by the names of their folders of metadata."""

import importlib.metadata

import pytest

from indexer.system.versions import named_version, version_of


@pytest.mark.parametrize("name", ["numpy", "pyarrow", "tokenizers", "faiss-cpu", "isotrope"])
def test_the_name_of_a_folder_has_the_installed_version(name: str) -> None:
    assert named_version(name) == version_of(name) == importlib.metadata.version(name)


def test_an_absent_distribution_has_no_version() -> None:
    assert named_version("isotrope-absent") == version_of("isotrope-absent") == ""


def test_a_folder_with_another_spelling_is_found() -> None:
    distribution = next(each for each in importlib.metadata.distributions() if each.metadata["Name"] == "PyStemmer")
    assert version_of("PyStemmer") == distribution.version
