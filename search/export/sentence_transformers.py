"""Export of an index's encoder and transform to a folder that `SentenceTransformer(folder)` loads.

`encode` and `encode_document` return document vectors and `encode_query` returns query vectors. They equal Isotrope's
float32 vectors within 1e-5, whatever the precision of the index. The folder contains copies of the model's files, which
are compared with the hashes in the index.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np

from indexer.encoders.static.tables import load_table
from indexer.errors import ConfigError, ModelError, spelled
from indexer.models.encoder_spec import EncoderSpec
from indexer.models.model_files import ModelFiles, is_onnx, own_file
from indexer.models.model_json import read_json
from indexer.models.output_modules import OutputModule, output_width
from indexer.models.resolution import hidden_size, num_layers, spec_of_index
from indexer.models.sentence_transformers_folder import read_folder_settings
from indexer.recipe.config import BasicPooling, Role
from indexer.recipe.paper_methods import POOLINGS, load_method
from indexer.store.files import FileDigest
from indexer.system.output_files import check_output_folder
from indexer.typed_arguments import checked
from search.export import st_modules
from search.export.report import ExportReport
from search.export.st_modules import Module, ModuleChain
from search.index import Index
from search.result_files import Content, open_output_folder, write_files

KIND = "sentence-transformers"
_TOKENIZER_CONFIG = "tokenizer_config.json"
_PADDING = ("pad_token", "eos_token", "sep_token", "unk_token")  # candidates for Isotrope's padding token, in order


@checked
def export_sentence_transformers(index: str | Path, path: str | Path, model: str | Path | None = None) -> ExportReport:
    """Write the folder `path`, which must not exist. `model` is the folder of the model's files if they have moved.

    Raises ConfigError for an index of precomputed embeddings, ModelError and MismatchError as `SearchEngine` does,
    ExistsError and StoreError.
    """
    opened, folder = Index.open(index), Path(path)
    _require_exportable(opened)
    check_output_folder(folder)
    spec = spec_of_index(opened.path, opened.manifest, model)
    model_files = spec.files if spec.traits.has_layers else None
    modules = _of_table(spec) if model_files is None else _of_transformer(opened, spec, model_files)
    chain = _chain(opened, spec, modules)
    files = st_modules.folder_files(chain) | {"README.md": _readme(opened, spec, chain).encode()}
    with open_output_folder(folder) as temporary:
        digests = write_files(temporary, files)
        if model_files is not None:
            _require_copied(spec, model_files, files, digests)
    facts = {
        "modules": chain.kinds,
        "model": _name(spec),
        "layers": list(spec.identity.layers),
        "pooling": spec.identity.pooling,
        "max_length": spec.identity.max_length,
        "dimensions": opened.transform.dim,
        "prompts": dict(chain.prompts),
        "fingerprint": spec.fingerprint,
    }
    sizes = {name: digest.bytes for name, digest in digests.items()}
    return ExportReport(KIND, folder, sizes, facts, tuple(_notes(opened, spec)))


def _require_exportable(index: Index) -> None:
    """Raise ConfigError if no modules of sentence-transformers compute the index's vectors."""
    encoder, transform = index.encoder, index.transform
    precomputed = "the embeddings came with the corpus, so there is no model to export"
    weighted = (name for name, paper in POOLINGS.items() if paper.weighs_tokens)
    poolings = ("mean", *weighted) if encoder.traits.has_table else get_args(BasicPooling)
    reason = ""
    if not encoder.traits.encodes_texts:
        reason = f'encoder.kind is "{encoder.kind}": {precomputed}'
    elif encoder.traits.is_remote:
        reason = f'encoder.kind is "{encoder.kind}": the model is behind a server, so there are no files to export'
    elif encoder.pooling not in poolings:
        reason = f'encoder.pooling is "{encoder.pooling}", for which sentence-transformers has no module'
    elif is_onnx(encoder.weights):
        reason = "the model's weights are an ONNX file, to which no module can be added"
    elif transform.affine_layers("document") is None:
        reason = f'whitening.kind is "{transform.kind}", for which sentence-transformers has no module'
    if reason:
        raise ConfigError(
            f"{index.path}: {reason}. Fix: export the vectors with {spelled('export_parquet', '--to parquet')}."
        )


def _of_transformer(index: Index, spec: EncoderSpec, model_files: ModelFiles) -> list[Module]:
    """Return a transformer's modules up to the embedding."""
    settings, size = spec.identity, hidden_size(model_files)
    layers, blocks = list(settings.layers), num_layers(model_files)
    averaged = layers != [blocks]
    chain = [st_modules.transformer(_model_files(model_files), settings.max_length, settings.lowercase, averaged)]
    if averaged:
        chain.append(st_modules.layer_average(layers, blocks, size))
    own = [Module(module.kind, {name: own_file(module.folder, name) for name in module.hashes})
           for module in _own_modules(spec)]  # fmt: skip
    return [*chain, st_modules.pooling(settings.pooling, size), *own, *_truncation(spec, size)]


def _own_modules(spec: EncoderSpec) -> tuple[OutputModule, ...]:
    return read_folder_settings(spec.files.folder).modules if spec.identity.modules else ()


def _truncation(spec: EncoderSpec, size: int) -> list[Module]:
    """Return the module that keeps the leading dimensions, if the recipe cuts embeddings."""
    kept = spec.identity.truncate_dim
    if not kept:
        return []
    return [st_modules.dense(np.eye(output_width(spec.output_layers, size), kept), np.zeros(kept))]


