"""An index's encoder and transform as a folder that `SentenceTransformer(folder)` loads.

`encode` and `encode_document` give the vectors of documents, `encode_query` those of queries, equal to ours within 1e-5
in float32, whatever precision the index was built in. The folder holds the model's own files, copied and compared with
the hashes in the index.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np

from indexer.config import BasicPooling, Role
from indexer.encoders import EncoderSpec
from indexer.encoders.model_files import ModelFiles, own_file
from indexer.encoders.model_json import read_json
from indexer.encoders.spec import num_layers, spec_of_index
from indexer.encoders.static_tables import load_table
from indexer.errors import ConfigError, ModelError
from indexer.output_files import check_output_folder
from indexer.paper_methods import POOLINGS, load_method
from indexer.store.files import FileDigest
from search.export import ExportReport, st_modules
from search.export.st_modules import Module, ModuleChain, Prompts
from search.files import Content, open_output_folder, write_files
from search.index import Index

KIND = "sentence-transformers"
_TOKENIZER_CONFIG = "tokenizer_config.json"
_PADDING = ("pad_token", "eos_token", "sep_token", "unk_token")  # what an encoder of ours pads with, in this order


def export_sentence_transformers(index: str | Path, path: str | Path, model: str | Path | None = None) -> ExportReport:
    """Write the folder `path`, which must not exist. `model` is where the model's files lie, if they have moved.

    Raises ConfigError for an index of embeddings made elsewhere, ModelError and MismatchError as `SearchEngine` does,
    ExistsError and StoreError.
    """
    opened, folder = Index.open(index), Path(path)
    _require_exportable(opened)
    check_output_folder(folder)
    spec = spec_of_index(opened.path, opened.manifest, model)
    found = spec.files if spec.traits.has_layers else None
    chain = _chain(opened, spec, _of_table(spec) if found is None else _of_transformer(opened, spec, found))
    files = st_modules.folder_files(chain) | {"README.md": _readme(opened, spec, chain).encode()}
    with open_output_folder(folder) as beside:
        digests = write_files(beside, files)
        if found is not None:
            _require_copied(spec, found, files, digests)
    facts = {
        "modules": chain.kinds,
        "model": _name(spec),
        "layers": list(spec.identity.layers),
        "pooling": spec.identity.pooling,
        "max_length": spec.identity.max_length,
        "dimensions": opened.transform.dim,
        "prompts": vars(chain.prompts),
        "fingerprint": spec.fingerprint,
    }
    sizes = {name: digest.bytes for name, digest in digests.items()}
    return ExportReport(KIND, folder, sizes, facts, tuple(_notes(opened, spec)))


def _require_exportable(index: Index) -> None:
    """Raises ConfigError for what no modules of sentence-transformers compute."""
    encoder, transform = index.encoder, index.transform
    elsewhere = "the index holds embeddings made elsewhere, so there is no model to export"
    weighted = (name for name, paper in POOLINGS.items() if paper.weighs_tokens)
    poolings = ("mean", *weighted) if encoder.traits.has_table else get_args(BasicPooling)
    reason = ""
    if not encoder.traits.encodes_texts:
        reason = f'encoder.kind is "{encoder.kind}": {elsewhere}'
    elif encoder.pooling not in poolings:
        reason = f'encoder.pooling is "{encoder.pooling}", for which sentence-transformers has no module'
    elif transform.affine_layers("document") is None:
        reason = f'whitening.kind is "{transform.kind}", for which sentence-transformers has no module'
    if reason:
        raise ConfigError(f"{index.path}: {reason}. --to parquet exports its vectors.")


def _of_transformer(index: Index, spec: EncoderSpec, found: ModelFiles) -> list[Module]:
    """The modules up to the embedding."""
    settings, size = spec.identity, int(index.manifest.encoder["dim"])
    layers, blocks = list(settings.layers), num_layers(found)
    averaged = layers != [blocks]
    chain = [st_modules.transformer(_model_files(found), settings.max_length, settings.lowercase, averaged)]
    if averaged:
        chain.append(st_modules.layer_average(layers, blocks, size))
    return [*chain, st_modules.pooling(settings.pooling, size)]


def _of_table(spec: EncoderSpec) -> list[Module]:
    """The same of a table: SIF's weights go into its rows, and tokens it does not know get a row of zeros."""
    table = load_table(Path(spec.folder))
    vectors = np.asarray(table.vectors)
    if (paper := POOLINGS.get(spec.identity.pooling)) is not None:
        vectors = vectors * load_method(paper).token_weights(spec)[:, None]
    if table.unknown == len(vectors):
        vectors = np.concatenate([vectors, np.zeros((1, vectors.shape[1]), np.float32)])
    return [st_modules.static_embedding(table.tokenizer, vectors)]


