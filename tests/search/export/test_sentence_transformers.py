"""The exported folder: sentence-transformers computes our vectors with it; it is written completely or not at all."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load as load_tensors
from safetensors.numpy import load_file, save_file

from indexer import BuildConfig, build_index
from indexer.encoders.load import load_encoder
from indexer.errors import ExistsError, IsotropeError, MismatchError, ModelError, StoreError
from indexer.models.hub import quiet_transformers
from indexer.models.resolution import spec_of_index
from indexer.recipe.config import EncoderConfig, WhiteningConfig
from indexer.recipe.run_options import RunOptions
from indexer.transforms import Whitening
from search import SearchEngine
from search.export import ExportReport, export_sentence_transformers, st_modules
from search.index import Index
from tests.documents import DOCUMENTS
from tests.faults import FaultyOs

TORCH = RunOptions(backend="torch", device="cpu", threads=1)
TEXTS = [
    "The whale sings a song in the deep sea.",
    "Data",
    "UPPER case, punctuation: and (more) of it!",
    "a long text of the library " * 12,  # is cut
]
# The least that a float32 encoder and a float32 affine map may differ by: the limit that is promised.
CLOSE = 1e-5


def recipe(model: Path, **encoder: Any) -> BuildConfig:
    settings = {"model": str(model), "max_length": 32, "precision": "float32", **encoder}
    return BuildConfig(encoder=EncoderConfig(**settings), whitening=WhiteningConfig(strength=0.5, shrinkage=0.2))


def built(folder: Path, config: BuildConfig) -> Path:
    build_index(DOCUMENTS, folder / "index", config, TORCH)
    return folder / "index"


def load(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer

    with quiet_transformers():
        return SentenceTransformer(str(folder), device="cpu", local_files_only=True)


def assert_equal_vectors(folder: Path, index: Path) -> None:
    """Compare `encode`, `encode_document` and `encode_query` with the engine."""
    model, engine = load(folder), SearchEngine(index, options=TORCH)
    documents, queries = engine.embed(TEXTS, "document"), engine.embed(TEXTS, "query")
    np.testing.assert_allclose(model.encode(TEXTS, batch_size=3), documents, atol=CLOSE)
    np.testing.assert_allclose(model.encode_document(TEXTS), documents, atol=CLOSE)
    np.testing.assert_allclose(model.encode_query(TEXTS), queries, atol=CLOSE)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(
    ("architecture", "layers", "pooling", "prefixes"),
    [
        ("bert-cased", (1, -1), "max", ("query: ", "passage: ")),
        *(
            pytest.param(*case, marks=pytest.mark.check)
            for case in (
                ("bert", (-1,), "mean", ("", "")),
                ("roberta", (1, -1), "mean", ("find ", "")),
                ("camembert", (0,), "max", ("", "a text: ")),
                ("mpnet", (1,), "cls", ("", "")),
                ("distilbert", (-2, -1), "mean", ("", "")),
                ("albert-two-groups", (1, -1), "cls", ("", "")),
                ("deberta-v2", (0, 2), "mean", ("", "")),
                ("t5", (2,), "mean", ("", "")),  # has a norm after its last block
                ("gpt2", (1, -1), "mean", ("", "")),  # has that too, and its tokenizer has no token to pad with
                ("xlm", (1, -1), "max", ("", "")),  # its tokenizer is written in Python
                ("modernbert", (0, -1), "cls", ("", "")),
            )
        ),
    ],
)
def test_the_vectors_equal_ours(
    architecture: str,
    layers: tuple[int, ...],
    pooling: Any,
    prefixes: tuple[str, str],
    tiny_model: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    config = recipe(
        tiny_model(architecture),
        layers=layers,
        pooling=pooling,
        query_prompt=prefixes[0],
        document_prompt=prefixes[1],
    )
    index = built(tmp_path, config)
    export_sentence_transformers(index, tmp_path / "folder")
    assert_equal_vectors(tmp_path / "folder", index)


@pytest.fixture(scope="module")
def exported(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ExportReport]:
    """An index with the defaults, and its exported folder."""
    root = tmp_path_factory.mktemp("exported")
    index = built(root, recipe(tiny_model("bert"), layers=(1, -1)))
    return index, export_sentence_transformers(index, root / "folder")


def test_two_means_make_a_router_whose_routes_share_the_model(exported: tuple[Path, ExportReport]) -> None:
    _, found = exported
    assert found.facts["modules"] == [
        "Router", "Transformer", "WeightedLayerPooling", "Pooling", "Dense", "Normalize",
    ]  # fmt: skip
    routes = json.loads((found.path / "router_config.json").read_text())["structure"]
    assert routes["query"][:3] == routes["document"][:3]
    assert [routes[role][3:] for role in ("query", "document")] == [["query_Dense"], ["document_Dense"]]
    assert len(list(found.path.rglob("model.safetensors"))) == 1 + 1 + 2  # the model's, the layers', two of Dense


@pytest.mark.parametrize(
    ("whitening", "kinds"),
    [
        (WhiteningConfig(centre="common"), ["Transformer", "Pooling", "Dense", "Normalize"]),
        (WhiteningConfig(centre="none", dim=3), ["Transformer", "Pooling", "Dense", "Normalize"]),
        (WhiteningConfig(strength="none"), ["Transformer", "Pooling", "Normalize"]),
    ],
)
def test_one_mean_or_none_needs_no_router(
    whitening: WhiteningConfig, kinds: list[str], tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    index = built(tmp_path, replace(recipe(tiny_model("bert"), query_prompt="find: "), whitening=whitening))
    assert export_sentence_transformers(index, tmp_path / "folder").facts["modules"] == kinds
    assert_equal_vectors(tmp_path / "folder", index)


def test_a_bfloat16_index_gives_its_model_in_float32(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    config = recipe(tiny_model("bert"), precision="bfloat16")
    index = built(tmp_path, config)
    found = export_sentence_transformers(index, tmp_path / "folder")
    assert found.notes == ("the index was built in bfloat16; the folder computes in float32",)
    exact = load_encoder(replace(config.encoder, precision="float32"), TORCH)
    wanted = Index.open(index).transform.transform(exact.encode(TEXTS, "query"), "query")
    np.testing.assert_allclose(load(tmp_path / "folder").encode_query(TEXTS), wanted, atol=CLOSE)


def test_an_int8_index_gives_the_weights_it_was_quantised_from(
    exported: tuple[Path, ExportReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index.open(exported[0])
    spec = spec_of_index(index.path, index.manifest)
    quantised = replace(spec, identity=replace(spec.identity, precision="int8"))
    monkeypatch.setattr("search.export.sentence_transformers.spec_of_index", lambda *_: quantised)
    found = export_sentence_transformers(exported[0], tmp_path / "folder")
    assert files_of(found.path) == files_of(exported[1].path)
    assert "its ranges are not exported" in found.notes[0]


def test_weights_stored_in_half_precision_are_computed_in_float32(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    model = Path(shutil.copytree(tiny_model("bert"), tmp_path / "model"))
    halves = {name: array.astype(np.float16) for name, array in load_file(model / "model.safetensors").items()}
    save_file(halves, model / "model.safetensors", metadata={"format": "pt"})
    index = built(tmp_path, recipe(model))
    export_sentence_transformers(index, tmp_path / "folder")
    assert_equal_vectors(tmp_path / "folder", index)


def test_weights_in_several_files_are_copied_as_they_are(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    model = Path(shutil.copytree(tiny_model("bert"), tmp_path / "model"))
    arrays = load_file(model / "model.safetensors")
    names, shards = sorted(arrays), ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    where = {name: shards[number % 2] for number, name in enumerate(names)}
    for shard in shards:
        part = {name: arrays[name] for name in names if where[name] == shard}
        save_file(part, model / shard, metadata={"format": "pt"})
    (model / "model.safetensors").unlink()
    (model / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    index = built(tmp_path, recipe(model))
    found = export_sentence_transformers(index, tmp_path / "folder")
    assert sum(name.endswith(shards) for name in found.files) == 2
    assert_equal_vectors(tmp_path / "folder", index)


def test_lower_casing_and_prompts_of_a_sentence_transformers_folder_go_along(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    model = Path(shutil.copytree(tiny_model("bert-cased"), tmp_path / "model"))
    chain = st_modules.ModuleChain(
        [st_modules.transformer({}, 24, lowercase=True, all_layers=False), st_modules.pooling("cls", 32)],
        {},
        {"query": "ask: ", "document": "tell: "},
    )
    for name, content in st_modules.folder_files(chain).items():
        assert isinstance(content, bytes)
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_bytes(content.replace(b'  "model_args": {\n    "dtype": "float32"\n  }', b'  "x": null'))
    index = built(tmp_path, recipe(model, pooling="auto"))
    found = export_sentence_transformers(index, tmp_path / "folder")
    assert found.facts["prompts"] == {"query": "ask: ", "document": "tell: "}
    assert_equal_vectors(tmp_path / "folder", index)


def test_padding_stands_on_the_right_whatever_the_tokenizer_says(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    model = Path(shutil.copytree(tiny_model("gpt2"), tmp_path / "model"))
    settings = json.loads((model / "tokenizer_config.json").read_text()) | {"padding_side": "left"}
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    index = built(tmp_path, recipe(model, pooling="cls"))
    export_sentence_transformers(index, tmp_path / "folder")
    assert_equal_vectors(tmp_path / "folder", index)


def test_the_same_index_gives_the_same_bytes(exported: tuple[Path, ExportReport], tmp_path: Path) -> None:
    index, first = exported
    again = export_sentence_transformers(index, tmp_path / "parent" / "again")
    assert files_of(again.path) == files_of(first.path)
    assert again.files == {name: len(data) for name, data in files_of(first.path).items()} == first.files
    assert os.listdir(tmp_path / "parent") == ["again"]  # nothing is left beside it


@pytest.mark.parametrize("there", ["folder", "file", "link"])
def test_what_is_there_already_is_not_touched(there: str, exported: tuple[Path, ExportReport], tmp_path: Path) -> None:
    target = tmp_path / "target"
    if there == "folder":
        target.mkdir()
    elif there == "file":
        target.write_text("mine")
    else:
        target.symlink_to("nowhere")
    with pytest.raises(ExistsError, match="already exists"):
        export_sentence_transformers(exported[0], target)
    assert os.listdir(tmp_path) == ["target"]


@pytest.mark.check
def test_a_failure_of_any_write_leaves_nothing(
    exported: tuple[Path, ExportReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = FaultyOs()
    monkeypatch.setattr("indexer.store.files.os", counter)
    export_sentence_transformers(exported[0], tmp_path / "whole")
    shutil.rmtree(tmp_path / "whole")
    assert counter.count > 40
    for at in range(0, counter.count - 2, 7):  # the last two sync the name of a folder that is whole
        monkeypatch.setattr("indexer.store.files.os", FaultyOs(at, errno.ENOSPC))
        with pytest.raises(StoreError):
            export_sentence_transformers(exported[0], tmp_path / "folder")
        assert os.listdir(tmp_path) == []


def test_another_model_is_refused_and_a_moved_one_found(
    tiny_model: Callable[[str], Path], exported: tuple[Path, ExportReport], tmp_path: Path
) -> None:
    index, first = exported
    moved = Path(shutil.copytree(tiny_model("bert"), tmp_path / "moved"))
    export_sentence_transformers(index, tmp_path / "folder", model=moved)
    assert files_of(tmp_path / "folder").keys() == files_of(first.path).keys()
    with pytest.raises(MismatchError):
        export_sentence_transformers(index, tmp_path / "other", model=tiny_model("bert-pooler"))
    assert not (tmp_path / "other").exists()


def test_a_model_that_changes_while_it_is_copied_is_noticed(
    exported: tuple[Path, ExportReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("search.result_files._pieces", lambda content: iter([b"other bytes"]))
    with pytest.raises(ModelError, match="changed while it was copied"):
        export_sentence_transformers(exported[0], tmp_path / "folder")
    assert os.listdir(tmp_path) == []


def test_a_place_that_cannot_be_written_is_refused_before_the_model_is_looked_for(
    exported: tuple[Path, ExportReport], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(IsotropeError, match="is a file"):
        export_sentence_transformers(exported[0], tmp_path / "file" / "folder", model=tmp_path / "nowhere")


@pytest.mark.check
def test_the_real_minilm_equals_ours(tmp_path: Path) -> None:
    config = replace(recipe(Path(EncoderConfig().model), layers=(1, -1)), whitening=WhiteningConfig(dim=5))
    index = built(tmp_path, config)
    export_sentence_transformers(index, tmp_path / "folder")
    assert_equal_vectors(tmp_path / "folder", index)


def test_a_dense_is_the_affine_map_and_its_bias_is_exact() -> None:
    chance = np.random.default_rng(0)
    mean: npt.NDArray[np.float64] = 100 + chance.normal(size=6)
    projection = chance.normal(size=(6, 4))
    (layer,) = Whitening(mean, mean, projection, np.ones(6)).affine_layers("document")
    content = st_modules.dense(*layer).files["model.safetensors"]
    assert isinstance(content, bytes)
    weights = load_tensors(content)
    np.testing.assert_array_equal(weights["linear.weight"], projection.T.astype(np.float32))
    np.testing.assert_array_equal(weights["linear.bias"], (-(mean @ projection)).astype(np.float32))


@pytest.mark.parametrize(
    ("layers", "weights"), [([1, 6], [1, 0, 0, 0, 0, 1]), ([0], [1, 0, 0, 0, 0, 0, 0]), ([5, 6], [1, 1]), ([6], [1])]
)
def test_a_layer_average_weighs_the_layers_asked_for(layers: list[int], weights: list[int]) -> None:
    files = st_modules.layer_average(layers, 6, 8).files
    config, content = files["config.json"], files["model.safetensors"]
    assert isinstance(config, bytes)
    assert isinstance(content, bytes)
    assert load_tensors(content)["layer_weights"].tolist() == weights
    assert json.loads(config)["layer_start"] == layers[0]


def test_a_link_that_leads_out_of_the_model_is_not_copied(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    model = Path(shutil.copytree(tiny_model("bert"), tmp_path / "model"))
    index = built(tmp_path, recipe(model))
    (model / "tokenizer_config.json").rename(tmp_path / "elsewhere")
    (model / "tokenizer_config.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(
        ModelError, match=r"tokenizer_config\.json: is a link to .*elsewhere, outside the model's folder"
    ):
        export_sentence_transformers(index, tmp_path / "out")
    assert not (tmp_path / "out").exists()
