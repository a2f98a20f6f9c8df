"""A plan: what building, keeping, serving and de-duplicating a corpus takes, line by line, with the arithmetic shown.

Nothing is run and no model is loaded. Every figure is a formula over the settings and the constants of
`constants.json`; the lines say which. Times are those of a core or a GPU that does nothing else, and are divided by
their number: all the steps that grow with the corpus are shared out by parts, shards or cells.
"""

import math
from dataclasses import dataclass
from typing import Any

from indexer.errors import ConfigError
from search.plan.constants import constants
from search.plan.joins import MOST_CELLS, exact_work, growing_with_root, width_name
from search.plan.ledger import Ledger, Line, number, show, show_bytes
from search.plan.models import ModelShape, model_shape
from search.plan.notes import notes_on
from search.plan.segments import Segments, lay_out
from search.plan.settings import PlanSettings
from search.text import counted

_MIB = 1 << 20
_QUERY_TEXTS = 1024  # query-like texts that are encoded for the mean of queries
_QUERY_TOKENS = 13
_COVARIANCE = 8  # bytes of a number in moments and transforms
_TRAINING_ROWS, _TRAINING_ROUNDS = 262_144, 10
_KILOBYTES, _TERA = 10_000, 1e12  # from where constants are shown in larger units
_LARGEST = {"dedup.exact": "join.largest", "dedup.ann": "join.largest", "build.indexing": "index.largest"}


@dataclass(frozen=True)
class Plan:
    """All lines. `notes` say what is not known, what cannot be, and what of a recipe is not counted."""

    settings: PlanSettings
    shape: ModelShape
    segments: Segments
    ledger: Ledger
    notes: tuple[str, ...]

    def value(self, key: str) -> float:
        """A figure by its key."""
        return self.ledger.value(key)

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        asked = self.settings
        return {
            "documents": asked.documents,
            "tokens": asked.tokens,
            "rows": asked.rows,
            "model": vars(self.shape) | {"parameters": self.shape.parameters},
            "hardware": vars(asked.hardware),
            "prices": vars(asked.prices),
            "index": vars(self.segments.kind) | {"segments": self.segments.count, "shards": self.segments.hosts},
            "figures": {line.key: line.value for line in self.ledger.lines},
            "lines": [line.to_dict() for line in self.ledger.lines],
            "constants": [constant.to_dict() for constant in self.ledger.used()],
            "notes": list(self.notes),
        }


def make_plan(settings: PlanSettings) -> Plan:
    """Work it all out. Raises ConfigError for a model that is not known, or that has no use for what is asked."""
    shape = model_shape(settings.config.encoder)
    _require_use(settings, shape)
    planner = _Planner(settings, shape)
    planner.encoding()
    planner.storage()
    planner.serving()
    planner.building()
    planner.deduplication()
    planner.money()
    notes = notes_on(settings, shape, planner.segments, planner.ledger)
    return Plan(settings, shape, planner.segments, planner.ledger, notes)


def _require_use(settings: PlanSettings, shape: ModelShape) -> None:
    """Raises ConfigError for hardware that would stand idle, and for more dimensions than the encoder gives."""
    hardware, dim = settings.hardware, settings.config.whitening.dim
    if not shape.blocks and (hardware.gpus or hardware.amx):
        option = f"--gpus is {hardware.gpus}" if hardware.gpus else "--amx is given"
        raise ConfigError(
            f"{option}, but {shape.name} is a static table: tokens are looked up on CPU cores, and nothing is "
            f"multiplied. Leave out {option.split()[0]}; --cores says how many there are."
        )
    if dim > shape.hidden:
        raise ConfigError(
            f"whitening.dim (--dim) is {dim:,}, but {shape.name} gives {shape.hidden:,} dimensions. Ask for at "
            "most that."
        )


