"""`isotrope recipe`, and the last line of a build whose whitening was measured on another model."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from indexer.errors import ConfigError
from indexer.recipe.config import BuildConfig
from indexer.recipe.loading import recipe_names
from tests.search.cli.test_cli import isotrope

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
UNTUNED = "The whitening is not tuned for this model: run isotrope tune "


def test_every_recipe_is_listed_with_its_model_and_first_sentence() -> None:
    listed = json.loads(isotrope("recipe", "--json").stdout)
    assert [each["name"] for each in listed] == recipe_names()
    printed = " ".join(isotrope("recipe").stdout.split())
    for each in listed:
        assert each["model"] == BuildConfig.load(each["name"]).encoder.model
        assert f"{each['name']} {each['model']} {each['about']}" in printed


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_is_printed_as_it_is(name: str, tmp_path: Path) -> None:
    done = isotrope("recipe", name)
    assert (done.returncode, done.stdout) == (0, (CONFIGS / f"{name}.toml").read_text(encoding="utf-8"))
    (tmp_path / "my.toml").write_text(done.stdout, encoding="utf-8")
    assert BuildConfig.load(tmp_path / "my.toml") == BuildConfig.load(name)
    assert isotrope("recipe", tmp_path / "my.toml").stdout == done.stdout
    assert BuildConfig.from_dict(json.loads(isotrope("recipe", name, "--json").stdout)) == BuildConfig.load(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [("nomik", 'there is no recipe "nomik" (did you mean "nomic"?)'), ("qq.toml", "qq.toml: no such recipe file.")],
)
def test_an_unknown_recipe_gets_the_nearest(name: str, message: str) -> None:
    done = isotrope("recipe", name)
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr


def test_a_missing_recipe_file_gets_the_nearest_beside_it(tmp_path: Path) -> None:
    (tmp_path / "tuned-labels.toml").touch()
    for folder, end in ((tmp_path, f'; did you mean "{tmp_path}/tuned-labels.toml"?'), (tmp_path / "x", "not exist")):
        with pytest.raises(ConfigError, match=rf"no such recipe file.*{re.escape(end)}"):
            BuildConfig.load(folder / "tuned-lables.toml")


@pytest.fixture
def model(tiny_model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("docs.txt").write_text("one text\nanother text\na third one\n")
    return f"encoder.model={tiny_model('bert')}"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], True),
        (["--config", "e5"], True),
        (["--config", "mine.toml"], True),
        (["--config", "tuned.toml"], False),
        (["--set", "whitening.strength=0.25"], False),
        (["--set", "whitening.strength=none"], False),
        (["--config", "whiteningbert", "--set", "encoder.layers=[-1]"], False),
    ],
)
def test_the_last_line_of_a_build_says_that_a_default_is_not_tuned(options: list[str], said: bool, model: str) -> None:
    """Unless the user has stated a strength, as the file of `isotrope tune` does, though it may be the default."""
    Path("mine.toml").write_text(isotrope("recipe", "e5").stdout)
    Path("tuned.toml").write_text(BuildConfig().to_toml(whole=["whitening"]))
    arguments = ("build", "docs.txt", "index", *options, "--set", model, "--set", "encoder.max_length=16")
    done = isotrope(*arguments)
    assert done.returncode == 0, done.stderr
    assert (done.stdout.splitlines()[-1] == f"{UNTUNED}index") == said
    assert json.loads(isotrope(*arguments[:2], "other", *arguments[3:], "--json").stdout)["untuned"] == said


def test_the_model_that_the_default_was_measured_on_needs_no_advice(model: str) -> None:
    assert UNTUNED not in isotrope("build", "docs.txt", "index").stdout
