"""Settings of a recipe: the valid ones, and the errors for others."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.corpus.query_file import query_file_sha256, read_query_vectors
from indexer.errors import ConfigError
from indexer.executors import WorkerPool
from indexer.recipe.config import BuildConfig, EncoderConfig, WhiteningConfig
from indexer.recipe.corpus_config import CorpusConfig
from indexer.recipe.index_config import IndexConfig, StoreConfig
from indexer.recipe.run_options import RunOptions

RECIPES = sorted((Path(__file__).parents[3] / "configs").glob("*.toml"))

_ANY_POOLING = (
    'expected "auto" or "cls" or "mean" or "max" or "mean_sqrt_len_tokens" or "weightedmean" or "lasttoken" or '
    '"sif" or "sbert-wk" or "latte-mix".'
)
_ANY_SECTION = "expected one of corpus, chunk, encoder, whitening, index, queries, hybrid, rerank, store, papers."

CONFIGS = st.builds(
    BuildConfig,
    corpus=st.builds(
        CorpusConfig,
        text=st.lists(st.text(), min_size=1).map(tuple),
        text_column=st.text(),
        columns=st.dictionaries(st.text(), st.text()),
        drop=st.lists(st.text()).map(tuple),
    ),
    encoder=st.builds(
        EncoderConfig,
        model=st.text().filter(str.strip),
        pooling=st.sampled_from(["auto", "cls", "mean", "max"]),
        layers=st.lists(st.integers(-30, 30), min_size=1).map(tuple),
        max_length=st.integers(0, 10**6),
        precision=st.sampled_from(["float32", "bfloat16", "int8"]),
        query_prompt=st.text(),
    ),
    whitening=st.builds(
        WhiteningConfig,
        strength=st.floats(0, 1),
        dim=st.integers(0, 5000),
        sample=st.integers(1, 10**9) | st.just("all"),
        shrinkage=st.floats(0, 1),
        centre=st.sampled_from(["role", "common", "none"]),
    )
    | st.builds(WhiteningConfig, strength=st.just("none")),
    index=st.builds(IndexConfig, type=st.text().filter(str.strip), recall=st.floats(0, 1, exclude_min=True)),
    store=st.builds(StoreConfig, part_documents=st.integers(1, 10**6)),
)


def refusal(section: str, key: str, value: Any) -> str:
    """Return the error for one setting of a recipe."""
    with pytest.raises(ConfigError) as caught:
        BuildConfig.from_dict({section: {key: value}})
    return str(caught.value)


@given(CONFIGS)
def test_a_recipe_comes_back_from_json_as_it_was(config: BuildConfig) -> None:
    assert BuildConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_missing_sections_and_keys_take_their_defaults() -> None:
    config = BuildConfig.from_dict({"encoder": {"model": "other"}, "whitening": {}})
    assert config == dataclasses.replace(BuildConfig(), encoder=EncoderConfig(model="other"))


def test_the_defaults_are_the_minilm_recipe() -> None:
    (minilm,) = [path for path in RECIPES if path.name == "minilm.toml"]
    assert BuildConfig.load(minilm) == BuildConfig()


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_every_recipe_loads(path: Path) -> None:
    assert BuildConfig.load(str(path)) == BuildConfig.load(path)


def test_the_whiteningbert_recipe_is_that_of_the_paper() -> None:
    (path,) = [path for path in RECIPES if path.name == "whiteningbert.toml"]
    config = BuildConfig.load(path)
    assert config.encoder.model == "bert-base-uncased"
    assert (config.encoder.pooling, config.encoder.layers) == ("mean", (1, -1))
    assert (config.whitening.strength, config.whitening.centre, config.whitening.dim) == (1.0, "common", 0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"whitning": {}}, 'unknown section "whitning"; did you mean "whitening"?'),
        (
            {"zzz": {}},
            f'unknown section "zzz"; {_ANY_SECTION}',
        ),
        ({"encoder": {"layer": [1]}}, 'unknown setting "encoder.layer"; did you mean "encoder.layers"?'),
        (
            {"chunk": {"9": 1}},
            'unknown setting "chunk.9"; ',
        ),
        ({"encoder": "bert"}, "encoder is 'bert'; expected a table of settings."),
        ({"encoder": [{}]}, "encoder is [{}]; expected a table of settings."),
    ],
)
def test_unknown_sections_and_settings_are_refused_with_the_nearest_known_one(
    data: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        BuildConfig.from_dict(data)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("section", "key", "value", "expected"),
    [
        ("encoder", "max_length", True, "true; expected a whole number."),
        ("encoder", "max_length", 1.0, "1.0; expected a whole number."),
        ("encoder", "max_length", "256", '"256"; expected a whole number.'),
        ("encoder", "layers", -1, "-1; expected a list of whole numbers."),
        ("encoder", "layers", [1, True], "[1, true]; expected a list of whole numbers."),
        ("encoder", "layers", [1, "2"], '[1, "2"]; expected a list of whole numbers.'),
        ("encoder", "model", None, "null; expected text."),
        ("encoder", "model", ["a"], '["a"]; expected text.'),
        ("encoder", "pooling", "median", f'"median"; {_ANY_POOLING}'),
        ("encoder", "pooling", 1, f"1; {_ANY_POOLING}"),
        ("encoder", "model_settings", 1, "1; expected true or false."),
        ("encoder", "precision", "int4", '"int4"; expected "float32" or "bfloat16" or "int8".'),
        ("encoder", "kind", "glove", '"glove"; expected "transformer" or "static" or "vectors" or "server".'),
        ("corpus", "text", "title", '"title"; expected a list of text.'),
        ("corpus", "text", ["title", 1], '["title", 1]; expected a list of text.'),
        ("corpus", "columns", {"year": 1}, '{"year": 1}; expected a table of text.'),
        ("corpus", "columns", ["year"], '["year"]; expected a table of text.'),
        ("whitening", "strength", True, 'true; expected a number or "none".'),
        ("whitening", "strength", "all", '"all"; expected a number or "none".'),
        ("whitening", "sample", 1.5, '1.5; expected a whole number or "all".'),
        ("whitening", "sample", False, 'false; expected a whole number or "all".'),
        ("whitening", "shrinkage", "0.1", '"0.1"; expected a number.'),
        ("index", "memory", 0, "0; expected text."),
        ("store", "embeddings", "float64", '"float64"; expected "float32" or "float16".'),
    ],
)
def test_a_value_of_the_wrong_type_is_shown_beside_what_was_expected(
    section: str, key: str, value: Any, expected: str
) -> None:
    assert refusal(section, key, value) == f"{section}.{key} is {expected}"


@pytest.mark.parametrize(
    ("section", "key"),
    [
        (section, setting.name)
        for section, settings in vars(BuildConfig()).items()
        if section != "papers"
        for setting in dataclasses.fields(settings)
    ],
)
def test_no_setting_is_null(section: str, key: str) -> None:
    assert refusal(section, key, None).startswith(f"{section}.{key} is null; expected ")


@pytest.mark.parametrize(
    ("section", "key", "value", "named"),
    [
        ("corpus", "text", [], "corpus.text is empty"),
        ("chunk", "tokens", 7, "chunk.tokens is 7"),
        ("chunk", "tokens", -1, "chunk.tokens is -1"),
        ("encoder", "model", "", "encoder.model is empty"),
        ("encoder", "model", "  ", "encoder.model is empty"),
        ("encoder", "layers", [], "encoder.layers is empty"),
        ("encoder", "max_length", -1, "encoder.max_length"),
        ("encoder", "batch_tokens", -1, "encoder.batch_tokens"),
        ("whitening", "strength", -0.1, "whitening.strength is -0.1"),
        ("whitening", "strength", 1.1, "whitening.strength is 1.1"),
        ("whitening", "strength", float("nan"), "whitening.strength is nan"),
        ("whitening", "dim", -1, "whitening.dim is -1"),
        ("whitening", "sample", 0, "whitening.sample is 0"),
        ("whitening", "shrinkage", -0.1, "whitening.shrinkage is -0.1"),
        ("whitening", "shrinkage", 2, "whitening.shrinkage is 2.0"),
        ("index", "recall", 0, "index.recall is 0.0"),
        ("index", "recall", 1.01, "index.recall is 1.01"),
        ("index", "recall", float("nan"), "index.recall is nan"),
        ("index", "memory", "", 'index.memory is ""'),
        ("index", "memory", "8GB", 'index.memory is "8GB"'),
        ("index", "memory", "-1", 'index.memory is "-1"'),
        ("index", "memory", "1.G", 'index.memory is "1.G"'),
        ("store", "part_documents", 0, "store.part_documents is 0"),
    ],
)
def test_values_out_of_range_are_refused_naming_the_setting(section: str, key: str, value: Any, named: str) -> None:
    assert named in refusal(section, key, value)
    with pytest.raises(ConfigError, match=key):  # a dataclass made directly is checked as well
        dataclasses.replace(getattr(BuildConfig(), section), **{key: value})


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("whitening", "strength", 0),
        ("whitening", "strength", 1),
        ("whitening", "strength", "none"),
        ("whitening", "shrinkage", 1),
        ("whitening", "sample", "all"),
        ("whitening", "sample", 1),
        ("index", "recall", 1),
        ("index", "memory", "0"),
        ("store", "part_documents", 1),
        ("encoder", "max_length", 0),
    ],
)
def test_the_ends_of_every_range_are_allowed(section: str, key: str, value: Any) -> None:
    config = BuildConfig.from_dict({section: {key: value}})
    assert getattr(getattr(config, section), key) == value


def test_a_whole_number_is_read_as_a_float_where_one_is_expected() -> None:
    strength = BuildConfig.from_dict({"whitening": {"strength": 1}}).whitening.strength
    assert type(strength) is float


@pytest.mark.parametrize(
    ("assignment", "section", "key", "value"),
    [
        ("whitening.strength=1", "whitening", "strength", 1.0),
        ("whitening.strength=none", "whitening", "strength", "none"),
        ('whitening.strength="none"', "whitening", "strength", "none"),
        ("whitening.sample=all", "whitening", "sample", "all"),
        ("whitening.sample = 50", "whitening", "sample", 50),
        ("encoder.layers=[1, -1]", "encoder", "layers", (1, -1)),
        ("encoder.model=bert-base-uncased", "encoder", "model", "bert-base-uncased"),
        ("encoder.model=/models/a=b", "encoder", "model", "/models/a=b"),
        ('encoder.query_prompt="query: "', "encoder", "query_prompt", "query: "),
        ("encoder.query_prompt=query: ", "encoder", "query_prompt", "query: "),
        (r"encoder.query_prompt=Instruct: a\nQuery: ", "encoder", "query_prompt", "Instruct: a\nQuery: "),
        (r"encoder.model='a\nb'", "encoder", "model", r"a\nb"),
        ("encoder.model=123", "encoder", "model", "123"),
        ("index.memory=0", "index", "memory", "0"),
        ("encoder.query_prompt=", "encoder", "query_prompt", ""),
        ("index.type=IVF256,Flat", "index", "type", "IVF256,Flat"),
        ('corpus.text=["text"]', "corpus", "text", ("text",)),
        ('corpus.columns={year = "int"}', "corpus", "columns", {"year": "int"}),
    ],
)
def test_an_override_is_read_as_toml_and_else_as_plain_text(
    assignment: str, section: str, key: str, value: Any
) -> None:
    config = BuildConfig().with_overrides([assignment])
    assert getattr(getattr(config, section), key) == value
    expected = dataclasses.replace(getattr(BuildConfig(), section), **{key: value})
    assert config == dataclasses.replace(BuildConfig(), **{section: expected})


def test_later_overrides_win_and_the_rest_of_the_recipe_stays() -> None:
    recipe = BuildConfig(encoder=EncoderConfig(layers=(1, -1)))
    config = recipe.with_overrides(["encoder.max_length=64", "whitening.dim=3", "whitening.dim=5"])
    assert config.encoder == EncoderConfig(layers=(1, -1), max_length=64)
    assert config.whitening.dim == 5
    assert recipe.with_overrides([]) == recipe


@pytest.mark.parametrize("assignment", ["whitening.dim", "dims=3", "=3", "whitening.=3", "whitening", ""])
def test_an_override_without_section_key_or_value_is_refused(assignment: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BuildConfig().with_overrides([assignment])
    assert str(caught.value) == f'assignment "{assignment}" is not of the form section.key=value.'


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("whitenin.dim=3", 'unknown section "whitenin"; did you mean "whitening"?'),
        (
            ".dim=3",
            f'unknown section ""; {_ANY_SECTION}',
        ),
        ("whitening.dims=3", 'unknown setting "whitening.dims"; did you mean "whitening.dim"?'),
        ("whitening.dim=three", 'whitening.dim is "three"; expected a whole number.'),
        ("whitening.dim=2020-01-02", 'whitening.dim is "2020-01-02"; expected a whole number.'),
        ("whitening.dim=-3", "whitening.dim is -3; expected 0 (all) or more."),
    ],
)
def test_an_override_is_checked_like_a_recipe(assignment: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BuildConfig().with_overrides([assignment])
    assert str(caught.value) == message


def test_column_rules_are_added_to_those_of_the_recipe() -> None:
    recipe = BuildConfig(corpus=CorpusConfig(columns={"year": "int", "tag": "string"}, drop=("junk",)))
    config = recipe.with_columns({"text_column": "body"}, ["year:string", "a:b:float"], ["noise"])
    assert config.corpus == CorpusConfig(
        text_column="body", columns={"year": "string", "tag": "string", "a:b": "float"}, drop=("junk", "noise")
    )
    assert recipe.with_columns({}) == recipe


@pytest.mark.parametrize("entry", ["year", "year:", ":int", ""])
def test_a_column_type_that_is_not_name_and_type_is_refused(entry: str) -> None:
    with pytest.raises(ConfigError, match=f'types "{entry}" is not of the form name:type'):
        BuildConfig().with_columns({}, [entry])


@pytest.mark.parametrize(("option", "value"), [("workers", 0), ("workers", -1), ("threads", -1)])
def test_run_options_out_of_range_are_refused(option: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"^{option} is {value};"):
        RunOptions(**{option: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [-3.0, float("nan"), float("inf")])
def test_a_number_of_gpus_that_there_cannot_be_is_refused(count: float) -> None:
    for options in (RunOptions, WorkerPool):
        with pytest.raises(ConfigError, match=f"^gpus_per_worker is {count}; expected 0 or more"):
            options(executor="ray", gpus_per_worker=count)


@pytest.mark.parametrize("setting", [{"ray_address": "auto"}, {"gpus_per_worker": 0.5}])
@pytest.mark.parametrize("executor", ["auto", "processes"])
def test_settings_of_rays_workers_are_refused_without_ray(setting: dict[str, Any], executor: Any) -> None:
    """They would be ignored, and as many processes would start on this machine."""
    for options in (RunOptions, WorkerPool):
        with pytest.raises(ConfigError, match=rf'{next(iter(setting))} is .* executor is "{executor}".*executor="ray"'):
            options(workers=16, executor=executor, **setting)
        assert options(workers=16, executor="ray", **setting).workers == 16


def test_an_executor_that_there_is_not_is_refused() -> None:
    for options in (RunOptions, WorkerPool):
        with pytest.raises(ConfigError, match='executor is "spark"; expected "auto" or "processes" or "ray"'):
            options(executor="spark")  # type: ignore[arg-type]


def test_run_options_are_no_part_of_the_recipe() -> None:
    settings = {key for section in BuildConfig().to_dict().values() for key in section}
    assert not settings & {field.name for field in dataclasses.fields(RunOptions)}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"[encoder\n", "cannot be read as TOML"),
        (b"[encoder]\nmodel = 1 2\n", "at line 2"),
        (b"\xff\xfe", "cannot be read as TOML"),
        (b"[encoder]\nlayers = []\n", "encoder.layers is empty"),
        (b"[encodr]\n", 'did you mean "encoder"?'),
        (b"encoder = 1\n", "expected a table"),
    ],
)
def test_a_recipe_that_cannot_be_used_is_named(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        BuildConfig.load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


def test_a_recipe_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml: no such recipe file"):
        BuildConfig.load(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        BuildConfig.load(tmp_path)


def test_only_a_regular_file_of_bounded_size_is_a_recipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "large.toml").write_bytes(b"#" * (1 << 20) + b"\n")
    for path in (tmp_path / "pipe.toml", Path("/dev/zero")):
        with pytest.raises(ConfigError, match="cannot be read: it is a pipe, socket or device"):
            BuildConfig.load(path)
    with pytest.raises(ConfigError, match="it has 1,048,577 bytes; expected at most 1,048,576"):
        BuildConfig.load(tmp_path / "large.toml")


def test_files_of_queries_that_a_recipe_names_are_regular_ones(tmp_path: Path) -> None:
    for name in ("pipe.txt", "pipe.npy"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(ConfigError, match="it is a pipe, socket or device"):
            query_file_sha256(str(tmp_path / name), "whitening.query_sample")
        with pytest.raises(ConfigError, match="it is a pipe, socket or device"):
            query_file_sha256(str(tmp_path / name), "index.queries")
    with pytest.raises(ConfigError, match="it is a pipe, socket or device"):
        read_query_vectors(tmp_path / "pipe.npy", 3)


@pytest.mark.parametrize("setting", ["dim=8", "shrinkage=0.1"])
def test_settings_without_effect_are_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match=r"uses no whitening|does not use whitening"):
        BuildConfig().with_overrides(["whitening.strength=none", f"whitening.{setting}"])


OLD = """
[encoder]
pooling = "sif"
sif_a = 0.01

