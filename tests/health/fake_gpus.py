"""The GPUs of a node, as modules in place of the bindings of NVML and AMD SMI report them.

Names and numbers are those of the bindings.
"""

import copy
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SOUND: Sequence[dict[str, Any]] = (
    {"uuid": "GPU-6a3c9f1e-0d5b-4c1f-9f8e-2b7d4e5a6c01", "bus": "00000000:1B:00.0", "ecc": 0, "rows": (0, 0, 0, 0)},
    {"uuid": "GPU-0f2e8d7c-6b5a-4938-8271-60f5e4d3c2b1", "bus": "00000000:43:00.0", "ecc": 0, "rows": (0, 0, 0, 0)},
)
"""Two GPUs without faults."""


def with_gpu(index: int, gpus: Sequence[dict[str, Any]] = SOUND, **values: Any) -> list[dict[str, Any]]:
    """Return ``gpus`` with other values of one of them. None stands for a function that it does not support.

    ``error`` is the name of the error that each query of the GPU raises, without the prefix.
    """
    changed = copy.deepcopy([*gpus])
    changed[index] |= values
    return changed


ECC = with_gpu(1, ecc=3)

_MODULE = """\
import os, time
from types import SimpleNamespace

NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC, nvmlEventTypeXidCriticalError = 1, 0, 8
nvmlClocksEventReasonHwSlowdown, nvmlClocksEventReasonHwThermalSlowdown = 8, 64
nvmlClocksEventReasonHwPowerBrakeSlowdown = 128

class NVMLError(Exception): ...
class NVMLError_LibraryNotFound(NVMLError): ...
class NVMLError_Timeout(NVMLError): ...
class NVMLError_GpuIsLost(NVMLError): ...
class NVMLError_NoPermission(NVMLError): ...
class NVMLError_NotSupported(NVMLError): ...
class NVMLError_FunctionNotFound(NVMLError): ...

GPUS, XIDS = {gpus!r}, []

def _value(gpu, key):
    if GPUS[gpu].get("error"):
        raise globals()["NVMLError_" + GPUS[gpu]["error"]]("the GPU: " + GPUS[gpu]["error"])
    if GPUS[gpu][key] is None:
        raise NVMLError_NotSupported
    return GPUS[gpu][key]

def nvmlInit(): ...
def nvmlEventSetCreate(): ...
def nvmlDeviceRegisterEvents(gpu, kinds, events): ...
def nvmlEventSetWait_v2(events, milliseconds):
    if not XIDS:
        raise NVMLError_Timeout
    gpu, xid = XIDS.pop(0)
    return SimpleNamespace(device=gpu, eventData=xid)
def nvmlDeviceGetCount(): return len(GPUS)
def nvmlDeviceGetHandleByIndex(index):
    _value(index, "uuid")
    return index
def nvmlDeviceGetUUID(gpu): return _value(gpu, "uuid")
def nvmlDeviceGetIndex(gpu): return gpu
def nvmlDeviceGetPciInfo(gpu): return SimpleNamespace(busId=_value(gpu, "bus").encode())
def nvmlDeviceGetTotalEccErrors(gpu, kind, counter): return _value(gpu, "ecc")
def nvmlDeviceGetRemappedRows(gpu): return _value(gpu, "rows")
def nvmlDeviceGetCurrentClocksEventReasons(gpu): return 0

{code}
"""


def nvml(directory: Path, gpus: Sequence[dict[str, Any]] = SOUND, code: str = "") -> dict[str, str]:
    """Return an environment with the first two GPUs, whose driver reports ``gpus``.

    ``code`` is executed at the end of the module, and may change its functions.
    """
    directory.mkdir(exist_ok=True)
    (directory / "pynvml.py").write_text(_MODULE.format(gpus=[*gpus], code=code))
    return {**os.environ, "PYTHONPATH": str(directory), "CUDA_VISIBLE_DEVICES": "0,1"}


_AMD_MODULE = """\
class AmdSmiException(Exception): ...

class AmdSmiLibraryException(AmdSmiException):
    def get_error_code(self): return self.args[0]
    def __str__(self): return f"Error code:\\n\\t{{self.args[0]}} | AMDSMI_STATUS_IO - I/O Error"

GPUS = {gpus!r}

def amdsmi_init(): ...
def amdsmi_get_processor_handles(): return [*range(len(GPUS))]
def amdsmi_get_gpu_device_uuid(gpu): return GPUS[gpu]["uuid"]
def amdsmi_get_gpu_device_bdf(gpu): return GPUS[gpu]["bus"]
def amdsmi_get_gpu_total_ecc_count(gpu):
    if GPUS[gpu].get("error"):
        raise AmdSmiLibraryException(GPUS[gpu]["error"])
    return {{"correctable_count": 9, "uncorrectable_count": GPUS[gpu]["ecc"], "deferred_count": 0}}

print("a line that is no answer")
{code}
"""


def amd_smi(directory: Path, gpus: Sequence[dict[str, Any]] = SOUND, code: str = "") -> dict[str, str]:
    """Return an environment with two GPUs of AMD, whose driver reports ``gpus``. ``error`` is a status code there."""
    directory.mkdir(exist_ok=True)
    (directory / "amdsmi.py").write_text(_AMD_MODULE.format(gpus=[*gpus], code=code))
    return {**os.environ, "PYTHONPATH": str(directory), "CUDA_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": "0,1"}
