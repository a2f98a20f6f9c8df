"""The formulas of a plan, section by section.

Times are those of an idle core or GPU, divided by the number of cores or GPUs: all steps that grow with the corpus run
in parallel over parts, shards or cells.

The exact join compares all pairs of a few rows, but only the pairs left by cells of more rows. This share falls with
1 / sqrt(rows), because the number of cells grows, and is constant from the maximum number of cells. The approximate
join uses a number of cells proportional to sqrt(rows), up to the same maximum. So the work of both joins grows with
rows^1.5 up to the maximum, then with rows^2.
"""

import math
from dataclasses import dataclass, replace

from indexer.ann.choosing.selection import SMALL_BYTES, nlist_for
from indexer.encoders.batching import CPU_TOKENS, GPU_TOKENS
from indexer.encoders.memory import CONVERSION, FLOAT32, HALF
from search.formatting import counted
from search.plan.ledger import Ledger, constants, number, show, show_bytes
from search.plan.model_shape import ModelShape
from search.plan.request import PlanSettings

MOST_CELLS = 8192  # the limits of `search.dedup.join.cells` and `search.dedup.join.approximate`
LEAST_WORK = 4e10  # multiplications, of at most `WIDTH` numbers a pair; less work is done without cells
WIDTH, INT8_COST = 96, 0.3
CELLS_PER_ROOT = 1.4
_WIDE = 256  # dimensions above which the constants of 381-dimensional vectors apply
_BITS_OF_FINE = 0.99  # recall up to which 8 bits a dimension suffice for rescoring
_REGISTER = 16  # quantised vectors are padded to a multiple of this
_ROW_NUMBER = 8  # bytes
_MIB = 1 << 20
_QUERY_TEXTS = 1024  # query-like texts encoded for the mean of queries
_QUERY_TOKENS = 13
_COVARIANCE = 8  # bytes of a number in moments and transforms
_TRAINING_ROWS, _TRAINING_ROUNDS = 262_144, 10
_LARGEST = {"dedup.exact": "join.largest", "dedup.ann": "join.largest", "build.indexing": "index.largest"}


@dataclass(frozen=True)
class IndexKind:
    """A kind of index: FAISS factory string, bytes per vector, shared bytes, and number of lists."""

    factory: str
    bytes_per_vector: float
    shared_bytes: float = 0.0
    lists: int = 0

    def size(self, rows: int) -> float:
        """Return the bytes of a segment with this number of rows."""
        return rows * self.bytes_per_vector + self.shared_bytes


@dataclass(frozen=True)
class Segments:
    """`count` segments of one kind with about `rows` rows each, on `hosts` hosts. `fit`: whether memory suffices."""

    kind: IndexKind
    count: int
    rows: int
    hosts: int = 1
    fit: bool = True

    @property
    def size(self) -> float:
        """Bytes of one segment."""
        return self.kind.size(self.rows)

    @property
    def a_host(self) -> int:
        """The largest number of segments on a host."""
        return math.ceil(self.count / self.hosts)

    @property
    def processes(self) -> int:
        """Processes that serve: one on a single host, one a segment on several hosts."""
        return 1 if self.hosts == 1 else self.count


