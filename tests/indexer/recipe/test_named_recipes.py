"""Recipes by name: the package ships those of `configs/`."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from indexer.errors import ConfigError
from indexer.recipe.config import BuildConfig, EncoderConfig
from indexer.recipe.loading import RECIPES, recipe_names, recipe_path, recipe_summary, recipe_text, states_setting

ROOT = Path(__file__).resolve().parents[3]


def test_every_recipe_of_the_checkout_has_a_name() -> None:
    assert recipe_names() == sorted(path.stem for path in (ROOT / "configs").glob("*.toml"))
    for name in recipe_names():
        assert BuildConfig.load(name) == BuildConfig.load(ROOT / "configs" / f"{name}.toml")
    assert BuildConfig.load("minilm") == BuildConfig()


@pytest.mark.parametrize("named", ["static.toml", "./static", "configs/static", "/recipes/static", "..", "mine.static"])
def test_a_path_stays_a_path(named: str, tmp_path: Path) -> None:
    assert recipe_path(named) == Path(named)
    assert recipe_path(tmp_path / "static") == tmp_path / "static"
    assert recipe_path((tmp_path / "static").as_uri()) == tmp_path / "static"


def test_a_name_that_no_recipe_has_gets_the_nearest_and_all() -> None:
    with pytest.raises(
        ConfigError, match=r'no recipe "statik" \(did you mean "static"\?\); expected bge, e5, .*, static, whi'
    ):
        BuildConfig.load("statik")
    with pytest.raises(ConfigError, match=r'no recipe "tuned"; expected .*, or a path: .* with its folder, \./tuned\.'):
        BuildConfig.load("tuned")


PROMPTS = {
    "bge": ("Represent this sentence for searching relevant passages: ", "auto"),
    "e5": ("query: ", "passage: "),
    "embeddinggemma": ("auto", "auto"),
    "gte": ("auto", "auto"),
    "mpnet": ("auto", "auto"),
    "multilingual-e5": ("query: ", "passage: "),
    "nomic": ("search_query: ", "search_document: "),
    "qwen3-embedding": ("auto", "auto"),
}
"""Recipe of a family of models -> prompts of queries and documents: those that the model's folder does not state."""


def test_a_family_names_its_model_and_the_prompts_that_the_folder_lacks() -> None:
    """Everything else is the model's own or the default, also the whitening."""
    assert PROMPTS.keys() == {*recipe_names()} - {"minilm", "server", "static", "whiteningbert"}
    for name, (query, document) in PROMPTS.items():
        config = BuildConfig.load(name)
        expected = EncoderConfig(model=config.encoder.model, query_prompt=query, document_prompt=document)
        assert config == BuildConfig(encoder=expected)
        assert config.encoder.model != EncoderConfig.model
        assert "# Settings of the model's makers" in recipe_text(recipe_path(name))


def test_every_recipe_begins_with_a_sentence_about_it() -> None:
    for name in recipe_names():
        lines = recipe_text(recipe_path(name)).splitlines()
        assert lines[0] == f"# {recipe_summary(recipe_text(recipe_path(name)))}."
        assert lines[1] == "#"
    assert recipe_summary("[encoder]\n# late\n") == recipe_summary("") == ""


def test_a_setting_of_the_users_own_file_or_of_an_assignment_is_chosen(tmp_path: Path) -> None:
    """That of a shipped recipe is a default, under its name or its path."""
    strength, own = "whitening.strength", tmp_path / "own.toml"
    own.write_text("[whitening]\nstrength = 0.25\n")
    assert states_setting(strength, own, [])
    assert not states_setting("whitening.centre", own, [])
    for shipped in (None, "static", RECIPES / "static.toml"):
        assert not states_setting(strength, shipped, ["whitening.centre=none"])
        assert states_setting(strength, shipped, ["encoder.layers=[1]", f"{strength} = 0.25"])


@pytest.mark.check
def test_a_wheel_holds_the_recipes(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    for name in ("indexer", "search", "configs", "README.md", "LICENSE", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", ".", "--quiet", "--no-build-isolation", "--no-deps", "--no-index",
         "--wheel-dir", "out"],
        cwd=tmp_path, check=True,
    )  # fmt: skip
    [wheel] = (tmp_path / "out").glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        held = {name: files.read(name) for name in files.namelist() if name.endswith(".toml")}
    assert held == {f"indexer/recipe/configs/{path.name}": path.read_bytes() for path in RECIPES.glob("*.toml")}
