"""A fitted Latte-Mix: the posteriors of tokens, against an oracle, and its files."""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import save_file

from indexer.errors import ConfigError, ModelError
from indexer.papers.latte_mix.model import FILES, load_latte_mix, save_latte_mix
from tests.indexer.papers import oracles_lattemix as oracle
from tests.indexer.papers.latte_mix.small_mixtures import LATENTS, SIZE, SMALL, held_out, made_texts, train, trained

# The posterior


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_posterior_is_the_softmax_of_the_logits_without_noise_or_temperature(layers: int) -> None:
    latte = train(dataclasses.replace(SMALL, encoder_layers=layers, hidden=7, epochs=0, temperature=0.1))
    tokens = held_out()[:5]
    expected = [oracle.categorical_posterior(latte.parameters, token, latte.scale, 4) for token in tokens]
    np.testing.assert_allclose(latte.posterior(tokens), expected, atol=1e-5)


@pytest.mark.parametrize("latent", ["normal", "none"])
def test_the_posterior_of_a_control_is_its_mean_or_its_code(latent: str) -> None:
    latte, tokens = trained(latent), held_out()[:5]
    encoded = np.array([oracle.layers(latte.parameters, "encoder", token / latte.scale) for token in tokens])
    assert latte.posterior(tokens).shape == (5, 4)
    np.testing.assert_allclose(latte.posterior(tokens), encoded[:, :4], atol=1e-5)
    if latent == "normal":
        mean, deviation = latte.normal(tokens)
        np.testing.assert_allclose(mean, encoded[:, :4], atol=1e-5)
        np.testing.assert_allclose(deviation, np.exp(encoded[:, 4:] / 2), rtol=1e-5)


def test_each_dimension_of_a_posterior_sums_to_1() -> None:
    rows = trained().posterior(held_out())
    assert rows.dtype == np.float32
    assert rows.min() >= 0
    np.testing.assert_allclose(rows.reshape(-1, 4, 5).sum(axis=2), 1, atol=1e-6)


@pytest.mark.parametrize("latent", LATENTS)
@pytest.mark.parametrize("block", [1, 7, 300])
def test_a_row_does_not_depend_on_the_rows_beside_it(latent: str, block: int) -> None:
    latte, tokens = trained(latent), made_texts(160, seed=2)[0]
    parts = [latte.posterior(tokens[start : start + block]) for start in range(0, len(tokens), block)]
    assert len(tokens) > 600
    np.testing.assert_allclose(np.concatenate(parts), latte.posterior(tokens), atol=1e-6)


def test_no_tokens_have_no_posteriors() -> None:
    assert trained().posterior(np.zeros((0, SIZE), np.float32)).shape == (0, 20)


def test_a_token_that_is_not_finite_shows_in_its_row_alone() -> None:
    tokens = held_out()[:4].copy()
    tokens[2, 0] = np.inf
    assert np.isfinite(trained().posterior(tokens)).all(axis=1).tolist() == [True, True, False, True]


def test_vectors_of_another_encoder_are_refused() -> None:
    with pytest.raises(ModelError, match=r"\(3, 5\).*vectors of 12 numbers"):
        trained().posterior(np.zeros((3, 5), np.float32))


def test_only_a_normal_latent_has_a_standard_deviation() -> None:
    with pytest.raises(ConfigError, match='latent is "categorical"'):
        trained().normal(held_out())


# The files


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    latte = trained("normal")
    save_latte_mix(latte, tmp_path)
    loaded = load_latte_mix(tmp_path)
    assert (loaded.config, loaded.size, loaded.scale, loaded.about) == (latte.config, SIZE, latte.scale, latte.about)
    np.testing.assert_array_equal(loaded.posterior(held_out()), latte.posterior(held_out()))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(FILES)


def test_the_files_are_the_same_bytes_each_time(tmp_path: Path) -> None:
    latte = trained()
    turned = dataclasses.replace(latte, parameters=dict(reversed(list(latte.parameters.items()))))
    for name, one in {"a": latte, "b": turned}.items():
        (tmp_path / name).mkdir()
        save_latte_mix(one, tmp_path / name)
        save_latte_mix(load_latte_mix(tmp_path / name), tmp_path / name)
    for file in FILES:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def changed_facts(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        facts = json.loads((folder / FILES[1]).read_text()) | changes
        (folder / FILES[1]).write_text(json.dumps({name: value for name, value in facts.items() if value is not None}))

    return change


def changed_weights(**changes: npt.NDArray[Any]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        parameters = {**trained().parameters, **{name.replace("_", "."): array for name, array in changes.items()}}
        save_file(parameters, folder / FILES[0])
        changed_facts(sha256=hashlib.sha256((folder / FILES[0]).read_bytes()).hexdigest())(folder)

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / FILES[0]).unlink(), r"safetensors: cannot be read \(No such file"),
        (lambda folder: (folder / FILES[1]).unlink(), r"json: cannot be read \(No such file"),
        (lambda folder: (folder / FILES[1]).write_bytes(b"\xff{"), "json: not the description of a Latte-Mix"),
        (lambda folder: (folder / FILES[1]).write_text("[]"), "not the description of a Latte-Mix"),
        (changed_facts(format=2), "a Latte-Mix in format 2; expected format 1"),
        (lambda folder: (folder / FILES[0]).write_bytes(b"junk"), "its sha256 differs from the sha256 in"),
        (changed_facts(config=None), r"not the description of a Latte-Mix: .* `config`"),
        (changed_facts(config={"dimms": 4}), r"not the settings of a Latte-Mix: unknown setting .*dims"),
        (changed_facts(config={"dims": 0}), "papers.latte_mix.dims is 0"),
        (changed_facts(scale="wide"), r"Expected `float`, got `str` - at `\$\.scale`"),
        (changed_facts(config={"decoder_layers": 10**9}), "has 1,000,000,000 layers"),
        (changed_facts(about=[]), r"Expected `object`, got `array` - at `\$\.about`"),
        (lambda folder: (folder / FILES[1]).write_text("[" * 100_000), "nested deeper"),
        (changed_facts(scale=0.0), r"the scale is 0\.0"),
        (changed_facts(size=13), r"decoder.0.bias has shape \(12,\); expected \(13,\)"),
        (changed_weights(encoder_0_bias=np.zeros(3, np.float32)), r"encoder.0.bias has shape \(3,\); expected"),
        (changed_weights(more=np.zeros(3, np.float32)), r"more has shape \(3,\); expected None"),
        (changed_weights(encoder_0_bias=np.zeros(20)), "contains numbers that are not finite float32"),
        (
            changed_weights(encoder_0_bias=np.full(20, np.nan, np.float32)),
            "contains numbers that are not finite float32",
        ),
    ],
)
def test_files_that_are_something_else_are_refused(
    tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    save_latte_mix(trained(), tmp_path)
    damage(tmp_path)
    with pytest.raises(ModelError, match=message):
        load_latte_mix(tmp_path)


def test_bytes_that_are_not_safetensors_are_refused_though_their_hash_is_right(tmp_path: Path) -> None:
    save_latte_mix(trained(), tmp_path)
    (tmp_path / FILES[0]).write_bytes(b"junk" * 10)
    changed_facts(sha256=hashlib.sha256(b"junk" * 10).hexdigest())(tmp_path)
    with pytest.raises(ModelError, match="not a safetensors file"):
        load_latte_mix(tmp_path)