class _Planner:
    """The lines, section after section."""

    def __init__(self, settings: PlanSettings, shape: ModelShape) -> None:
        self.asked, self.shape, self.ledger = settings, shape, Ledger()
        self.rows, self.tokens = settings.rows, settings.row_tokens
        self.dim, self.parts = settings.dim(shape.hidden), settings.parts
        self.text = settings.text_bytes or settings.tokens * _c("text.bytes_a_token")
        self.segments = lay_out(settings, self.dim)

    def _line(self, key: str, title: str, value: tuple[float, str], arithmetic: str, *used: str) -> float:
        largest = next((limit for section, limit in _LARGEST.items() if key.startswith(section)), "")
        beyond = bool(largest) and self.rows > _c(largest)
        return self.ledger.add(Line(key, title, value[0], value[1], arithmetic, used, beyond))

    def encoding(self) -> None:
        """The work of the encoder, on GPUs or on cores."""
        shape, asked = self.shape, self.asked
        if not shape.blocks:
            self._static()
            return
        weights, attention = 2 * shape.parameters * self.tokens, 4 * shape.blocks * shape.hidden * self.tokens**2
        row = self._line(
            "encode.flops_a_row",
            "arithmetic of a row",
            (weights + attention, "FLOP"),
            f"2 x {shape.parameters / 1e6:.1f}M params x {self.tokens:.4g} tokens + attention "
            f"4 x {shape.blocks} blocks x {shape.hidden} x {self.tokens:.4g} tokens² = "
            f"{(weights + attention) / 1e9:.3g} GFLOP",
        )
        if asked.hardware.gpus:
            self._on_gpus(row)
        else:
            self._on_cores(weights, attention)

    def _on_gpus(self, row: float) -> None:
        hardware, name = self.asked.hardware, f"{self.asked.hardware.gpu}.peak"
        peak, share = _c(name), _c("gpu.utilisation")
        seconds = row * self.rows / (share * peak)
        self._line(
            "encode.gpu_seconds",
            "GPU time",
            (seconds, "GPU-seconds"),
            f"{self.rows:.4g} rows x {row / 1e9:.3g} GFLOP / ({share:.2f} x {peak / 1e12:.4g} TFLOP/s) "
            f"= {number(self.rows / seconds)} rows/s a GPU",
            name,
            "gpu.utilisation",
        )
        self._line(
            "encode.seconds",
            "elapsed",
            (seconds / hardware.gpus, "seconds"),
            f"over {hardware.gpus} GPUs",
            name,
            "gpu.utilisation",
        )
        self._line(
            "encode.cpu_seconds",
            "tokenising and writing beside them",
            (self.rows * (self.tokens * _c("cpu.tokenise_token") + _c("cpu.write_row")), "core-seconds"),
            f"rows x ({self.tokens:.4g} tokens x {_u('cpu.tokenise_token')} + {_u('cpu.write_row')})",
            "cpu.tokenise_token",
            "cpu.write_row",
        )

    def _on_cores(self, weights: float, attention: float) -> None:
        name = "cpu-amx.flops" if self.asked.hardware.amx else "cpu.flops"
        few = min(_QUERY_TEXTS, self.asked.documents)
        row = weights + _c("cpu.attention") * attention
        work = self.rows * row + few * _QUERY_TOKENS * weights / self.tokens
        self._line(
            "encode.cpu_seconds",
            "encoding on cores",
            (_c("cpu.load") + work / _c(name), "core-seconds"),
            f"{_u('cpu.load')} to load + ({self.rows:.4g} rows x {row / 1e9:.3g} GFLOP, attention taking "
            f"{_u('cpu.attention')} times as long, and {few:,} query-like texts of {_QUERY_TOKENS} tokens) / "
            f"{_c(name) / 1e9:.4g} GFLOP/s a core",
            "cpu.load",
            name,
            "cpu.attention",
        )

    def _static(self) -> None:
        seconds = _c("cpu.static_load") + self.rows * (_c("cpu.write_row") + self.tokens * _c("cpu.static_token"))
        self._line(
            "encode.cpu_seconds",
            "looking tokens up",
            (seconds, "core-seconds"),
            f"{_u('cpu.static_load')} to load + {self.rows:.4g} rows x ({_u('cpu.write_row')} + {self.tokens:.4g} "
            f"tokens x {_u('cpu.static_token')})",
            "cpu.static_load",
            "cpu.write_row",
            "cpu.static_token",
        )

    def storage(self) -> None:
        """Bytes of the index directory, layer by layer; the segments come with `serving`."""
        asked, hidden, parts = self.asked, self.shape.hidden, self.parts
        width = 2 if asked.config.store.embeddings == "float16" else 4
        self._line(
            "storage.documents",
            "documents.parquet",
            (asked.documents * _c("documents.row") + asked.documents * self.text * _c("documents.text_share"), "bytes"),
            f"{asked.documents:.4g} x ({_u('documents.row')} + {self.text:.4g} B of text x "
            f"{_c('documents.text_share'):.2f} compressed); further columns are not counted",
            "documents.row",
            "documents.text_share",
            *(() if asked.text_bytes else ("text.bytes_a_token",)),
        )
        self._line(
            "storage.windows",
            "windows.parquet",
            (self.rows * _c("windows.row") + parts * _c("windows.part"), "bytes"),
            f"{self.rows:.4g} rows x {_u('windows.row')} + {parts:,} parts x {_u('windows.part')}",
            "windows.row",
            "windows.part",
        )
        self._line(
            "storage.embeddings",
            "embeddings.npy",
            (self.rows * hidden * width + 128 * parts, "bytes"),
            f"{self.rows:.4g} rows x {hidden} numbers x {width} B ({asked.config.store.embeddings})",
        )
        self._line(
            "storage.moments",
            "moments.npz",
            (parts * (_COVARIANCE * (hidden**2 + hidden) + 758), "bytes"),
            f"{parts:,} parts x ({hidden}² + {hidden} numbers) x 8 B",
        )
        self._line(
            "storage.records",
            "part.json",
            (parts * _c("part.json"), "bytes"),
            f"{parts:,} parts x {_u('part.json')}",
            "part.json",
        )
        if asked.config.whitening.strength != "none":
            self._line(
                "storage.transforms",
                "transforms",
                (_COVARIANCE * (hidden * self.dim + 3 * hidden) + 600, "bytes"),
                f"({hidden} x {self.dim} + 3 x {hidden} numbers) x 8 B, once",
            )

    def serving(self) -> None:
        """Segments, memory, and how many hosts hold them."""
        hardware, config, segments = self.asked.hardware, self.asked.config, self.segments
        kind, count = segments.kind, segments.count
        size = self.rows * kind.bytes_per_vector + count * kind.shared_bytes
        made = "4 B x dimensions" if kind.factory == "Flat" else "codes of 4 bits for 2 dimensions, finer ones, numbers"
        self._line(
            "storage.segments",
            "segments",
            (size, "bytes"),
            f"{self.rows:.4g} rows x {kind.bytes_per_vector:,.0f} B ({made}) + {count:,} x "
            f"{show_bytes(kind.shared_bytes)} of centroids: {kind.factory}",
            *(() if kind.factory == "Flat" else ("index.kind",)),
        )
        self._manifest(size)
        stored = sum(line.value for line in self.ledger.lines if line.key.startswith("storage."))
        self._line("storage.total", "all of the index directory", (stored, "bytes"), "the sum of these layers")
        self._line("serve.segments", "segments", (count, ""), self._cut())
        limit = f"{show_bytes(hardware.memory)} a host" if hardware.memory else "no limit given"
        held = "a segment each" if segments.a_host == 1 else f"at most {segments.a_host:,} segments each"
        self._line("serve.shards", "shards", (segments.hosts, "hosts"), f"{held}; memory: {limit}")
        processes = segments.processes
        self._line(
            "serve.memory",
            "memory to serve",
            (size + processes * _c("serve.process"), "bytes"),
            f"segments + {processes:,} x {_u('serve.process')} for encoder and libraries; documents stay on disk",
            "serve.process",
        )
        self._line(
            "serve.recall",
            "recall@10 asked for",
            (config.index.recall, ""),
            "index.recall; a build measures what it reaches, and refuses to publish less",
        )

    def _cut(self) -> str:
        """How the rows are cut into segments, in words."""
        segments, asked = self.segments, self.asked.config.index.segment_rows
        if asked:
            return f"{segments.rows:,} rows each, in whole parts: index.segment_rows is {asked:,}"
        if segments.count == 1:
            return f"{segments.rows:,} rows: index.segment_rows is 0"
        return f"{segments.rows:,} rows each, one a host; a build makes them with index.segment_rows={segments.rows}"

    def _manifest(self, segments: float) -> None:
        """Names, sizes and hashes of all files, and a digest for each MiB of those that are larger."""
        more, compared = self.segments.count - 1, self.segments.kind.factory != "Flat"
        kinds = self.segments.count * _c("manifest.kinds") if compared else 0.0
        further = more * _c("manifest.segment")
        whole = sum(self.ledger.value(f"storage.{name}") for name in ("documents", "embeddings", "moments"))
        parts = self.parts * _c("manifest.part")
        size = _c("manifest.base") + kinds + further + parts + 16 * (whole + segments) / _MIB
        self._line(
            "storage.manifest",
            "manifest",
            (size, "bytes"),
            f"{_u('manifest.base')} + {self.parts:,} parts x {_u('manifest.part')} + 16 B for each MiB of "
            "documents, embeddings, moments, segments"
            + (f" + {counted(more, 'more segment')} x {_u('manifest.segment')}" if more else "")
            + (f" + the kinds compared, {_u('manifest.kinds')} a segment" if compared else ""),
            "manifest.base",
            "manifest.part",
            *(("manifest.segment",) if more else ()),
            *(("manifest.kinds",) if compared else ()),
        )

    def building(self) -> None:
        """What the cores do beside encoding, and how long all of it takes."""
        asked, cores = self.asked, self.asked.hardware.cores
        reading = self._line(
            "build.reading",
            "reading the corpus, documents to Parquet",
            (asked.documents * (_c("cpu.read_document") + self.text * _c("cpu.read_byte")), "core-seconds"),
            f"{asked.documents:.4g} x ({_u('cpu.read_document')} + {self.text:.4g} B x {_u('cpu.read_byte')}); "
            "one process",
            "cpu.read_document",
            "cpu.read_byte",
        )
        sample = self.rows if asked.config.whitening.sample == "all" else min(self.rows, asked.config.whitening.sample)
        self._line(
            "build.fitting",
            "fitting the transform",
            (sample * self.shape.hidden**2 * _c("cpu.fit") + _c("cpu.fit_once"), "core-seconds"),
            f"{sample:,.0f} rows x {self.shape.hidden}² x {_u('cpu.fit')} + {_u('cpu.fit_once')}",
            "cpu.fit",
            "cpu.fit_once",
        )
        self._indexing()
        keys = ("encode.cpu_seconds", "build.reading", "build.fitting", "build.indexing")
        seconds = sum(self.ledger.value(key) for key in keys)
        self._line("build.cpu_seconds", "cores, all steps", (seconds, "core-seconds"), "encoding and the steps above")
        spread, waits = (seconds - reading) / cores, asked.hardware.gpus and self.shape.blocks
        self._line(
            "build.seconds",
            "elapsed, start to end",
            (reading + spread + self.ledger.value("encode.seconds"), "seconds"),
            f"reading + the rest over {cores} cores{' + the GPUs' if waits else ''}; steps follow each other",
        )

    def _indexing(self) -> None:
        kind, count = self.segments.kind, self.segments.count
        if kind.factory == "Flat":
            self._line(
                "build.indexing",
                "transforming and writing segments",
                (self.rows * self.dim * _c("cpu.flat_number") + _c("cpu.check"), "core-seconds"),
                f"{self.rows:.4g} rows x {self.dim} x {_u('cpu.flat_number')} + {_u('cpu.check')}",
                "cpu.flat_number",
                "cpu.check",
            )
            return
        rows, lists = self.segments.rows, kind.lists
        more = max(0, lists - _c("index.lists"))  # than there were where it was measured
        assigning = 2 * self.dim * more * (rows + _TRAINING_ROUNDS * min(rows, _TRAINING_ROWS)) / _c("cpu.flops")
        measuring = self.dim * _c("cpu.index_measuring")
        filling = rows * self.dim * _c("cpu.index_number")
        self._line(
            "build.indexing",
            "choosing, training and filling indexes",
            (count * (measuring + filling + assigning), "core-seconds"),
            f"{counted(count, 'segment')} x ({self.dim} dimensions x {_u('cpu.index_measuring')} to compare kinds + "
            f"{rows:,} rows x {self.dim} x {_u('cpu.index_number')} + {show(assigning, 'core-seconds')} for "
            f"{more:,.0f} more lists than where that was measured)",
            "cpu.index_measuring",
            "cpu.index_number",
            "index.lists",
            "cpu.flops",
            "index.kind",
        )

    def deduplication(self) -> None:
        """Both joins."""
        work, size = exact_work(self.rows, self.dim), width_name(self.dim)
        left, a_cell, first = f"join.{size}.left", "join.rows_a_cell", f"join.{size}.row"
        pair = f"join.{size}.{'cell_pair' if work.cells else 'pair'}"
        self._line(
            "dedup.pairs",
            "pairs to compare",
            (work.pairs, ""),
            f"{self.rows:.4g}² / 2 x {work.share:.3g}, what {work.cells:,} cells leave: {_u(left)} / √rows up to "
            f"{MOST_CELLS:,} cells of {_u(a_cell)} rows, constant from there"
            if work.cells
            else f"{self.rows:.4g}² / 2: for so few there are no cells",
            *((left, a_cell) if work.cells else ()),
        )
        self._line(
            "dedup.exact",
            "exact join",
            (self.rows * _c(first) + work.pairs * _c(pair), "core-seconds"),
            f"{self.rows:.4g} rows x {_u(first)} + {work.pairs:.4g} pairs x {_u(pair)}",
            first,
            pair,
            *((left, a_cell) if work.cells else ()),
        )
        self._approximate(f"join.{size}.ann_row", f"join.{size}.cell")

    def _approximate(self, first: str, cell: str) -> None:
        """The join whose cells are about 1.4 x √rows, as long as there may be more."""
        rows, growing = self.rows, growing_with_root(self.rows)
        grows = f"{rows:.4g}^1.5" if growing == rows else f"{rows:.4g}² / √{growing:.4g}"
        self._line(
            "dedup.ann",
            "--method ann",
            (rows * _c(first) + rows**2 / growing**0.5 * _c(cell), "core-seconds"),
            f"{rows:.4g} rows x {_u(first)} + {grows} x {_u(cell)}: 1.4 x √rows cells, at most {MOST_CELLS:,}",
            first,
            cell,
        )

    def money(self) -> None:
        """What is priced."""
        prices, value = self.asked.prices, self.ledger.value
        once = 0.0
        if prices.gpu:
            once += self._line(
                "money.gpu",
                "GPUs",
                (value("encode.gpu_seconds") / 3600 * prices.gpu, "money"),
                f"{show(value('encode.gpu_seconds'), 'GPU-seconds')} x {prices.gpu:g}",
            )
        if prices.core:
            once += self._line(
                "money.cores",
                "cores",
                (value("build.cpu_seconds") / 3600 * prices.core, "money"),
                f"{show(value('build.cpu_seconds'), 'core-seconds')} x {prices.core:g}",
            )
            for name in ("exact", "ann"):
                seconds = value(f"dedup.{name}")
                self._line(
                    f"money.dedup_{name}",
                    f"de-duplication, {name}",
                    (seconds / 3600 * prices.core, "money"),
                    f"{show(seconds, 'core-seconds')} x {prices.core:g}; not in the build",
                )
        if once:
            self._line("money.build", "the build", (once, "money"), "GPUs and cores")
        month = 0.0
        for name, key, price in (("storage", "storage.total", prices.storage), ("ram", "serve.memory", prices.ram)):
            if price:
                month += self._line(
                    f"money.{name}",
                    f"{name} a month",
                    (value(key) / 1e9 * price, "money"),
                    f"{value(key) / 1e9:,.4g} GB x {price:g}",
                )
        if month:
            self._line("money.month", "a month", (month, "money"), "storage and memory")


def _c(name: str) -> float:
    return constants()[name].value


def _u(name: str) -> str:
    constant = constants()[name]
    return show_constant(constant.value, constant.unit)


def show_constant(value: float, unit: str) -> str:
    """A constant as a formula has it: 9.2 µs for one of 9.2e-6 in "s a row"."""
    quantity = unit.split()[0]
    if quantity == "s" and 0 < value < 0.1:
        power = min(4, math.ceil(-math.log10(value) / 3))
        return f"{value * 1000**power:.3g} {('', 'm', 'µ', 'n', 'p')[power]}s"
    if quantity == "B":
        return show_bytes(value) if value >= _KILOBYTES else f"{value:.4g} B"
    if quantity == "FLOP/s":
        return f"{value / 1e12:.4g} TFLOP/s" if value >= _TERA else f"{value / 1e9:.4g} GFLOP/s"
    return f"{value:.4g} s" if quantity == "s" else f"{value:.4g}"