def _of_table(spec: EncoderSpec) -> list[Module]:
    """Return a static table's module: token weights are multiplied into its rows, and unknown tokens get a zero row."""
    table = load_table(Path(spec.folder))
    vectors = np.asarray(table.vectors)
    if (paper := POOLINGS.get(spec.identity.pooling)) is not None:
        vectors = vectors * load_method(paper).token_weights(spec)[:, None]
    if table.unknown == len(vectors):
        vectors = np.concatenate([vectors, np.zeros((1, vectors.shape[1]), np.float32)])
    return [st_modules.static_embedding(table.tokenizer.to_str(), vectors[:, : spec.identity.truncate_dim])]


def _chain(index: Index, spec: EncoderSpec, chain: list[Module]) -> ModuleChain:
    affine = {role: index.transform.affine_layers(role) or [] for role in get_args(Role)}
    query = {
        len(chain) + number: st_modules.dense(*layer)
        for number, (layer, other) in enumerate(zip(affine["query"], affine["document"], strict=True))
        if not all(map(np.array_equal, layer, other))
    }
    chain += [*(st_modules.dense(*layer) for layer in affine["document"]), st_modules.normalize()]
    prompts = {"query": spec.identity.query_prefix, "document": spec.identity.document_prefix}
    return ModuleChain(chain, query, prompts)


def _model_files(model_files: ModelFiles) -> dict[str, Content]:
    """Return the model's files, with the tokenizer's padding settings changed to Isotrope's where they differ."""
    names = ("config.json", *model_files.weights, *model_files.tokenizer)
    changed = _padding_settings(model_files)
    files: dict[str, Content] = {name: own_file(model_files.root, name) for name in names}
    if changed:
        path = model_files.root / _TOKENIZER_CONFIG
        original = read_json(path, dict[str, Any]) if _TOKENIZER_CONFIG in model_files.tokenizer else {}
        files[_TOKENIZER_CONFIG] = json.dumps(original | changed, indent=2, ensure_ascii=False).encode()
    return files


def _padding_settings(model_files: ModelFiles) -> dict[str, str]:
    """Return the changes to the tokenizer's settings that make it pad on the right."""
    from transformers import AutoTokenizer

    from indexer.models.hub import as_model_errors, quiet_transformers

    root = model_files.root
    with as_model_errors(root, "the tokenizer"), quiet_transformers():
        tokenizer: Any = AutoTokenizer.from_pretrained(str(root), local_files_only=True, trust_remote_code=False)
    changed = {}
    if tokenizer.pad_token is None:
        tokens = (getattr(tokenizer, name, None) for name in _PADDING)
        changed["pad_token"] = next((str(token) for token in tokens if token), tokenizer.convert_ids_to_tokens(0))
    if tokenizer.padding_side != "right":
        changed["padding_side"] = "right"
    return changed


def _require_copied(
    spec: EncoderSpec, model_files: ModelFiles, files: Mapping[str, Content], digests: Mapping[str, FileDigest]
) -> None:
    """Raise ModelError if a copied file changed since it was hashed."""
    expected = spec.identity.weights | spec.identity.tokenizer | spec.identity.config
    for name, sha256 in expected.items():
        source = own_file(model_files.root, name)
        copies = [copy for copy, content in files.items() if content == source]
        if any(digests[copy].sha256 != sha256 for copy in copies):
            raise ModelError(f"{model_files.root / name}: changed while it was copied. Fix: run the command again.")


def _notes(index: Index, spec: EncoderSpec) -> list[str]:
    notes = []
    precision = spec.identity.precision
    if precision == "int8":
        notes.append(
            "the index was built in int8; its ranges are not exported. The folder computes in float32, so its vectors "
            "differ from the stored vectors by the rounding of int8"
        )
    elif precision != "float32":
        notes.append(f"the index was built in {precision}; the folder computes in float32")
    if spec.traits.has_table:
        notes.append("unknown tokens count as zeros in the folder's mean; Isotrope leaves them out of the mean")
    if "windows" in index.manifest.features:
        notes.append("documents were split into windows; sentence-transformers cuts them at the maximum length instead")
    return notes


def _name(spec: EncoderSpec) -> str:
    """Return the model's name, which for a folder is the last part of its path."""
    return Path(spec.folder).name if spec.local else spec.model


def _readme(index: Index, spec: EncoderSpec, chain: ModuleChain) -> str:
    whitening = index.config.whitening
    transform = index.manifest.files[index.manifest.transform["file"]].sha256
    return f"""---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
---

# Vectors of an Isotrope index

    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer("path/to/this/folder")
    documents = model.encode_document(["a document"])
    queries = model.encode_query(["a question"])
    scores = queries @ documents.T  # inner products of unit vectors: higher is closer

`encode` treats every text as a document. Vectors have {index.transform.dim} dimensions and unit length.

| setting | value |
| --- | --- |
| model | {_name(spec)} |
| modules | {" -> ".join(chain.kinds)} |
| layers | {", ".join(map(str, spec.identity.layers))} |
| pooling | {spec.identity.pooling} |
| maximum length | {spec.identity.max_length} tokens |
| whitening | strength {whitening.strength}, centre {whitening.centre} |
| encoder | sha256 {spec.fingerprint} |
| transform | sha256 {transform} |
"""
