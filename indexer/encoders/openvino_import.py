"""OpenVINO, imported so that it reports to nobody and brings no converter of other frameworks' models.

`import openvino` sends "imported" to its makers through openvino_telemetry, where that is installed, from a process of
its own; and it imports the converter that does so, which is two thirds of the time. Neither is wanted here: converted
graphs are made by `graphs`. NNCF asks openvino_telemetry too, so that stays out for the life of the process.
"""

import sys
from typing import Any

_CONVERTER = "openvino.tools.ovc"
_REPORTING = "openvino_telemetry"


def _import() -> Any:
    modules: dict[str, Any] = sys.modules
    modules.setdefault(_REPORTING, None)  # an import of it now fails; what asks for it has a way out
    if "openvino" in modules:
        return modules["openvino"]
    modules.setdefault(_CONVERTER, None)
    try:
        import openvino
    finally:
        if modules.get(_CONVERTER) is None:
            del modules[_CONVERTER]
    return openvino


openvino: Any = _import()
