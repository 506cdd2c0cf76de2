"""Training scripts for NCCL, made from those for gloo. All processes use the first GPU.

NCCL refuses two ranks of one host on the same GPU, so each process claims to be a host of its own.
"""

_DEVICE = 'torch.cuda.set_device(0)\nos.environ["NCCL_HOSTID"] = str(os.getpid())\n'


def on_gpu(code: str, replacements: dict[str, str]) -> str:
    """Return the script with its ``replacements``, each of which applies, for the first GPU."""
    for old, new in {"torch.set_num_threads(1)\n": _DEVICE, **replacements}.items():
        assert old in code, old
        code = code.replace(old, new)
    return code
