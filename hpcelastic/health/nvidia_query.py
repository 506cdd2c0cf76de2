"""Prints the states of NVIDIA's GPUs as JSON, by the library of the driver (NVML). No CUDA is needed.

``python -m hpcelastic.health.nvidia_query`` is a process of its own, because a process in which a driver hangs cannot
be ended. It prints an object with one of these keys:

* ``gpus``: a list with an object for each GPU, with the attributes of `hpcelastic.health.gpus.Gpu`. It is null if there
  is no such library, as on a node without NVIDIA's driver.
* ``error``: why the driver cannot be queried.

Source: NVIDIA's "NVML API Reference".
"""

import importlib
import json
from typing import Any


def main() -> None:
    nvml = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
        states = [_state(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
        accessible = enumerate(state for state in states if state is not None)
        result: dict[str, Any] = {"gpus": [{"index": str(index), **state} for index, state in accessible]}
    except nvml.NVMLError_LibraryNotFound:
        result = {"gpus": None}
    except nvml.NVMLError as error:
        result = {"error": str(error)}
    print(json.dumps(result))


def _state(nvml: Any, index: int) -> dict[str, Any] | None:
    """Return the state of a GPU; None if this process may not access it, as when SLURM has assigned it to another job.

    CUDA does not count such GPUs either.
    """
    state: dict[str, Any] = {}
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        state["uuid"] = _text(nvml.nvmlDeviceGetUUID(handle))
        state["bus"] = _text(nvml.nvmlDeviceGetPciInfo(handle).busId)
        state["uncorrected"] = uncorrected_errors(nvml, handle)
        state["remapping_failed"] = remapping_failed(nvml, handle)
    except nvml.NVMLError_NoPermission:
        return None
    except nvml.NVMLError as error:
        state["error"] = str(error)
    return state


def uncorrected_errors(nvml: Any, handle: Any) -> int:
    """Return the number of uncorrected ECC errors since the driver was loaded; 0 for a GPU without ECC."""
    kinds = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    try:
        return int(nvml.nvmlDeviceGetTotalEccErrors(handle, *kinds))
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        return 0


def remapping_failed(nvml: Any, handle: Any) -> bool:
    """Return whether a faulty row of the memory could not be remapped; False for a GPU or a driver without that."""
    try:
        return bool(nvml.nvmlDeviceGetRemappedRows(handle)[3])
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        return False


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


if __name__ == "__main__":
    main()
