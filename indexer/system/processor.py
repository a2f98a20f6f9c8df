"""The processor's name and instruction sets."""

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Processor:
    """A name, and instruction sets by their names in Linux; empty on systems that list none."""

    name: str
    flags: frozenset[str]

    @classmethod
    def here(cls) -> "Processor":
        """Return this processor: the first in /proc/cpuinfo."""
        try:
            lines = CPUINFO.read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
        except OSError:
            return cls(platform.processor() or platform.machine(), frozenset())
        facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        flags = facts.get("flags") or facts.get("Features") or ""
        return cls(facts.get("model name") or platform.machine(), frozenset(flags.split()))


def multiplies_bfloat16() -> bool:
    """Return whether the processor multiplies bfloat16 and oneDNN may use these instructions.

    torch and OpenVINO multiply through oneDNN. If its instructions are limited, OpenVINO still offers bfloat16 but
    returns empty matrices.
    """
    limits = [os.environ.get(name) or "ALL" for name in ("DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA")]
    allowed = all(re.search("BF16|FP16|AMX|AVX10|ALL|DEFAULT", limit.upper()) for limit in limits)
    return allowed and not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(Processor.here().flags)
