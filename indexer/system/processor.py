"""The processor's name and instruction sets."""

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
_KINDS = {  # kind -> the instruction sets of which one decides it; the first that fits
    "AMX": {"amx_bf16", "amx_int8"},
    "AVX512_BF16": {"avx512_bf16"},
    "VNNI": {"avx512_vnni", "avx_vnni"},
    "AVX-512": {"avx512f"},
    "AVX2": {"avx2"},
    "Arm BF16": {"bf16"},
    "Arm": {"asimd"},
}


@dataclass(frozen=True)
class Processor:
    """A name, and instruction sets by their names in Linux; empty on systems that list none."""

    name: str
    flags: frozenset[str]
    vendor: str = ""  # of an x86 processor

    @property
    def kind(self) -> str:
        """The best instruction set for matrix products, by which benchmarks are compared; "unknown" if none is listed.

        Instruction sets decide which number types are fast, and so by how much programs differ.
        """
        return next((kind for kind, sets in _KINDS.items() if not sets.isdisjoint(self.flags)), "unknown")

    @classmethod
    def here(cls) -> "Processor":
        """Return this processor: the first in /proc/cpuinfo."""
        try:
            lines = CPUINFO.read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
        except OSError:
            return cls(platform.processor() or platform.machine(), frozenset())
        facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        flags = facts.get("flags") or facts.get("Features") or ""
        name, vendor = facts.get("model name") or platform.machine(), facts.get("vendor_id", "")
        return cls(name, frozenset(flags.split()), vendor)


def bfloat16_is_faster() -> bool:
    """Return whether matrix products are faster in bfloat16 than in float32, and oneDNN may use the instructions.

    AMX, Arm's BF16 and AMD's AVX512_BF16 do twice as many products a cycle as float32, or more. Intel's AVX512_BF16
    does as many and loses by its conversions: on a Xeon (Sapphire Rapids) whose virtual machine hides AMX, a build with
    MiniLM takes 1.6 times the processor time. torch and OpenVINO multiply through oneDNN. If its instructions are
    limited, OpenVINO still offers bfloat16 but returns empty matrices.
    """
    limits = [os.environ.get(name) or "ALL" for name in ("DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA")]
    if not all(re.search("BF16|FP16|AMX|AVX10|ALL|DEFAULT", limit.upper()) for limit in limits):
        return False
    processor = Processor.here()
    fast = {"amx_bf16", "bf16"} if processor.vendor == "GenuineIntel" else {"amx_bf16", "bf16", "avx512_bf16"}
    return not fast.isdisjoint(processor.flags)