def _chain(index: Index, spec: EncoderSpec, chain: list[Module]) -> ModuleChain:
    affine = {role: index.transform.affine_layers(role) or [] for role in get_args(Role)}
    query = {
        len(chain) + number: st_modules.dense(*layer)
        for number, (layer, other) in enumerate(zip(affine["query"], affine["document"], strict=True))
        if not all(map(np.array_equal, layer, other))
    }
    chain += [*(st_modules.dense(*layer) for layer in affine["document"]), st_modules.normalize()]
    return ModuleChain(chain, query, Prompts(spec.identity.query_prefix, spec.identity.document_prefix))


def _model_files(found: ModelFiles) -> dict[str, Content]:
    """The model's own files; the tokenizer is told to pad as ours does where its own settings say otherwise."""
    names = ("config.json", *found.weights, *found.tokenizer)
    changed = _padding_settings(found)
    files: dict[str, Content] = {name: own_file(found.root, name) for name in names}
    if changed:
        own = read_json(found.root / _TOKENIZER_CONFIG, dict[str, Any]) if _TOKENIZER_CONFIG in found.tokenizer else {}
        files[_TOKENIZER_CONFIG] = json.dumps(own | changed, indent=2, ensure_ascii=False).encode()
    return files


def _padding_settings(found: ModelFiles) -> dict[str, str]:
    """What must be changed in the tokenizer's settings so that it pads, and on the right."""
    from transformers import AutoTokenizer

    from indexer.encoders.hub import as_model_errors, quiet_transformers

    with as_model_errors(found.root, "the tokenizer"), quiet_transformers():
        tokenizer: Any = AutoTokenizer.from_pretrained(str(found.root), local_files_only=True, trust_remote_code=False)
    changed = {}
    if tokenizer.pad_token is None:
        tokens = (getattr(tokenizer, name, None) for name in _PADDING)
        changed["pad_token"] = next((str(token) for token in tokens if token), tokenizer.convert_ids_to_tokens(0))
    if tokenizer.padding_side != "right":
        changed["padding_side"] = "right"
    return changed


def _require_copied(
    spec: EncoderSpec, found: ModelFiles, files: Mapping[str, Content], digests: Mapping[str, FileDigest]
) -> None:
    """Raises ModelError if a copied file changed since it was hashed."""
    expected = spec.identity.weights | spec.identity.tokenizer | spec.identity.config
    for name, sha256 in expected.items():
        source = own_file(found.root, name)
        copies = [copy for copy, content in files.items() if content == source]
        if any(digests[copy].sha256 != sha256 for copy in copies):
            raise ModelError(f"{found.root / name}: changed while it was copied. Run the command again.")


def _notes(index: Index, spec: EncoderSpec) -> list[str]:
    notes = []
    precision = spec.identity.precision
    if precision == "int8":
        notes.append(
            "the index was built in int8; its ranges are not exported. The folder computes in float32, and its vectors "
            "differ from the stored ones as int8 does from float32"
        )
    elif precision != "float32":
        notes.append(f"the index was built in {precision}; the folder computes in float32")
    if spec.traits.has_table:
        notes.append(
            "tokens that the table does not know count as zeros in the folder's mean; here they are left out of it"
        )
    if "windows" in index.manifest.features:
        notes.append("documents were split in windows; sentence-transformers cuts them at the maximum length instead")
    return notes


def _name(spec: EncoderSpec) -> str:
    """The model's name; of a folder, its last part."""
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

`encode` takes every text as a document. {index.transform.dim} dimensions, unit length.

| what | value |
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
