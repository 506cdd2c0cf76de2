"""AMD's GPUs while workers train, by the binding of AMD SMI that ROCm brings. See `hpcelastic.health.amd_query`."""

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hpcelastic.health.amd_query import uncorrected_errors
from hpcelastic.health.gpus import CHECK, given_gpus
from hpcelastic.health.hardware import HardwareFinding, HardwareSeverity, Source

_SILENT_LOOKS = 3
"""Consecutive looks at which a GPU must not answer until it counts as lost. Its driver may be busy for a moment."""


def amd_gpus(environ: Mapping[str, str]) -> Source:
    """Return the GPUs that are assigned to this node, to watch them. Raises the errors of AMD SMI."""
    amdsmi = importlib.import_module("amdsmi")
    amdsmi.amdsmi_init()
    return AmdGpus(environ, amdsmi)


@dataclass
class _Gpu:
    handle: Any
    name: str
    uncorrected: int
    """Number of uncorrected ECC errors at the last look."""

    silent_looks: int = 0


class AmdGpus:
    """The GPUs that are assigned to this node. ``amdsmi`` is the Python binding, initialised."""

    def __init__(self, environ: Mapping[str, str], amdsmi: Any) -> None:
        self._amdsmi = amdsmi
        handles = {str(index): handle for index, handle in enumerate(amdsmi.amdsmi_get_processor_handles())}
        given = given_gpus(environ, "ROCR_VISIBLE_DEVICES")
        known = given if given is not None and {*given} <= handles.keys() else [*handles]
        self._gpus = [
            _Gpu(handles[index], f"GPU {index}", uncorrected_errors(amdsmi, handles[index])) for index in known
        ]

    def look(self) -> Iterator[HardwareFinding]:
        """Yield new ECC errors. A GPU that does not answer any more is yielded once and not watched any more."""
        for gpu in [*self._gpus]:
            try:
                uncorrected = uncorrected_errors(self._amdsmi, gpu.handle)
            except self._amdsmi.AmdSmiException as error:
                gpu.silent_looks += 1
                if gpu.silent_looks == _SILENT_LOOKS:
                    self._gpus.remove(gpu)
                    seen = f"{gpu.name} does not answer any more: {' '.join(str(error).split())}"
                    yield HardwareFinding(CHECK, seen, HardwareSeverity.LEAVE)
                continue
            new, gpu.uncorrected, gpu.silent_looks = uncorrected - gpu.uncorrected, uncorrected, 0
            if new > 0:
                seen = f"{gpu.name} has {new} new uncorrected ECC error{'s' if new > 1 else ''}"
                yield HardwareFinding(CHECK, seen, HardwareSeverity.LEAVE_AT_STEP)
