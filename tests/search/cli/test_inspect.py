"""`isotrope inspect`."""

from pathlib import Path

import pytest

from indexer import BuildConfig, build_index
from tests.documents import DOCUMENTS
from tests.indexer.pipeline.test_static import write_table


def test_the_recipe_of_an_index_is_printed_as_a_file_that_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from search.cli import cli

    table = write_table(tmp_path / "words.txt")
    changed = ["encoder.kind=static", f"encoder.model={table}", "whitening.strength=0.5"]
    config = BuildConfig().with_overrides(changed)
    build_index(DOCUMENTS, tmp_path / "index", config)
    cli.main(["inspect", str(tmp_path / "index"), "--recipe"], standalone_mode=False)
    (tmp_path / "recipe.toml").write_text(printed := capsys.readouterr().out)
    assert BuildConfig.load(tmp_path / "recipe.toml") == config
    assert printed.count("=") == len(changed)