def index_kind(rows: int, dim: int, recall: float, limited: bool) -> IndexKind:
    """Return the kind of index that `index.type = "auto"` chose most often for this number of rows."""
    if rows * dim * 4 <= SMALL_BYTES and not limited:
        return IndexKind("Flat", 4.0 * dim)
    wide = -(-dim // _REGISTER) * _REGISTER
    lists = nlist_for(rows)
    finer, width = ("SQ8", 1) if recall <= _BITS_OF_FINE and limited else ("SQfp16", 2)
    size = wide // 4 + width * wide + _ROW_NUMBER
    return IndexKind(f"Pad{wide},IVF{lists},PQ{wide // 2}x4fsr,Refine({finer})", size, 4.0 * lists * wide, lists)


def lay_out(settings: PlanSettings, dim: int) -> Segments:
    """Return the segments of index.segment_rows (without it: one segment a host) on the smallest number of hosts."""
    memory, process = settings.hardware.memory, constants()["serve.process"].value
    most = settings.config.index.segment_rows
    if not most:
        return _one_a_host(settings, dim, memory - process)
    segments = _cut(settings, dim, min(math.ceil(settings.rows / most), settings.parts))
    if not memory or segments.count * segments.size + process <= memory:
        return segments
    a_host = int(memory // (segments.size + process))
    return replace(segments, hosts=math.ceil(segments.count / max(1, a_host)), fit=a_host > 0)


def _one_a_host(settings: PlanSettings, dim: int, room: float) -> Segments:
    count = 1
    while True:
        segments = _cut(settings, dim, count)
        needed = segments.size
        if not settings.hardware.memory or needed <= room or segments.rows <= 1:
            return replace(segments, hosts=count)
        count = max(count + 1, math.ceil(count * needed / max(room, needed / 2)))


def _cut(settings: PlanSettings, dim: int, count: int) -> Segments:
    rows, index = math.ceil(settings.rows / count), settings.config.index
    if index.type == "flat":
        return Segments(IndexKind("Flat", 4.0 * dim), count, rows)
    return Segments(index_kind(rows, dim, index.recall, bool(index.memory_bytes)), count, rows)


def exact_work(rows: int, dim: int) -> tuple[int, float]:
    """Return the number of cells of an exact join (0: no cells), and the share of the rows² / 2 pairs it compares."""
    if rows**2 / 2 * min(dim, WIDTH) * INT8_COST < LEAST_WORK:
        return 0, 1.0
    a_cell = constants()["join.rows_a_cell"].value
    growing = min(rows, MOST_CELLS * a_cell)
    share = constants()[f"join.{_width_name(dim)}.left"].value / growing**0.5
    return round(growing / a_cell), min(1.0, share)


def _width_name(dim: int) -> str:
    return "wide" if dim > _WIDE else "narrow"


class Planner:
    """Writes the lines of all sections to `ledger`."""

    def __init__(self, settings: PlanSettings, shape: ModelShape) -> None:
        self.settings, self.shape, self.ledger = settings, shape, Ledger()
        self.rows, self.tokens = settings.rows, settings.row_tokens(shape.limit)
        self.dim, self.parts = settings.dim(shape.dim), settings.parts
        self.text = settings.text_bytes or settings.tokens * constants()["text.bytes_a_token"].value
        self.segments = lay_out(settings, self.dim)
        self._c, self._u = self.ledger.constant, self.ledger.shown

    def run(self) -> None:
        """Write all lines."""
        self._encoding()
        self._storage()
        self._serving()
        self._building()
        self._deduplication()
        self._money()

    def _line(self, key: str, title: str, value: float, unit: str, arithmetic: str) -> float:
        largest = next((limit for section, limit in _LARGEST.items() if key.startswith(section)), "")
        beyond = bool(largest) and self.rows > constants()[largest].value
        return self.ledger.add(key, title, value, unit, arithmetic, beyond)

    def _encoding(self) -> None:
        shape, tokens = self.shape, self.tokens
        if self.settings.config.encoder.traits.is_remote:
            self._on_server()
            return
        if not shape.blocks:
            self._static()
            return
        weights, attention = 2 * shape.parameters * tokens, 4 * shape.blocks * shape.queries * tokens**2
        how = (
            f"2 x {shape.parameters / 1e6:.1f}M params x {tokens:.4g} tokens + attention "
            f"4 x {shape.blocks} blocks x {shape.queries} x {tokens:.4g} tokens² = "
            f"{(weights + attention) / 1e9:.3g} GFLOP"
        )
        row = self._line("encode.flops_a_row", "work per row", weights + attention, "FLOP", how)
        if self.settings.hardware.gpus:
            self._on_gpus(row)
        else:
            self._on_cores(weights, attention)
        self._memory()

    def _on_gpus(self, row: float) -> None:
        hardware, name = self.settings.hardware, f"{self.settings.hardware.gpu}.peak"
        peak, share = self._c(name), self._c("gpu.utilisation")
        seconds = row * self.rows / (share * peak)
        how = (
            f"{self.rows:.4g} rows x {row / 1e9:.3g} GFLOP / ({share:.2f} x {peak / 1e12:.4g} TFLOP/s) "
            f"= {number(self.rows / seconds)} rows/s per GPU"
        )
        self._line("encode.gpu_seconds", "GPU time", seconds, "GPU-seconds", how)
        self._c(name), self._c("gpu.utilisation")
        self._line("encode.seconds", "elapsed", seconds / hardware.gpus, "seconds", f"over {hardware.gpus} GPUs")
        seconds = self.rows * (self.tokens * self._c("cpu.tokenise_token") + self._c("cpu.write_row"))
        how = f"rows x ({self.tokens:.4g} tokens x {self._u('cpu.tokenise_token')} + {self._u('cpu.write_row')})"
        self._line("encode.cpu_seconds", "tokenising and writing on cores", seconds, "core-seconds", how)

    def _on_cores(self, weights: float, attention: float) -> None:
        name = "cpu-amx.flops" if self.settings.hardware.amx else "cpu.flops"
        few = min(_QUERY_TEXTS, self.settings.documents)
        load, speed, factor = self._c("cpu.load"), self._c(name), self._c("cpu.attention")
        row = weights + factor * attention
        work = self.rows * row + few * _QUERY_TOKENS * weights / self.tokens
        how = (
            f"{self._u('cpu.load')} to load + ({self.rows:.4g} rows x {row / 1e9:.3g} GFLOP, attention counted "
            f"{self._u('cpu.attention')} times, and {few:,} query-like texts of {_QUERY_TOKENS} tokens) / "
            f"{speed / 1e9:.4g} GFLOP/s per core"
        )
        self._line("encode.cpu_seconds", "encoding on cores", load + work / speed, "core-seconds", how)

    def _on_server(self) -> None:
        """Write what is sent to an embedding server: all rows, and a probe text with each request."""
        from indexer.encoders.server.encoder import BATCH_TEXTS, BATCH_TOKENS
        from indexer.encoders.server.probes import PROBE_TOKENS

        a_request = max(1, min(BATCH_TEXTS, int(BATCH_TOKENS / self.tokens)))
        requests = -(-self.rows // a_request)
        how = f"{self.rows:.4g} rows, {a_request} each"
        self._line("encode.requests", "requests to the server", requests, "requests", how)
        how = f"{self.rows:.4g} rows x {self.tokens:.4g} tokens + {requests:,} x {PROBE_TOKENS} tokens of a probe text"
        tokens = self.rows * self.tokens + requests * PROBE_TOKENS
        self._line("encode.tokens", "tokens that the server embeds", tokens, "tokens", how)
        seconds, how = self.rows * self._c("cpu.write_row"), f"rows x {self._u('cpu.write_row')}"
        self._line("encode.cpu_seconds", "writing on cores", seconds, "core-seconds", how)

    @property
    def _width(self) -> int:
        """Bytes of a number of the encoder: its weights, and its states of a batch."""
        hardware = self.settings.hardware
        is_half = self.settings.config.encoder.precision != "float32" and (hardware.gpus or hardware.amx)
        return HALF if is_half else FLOAT32

    def _memory(self) -> None:
        shape, width, on_gpus = self.shape, self._width, bool(self.settings.hardware.gpus)
        tokens = self.settings.config.encoder.batch_tokens or (GPU_TOKENS if on_gpus else CPU_TOKENS)
        size = width * (shape.weights + tokens * shape.activations)
        how = (
            f"({shape.weights / 1e6:.1f}M params, with the embedding table, + {tokens:,} tokens of a batch x "
            f"{shape.activations:,} numbers) x {width} B"
        )
        title = "memory of each GPU" if on_gpus else "memory of a process, with one thread"
        self._line("encode.memory", title, size, "bytes", how)
        if not on_gpus:
            how = f"{shape.weights / 1e6:.1f}M params x {CONVERSION} B, once; a host with less runs torch"
            self._line("encode.conversion", "memory to convert for OpenVINO", CONVERSION * shape.weights, "bytes", how)

    def _static(self) -> None:
        load, write, token = map(self._c, ("cpu.static_load", "cpu.write_row", "cpu.static_token"))
        how = (
            f"{self._u('cpu.static_load')} to load + {self.rows:.4g} rows x ({self._u('cpu.write_row')} + "
            f"{self.tokens:.4g} tokens x {self._u('cpu.static_token')})"
        )
        seconds = load + self.rows * (write + self.tokens * token)
        self._line("encode.cpu_seconds", "looking tokens up", seconds, "core-seconds", how)

    def _storage(self) -> None:
        """Write the layers of the index directory, except segments and manifest."""
        settings, hidden, parts, rows = self.settings, self.shape.dim, self.parts, f"{self.rows:.4g} rows"
        row, share = self._c("documents.row"), self._c("documents.text_share")
        how = (
            f"{settings.documents:.4g} x ({self._u('documents.row')} + {self.text:.4g} B of text x {share:.2f} "
            "compressed); metadata is not counted"
        )
        if not settings.text_bytes:
            self._c("text.bytes_a_token")
        size = settings.documents * row + settings.documents * self.text * share
        self._line("storage.documents", "documents.parquet", size, "bytes", how)
        size = self.rows * self._c("windows.row") + parts * self._c("windows.part")
        how = f"{rows} x {self._u('windows.row')} + {parts:,} parts x {self._u('windows.part')}"
        self._line("storage.windows", "windows.parquet", size, "bytes", how)
        kind = settings.config.store.embeddings
        width = 2 if kind == "float16" else 4
        size = self.rows * hidden * width + 128 * parts
        self._line(
            "storage.embeddings", "embeddings.npy", size, "bytes", f"{rows} x {hidden} numbers x {width} B ({kind})"
        )
        size = parts * (_COVARIANCE * (hidden**2 + hidden) + 758)
        how = f"{parts:,} parts x ({hidden}² + {hidden} numbers) x 8 B"
        self._line("storage.moments", "moments.npz", size, "bytes", how)
        size, how = parts * self._c("part.json"), f"{parts:,} parts x {self._u('part.json')}"
        self._line("storage.records", "part.json", size, "bytes", how)
        if settings.config.whitening.strength != "none":
            size = _COVARIANCE * (hidden * self.dim + 3 * hidden) + 600
            how = f"({hidden} x {self.dim} + 3 x {hidden} numbers) x 8 B, once"
            self._line("storage.transforms", "transforms", size, "bytes", how)

    def _serving(self) -> None:
        """Write segments and manifest, memory and hosts."""
        memory, segments = self.settings.hardware.memory, self.segments
        kind, count, processes = segments.kind, segments.count, segments.processes
        size, flat = self.rows * kind.bytes_per_vector + count * kind.shared_bytes, kind.factory == "Flat"
        layout = "4 B x dimensions" if flat else "quantised vectors of 2 bits a dimension, finer ones, row numbers"
        how = (
            f"{self.rows:.4g} rows x {kind.bytes_per_vector:,.0f} B ({layout}) + {count:,} x "
            f"{show_bytes(kind.shared_bytes)} of centroids: {kind.factory}"
        )
        if not flat:
            self._c("index.kind")
        self._line("storage.segments", "segments", size, "bytes", how)
        self._manifest(size)
        stored = sum(line.value for line in self.ledger.lines if line.key.startswith("storage."))
        self._line("storage.total", "index directory, total", stored, "bytes", "the sum of these layers")
        self._line("serve.segments", "segments", count, "", self._cut())
        share = "one segment each" if segments.a_host == 1 else f"at most {segments.a_host:,} segments each"
        limit = f"{show_bytes(memory)} per host" if memory else "no limit"
        self._line("serve.shards", "shards", segments.hosts, "hosts", f"{share}; memory: {limit}")
        process, encoder = self._c("serve.process"), self._width * self.shape.weights
        how = f"segments + {processes:,} x {self._u('serve.process')} for encoder and libraries"
        if encoder > process:
            how += f" + {show_bytes(encoder)} for a large encoder, once"
        needed = size + processes * process + (encoder if encoder > process else 0)
        self._line("serve.memory", "memory to serve", needed, "bytes", f"{how}; documents stay on disk")
        how = "index.recall; a build measures its recall and fails below this value"
        self._line("serve.recall", "recall@10, required", self.settings.config.index.recall, "", how)

    def _cut(self) -> str:
        segments, most = self.segments, self.settings.config.index.segment_rows
        if most:
            return f"{segments.rows:,} rows each, in whole parts: index.segment_rows is {most:,}"
        if segments.count == 1:
            return f"{segments.rows:,} rows: index.segment_rows is 0"
        return f"{segments.rows:,} rows each, one per host; build with index.segment_rows={segments.rows}"

    def _manifest(self, segments: float) -> None:
        """Write the manifest: names, sizes and hashes of all files, and a digest for each MiB of large files."""
        more, compared = self.segments.count - 1, self.segments.kind.factory != "Flat"
        base, parts = self._c("manifest.base"), self.parts * self._c("manifest.part")
        further = more * self._c("manifest.segment") if more else 0.0
        kinds = self.segments.count * self._c("manifest.kinds") if compared else 0.0
        whole = sum(self.ledger.value(f"storage.{name}") for name in ("documents", "embeddings", "moments"))
        size = base + kinds + further + parts + 16 * (whole + segments) / _MIB
        how = (
            f"{self._u('manifest.base')} + {self.parts:,} parts x {self._u('manifest.part')} + 16 B for each MiB of "
            "documents, embeddings, moments, segments"
            + (f" + {counted(more, 'more segment')} x {self._u('manifest.segment')}" if more else "")
            + (f" + {self._u('manifest.kinds')} of compared kinds per segment" if compared else "")
        )
        self._line("storage.manifest", "manifest", size, "bytes", how)

    def _building(self) -> None:
        """Write the work of the cores after encoding, and the time of the whole build."""
        settings, cores, hidden = self.settings, self.settings.hardware.cores, self.shape.dim
        seconds = settings.documents * (self._c("cpu.read_document") + self.text * self._c("cpu.read_byte"))
        rows, byte = f"{settings.documents:.4g}", self._u("cpu.read_byte")
        how = f"{rows} x ({self._u('cpu.read_document')} + {self.text:.4g} B x {byte}); one process"
        reading = self._line("build.reading", "reading the corpus, writing documents", seconds, "core-seconds", how)
        limit = settings.config.whitening.sample
        sample = self.rows if limit == "all" else min(self.rows, limit)
        seconds = sample * hidden**2 * self._c("cpu.fit") + self._c("cpu.fit_once")
        how = f"{sample:,.0f} rows x {hidden}² x {self._u('cpu.fit')} + {self._u('cpu.fit_once')}"
        self._line("build.fitting", "fitting the transform", seconds, "core-seconds", how)
        self._indexing()
        keys = ("encode.cpu_seconds", "build.reading", "build.fitting", "build.indexing")
        seconds = sum(self.ledger.value(key) for key in keys)
        self._line("build.cpu_seconds", "cores, all steps", seconds, "core-seconds", "encoding and the steps above")
        gpus = " + GPUs" if settings.hardware.gpus and self.shape.blocks else ""
        how = f"reading + other steps over {cores} cores{gpus}, one step after another"
        elapsed = reading + (seconds - reading) / cores + self.ledger.value("encode.seconds")
        self._line("build.seconds", "elapsed, start to end", elapsed, "seconds", how)

    def _indexing(self) -> None:
        kind, count, dim = self.segments.kind, self.segments.count, self.dim
        if kind.factory == "Flat":
            seconds = self.rows * dim * self._c("cpu.flat_number") + self._c("cpu.check")
            how = f"{self.rows:.4g} rows x {dim} x {self._u('cpu.flat_number')} + {self._u('cpu.check')}"
            self._line("build.indexing", "transforming and writing segments", seconds, "core-seconds", how)
            return
        rows = self.segments.rows
        measuring, filling = dim * self._c("cpu.index_measuring"), rows * dim * self._c("cpu.index_number")
        more = max(0, kind.lists - self._c("index.lists"))  # than in the measured index
        assigning = 2 * dim * more * (rows + _TRAINING_ROUNDS * min(rows, _TRAINING_ROWS)) / self._c("cpu.flops")
        how = (
            f"{counted(count, 'segment')} x ({dim} dimensions x {self._u('cpu.index_measuring')} to compare kinds + "
            f"{rows:,} rows x {dim} x {self._u('cpu.index_number')} + {show(assigning, 'core-seconds')} for "
            f"{more:,.0f} more lists than measured)"
        )
        self._c("index.kind")
        seconds = count * (measuring + filling + assigning)
        self._line("build.indexing", "choosing, training and filling indexes", seconds, "core-seconds", how)

    def _deduplication(self) -> None:
        (cells, share), size, rows = exact_work(self.rows, self.dim), _width_name(self.dim), f"{self.rows:.4g}"
        pairs = self.rows**2 / 2 * share
        left, a_cell, first = f"join.{size}.left", "join.rows_a_cell", f"join.{size}.row"
        pair = f"join.{size}.{'cell_pair' if cells else 'pair'}"
        how = f"{rows}² / 2: too few rows for cells"
        if cells:
            how = (
                f"{rows}² / 2 x {share:.3g}, the share left by {cells:,} cells: {self._u(left)} / √rows up "
                f"to {MOST_CELLS:,} cells of {self._u(a_cell)} rows, then constant"
            )
        self._line("dedup.pairs", "pairs to compare", pairs, "", how)
        seconds = self.rows * self._c(first) + pairs * self._c(pair)
        if cells:
            self._c(left), self._c(a_cell)
        how = f"{rows} rows x {self._u(first)} + {pairs:.4g} pairs x {self._u(pair)}"
        self._line("dedup.exact", "exact join", seconds, "core-seconds", how)
        growing = min(self.rows, (MOST_CELLS / CELLS_PER_ROOT) ** 2)  # rows up to which the number of cells grows
        grows = f"{rows}^1.5" if growing == self.rows else f"{rows}² / √{growing:.4g}"
        first, cell = f"join.{size}.ann_row", f"join.{size}.cell"
        seconds = self.rows * self._c(first) + self.rows**2 / growing**0.5 * self._c(cell)
        how = f"{rows} rows x {self._u(first)} + {grows} x {self._u(cell)}: 1.4 x √rows cells, at most {MOST_CELLS:,}"
        self._line("dedup.ann", "--method ann", seconds, "core-seconds", how)

    def _money(self) -> None:
        prices, value = self.settings.prices, self.ledger.value
        once = self._hours("gpu", "GPUs", "encode.gpu_seconds", prices.gpu)
        once += self._hours("cores", "cores", "build.cpu_seconds", prices.core)
        if prices.tokens:
            tokens = value("encode.tokens")
            cost, how = tokens / 1e6 * prices.tokens, f"{tokens / 1e6:,.4g} million tokens x {prices.tokens:g}"
            once += self._line("money.tokens", "embedding server", cost, "money", how)
        for name in ("exact", "ann"):
            self._hours(
                f"dedup_{name}", f"de-duplication, {name}", f"dedup.{name}", prices.core, "; not part of the build"
            )
        if once:
            self._line("money.build", "the build", once, "money", "GPUs, cores and server")
        month = 0.0
        for name, key, price in (("storage", "storage.total", prices.storage), ("ram", "serve.memory", prices.ram)):
            if price:
                cost, how = value(key) / 1e9 * price, f"{value(key) / 1e9:,.4g} GB x {price:g}"
                month += self._line(f"money.{name}", f"{name} per month", cost, "money", how)
        if month:
            self._line("money.month", "per month", month, "money", "storage and memory")

    def _hours(self, name: str, title: str, key: str, price: float, note: str = "") -> float:
        """Write the cost of a line's seconds and return it; 0 without a price."""
        if not price:
            return 0.0
        seconds, unit = self.ledger.value(key), "GPU-seconds" if name == "gpu" else "core-seconds"
        how = f"{show(seconds, unit)} x {price:g}{note}"
        return self._line(f"money.{name}", title, seconds / 3600 * price, "money", how)
