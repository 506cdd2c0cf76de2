"""Failures of GPUs, their drivers and their libraries."""

from hpcelastic.health.incidents import IncidentKind
from hpcelastic.health.known_causes.cause import Blame, Certainty, KnownCause, Weight

_CUDA = "cudaGetErrorString, NVIDIA's CUDA runtime API"
_XID = "NVIDIA, XID errors"
_CUBLAS = "NVIDIA, cuBLAS and cuDNN, status codes"
_TORCH = "torch.cuda"


def _xid(numbers: str, text: str, blame: Blame, remedy: str, incident: IncidentKind | None = None) -> KnownCause:
    """Return a cause that the kernel reports as one of some Xids, such as ``48|63``."""
    pattern = rf"\bXid\b[^\n]*\b(?:{numbers})\b(?![:.][0-9a-f])"
    certainty = Certainty.CERTAIN if incident is IncidentKind.HARDWARE else Certainty.LIKELY
    name = "xid-" + numbers.replace("|", "-")
    weight = Weight.DETAIL if incident is IncidentKind.HARDWARE else Weight.USUAL
    return KnownCause(name, pattern, text, blame, certainty, remedy, _XID, incident, weight)


_REPLACE = "drain the node, and have the GPU reset or replaced"

CAUSES = (
    KnownCause(
        "cuda-ecc",
        r"uncorrectable ECC error|cudaErrorECCUncorrectable",
        "The memory of a GPU has an uncorrectable error.",
        Blame.NODE,
        Certainty.CERTAIN,
        _REPLACE,
        _CUDA,
        IncidentKind.HARDWARE,
    ),
    KnownCause(
        "cuda-nvlink",
        r"uncorrectable NVLink error|cudaErrorNvlinkUncorrectable",
        "A connection between GPUs has an uncorrectable error.",
        Blame.NODE,
        Certainty.CERTAIN,
        _REPLACE,
        _CUDA,
        IncidentKind.HARDWARE,
    ),
    KnownCause(
        "gpu-lost",
        r"GPU (?:is lost|has fallen off the bus)|fallen off the bus",
        "The driver has lost the connection to a GPU.",
        Blame.NODE,
        Certainty.CERTAIN,
        "drain the node; check its power supply and PCIe, and reboot it",
        _XID,
        IncidentKind.HARDWARE,
    ),
    _xid("48|95", "The memory of a GPU has an uncorrectable error.", Blame.NODE, _REPLACE, IncidentKind.HARDWARE),
    _xid("94", "An error in the memory of a GPU has ended a program.", Blame.NODE, _REPLACE, IncidentKind.HARDWARE),
    _xid("64", "A row of a GPU's memory could not be remapped.", Blame.NODE, _REPLACE, IncidentKind.HARDWARE),
    _xid("74", "A connection between GPUs has failed.", Blame.NODE, _REPLACE, IncidentKind.HARDWARE),
    _xid("145|149", "A connection between GPUs has failed.", Blame.NODE, _REPLACE, IncidentKind.HARDWARE),
    _xid("79", "A GPU has fallen off the bus.", Blame.NODE, _REPLACE, IncidentKind.HARDWARE),
    _xid("119|120", "The system processor of a GPU does not answer.", Blame.NODE, _REPLACE, IncidentKind.HARDWARE),
    _xid("61|62", "The micro-controller of a GPU has failed.", Blame.NODE, _REPLACE, IncidentKind.SUSPECT),
    _xid("63", "A row of a GPU's memory will be remapped.", Blame.NODE, "reset the GPU after the job"),
    _xid(
        "13|31|43",
        "A program has made an invalid access or operation on a GPU.",
        Blame.PROGRAM,
        "find the kernel with CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer",
    ),
    KnownCause(
        "cuda-out-of-memory",
        r"CUDA out of memory|torch\.(?:cuda\.)?OutOfMemoryError|CUDA error: out of memory|"
        r"Failed to CUDA (?:calloc|malloc)|Cuda failure.{0,20}out of memory",
        "A GPU has too little memory.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "use smaller batches, activation checkpointing or sharding; other processes on the GPU: nvidia-smi",
        _TORCH,
    ),
    KnownCause(
        "hip-out-of-memory",
        r"HIP out of memory|hipErrorOutOfMemory",
        "A GPU has too little memory.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "use smaller batches, activation checkpointing or sharding; other processes on the GPU: rocm-smi",
        _TORCH,
    ),
    KnownCause(
        "triton-out-of-resources",
        r"out of resource: shared memory|OutOfResources",
        "A kernel of Triton needs more shared memory than the GPU has.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "use smaller blocks or fewer stages for the kernel",
        "Triton, OutOfResources",
    ),
    KnownCause(
        "cuda-illegal-access",
        r"illegal memory access was encountered|cudaErrorIllegalAddress",
        "A kernel has accessed invalid memory of a GPU.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "find the kernel with CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer; often an index is out of range",
        _CUDA,
    ),
    KnownCause(
        "hip-memory-fault",
        r"Memory access fault by GPU node|HSA_STATUS_ERROR_MEMORY_FAULT|hipErrorIllegalAddress",
        "A kernel has accessed invalid memory of a GPU.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "find the kernel with AMD_SERIALIZE_KERNEL=3; often an index is out of range",
        "AMD, ROCr runtime",
    ),
    KnownCause(
        "hip-hardware",
        r"HW Exception by GPU node|HSA_STATUS_ERROR_EXCEPTION|amdgpu[^\n]*(?:GPU reset|RAS)",
        "A GPU has reported an error of the hardware.",
        Blame.NODE,
        Certainty.LIKELY,
        "look at the kernel's log of the node; drain the node if it happens again",
        "AMD, ROCr runtime and amdgpu",
        IncidentKind.SUSPECT,
    ),
    KnownCause(
        "cuda-peer-memory",
        r"Invalid access of peer GPU memory over nvlink",
        "The memory of another GPU could not be read: its process has ended, or the connection has failed.",
        Blame.UNKNOWN,
        Certainty.LIKELY,
        "look for the first failure of another rank, and for Xids in the kernel's log of the node",
        _CUDA,
    ),
    KnownCause(
        "cuda-arguments",
        r"CUDA error: invalid (?:argument|configuration argument|resource handle)|"
        r"(?:CUBLAS|CUDNN)_STATUS_(?:INVALID_VALUE|NOT_SUPPORTED|BAD_PARAM|ARCH_MISMATCH)",
        "A function of CUDA was called with invalid arguments.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "find the call with CUDA_LAUNCH_BLOCKING=1; check shapes, types, and the builds of the libraries",
        _CUDA,
    ),
    KnownCause(
        "cuda-misaligned",
        r"CUDA error: misaligned address|cudaErrorMisalignedAddress",
        "A kernel has accessed a misaligned address.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "find the kernel with CUDA_LAUNCH_BLOCKING=1",
        _CUDA,
    ),
    KnownCause(
        "cuda-assert",
        r"device-side assert triggered|cudaErrorAssert",
        "An assertion in a kernel has failed.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "read the assertion above in the log; often a label or an index is out of range",
        _CUDA,
    ),
    KnownCause(
        "cuda-no-kernel",
        r"no kernel image is available for execution on the device|invalid device function|"
        r"PTX was compiled with an unsupported toolchain|hipErrorNoBinaryForGpu",
        "The installed build of a library has no code for this GPU.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "install a build for the compute capability of this GPU",
        _CUDA,
    ),
    KnownCause(
        "cuda-invalid-device",
        r"invalid device ordinal",
        "A process has chosen a GPU that it does not have.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "use LOCAL_RANK as the number of the GPU, and as many workers on a node as it has GPUs",
        _CUDA,
    ),
    KnownCause(
        "cuda-fork",
        r"Cannot re-initialize CUDA in forked subprocess",
        "A process that was forked after the use of CUDA uses CUDA.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "do not use CUDA before the fork: at the import of modules in workers.preload, or before a DataLoader starts",
        _TORCH,
    ),
    KnownCause(
        "cuda-driver-old",
        r"CUDA driver version is insufficient|NVIDIA driver on your system is too old",
        "The driver of the node is older than the installed CUDA requires.",
        Blame.NODE,
        Certainty.CERTAIN,
        "install a build of PyTorch for this driver, or update the driver",
        _CUDA,
    ),
    KnownCause(
        "driver-mismatch",
        r"Driver/library version mismatch|couldn't communicate with the NVIDIA driver|"
        r"Failed to initialize NVML: (?:Unknown Error|Driver Not Loaded)|system driver mismatch",
        "The driver of the node was updated, or is not loaded.",
        Blame.NODE,
        Certainty.CERTAIN,
        "drain and reboot the node",
        "NVML, NVML_ERROR_LIB_RM_VERSION_MISMATCH",
        IncidentKind.SUSPECT,
    ),
    KnownCause(
        "cuda-busy",
        r"CUDA(?:-capable device| driver).*(?:busy or unavailable|initialization failed)",
        "The GPUs of the node cannot be used.",
        Blame.NODE,
        Certainty.LIKELY,
        "end other processes on the GPUs (nvidia-smi), check the compute mode and the driver",
        _CUDA,
        IncidentKind.SUSPECT,
    ),
    KnownCause(
        "cuda-no-device",
        r"no CUDA-capable device is detected|No (?:CUDA|HIP) GPUs are available|system not yet initialized|"
        r"hipErrorNoDevice|[Ff]abric ?[Mm]anager[^\n]*(?:not running|failed|not initialized)",
        "The process sees no GPU.",
        Blame.NODE,
        Certainty.LIKELY,
        "request GPUs (slurm.gpus_per_node), check CUDA_VISIBLE_DEVICES and the driver of the node",
        _CUDA,
        IncidentKind.SUSPECT,
    ),
    KnownCause(
        "cuda-unknown",
        r"CUDA error: (?:unknown error|hardware stack error|unspecified launch failure)",
        "A GPU has failed without a reason.",
        Blame.UNKNOWN,
        Certainty.LIKELY,
        "look for Xids in the kernel's log of the node; run the script on another node",
        _CUDA,
        IncidentKind.SUSPECT,
    ),
    KnownCause(
        "cublas-not-initialized",
        r"CUBLAS_STATUS_(?:NOT_INITIALIZED|ALLOC_FAILED)|CUDNN_STATUS_(?:NOT_INITIALIZED|ALLOC_FAILED)",
        "A library could not be initialized on the GPU, most often because of too little memory.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "use smaller batches; otherwise check that the builds of the libraries fit the driver",
        _CUBLAS,
    ),
    KnownCause(
        "cublas-failed",
        r"CUBLAS_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR)|CUDNN_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR)",
        "A kernel of a library has failed on the GPU.",
        Blame.UNKNOWN,
        Certainty.LIKELY,
        "find an earlier error with CUDA_LAUNCH_BLOCKING=1; run the script on another node",
        _CUBLAS,
    ),
)