[encoder.latte_mix]
dims = 8

[whitening]
kind = "flow"

[whitening.flow]
seed = 3
levels = 3
"""


def test_recipes_that_name_settings_of_papers_in_their_former_places_load(tmp_path: Path) -> None:
    (tmp_path / "old.toml").write_text(OLD)
    config = BuildConfig.load(tmp_path / "old.toml")
    assert config.papers == {"sif": {"a": 0.01}, "latte_mix": {"dims": 8}, "flow": {"seed": 3}}
    assert BuildConfig().with_overrides(["encoder.sif_a=0.01", "whitening.flow.seed=3"]).papers == {
        "sif": {"a": 0.01}, "flow": {"seed": 3}
    }  # fmt: skip
    (tmp_path / "old.toml").write_text(OLD.replace("seed = 3", "sed = 3"))
    with pytest.raises(ConfigError, match=r'unknown setting "papers\.flow\.sed"; did you mean "papers\.flow\.seed"'):
        BuildConfig.load(tmp_path / "old.toml")


def test_settings_of_papers_in_an_old_manifest_are_read_where_they_are_used() -> None:
    """Manifests contained every setting of every paper."""
    old = BuildConfig().to_dict()
    old["encoder"] |= {"sif_a": 0.001, "latte_mix": {"dims": 8}}
    old["whitening"] |= {"flow": {"seed": 3}}
    assert BuildConfig.from_dict(old) == BuildConfig()
    old["whitening"] |= {"kind": "flow"}
    assert BuildConfig.from_dict(old).papers == {"flow": {"seed": 3}}


def test_a_recipe_is_written_with_what_differs_from_the_defaults(tmp_path: Path) -> None:
    changed = ["whitening.strength=0.5", "papers.flow.seed=3", "encoder.layers=[1, -1]"]
    config = BuildConfig().with_overrides(changed)
    (tmp_path / "recipe.toml").write_text(config.to_toml(["Found so."]))
    assert BuildConfig.load(tmp_path / "recipe.toml") == config
    lines = (tmp_path / "recipe.toml").read_text().splitlines()
    assert lines[0] == "# Found so."
    assert sum("=" in line for line in lines) == len(changed)


@pytest.mark.parametrize(
    ("papers", "message"),
    [
        ({"flow": 3}, 'papers is {"flow": 3}; expected a table of sections.'),
        ({"flo": {}}, 'unknown section "papers.flo"; did you mean "papers.flow"?'),
        ({"flow": {"seed": -1}}, "papers.flow.seed is -1; expected 0 to 4294967295."),
        ({"sif": {"a": 0.0}}, "papers.sif.a is 0.0; expected a number above 0, such as 0.001."),
        ({"sif": {"a": "x"}}, 'papers.sif.a is "x"; expected a number.'),
    ],
)
def test_sections_of_papers_are_checked(papers: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BuildConfig.from_dict({"papers": papers})
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, 'encoder.url: "" is not the URL of a server'),
        ({"url": "127.0.0.1:8000"}, "is not the URL of a server"),
        ({"url": "http://user:secret@host"}, "contains a user or a password"),
        ({"pooling": "mean"}, 'encoder.pooling is "mean", but encoder.kind is "server"'),
        ({"layers": [1]}, "encoder.layers is [1]"),
        ({"max_length": 64}, "encoder.max_length is 64"),
        ({"precision": "float32"}, 'encoder.precision is "float32"'),
        ({"batch_tokens": 64}, "encoder.batch_tokens is 64"),
        ({"fitted": "folder"}, 'encoder.fitted is "folder"'),
        ({"model_settings": False}, "encoder.model_settings is false"),
        ({"model": " "}, "encoder.model is empty"),
        ({"kind": "transformer"}, 'expected encoder.kind = "server"'),
    ],
)
def test_a_server_has_an_address_and_no_settings_of_local_models(settings: dict[str, Any], said: str) -> None:
    valid = {
        "kind": "server",
        "model": "m",
        "url": "http://127.0.0.1:8000/v1",
        "truncate_dim": 8,
        "query_prompt": "q: ",
    }
    BuildConfig.from_dict({"encoder": valid})
    changed = valid | settings if settings else {**valid, "url": ""}
    with pytest.raises(ConfigError) as refused:
        BuildConfig.from_dict({"encoder": changed})
    assert said in str(refused.value)
    assert "secret" not in str(refused.value)
