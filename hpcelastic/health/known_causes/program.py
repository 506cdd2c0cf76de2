"""Failures of scripts and their environments, and ends by the scheduler."""

from hpcelastic.health.known_causes.cause import Blame, Certainty, KnownCause, Weight

_PYTHON = "Python, built-in exceptions"
_TORCH = "torch"

CAUSES = (
    KnownCause(
        "poisoned-state",
        r"\bPoisonedState\b|\bloss is (?:nan|inf|-inf)\b|found NaN in local grad norm",
        "The loss is not a number any more, or has risen suddenly.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "look at the data and the learning rate of that step; hpcelastic returns to older checkpoints",
        "hpcelastic, LossCheck",
    ),
    KnownCause(
        "numpy-missing",
        r"Numpy is not available",
        "The environment has PyTorch without NumPy.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "pip install numpy",
        _TORCH,
    ),
    KnownCause(
        "import",
        r"\b(?:ModuleNotFoundError|ImportError)\b",
        "A module cannot be imported.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "install it in the environment of the job; if it fails on one node only, check the environment there",
        _PYTHON,
    ),
    KnownCause(
        "shared-library",
        r"cannot open shared object file|error while loading shared libraries|undefined symbol: |"
        r"version `?\w+_[\d.]+'? not found|relocation error: |not defined in file \S+ with link time reference|"
        r"Inconsistency detected by ld\.so|\.so[\w.]*: (?:file too short|invalid ELF header|wrong ELF class|"
        r"ELF load command)|cannot enable executable stack as shared object requires",
        "A library of the system is missing on the node, or is too old.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "load the module of the site in slurm.setup, or use a container",
        "Linux, ld.so(8)",
    ),
    KnownCause(
        "arguments",
        r"error: (?:unrecognized arguments|argument \S+: |the following arguments are required)",
        "The script does not know an argument, or misses one.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "compare entrypoint.args with the help of the script; launchers of torch before 2.0 added --local_rank",
        "Python, argparse",
    ),
    KnownCause(
        "syntax",
        r"\b(?:SyntaxError|IndentationError|TabError)\b",
        "The script is not valid Python.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "correct the line that the message names",
        _PYTHON,
    ),
    KnownCause(
        "bucket",
        r"OpenBucket: (?:Unknown bucket|Bad credentials)|Bad credentials for bucket|"
        r"could not find default credentials|could not determine how to establish security credentials",
        "A bucket of an object store does not exist, or the process has no credentials for it.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "correct the name of the bucket, and give the job the credentials of the store",
        "gcsfuse, troubleshooting; s3fs-fuse, s3fs.cpp; boto3, credentials",
    ),
    KnownCause(
        "missing-file",
        r"\bFileNotFoundError\b|No such file or directory",
        "A file does not exist on this node.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "check the path; files must be on a filesystem that all nodes share",
        _PYTHON,
    ),
    KnownCause(
        "pickling",
        r"\bPicklingError\b|Can't pickle|cannot pickle|Can't get (?:local )?(?:object|attribute)",
        "An object cannot be sent to another process.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "define the class or function at the top level of a module; do not pass locks, files or generators",
        "Python, pickle",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "state-dict",
        r"Error\(s\) in loading state_dict|Missing key\(s\) in state_dict|loaded state dict contains a parameter group",
        "A checkpoint does not fit the model or the optimizer.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "load a checkpoint of this model; save model.state_dict(), and not that of a wrapper",
        "torch.nn.Module.load_state_dict",
    ),
    KnownCause(
        "model-differs",
        r"DDP expects same model across all ranks(?![^\n]*inconsistent 0 params)",
        "Ranks have made different models.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "make the same model on all ranks: the same configuration, and no branch that depends on the rank",
        "torch, DistributedDataParallel",
    ),
    KnownCause(
        "shapes",
        r"shapes cannot be multiplied|size mismatch|The size of tensor a .* must match|"
        r"stack expects each tensor to be equal size|shape '.*' is invalid for input of size",
        "Tensors have shapes that do not fit.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "correct the line that the traceback names; the last batch of an epoch may be smaller",
        _TORCH,
    ),
    KnownCause(
        "devices",
        r"Expected all tensors to be on the same device|Input type .* and weight type .* should be the same",
        "Tensors of one operation are on different devices.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "move the batch to the device of the model",
        _TORCH,
    ),
    KnownCause(
        "arithmetic",
        r"Caught signal 8\b|\bFloating point exception\b|killed by SIGFPE",
        "A library has made an invalid operation with numbers.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "install builds of the libraries for the GPUs and processors of the node",
        "Linux, signal(7)",
    ),
    KnownCause(
        "types",
        r"expected scalar type|must have the same dtype|expected m1 and m2 to have the same dtype",
        "Tensors of one operation have different types.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "convert one of them, or use torch.autocast",
        _TORCH,
    ),
    KnownCause(
        "autograd",
        r"element 0 of tensors does not require grad|modified by an inplace operation|"
        r"Trying to backward through the graph a second time",
        "The backward pass cannot be computed.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "correct the line that the traceback names; torch.autograd.set_detect_anomaly(True) names the operation",
        "torch.autograd",
    ),
    KnownCause(
        "compile",
        r"\b(?:BackendCompilerFailed|InductorError|TorchRuntimeError)\b|torch\._dynamo\.exc",
        "The compiler of torch has failed.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "run once without torch.compile; check that the node has a C compiler",
        "torch.compile",
    ),
    KnownCause(
        "cuda-toolkit",
        r"Installed CUDA version \S+ does not match the version torch was compiled with",
        "The CUDA toolkit of the node differs from the one of PyTorch, so an extension cannot be compiled.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "load the module of the same version in slurm.setup, or install PyTorch for this version",
        "torch.utils.cpp_extension; DeepSpeed, op_builder",
    ),
    KnownCause(
        "mpi-start",
        r"It looks like (?:MPI_INIT|pmix_init) failed|An error occurred in MPI_Init|orted: command not found|"
        r"appears to have been direct launched|PMIx_Init failed for the following reason|PMI2?_Init (?:failed|"
        r"returned \d)|uses unsupported PMI version|detected a mismatch in versions between two processes|"
        r"Auto-detection of PMI version failed|Fatal error in (?:P?MPI|internal)_Init(?![\s\S]*(?:OFI|UCX|"
        r"libfabric))|Invalid MPI type '|Invalid MPI plugin name|MPI plugin's pre-launch setup failed|"
        r"cannot find (?:an )?mpi plugin|plugin name for mpi/\w+",
        "MPI could not start in this process.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "check that the library of MPI fits the launcher (srun --mpi=list), and the process's environment",
        "Open MPI, MPI_Init(3)",
    ),
    KnownCause(
        "recursion",
        r"\bRecursionError\b",
        "Functions have called each other too deeply.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "correct the function that the traceback repeats",
        _PYTHON,
    ),
    KnownCause(
        "no-gpu-requested",
        r"No supported gpu backend found",
        "The script wants a GPU, and the process sees none.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "request GPUs (slurm.gpus_per_node), and check that they are visible to each task",
        "Lightning, accelerators",
    ),
    KnownCause(
        "hub-access",
        r"401 Client Error|403 Client Error|401 Unauthorized|429 Client Error|\bGatedRepoError\b|"
        r"\bRepositoryNotFoundError\b|Client error '(?:401|403|429)\b|HTTP Error (?:401|403|429)\b|"
        r"ClientResponseError: (?:401|403|429)\b|(?<!HTTP/1\.1 )(?<!HTTP/2 )429 Too Many Requests|"
        r"Cannot access content at: |\b(?:cannot|trying to) access a? ?gated repo|\bLocalTokenNotFoundError\b|"
        r"\bDisabledRepoError\b|the requested URL returned error: (?:401|403|429)",
        "A server has refused a model or a data set.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "accept its terms, and set the token of your account in the environment of the job",
        "huggingface_hub, errors",
    ),
    KnownCause(
        "hydra",
        r"Error locating target|HYDRA_FULL_ERROR",
        "Hydra could not make or call an object of the configuration.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "set environment.HYDRA_FULL_ERROR to 1 for the whole traceback, and correct the configuration",
        "Hydra",
        weight=Weight.VAGUE,
    ),
    KnownCause(
        "interrupt",
        r"\bKeyboardInterrupt\b|\bSIGINT\b|got signal: [12]\b|srun: sending Ctrl-C|Received [12] death signal|"
        r"closing signal SIGHUP|\bCtrl-c pressed\b|Sending Ctrl-C to processes as requested|"
        r"Press Ctrl-C again to force abort|hit ctrl-c again (?:within \d+ seconds )?to forcibly|"
        r"process interrupted \(SIGINT\)",
        "The run was interrupted.",
        Blame.USER,
        Certainty.CERTAIN,
        "continue it with --resume",
        _PYTHON,
    ),
    KnownCause(
        "hub-token",
        r"Invalid credentials in Authorization header|Invalid user (?:access )?token|"
        r"Unauthorized \(invalid credentials\)|User Access Token \"[^\"\n]*\" is expired",
        "A server does not accept the token of the job: it is wrong, or has expired.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "make a new token, and set it in the environment of the job (HF_TOKEN)",
        "huggingface_hub, authentication",
        weight=Weight.DETAIL,
    ),
)
