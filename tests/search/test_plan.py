"""`isotrope plan`: its properties, formulas, and predictions, compared with figures of real builds."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from indexer.errors import ConfigError, ModelError
from indexer.models.model_files import find_model_files
from indexer.recipe.config import BuildConfig, EncoderConfig
from search.dedup.join import approximate, cells
from search.plan import formulas
from search.plan.formulas import index_kind
from search.plan.ledger import constants, read_constants, show
from search.plan.model_shape import ModelShape, model_shape
from search.plan.plan import Plan, make_plan
from search.plan.request import (
    MOST,
    Hardware,
    PlanSettings,
    Prices,
    known_gpus,
    parse_count,
)
from tests.tiny_models import architecture_cases

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks/results"
RUNS: dict[str, dict[str, Any]] = json.loads((RESULTS / "builds.json").read_text(encoding="utf-8"))["runs"]
# The constants were calibrated on these builds only.
CALIBRATED = {
    *("minilm-debian", "minilm-cacm", "minilm-scifact"),
    *("static-debian", "static-scifact", "static-debian-20k", "static-flat", "static-auto"),
    *(f"join-{method}-{size}{width}" for method in ("exact", "ann") for size in ("50k", "200k", "1000k")
      for width in ("", "-wide")),
    "join-ann-100k-wide",
}  # fmt: skip
BUILDS = [name for name, run in RUNS.items() if run["what"] == "build"]
JOINS = [name for name, run in RUNS.items() if run["what"] == "join"]
WITHIN = 0.15
_BY_THE_TEXT = 0.25  # documents.parquet: the compression of texts depends on the corpus
_LAYERS = {"documents.parquet": "documents", "windows.parquet": "windows", "embeddings.npy": "embeddings",
           "moments.npz": "moments", "part.json": "records", "manifest.json": "manifest", "transforms": "transforms",
           "segments": "segments"}  # fmt: skip


def plan_of(run: dict[str, Any]) -> Plan:
    """Return the plan of a stored build."""
    asked = run["asked"]
    static = run["shape"] == "static"
    model = "potion-base-4M" if static else run["shape"]
    given = [f'encoder.model="{model}"', f"store.embeddings={run['embeddings']}"]
    given += [setting for setting in asked.get("settings", []) if setting.startswith("index.")]
    config = BuildConfig.load(asked["recipe"]).with_overrides(given)
    documents = run["documents"]
    return make_plan(PlanSettings(documents, run["encoded_tokens"] / documents, run["text_bytes"] / documents, config,
                                  Hardware(cores=1)))  # fmt: skip


def plan(documents: int = 1_000_000, **more: Any) -> Plan:
    hardware = more.pop("hardware", Hardware())
    config = BuildConfig(encoder=EncoderConfig(model=more.pop("model", "bert-base-uncased")))
    return make_plan(PlanSettings(documents, config=more.pop("config", config), hardware=hardware, **more))


@pytest.mark.parametrize("name", BUILDS)
def test_cpu_seconds_of_the_builds_that_were_run_are_predicted(name: str) -> None:
    run = RUNS[name]
    assert plan_of(run).ledger.value("build.cpu_seconds") == pytest.approx(run["cpu_seconds"], rel=WITHIN)


@pytest.mark.parametrize("name", BUILDS)
def test_bytes_of_the_builds_that_were_run_are_predicted_layer_by_layer(name: str) -> None:
    run, found = RUNS[name], plan_of(RUNS[name])
    assert found.ledger.value("storage.total") == pytest.approx(sum(run["bytes"].values()), rel=WITHIN)
    assert run["bytes"].keys() <= _LAYERS.keys()
    for layer, size in run["bytes"].items():
        tolerance = _BY_THE_TEXT if layer == "documents.parquet" else WITHIN
        assert found.ledger.value(f"storage.{_LAYERS[layer]}") == pytest.approx(size, rel=tolerance), layer


@pytest.mark.parametrize("name", BUILDS)
def test_the_kind_of_index_that_was_chosen_is_predicted(name: str) -> None:
    assert plan_of(RUNS[name]).segments.kind.factory == RUNS[name]["factory"]


@pytest.mark.parametrize("name", JOINS)
def test_cpu_seconds_of_the_joins_that_were_run_are_predicted(name: str) -> None:
    run = RUNS[name]
    found = plan(run["rows"], config=BuildConfig() if run["dim"] > 256 else BuildConfig.load("static"))
    assert found.ledger.value(f"dedup.{run['method']}") == pytest.approx(run["cpu_seconds"], rel=WITHIN)


def test_a_build_on_another_machine_is_predicted_from_its_encoding_rate() -> None:
    stored = json.loads((RESULTS / "build.json").read_text(encoding="utf-8"))
    seconds, cores = stored["results"][0]["build"]["seconds"], stored["machine"]["cores"]
    found = plan(10_000, model="all-MiniLM-L6-v2", tokens=92.6, hardware=Hardware(cores=cores, amx=True))
    assert found.ledger.value("build.seconds") == pytest.approx(seconds, rel=WITHIN)


def test_cells_are_planned_by_the_limits_that_joins_have() -> None:
    assert (formulas.MOST_CELLS, formulas.LEAST_WORK) == (cells.MOST_CELLS, cells._LEAST_WORK)
    assert (formulas.INT8_COST, formulas.CELLS_PER_ROOT) == (cells._INT8_COST, approximate._CELLS_PER_ROOT)
    vectors = np.zeros((52_704, 128), np.float32)
    assert cells.Pilot.of(vectors, 0.95) is None
    assert formulas.exact_work(len(vectors), 128)[0] == 0 < formulas.exact_work(len(vectors) + 1, 128)[0]
    assert cells.Pilot.of(np.zeros((52_705, 128), np.float32), 0.95) is not None


def test_enough_builds_are_held_out() -> None:
    assert set(RUNS) >= CALIBRATED
    assert len(set(BUILDS) - CALIBRATED) >= 3
    assert len(set(JOINS) - CALIBRATED) >= 3


def test_a_plan_is_linear_in_documents_but_for_the_joins() -> None:
    small, large = (plan(count, hardware=Hardware(8)) for count in (10**8, 10**9))
    for key in ("encode.gpu_seconds", "storage.documents", "storage.embeddings", "build.reading"):
        assert large.ledger.value(key) == pytest.approx(10 * small.ledger.value(key), rel=1e-4)
    assert large.ledger.value("dedup.exact") == pytest.approx(100 * small.ledger.value("dedup.exact"), rel=0.01)
    assert large.ledger.value("dedup.pairs") == pytest.approx(100 * small.ledger.value("dedup.pairs"), rel=0.01)


def test_joins_grow_with_the_power_of_one_and_a_half_while_cells_get_more() -> None:
    tenth, few, many, most = (plan(count) for count in (10**5, 10**6, 10**7, 10**8))
    assert few.ledger.value("dedup.pairs") == pytest.approx(10**1.5 * tenth.ledger.value("dedup.pairs"))
    assert few.ledger.value("dedup.exact") < 10**1.5 * tenth.ledger.value("dedup.exact")
    assert many.ledger.value("dedup.ann") < 10**1.5 * few.ledger.value("dedup.ann")
    assert most.ledger.value("dedup.ann") < 10**2 * many.ledger.value("dedup.ann")


def test_nothing_falls_with_the_number_of_documents() -> None:
    plans = [plan(count, hardware=Hardware(8, memory=1 << 36)) for count in (10**6, 10**7, 10**8, 10**9)]
    keys = [line.key for line in plans[0].ledger.lines if line.key not in ("encode.flops_a_row", "serve.recall")]
    assert plans[0].ledger.value("encode.memory") == plans[-1].ledger.value("encode.memory") > 0
    for key in keys:
        values = [found.ledger.value(key) for found in plans]
        assert values == sorted(values), key


def test_gpus_share_the_time_and_not_the_work() -> None:
    one, eight = (plan(hardware=Hardware(count, cores=8)) for count in (1, 8))
    assert one.ledger.value("encode.gpu_seconds") == eight.ledger.value("encode.gpu_seconds")
    assert one.ledger.value("encode.seconds") == 8 * eight.ledger.value("encode.seconds")


def test_the_arithmetic_of_a_row_is_that_of_the_encoder() -> None:
    shape = ModelShape("bert", 768, 768, blocks=12, queries=768, keys=768, mlp=2 * 3072)
    assert shape.parameters == 12 * (4 * 768**2 + 2 * 768 * 3072)
    found = plan()
    assert found.ledger.value("encode.flops_a_row") == pytest.approx(22.35e9, rel=0.001)
    assert "84.9M params x 128 tokens" in found.ledger.lines[0].arithmetic


def test_money_is_hours_times_a_price() -> None:
    found = plan(hardware=Hardware(8), prices=Prices(gpu=2.0, core=0.04, storage=0.02, ram=3.0))
    gpu = found.ledger.value("encode.gpu_seconds") / 3600 * 2
    cores = found.ledger.value("build.cpu_seconds") / 3600 * 0.04
    assert found.ledger.value("money.build") == pytest.approx(gpu + cores)
    assert found.ledger.value("money.storage") == pytest.approx(found.ledger.value("storage.total") / 1e9 * 0.02)
    assert found.ledger.value("money.month") == found.ledger.value("money.storage") + found.ledger.value("money.ram")
    assert not any(line.key.startswith("money.") for line in plan().ledger.lines)


def test_shards_fit_their_hosts() -> None:
    found = plan(10**9, hardware=Hardware(memory=1 << 38))
    assert found.segments.rows == -(-(10**9) // found.segments.hosts)
    assert found.segments.size <= 1 << 38
    assert 1 < found.segments.hosts == found.segments.count < 12
    assert plan(10**9).segments.hosts == 1
    assert plan(10**9, hardware=Hardware(memory=1 << 34)).segments.hosts > found.segments.hosts


def segmented(documents: int, rows: int, memory: int = 0, **store: int) -> Plan:
    """Return a plan with segments of this many rows."""
    given = [f"index.segment_rows={rows}", *(f"store.{name}={value}" for name, value in store.items())]
    return plan(documents, config=BuildConfig().with_overrides(given), hardware=Hardware(memory=memory))


def test_segments_are_those_that_the_recipe_asks_for() -> None:
    found = segmented(10**9, 10**7, memory=1 << 38)
    assert (found.segments.count, found.segments.rows) == (100, 10**7)
    assert found.ledger.value("serve.segments") == 100
    shown = {line.key: line.arithmetic for line in found.ledger.lines}
    assert "index.segment_rows is 10,000,000" in shown["serve.segments"]
    assert "100 segments x" in shown["build.indexing"]
    needed, hosts = found.segments.size + constants()["serve.process"].value, found.segments.hosts
    assert found.segments.a_host * needed <= 1 << 38 < -(-100 // (hosts - 1)) * needed
    assert (segmented(10**9, 10**7).segments.count, segmented(10**9, 10**7).segments.hosts) == (100, 1)
    assert segmented(1000, 10**7).segments.count == 1


def test_segments_are_of_whole_parts_and_their_bytes_in_the_manifest_are_counted() -> None:
    assert segmented(2000, 10, part_documents=100).segments.count == 20
    measured = {0: 22_766, 200: 27_300, 100: 32_295}  # 2,000 documents in parts of 100, by index.segment_rows
    sizes = {rows: segmented(2000, rows, part_documents=100).ledger.value("storage.manifest") for rows in measured}
    for rows, size in measured.items():
        assert sizes[rows] - sizes[0] == pytest.approx(size - measured[0], rel=0.05)


def test_segments_that_no_host_can_hold_are_noted() -> None:
    assert "more than a host has left" in segmented(10**9, 10**8, memory=1 << 34).notes[0]
    assert not any("more than a host" in note for note in segmented(10**9, 10**6, memory=1 << 34).notes)


def test_a_manifest_that_could_not_be_opened_is_noted_with_the_way_out() -> None:
    def first_note(documents: int, *given: str) -> str:
        return plan(documents, config=BuildConfig().with_overrides(given)).notes[0]

    assert "store.part_documents=16384" in first_note(8 * 10**9)
    assert "manifest" not in first_note(8 * 10**9, "store.part_documents=16384")
    larger = "store.part_documents=524288"
    assert f"at most 20,000,000,000 documents each, with such parts (--set {larger})" in first_note(10**12)
    assert "manifest" not in first_note(2 * 10**10, larger)
    assert "manifest" not in first_note(10**9)


def test_what_a_recipe_has_and_a_plan_does_not_count_is_noted() -> None:
    cut = "only 512 of the 1,000,000 tokens of a document are encoded and counted"
    assert cut in plan(1000, tokens=10**6).notes[0]
    assert "because of the model's own limit. Fix: make windows with --chunk" in plan(1000, tokens=10**6).notes[0]
    assert not any("encoder.max_length" in note for note in plan(1000, tokens=512).notes)
    config = BuildConfig().with_overrides(["chunk.tokens=512", "index.type=HNSW32", "encoder.max_length=200"])
    notes = "\n".join(plan(1000, tokens=1024, config=config).notes)
    assert "only 200 of the 363 tokens of a window" in notes
    assert "because of encoder.max_length" in notes
    assert 'the plan does not cover index.type "HNSW32"' in notes


def test_hardware_that_would_stand_idle_is_refused() -> None:
    for hardware in (Hardware(8), Hardware(amx=True)):
        with pytest.raises(ConfigError, match="potion-base-4M is a static table"):
            plan(model="potion-base-4M", hardware=hardware)
    with pytest.raises(ConfigError, match="pass --gpus too, or leave out --gpu"):
        Hardware(gpu="h100")
    with pytest.raises(ConfigError, match="leave out --amx or --gpus"):
        Hardware(1, amx=True)
    with pytest.raises(ConfigError, match="pass --gpus too, or leave out --gpu-price"):
        PlanSettings(1, prices=Prices(gpu=3.0))
    assert (Hardware(1).gpu, Hardware().gpu) == ("h100", "")


def test_more_than_can_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="has 384 dimensions; expected at most that"):
        plan(config=BuildConfig().with_overrides(["whitening.dim=100000"]))
    with pytest.raises(ConfigError, match=f"expected at most {MOST:,}"):
        parse_count("1e30")
    with pytest.raises(ConfigError, match=f"expected at most {MOST:,}"):
        PlanSettings(MOST, 1024.0, config=BuildConfig().with_overrides(["chunk.tokens=64"]))
    for wrong in ({"documents": MOST + 1}, {"tokens": 1e300}, {"text_bytes": 1e300}):
        with pytest.raises(ConfigError, match="expected at most"):
            replace(PlanSettings(1), **wrong)
    plan(MOST, hardware=Hardware(10**9, memory=1 << 30))


def test_total_storage_is_the_sum_of_its_layers() -> None:
    lines = [line for line in plan().ledger.lines if line.key.startswith("storage.")]
    assert sum(line.value for line in lines[:-1]) == lines[-1].value
    assert {line.key.removeprefix("storage.") for line in lines[:-1]} == set(_LAYERS.values())


def test_totals_of_a_small_plan_by_hand() -> None:
    """20,000 documents of 50 tokens and 200 bytes in three parts, 128 dimensions, an exact index and four cores."""
    config = BuildConfig(encoder=EncoderConfig(model="potion-base-4M"))
    prices = Prices(core=0.04, storage=0.02, ram=3.0)
    found = make_plan(PlanSettings(20_000, 50, 200, config, Hardware(cores=4), prices))
    c = {name: constant.value for name, constant in constants().items()}

    hashed = (
        20_000 * (c["documents.row"] + 200 * c["documents.text_share"])
        + (20_000 * 128 * 4 + 3 * 128)  # embeddings, each file with a header of 128 bytes
        + 3 * ((128 * 128 + 128) * 8 + 758)  # moments
        + 20_000 * 128 * 4  # the segment
    )
    manifest = c["manifest.base"] + 3 * c["manifest.part"] + 16 * hashed / 2**20
    windows = 20_000 * c["windows.row"] + 3 * c["windows.part"]
    transform = (128 * 128 + 3 * 128) * 8 + 600
    stored = hashed + windows + 3 * c["part.json"] + transform + manifest
    assert found.ledger.value("storage.total") == pytest.approx(stored)

    encoding = c["cpu.static_load"] + 20_000 * (c["cpu.write_row"] + 50 * c["cpu.static_token"])
    reading = 20_000 * (c["cpu.read_document"] + 200 * c["cpu.read_byte"])
    fitting = 20_000 * 128**2 * c["cpu.fit"] + c["cpu.fit_once"]
    indexing = 20_000 * 128 * c["cpu.flat_number"] + c["cpu.check"]
    assert found.ledger.value("build.cpu_seconds") == pytest.approx(encoding + reading + fitting + indexing)
    assert found.ledger.value("build.seconds") == pytest.approx(reading + (encoding + fitting + indexing) / 4)
    assert found.ledger.value("money.build") == pytest.approx((encoding + reading + fitting + indexing) / 3600 * 0.04)
    memory = 20_000 * 128 * 4 + c["serve.process"]
    assert found.ledger.value("money.month") == pytest.approx(stored / 1e9 * 0.02 + memory / 1e9 * 3.0)


def test_half_the_bytes_of_embeddings_with_float16_and_windows_for_chunks() -> None:
    config = BuildConfig().with_overrides(["chunk.tokens=64", "chunk.overlap=0", "store.embeddings=float16"])
    found = plan(1000, config=config)
    assert found.settings.rows == 2000
    assert found.ledger.value("storage.embeddings") == 2000 * 384 * 2 + 128
    assert plan(1000, config=BuildConfig()).ledger.value("storage.embeddings") == 1000 * 384 * 4 + 128


def test_extrapolations_are_marked() -> None:
    found = {line.key: line for line in plan(10**9, hardware=Hardware(8)).ledger.lines}
    assert found["encode.gpu_seconds"].extrapolated
    assert found["dedup.exact"].extrapolated
    assert found["storage.segments"].extrapolated
    assert not found["storage.embeddings"].extrapolated
    small = {line.key: line for line in plan(10_000).ledger.lines}
    assert not small["dedup.exact"].extrapolated
    assert not small["encode.cpu_seconds"].extrapolated


def test_every_constant_has_a_date_a_unit_and_a_source_and_is_used() -> None:
    used = set[str]()
    for hardware in (Hardware(), Hardware(1), Hardware(amx=True)):
        for model in ("bert-base-uncased", "potion-base-4M"):
            if model.startswith("potion") and hardware != Hardware():
                continue
            for documents in (1000, 10**9):
                lines = plan(documents, model=model, hardware=hardware).ledger.lines
                used |= {name for line in lines for name in line.constants}
    used |= {name for line in segmented(10**9, 10**7).ledger.lines for name in line.constants}
    limits = {"index.largest", "join.largest"} | {
        f"{gpu}.{kind}" for gpu in known_gpus() for kind in ("peak", "memory")
    }
    for constant in constants().values():
        assert constant.value > 0
        assert constant.unit
        assert constant.command
        assert len(constant.date.split("-")) == 3
        assert constant.name in used | limits


def test_a_plan_in_json_holds_figures_arithmetic_and_constants() -> None:
    found = plan(hardware=Hardware(8)).to_dict()
    again = json.loads(json.dumps(found))
    assert again["figures"]["encode.flops_a_row"] == found["lines"][0]["value"]
    assert {"key", "title", "value", "unit", "arithmetic", "constants", "extrapolated"} <= set(again["lines"][0])
    named = {constant["name"] for constant in again["constants"]}
    assert {name for line in again["lines"] for name in line["constants"]} == named


@pytest.mark.parametrize(
    ("written", "meant"), [("1e9", 10**9), ("20M", 20_000_000), ("2.5B", 2_500_000_000), ("63,905", 63905), ("7", 7)]
)
def test_numbers_of_documents(written: str, meant: int) -> None:
    assert parse_count(written) == meant


@pytest.mark.parametrize("written", ["", "many", "-5", "1e", "1e999", "5X"])
def test_invalid_numbers_of_documents_are_refused(written: str) -> None:
    with pytest.raises(ConfigError, match="--documents is"):
        parse_count(written)


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match=r'did you mean "bert-base-uncased"\?'):
        plan(model="bert-base-uncase")
    with pytest.raises(ConfigError, match=r'did you mean "h100"\?'):
        Hardware(1, gpu="h10")
    for wrong in ({"documents": 0}, {"tokens": 0.0}, {"tokens": float("nan")}, {"text_bytes": -1.0}):
        with pytest.raises(ConfigError):
            replace(PlanSettings(1), **wrong)
    with pytest.raises(ConfigError, match="--gpu-price"):
        Prices(gpu=-1)
    with pytest.raises(ConfigError, match=r"--gpus"):
        Hardware(gpus=-1)


def test_a_folder_tells_its_shape(tmp_path: Path) -> None:
    config = {"hidden_size": 32, "num_hidden_layers": 4, "intermediate_size": 64, "max_position_embeddings": 90}
    (tmp_path / "config.json").write_text(json.dumps(config))
    shape = model_shape(EncoderConfig(model=str(tmp_path)))
    assert (shape.hidden, shape.dim, shape.blocks, shape.limit) == (32, 32, 4, 90)
    assert shape.parameters == 4 * (4 * 32**2 + 2 * 32 * 64)
    assert model_shape(EncoderConfig(model=str(tmp_path), layers=(1, 2))).blocks == 2
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 70}')
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling/config.json").write_text('{"pooling_mode_cls_token": true}')
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": path}
               for kind, path in (("Transformer", ""), ("Pooling", "1_Pooling"))]  # fmt: skip
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    assert model_shape(EncoderConfig(model=str(tmp_path))).limit == 70
    assert model_shape(EncoderConfig(model=str(tmp_path), model_settings=False)).limit == 90
    (tmp_path / "config.json").write_text(json.dumps({"num_hidden_layers": 4}))
    with pytest.raises(ModelError, match="has no hidden_size"):
        model_shape(EncoderConfig(model=str(tmp_path)))
    (tmp_path / "config.json").unlink()
    with pytest.raises(ConfigError, match=f"{tmp_path} is a folder without config.json"):
        model_shape(EncoderConfig(model=str(tmp_path)))


MODELS: dict[str, dict[str, Any]] = read_constants()["models"]


@pytest.mark.parametrize("name", [name for name, sizes in MODELS.items() if "parameters" in sizes])
def test_parameters_are_those_that_the_makers_publish(name: str) -> None:
    """Norms, biases, poolers and modules after the pooling are left out."""
    assert model_shape(EncoderConfig(model=name)).weights == pytest.approx(MODELS[name]["parameters"], rel=0.02)


# SqueezeBERT's products are grouped; DeBERTa also projects relative positions.
COUNTED = architecture_cases("bert", "t5", "gpt2", "modernbert", without=("squeezebert", "deberta"))


@pytest.mark.parametrize("architecture", COUNTED)
def test_parameters_of_a_folder_are_those_of_torch(tiny_model: Callable[[str], Path], architecture: str) -> None:
    """Of the matrices of all blocks, by the settings; and of everything that is loaded, counted in the weights."""
    from indexer.encoders.hf_model import load_model

    folder = tiny_model(architecture)
    shape, files = model_shape(EncoderConfig(model=str(folder))), find_model_files(folder)
    parameters = dict(load_model(files, [shape.blocks], torch.float32).model.named_parameters())
    blocks = [each for name, each in parameters.items() if re.search(r"\.\d+\.", f".{name}") and each.dim() > 1]
    shared = shape.blocks // (files.config.num_hidden_groups or shape.blocks)  # ALBERT
    assert shape.parameters == pytest.approx(shared * sum(each.numel() for each in blocks), rel=0.03)
    assert shape.weights == pytest.approx(
        sum(each.numel() for each in parameters.values()), rel=0.25
    )  # heads are small


def test_grouped_keys_and_gated_mlps_are_counted() -> None:
    shape = model_shape(EncoderConfig(model="Qwen/Qwen3-Embedding-0.6B"))
    assert shape.block == 1024 * (2048 + 1024 + 1024 + 2048) + 3 * 1024 * 3072
    assert (shape.limit, shape.dim) == (32768, 1024)
    flops = 2 * 28 * shape.block * 128 + 4 * 28 * 2048 * 128**2
    assert plan(model="Qwen3-Embedding-0.6B").ledger.value("encode.flops_a_row") == flops


def test_memory_is_that_of_the_weights_and_of_a_batch() -> None:
    table, inner = 151_665 * 4096, 3 * 12_288
    count = 36 * (4096 * 2 * (4096 + 1024) + 4096 * inner) + table
    on_gpus, on_cores = plan(model="Qwen3-Embedding-8B", hardware=Hardware(1)), plan(model="Qwen3-Embedding-8B")
    assert on_gpus.ledger.value("encode.memory") == 2 * (count + 32_768 * (4 * 4096 + inner))
    assert on_cores.ledger.value("encode.memory") == 4 * (count + 1024 * (4 * 4096 + inner))
    assert on_cores.ledger.value("encode.conversion") == 10 * count
    assert on_cores.ledger.value("serve.memory") == pytest.approx(
        plan(model="Qwen3-Embedding-8B", hardware=Hardware(amx=True)).ledger.value("serve.memory") + 2 * count
    )
    config = BuildConfig(encoder=EncoderConfig(model="Qwen3-Embedding-8B", precision="float32", batch_tokens=1))
    exact = plan(config=config, hardware=Hardware(1)).ledger.value("encode.memory")
    assert exact == 4 * (count + 4 * 4096 + inner)


def test_a_model_that_a_gpu_does_not_hold_is_noted() -> None:
    notes = plan(model="Qwen3-Embedding-8B", hardware=Hardware(1, "t4")).notes
    assert "take 18.6 GB, but t4 has 16 GB" in notes[0]
    assert not any("but h100 has" in note for note in plan(model="Qwen3-Embedding-8B", hardware=Hardware(1)).notes)


def test_fewer_dimensions_are_planned_where_embeddings_are_truncated() -> None:
    config = EncoderConfig(model="Qwen3-Embedding-0.6B", truncate_dim=256)
    found = plan(1000, config=BuildConfig(encoder=config))
    assert found.ledger.value("storage.embeddings") == 1000 * 256 * 4 + 128
    assert found.ledger.value("encode.flops_a_row") == plan(model=config.model).ledger.value("encode.flops_a_row")
    with pytest.raises(ConfigError, match=r"truncate_dim is 2,000, but .* has 1,024 dimensions"):
        plan(config=BuildConfig(encoder=replace(config, truncate_dim=2000)))


def test_kinds_of_index() -> None:
    assert index_kind(1000, 384, 0.95, limited=False).factory == "Flat"
    assert index_kind(10**6, 381, 0.95, limited=False).factory == "Pad384,IVF1024,PQ192x4fsr,Refine(SQfp16)"
    assert index_kind(10**6, 381, 0.95, limited=True).factory.endswith("Refine(SQ8)")


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [(1536.0, "bytes", "1.54 kB"), (3.07e12, "bytes", "3.07 TB"), (7200.0, "core-seconds", "2 core-hours"),
     (12.34, "seconds", "12.3 seconds"), (0.95, "", "0.95"), (2e18, "FLOP", "2e+18 FLOP")],
)  # fmt: skip
def test_figures_for_people(value: float, unit: str, shown: str) -> None:
    assert show(value, unit) == shown
