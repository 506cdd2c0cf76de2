"""Prints the states of AMD's GPUs as JSON, by the binding of AMD SMI that ROCm brings.

``python -m hpcelastic.health.amd_query`` prints the same object as `hpcelastic.health.nvidia_query`, and for the same
reason it is a process of its own. Source: AMD's "AMD SMI Python API reference", ROCm 7.0.
"""

import importlib
import json
from typing import Any

_UNAVAILABLE = 2, 3
"""Status codes of a function that a GPU or a driver does not have."""


def main() -> None:
    try:
        amdsmi = importlib.import_module("amdsmi")
    except (ImportError, KeyError):  # KeyError: the binding is there, and its library is not
        print(json.dumps({"gpus": None}))
        return
    try:
        amdsmi.amdsmi_init()
        handles = amdsmi.amdsmi_get_processor_handles()
        result: dict[str, Any] = {"gpus": [_state(amdsmi, str(index), handle) for index, handle in enumerate(handles)]}
    except amdsmi.AmdSmiException as error:
        result = {"error": _text(error)}
    print(json.dumps(result))


def _state(amdsmi: Any, index: str, handle: Any) -> dict[str, Any]:
    state: dict[str, Any] = {"index": index}
    try:
        state["uuid"] = amdsmi.amdsmi_get_gpu_device_uuid(handle)
        state["bus"] = amdsmi.amdsmi_get_gpu_device_bdf(handle)
        state["uncorrected"] = uncorrected_errors(amdsmi, handle)
    except amdsmi.AmdSmiException as error:
        state["error"] = _text(error)
    return state


def uncorrected_errors(amdsmi: Any, handle: Any) -> int:
    """Return the number of uncorrected ECC errors since the driver was loaded; 0 for a GPU without ECC."""
    try:
        return int(amdsmi.amdsmi_get_gpu_total_ecc_count(handle)["uncorrectable_count"])
    except amdsmi.AmdSmiLibraryException as error:
        if error.get_error_code() in _UNAVAILABLE:
            return 0
        raise


def _text(error: Exception) -> str:
    return " ".join(str(error).split())


if __name__ == "__main__":
    main()
