"""NVIDIA's GPUs while workers train, by the management library of the driver (NVML). No CUDA is needed.

Sources: NVIDIA's "NVML API Reference" and "XID Errors".
"""

import contextlib
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hpcelastic.health.gpus import CHECK, device_files, given_gpus, is_named
from hpcelastic.health.hardware import HardwareFinding, HardwareSeverity, Source
from hpcelastic.health.nvidia_query import remapping_failed, uncorrected_errors

_XIDS = {
    48: ("uncorrectable ECC error", HardwareSeverity.LEAVE),
    64: ("a faulty row of its memory could not be remapped", HardwareSeverity.LEAVE_AT_STEP),
    74: ("NVLink error", HardwareSeverity.LEAVE_AT_STEP),
    79: ("it has fallen off the bus", HardwareSeverity.LEAVE),
    94: ("contained ECC error", HardwareSeverity.LEAVE_AT_STEP),
    95: ("uncontained ECC error", HardwareSeverity.LEAVE),
    119: ("its system processor does not answer", HardwareSeverity.LEAVE),
    120: ("error of its system processor", HardwareSeverity.LEAVE),
}
"""Xids that programs do not cause. Those of programs end the worker, which reports an error itself."""

_SLOW_LOOKS = 4
"""Consecutive looks at which a GPU must be slowed down until that is a finding. It is normal for a moment."""


class _NoGpus:
    """A node without a driver of NVIDIA."""

    def look(self) -> Iterator[HardwareFinding]:
        return iter(())


def nvidia_gpus(environ: Mapping[str, str]) -> Source:
    """Return the GPUs that are assigned to this node, to watch them. Raises the errors of NVML."""
    nvml = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError_LibraryNotFound:
        if device_files():
            raise
        return _NoGpus()  # the GPUs are of another vendor
    return NvidiaGpus(environ, nvml)


@dataclass
class _Gpu:
    handle: Any
    name: str
    uncorrected: int
    """Number of uncorrected ECC errors at the last look."""

    remapping_failed: bool
    slow_looks: int = 0


class NvidiaGpus:
    """The GPUs that are assigned to this node. ``nvml`` is the Python binding, initialised."""

    def __init__(self, environ: Mapping[str, str], nvml: Any) -> None:
        self._nvml = nvml
        self._gpus = {self._uuid(handle): self._watched(handle) for handle in self._handles(given_gpus(environ))}
        self._events = self._nvml.nvmlEventSetCreate()
        for gpu in self._gpus.values():
            with self._unsupported():
                self._nvml.nvmlDeviceRegisterEvents(gpu.handle, self._nvml.nvmlEventTypeXidCriticalError, self._events)

    def look(self) -> Iterator[HardwareFinding]:
        """Yield new Xids, ECC errors and slow-downs. A GPU that is lost is yielded once and not watched any more."""
        yield from self._xids()
        for uuid, gpu in [*self._gpus.items()]:
            try:
                yield from self._look_at(gpu)
            except self._nvml.NVMLError_GpuIsLost:
                del self._gpus[uuid]
                yield HardwareFinding(CHECK, f"{gpu.name} does not answer any more", HardwareSeverity.LEAVE)

    def _handles(self, given: list[str] | None) -> list[Any]:
        """Return the assigned GPUs; all if the assigned ones are not known, as with MIG instances."""
        every = []
        for index in range(self._nvml.nvmlDeviceGetCount()):
            with contextlib.suppress(self._nvml.NVMLError_NoPermission):  # it is assigned to another job
                every.append(self._nvml.nvmlDeviceGetHandleByIndex(index))
        if given is None:
            return every
        chosen = [
            handle
            for index, handle in enumerate(every)
            if any(is_named(str(index), self._uuid(handle), entry) for entry in given)
        ]
        return chosen if len(chosen) == len(given) else every

    def _uuid(self, handle: Any) -> str:
        uuid = self._nvml.nvmlDeviceGetUUID(handle)
        return uuid.decode() if isinstance(uuid, bytes) else str(uuid)

    def _watched(self, handle: Any) -> _Gpu:
        name = f"GPU {self._nvml.nvmlDeviceGetIndex(handle)}"
        return _Gpu(handle, name, uncorrected_errors(self._nvml, handle), remapping_failed(self._nvml, handle))

    def _look_at(self, gpu: _Gpu) -> Iterator[HardwareFinding]:
        uncorrected = uncorrected_errors(self._nvml, gpu.handle)
        failed = remapping_failed(self._nvml, gpu.handle)
        if uncorrected > gpu.uncorrected:
            new = uncorrected - gpu.uncorrected
            seen = f"{gpu.name} has {new} new uncorrected ECC error{'s' if new > 1 else ''}"
            yield HardwareFinding(CHECK, seen, HardwareSeverity.LEAVE_AT_STEP)
        if failed and not gpu.remapping_failed:
            seen = f"{gpu.name} could not remap a faulty row of its memory"
            yield HardwareFinding(CHECK, seen, HardwareSeverity.LEAVE_AT_STEP)
        gpu.uncorrected, gpu.remapping_failed = uncorrected, failed
        cause = self._slow_down(gpu.handle)
        gpu.slow_looks = gpu.slow_looks + 1 if cause else 0
        if gpu.slow_looks == _SLOW_LOOKS:
            yield HardwareFinding(CHECK, f"{gpu.name} is slowed down: {cause}", HardwareSeverity.NOTE)

    def _xids(self) -> Iterator[HardwareFinding]:
        while True:
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
            except (self._nvml.NVMLError_Timeout, self._nvml.NVMLError_GpuIsLost):
                return
            try:
                gpu, known = self._gpus.get(self._uuid(event.device)), _XIDS.get(event.eventData)
            except self._nvml.NVMLError_GpuIsLost:  # as after Xid 79; the look at the GPU finds that
                continue
            if gpu is not None and known is not None:
                what, severity = known
                yield HardwareFinding(CHECK, f"{gpu.name} has reported Xid {event.eventData}: {what}", severity)

    def _slow_down(self, handle: Any) -> str:
        """Return why the hardware has reduced the clocks of a GPU; empty if it has not."""
        nvml = self._nvml
        reasons = 0
        with self._unsupported():
            reasons = int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
        causes = {
            nvml.nvmlClocksEventReasonHwThermalSlowdown: "it is too hot",
            nvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "the power supply demands it",
            nvml.nvmlClocksEventReasonHwSlowdown: "temperature or power",
        }
        return next((cause for bit, cause in causes.items() if reasons & bit), "")

    def _unsupported(self) -> contextlib.AbstractContextManager[None]:
        """Suppress the errors of a GPU or a driver that does not have a function."""
        return contextlib.suppress(self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_FunctionNotFound)
