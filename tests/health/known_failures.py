"""Messages of failures: for each known cause some that it explains, and some that are similar and that it does not."""

SAMPLES: dict[str, tuple[str, ...]] = {
    "proxy-login": (
        "OSError: Tunnel connection failed: 407 Proxy Authentication Required",
        "fatal: unable to access 'https://github.com/x/y/': CONNECT tunnel failed, response 407",
    ),
    "hub-mode": ("Cannot find the requested files in the disk cache and outgoing traffic has been disabled.",),
    "container-mount": ("container creation failed: mount hook function failure: mount /d->/d error",),
    "lsf-limit": ("TERM_THREADLIMIT: job killed after reaching LSF thread limit.",),
    "gloo-interface-name": ("RuntimeError: ifa != nullptr. Unable to find address for: 10.158.212.75",),
    "efa-peer": (
        "NCCL WARN NET/OFI Request 0x7f completed with error. RC: 21. Error: unknown error.",
        "NET/OFI Request 0x7f completed with error. RC: 107. Error: 13 (Unresponsive remote (was previou"
        "sly responsive) My EFA addr: fi_addr_efa). Completed length: 0",
    ),
    "object-store-connection": (
        "botocore.exceptions.ConnectTimeoutError: Connect timeout on endpoint URL",
        "botocore.exceptions.ClientError: An error occurred (RequestTimeout) when calling the PutObject "
        "operation: Your socket connection to the server was not read from or written to within the time"
        "out period.",
    ),
    "command-missing": (
        "/var/spool/slurmd/job77/slurm_script: line 12: python: command not found",
        'The following module(s) are unknown: "cuda/99"',
        "bash: module: command not found",
    ),
    "hip-assert": ("/native/hip/Indexing.hip:1292: indexSelect: Device-side assertion `srcIndex < size' failed.",),
    "ucx-transports": (
        "UCX  ERROR no usable transports/devices (asked knem,dc_x,rc on all devices)",
        "MPIDI_OFI_mpi_init_hook(632): No valid libfabric provider",
    ),
    "nccl-wrong-interface": (
        "NCCL INFO NCCL_SOCKET_IFNAME set by environment to ib9\nNCCL WARN Bootstrap : no socket interface found",
        "n1:9:9 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to ib9\nn1:9:20 [0] transport/net_soc"
        "ket.cc:46 NCCL WARN NET/Socket : no interface found",
    ),
    "etcd-server": ("etcd.EtcdException: Could not get the list of servers, maybe you provided the wrong host",),
    "mpi-time-limit": ("The user-provided time limit for job execution has been reached:",),
    "gloo-connect-unknown": (
        "RuntimeError: Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:144] no error",
        "RuntimeError: connect() timed out.",
    ),
    "mpi-connect": (
        "A process or daemon was unable to complete a TCP connection",
        "PSM2 no hfi units are active (err=23)",
        '[proxy:0:1@n2] HYDU_sock_connect (lib/utils/sock.c:145): unable to connect from "n2" to "n1" (C'
        "onnection refused)",
    ),
    "nvshmem-transport": ("nvshmemi_transport_init:287: Unable to initialize any transports. returning error.",),
    "head-lost": (
        "Terminating process because the coordinator detected missing heartbeats.",
        "The node with node id: ab12 and address: 10.0.0.2 and node name: 10.0.0.2 has been marked dead "
        "because the detector has missed too many heartbeats from it.",
    ),
    "local-filesystem": (
        "EXT4-fs error (device nvme2n1): __ext4_find_entry:1531: inode #2: reading directory lblock 0",
        "BTRFS error (device sda1): parent transid verify failed on 123 wanted 4 found 3",
    ),
    "loop-devices": ("FATAL: container creation failed: failed to find loop device: no loop devices available",),
    "storage-limit": (
        "Pod ephemeral local storage usage exceeds the total limit of containers 20Gi.",
        'Usage of EmptyDir volume "dshm" exceeds the limit "16Gi".',
    ),
    "soft-lockup": (
        "watchdog: BUG: soft lockup - CPU#19 stuck for 23s! [python:40331]",
        "NMI watchdog: Watchdog detected hard LOCKUP on cpu 3",
    ),
    "loader-ended": ("RuntimeError: One or more background workers are no longer alive. Exiting.",),
    "gpu-reset": (
        "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062)",
    ),
    "cuda-ecc": ("RuntimeError: CUDA error: uncorrectable ECC error encountered",),
    "cuda-nvlink": ("CUDA error: uncorrectable NVLink error detected during the execution",),
    "gpu-lost": (
        "Unable to determine the device handle for GPU0: GPU is lost",
        "GPU has fallen off the bus",
    ),
    "xid-48-95": (
        "NVRM: Xid (PCI:0000:43:00): 48, pid=1, DBE (double bit error)",
        "Xid (PCI:0000:43:00): 95",
        "the GPU reports Xid 48",
    ),
    "xid-94": ("NVRM: Xid (PCI:0000:07:00): 94, pid=77, Contained: SM",),
    "xid-64": ("NVRM: Xid (PCI:0000:07:00): 64, Dynamic Page Offlining error",),
    "xid-74": ("NVRM: Xid (PCI:0000:07:00): 74, pid='<unknown>', NVLink: fatal error",),
    "xid-79": ("NVRM: Xid (PCI:0000:07:00): 79, pid=1, GPU went away",),
    "xid-119-120": (
        "NVRM: Xid (PCI:0000:07:00): 119, pid=5, Timeout after 6s of waiting for RPC response from GPU0 GSP!",
    ),
    "xid-61-62": ("NVRM: Xid (PCI:0000:07:00): 62, pid=5, 0000(0000) 00000000",),
    "xid-63": ("NVRM: Xid (PCI:0000:07:00): 63, Row Remapper: New row marked for remapping",),
    "xid-13-31-43": (
        "NVRM: Xid (PCI:0000:07:00): 31, pid=5, name=python, Ch 00000008, MMU Fault",
        "NVRM: Xid (PCI:0000:07:00): 13, Graphics Exception",
    ),
    "cuda-out-of-memory": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB",
        "torch.cuda.OutOfMemoryError: CUDA out of memory.",
    ),
    "hip-out-of-memory": ("HIP out of memory. Tried to allocate 20.00 MiB",),
    "triton-out-of-resources": (
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 131072",
    ),
    "cuda-illegal-access": ("RuntimeError: CUDA error: an illegal memory access was encountered",),
    "cuda-misaligned": ("CUDA error: misaligned address",),
    "cuda-assert": ("RuntimeError: CUDA error: device-side assert triggered",),
    "cuda-capability": (
        "NVIDIA H200 with CUDA capability sm_90 is not compatible with the current PyTorch installation.",
    ),
    "cuda-no-kernel": ("CUDA error: no kernel image is available for execution on the device",),
    "cuda-invalid-device": ("RuntimeError: CUDA error: invalid device ordinal",),
    "cuda-fork": (
        "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, use spawn",
    ),
    "cuda-driver-old": (
        "The NVIDIA driver on your system is too old (found version 11040)",
        "CUDA driver version is insufficient for CUDA runtime version",
    ),
    "driver-mismatch": ("Failed to initialize NVML: Driver/library version mismatch",),
    "npu-in-use": (
        "EJ0001: Failed to initialize the HCCP process. Reason: Maybe the last training process is running.",
    ),
    "cuda-busy": (
        "CUDA error: all CUDA-capable devices are busy or unavailable",
        "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
    ),
    "cuda-driver-failed": (
        "RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu",
        "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env",
    ),
    "cuda-no-device": (
        "RuntimeError: No CUDA GPUs are available",
        "no CUDA-capable device is detected",
        "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
    ),
    "cuda-unknown": (
        "CUDA error: unspecified launch failure",
        "RuntimeError: CUDA error: unknown error",
    ),
    "cublas-not-initialized": ("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",),
    "cublas-failed": ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",),
    "memory-used-up": ("Loading checkpoint shards:  50%| 1/2 [00:41] failed (exitcode: -9) local_rank: 0",),
    "memory-limit": (
        "killed by SIGKILL by the kernel, because of a lack of memory: the limit of the job is 16.0 GiB",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been OOM Killed.",
        "Out of memory: Killed process 4711 (python)",
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
        "srun: error: gpu-12: task 3: Out Of Memory",
    ),
    "memory-allocation": (
        "MemoryError: Unable to allocate 8.00 GiB for an array",
        "OSError: [Errno 12] Cannot allocate memory",
        "terminate called after throwing an instance of 'std::bad_alloc'",
    ),
    "shared-memory": (
        "RuntimeError: unable to open shared memory object </torch_1_2> in read-write mode",
        "It is possible that dataloader's workers are out of shared memory; insufficient shared memory (shm)",
        "UCX  ERROR shmget(size=2097152 flags=0xb80) for mm_recv_desc failed: No space left on device, p"
        "lease check shared memory limits by 'ipcs -l'",
        "It appears as if there is not enough space for /dev/shm/vader_segment.gpu-12.21004.1 (the share"
        "d-memory backing file).",
    ),
    "loader-bus-error": ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.",),
    "loader-terminated": ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Terminated.",),
    "loader-killed": (
        "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.",
        "RuntimeError: DataLoader worker (pid(s) 7, 8) exited unexpectedly",
    ),
    "loader-timeout": ("RuntimeError: DataLoader timed out after 60 seconds",),
    "open-files": (
        "OSError: [Errno 24] Too many open files: '/data/x'",
        "RuntimeError: received 0 items of ancdata",
    ),
    "openblas-threads": ("OpenBLAS blas_thread_init: pthread_create failed for thread 7 of 64: Resource temporarily",),
    "processes": (
        "RuntimeError: can't start new thread",
        "bash: fork: retry: Resource temporarily unavailable",
        "pyo3_runtime.PanicException: The global thread pool has not been initialized.: ThreadPoolBuildE"
        'rror { kind: IOError(Os { code: 11, kind: WouldBlock, message: "Resource temporarily unavailabl'
        'e" }) }',
    ),
    "filesystem-full": (
        "OSError: [Errno 28] No space left on device: '/scratch/run/a.pt'",
        "An error occurred (XMinioStorageFull) when calling the PutObject operation: Storage backend has"
        " reached its minimum free drive threshold.",
        "slurmstepd: error: pyxis:     [ERROR] Not enough space left in /tmp/enroot-data (21038592 KB needed)",
    ),
    "quota": ("OSError: [Errno 122] Disk quota exceeded: '/home/ada/a'",),
    "read-only": ("OSError: [Errno 30] Read-only file system: '/data/a'",),
    "stale-handle": ("OSError: [Errno 116] Stale file handle: '/scratch/a'",),
    "fuse-ended": ("OSError: [Errno 107] Transport endpoint is not connected: '/mnt/data'",),
    "input-output": (
        "OSError: [Errno 5] Input/output error: '/tmp/x'",
        "OSError: [Errno 117] Structure needs cleaning",
    ),
    "no-safetensors": ("SafetensorError: Error while deserializing header: HeaderTooLarge",),
    "damaged-file": (
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
        "EOFError: Ran out of input",
        "sqlite3.DatabaseError: database disk image is malformed",
    ),
    "permission": ("PermissionError: [Errno 13] Permission denied: '/data/a'",),
    "bus-error": (
        "killed by SIGBUS",
        "Fatal Python error: Bus error",
    ),
    "illegal-instruction": (
        "killed by SIGILL",
        "Fatal glibc error: CPU does not support x86-64-v3",
    ),
    "segmentation-fault": (
        "killed by SIGSEGV",
        "Fatal Python error: Segmentation fault",
        "python[12345]: segfault at 8 ip 00007f1c2b3d4e5f sp 00007ffd error 4 in libc10.so[7f1c2b3a0000+90000]",
    ),
    "abort": (
        "killed by SIGABRT",
        "terminate called after throwing an instance of 'c10::Error'",
    ),
    "poisoned-state": ("hpcelastic.errors.PoisonedState: the loss is nan after 8 steps",),
    "numpy-missing": ("RuntimeError: Numpy is not available",),
    "import": (
        "ModuleNotFoundError: No module named 'transformers'",
        "ImportError: cannot import name 'x' from 'y'",
    ),
    "shared-library": (
        "OSError: libcudart.so.12: cannot open shared object file: No such file or directory",
        "/lib64/libm.so.6: version `GLIBC_2.29' not found",
        "python: relocation error: /lib64/libpthread.so.0: symbol __libc_vfork version GLIBC_PRIVATE not"
        " defined in file libc.so.6 with link time reference",
    ),
    "syntax": ("IndentationError: unexpected indent",),
    "missing-file": ("FileNotFoundError: [Errno 2] No such file or directory: 'data.csv'",),
    "pickling": (
        "_pickle.PicklingError: Can't pickle <function f>",
        "AttributeError: Can't get local object 'f.<locals>.g'",
    ),
    "state-dict": ('RuntimeError: Error(s) in loading state_dict for Net: Missing key(s) in state_dict: "a"',),
    "model-differs": (
        "RuntimeError: DDP expects same model across all ranks, but Rank 3 has 12 params, while rank 0 has 10 params.",
    ),
    "shapes": (
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x3 and 4x8)",
        "RuntimeError: The size of tensor a (4) must match the size of tensor b (3) at non-singleton dimension 1",
    ),
    "devices": ("RuntimeError: Expected all tensors to be on the same device, but found at least two devices",),
    "arithmetic": (
        "Caught signal 8 (Floating point exception: integer divide by zero)",
        "killed by SIGFPE",
    ),
    "types": (
        "RuntimeError: expected scalar type Half but found Float",
        "mat1 and mat2 must have the same dtype",
    ),
    "autograd": ("RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn",),
    "compile": ("torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:",),
    "cuda-toolkit": (
        "Exception: Installed CUDA version 12.1 does not match the version torch was compiled with 11.8, unable to",
    ),
    "mpi-start": (
        "It looks like MPI_INIT failed for some reason",
        "*** An error occurred in MPI_Init_thread",
        'The application appears to have been direct launched using "srun",\nbut OMPI was not built with '
        "SLURM's PMI support and therefore cannot\nexecute.",
        "srun: error: Invalid MPI type 'pmix', --mpi=list for acceptable types",
    ),
    "recursion": ("RecursionError: maximum recursion depth exceeded",),
    "hub-access": (
        "huggingface_hub.errors.GatedRepoError: 403 Client Error.",
        "urllib.error.HTTPError: HTTP Error 403: rate limit exceeded",
    ),
    "hub-offline": (
        "OSError: We couldn't connect to 'https://huggingface.co' to load the files",
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='x'): Max retries exceeded with url: /a",
        "ConnectionError: Couldn't reach 'allenai/c4' on the Hub (ConnectionError)",
    ),
    "interrupt": (
        "KeyboardInterrupt",
        "killed by SIGINT",
        "wandb: Ctrl-c pressed.",
    ),
    "slurm-time-limit": (
        "slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***",
        "job 4711.1 exceeded hard wallclock time - initiate terminate method",
    ),
    "slurm-preemption": ("slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO PREEMPTION ***",),
    "preemption": (
        "WARNING Preemption notice: the job will be stopped",
        "Received SIGTERM (job preempted), saving",
        "Pod was terminated in response to imminent node shutdown.",
    ),
    "slurm-node-failure": (
        "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO NODE FAILURE ***",
    ),
    "slurm-requeue": ("slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO JOB REQUEUE ***",),
    "slurm-cancelled": (
        "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***",
        "TERM_OWNER: job killed by owner.",
    ),
    "slurm-step-cancelled": ("slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***",),
    "slurm-configuration": (
        "sbatch: error: Requested node configuration is not available",
        "sbatch: error: Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)",
    ),
    "collective-mismatch": (
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: ALLREDUCE",
        "RuntimeError: [enforce fail at ../third_party/gloo/gloo/transport/tcp/pair.cc:446] op.preamble."
        "length <= op.nbytes. 8773632 vs 1",
    ),
    "preparation": (
        "in prepare_dataset with zero_first(main): barrier: wait timeout after 1800000ms, keys: /default_pg/0",
    ),
    "ddp-unused-parameters": (
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.",
    ),
    "nccl-duplicate-gpu": (
        "ncclInvalidUsage: Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 7000",
        "init.cc:1120 NCCL WARN Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU"
        "_ENABLE=1 to enable this feature.",
    ),
    "nccl-version": (
        "Mismatched NCCL version detected : rank 0 has 2.20",
        "n1:77:90 [0] bootstrap.cc:106 NCCL WARN Message truncated : received 1024 bytes instead of 256",
    ),
    "nccl-no-interface": (
        "NCCL WARN Bootstrap : no socket interface found",
        "transport/net_ib/init.cc:300 NCCL WARN NET/IB : No IP interface found.",
    ),
    "infiniband-driver": ("UCX  ERROR ibv_exp_query_device(mlx5_0) returned 38: Inappropriate ioctl for device",),
    "gpu-direct": (
        "NCCL WARN NET/IB : Got completion from peer 10.0.0.2<1> with error 4, opcode 1, len 1, vendor err 81 (Send)",
        "ib_mlx5_log.c:139  Local protection on mlx5_1:1/IB (synd 0x4 vend 0x51 hw_synd 0/2)",
        "NCCL WARN NET/IB: Got completion from peer 10.0.0.1<4711> with status=IBV_WC_LOC_PROT_ERR(4) op"
        "code=IBV_WC_RDMA_WRITE(1) vendor_err=81 hca mlx5_3",
    ),
    "infiniband": (
        "NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4791> with status=12 opcode=0",
        "NCCL WARN Call to ibv_modify_qp failed with error Connection timed out",
        "transport/net_ib/p2p.cc:688 NCCL WARN NET/IB: Got completion from peer 10.0.0.1<4711> with stat"
        "us=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129 localGid fe80::1 remoteGids fe"
        "80::2 hca mlx5_0",
    ),
    "efa-address": (
        "NCCL WARN NET/OFI Unable to insert remote address into address vector for device 1.",
        "* This error indicates that the security group on either this instance or the peer instance",
    ),
    "libfabric": ("NCCL WARN NET/OFI Request failed with error: RC: -110",),
    "ucx": (
        "[n1:77] rc_verbs_iface.c:99 UCX  ERROR ibv_create_qp() has no memory",
        "[n1:77:0] pml_ucx.c:309  Error: Failed to create UCP worker",
    ),
    "network-unreachable": ("RuntimeError: connect() to 10.0.0.2:29500: No route to host",),
    "host-name": (
        "socket.gaierror: [Errno -3] Temporary failure in name resolution",
        "socket.gaierror: [Errno -5] No address associated with hostname",
    ),
    "address-in-use": (
        "DistNetworkError: The server socket has failed to listen on [::]:29500 (errno: 98 - Address already in use)",
        "[ERROR] HCCL(1903,python3): [hccl_socket.cc:100][HcclSocket][Listen] socket type[1], listen on "
        "ip[192.168.31.14] and specific port[16666] fail. Please check the port status and whether the p"
        "ort is been using by other process.",
    ),
    "nccl-timeout": (
        "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7) ran for 600029 milliseconds",
        "[rank1]:[E1212 ProcessGroupNCCL.cpp:632] [PG ID 0 PG GUID 0(default_pg) Rank 1] Exception (eith"
        "er an error or timeout) detected by watchdog at work: 12, last enqueued NCCL work: 20, last com"
        "pleted NCCL work: 11.",
    ),
    "nccl-remote": (
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        "NCCL WARN NET/IB: Got completion from peer 10.0.0.1<4711> with status=IBV_WC_WR_FLUSH_ERR(5) op"
        "code=IBV_WC_SEND(0) vendor_err=249 hca mlx5_0",
    ),
    "nccl-system": (
        "torch.distributed.DistBackendError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO)",
        "RuntimeError: HCCL function error: HcclGetRootInfo(&hcclID), error code is 4",
    ),
    "nccl-cuda": ("NCCL error: unhandled cuda error, NCCL version 2.21.5",),
    "gloo-timeout": (
        "[gloo/transport/tcp/unbound_buffer.cc:84] Timed out waiting 1800000ms for recv operation to complete",
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/buffer.cc:72] Read timeout [10.0.0.2]:41234",
    ),
    "gloo-connect": ("Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:144] timed out connecting",),
    "certificate": (
        "ssl.SSLCertVerificationError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed",
        "fatal: unable to access 'https://git.site.org/x/': SSL certificate problem: unable to get local"
        " issuer certificate",
    ),
    "ssh-access": (
        "Host key verification failed.",
        "user@n3: Permission denied (publickey,password).",
        "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @",
        "Access denied by pam_slurm_adopt: you have no active jobs on this node!",
    ),
    "server-failed": (
        "requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: https://h/x",
        "ssl.SSLEOFError: EOF occurred in violation of protocol (_ssl.c:1131)",
        "requests.exceptions.ConnectionError: ('Connection aborted.', RemoteDisconnected('Remote end clo"
        "sed connection without response'))",
    ),
    "ray-node": ("ray.exceptions.NodeDiedError: Task failed",),
    "store-timeout": (
        "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0",
        "torch.distributed.DistStoreError: Socket Timeout",
    ),
    "store-lost": (
        "failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?",
        "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
    ),
    "connection-lost": (
        "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:41234",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "n1:1203:1410 [0] misc/socket.cc:58 NCCL WARN socketProgress: Connection closed by remote peer n2<41234>",
    ),
    "connection-timeout": ("OSError: [Errno 110] Connection timed out",),
    "memory-of-node": ("oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),global_oom,task=python,pid=7",),
    "system-disk": (
        "/opt/run.sh: line 61: /bin/date: Input/output error",
        "run.sh: /usr/bin/bash: bad interpreter: Input/output error",
        "OSError: cannot load library '/usr/lib/libcudnn.so.9: Input/output error'",
    ),
    "semaphores": ("    sl = self._semlock = _multiprocessing.SemLock(\nOSError: [Errno 28] No space left on device",),
    "locked-memory": (
        "Call to ibv_create_cq failed with error Cannot allocate memory",
        "Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
    ),
    "checkpoint-write": (
        "RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 128 vs 0",
        "PytorchStreamWriter failed writing file data/7: file write failed",
    ),
    "open-file-removed": ("OSError: [Errno 39] Directory not empty: 'step_100'",),
    "file-busy": ("OSError: [Errno 16] Device or resource busy: 'a' -> 'b'",),
    "no-memory-map": (
        "OSError: No such device (os error 19)",
        "OSError: [Errno 19] No such device",
    ),
    "file-locked": (
        "OSError: Unable to open file (unable to lock file, errno = 11, error message = 'Resource')",
        "OSError: Unable to synchronously open file (file is already open for write/SWMR write (may use "
        "<h5clear file> to clear file consistency flags))",
    ),
    "file-locks": (
        "OSError: [Errno 37] No locks available",
        "OSError: unable to lock file, errno = 37",
        "sqlite3.OperationalError: database is locked",
        "OSError: [Errno 38] Function not implemented",
    ),
    "filesystem-silent": (
        "nfs: server store7 not responding, still trying",
        "INFO: task python:77 blocked for more than 120 seconds.",
        "Lustre: scratch-OST0001-osc-ffff: Connection to scratch-OST0001 (at 10.0.0.1@o2ib) was lost; in"
        " progress operations using this service will wait for recovery to complete",
    ),
    "namespaces": (
        "FATAL: unshare: could not create user namespace: No space left on device",
        "newuidmap: write to uid_map failed: Operation not permitted",
        "ch-run[12345]: error: can't init user+mount namespaces: Operation not permitted (ch_core.c:671 1)",
    ),
    "filesystem-evicted": (
        "OSError: [Errno 108] Cannot send after transport endpoint shutdown: '/mnt/a'",
        "LustreError: 167-0: This client was evicted by ost3",
    ),
    "container-image": (
        "FATAL: container creation failed: error: while mounting image /proc/self/fd/3",
        "SQUASHFS error: zlib decompression failed, data probably corrupt",
    ),
    "heap-corruption": (
        "double free or corruption (!prev)",
        "malloc(): unaligned tcache chunk detected",
        "*** stack smashing detected ***",
        "munmap_chunk(): invalid pointer",
    ),
    "hip-memory-fault": ("Memory access fault by GPU node-4 (Agent handle: 0x55) on address 0x7f. Reason: Unknown.",),
    "hip-hardware": ("HW Exception by GPU node-2 (Agent handle: 0x1) reason :GPU Hang",),
    "cuda-peer-memory": (
        "RuntimeError: CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error",
    ),
    "cuda-arguments": (
        "RuntimeError: CUDA error: invalid configuration argument",
        "RuntimeError: cuDNN error: CUDNN_STATUS_BAD_PARAM",
    ),
    "xid-145-149": ("NVRM: Xid (PCI:0000:ba:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 11",),
    "infiniband-adapter": ("NCCL WARN NET/IB : Got async event : local catastrophic error",),
    "nccl-connect": (
        "socketStartConnect: Connect to 10.0.0.1<4411> failed : Software caused connection abort",
        "n1:1203:1231 [0] include/socket.h:409 NCCL WARN Net : Connect to 192.168.4.14<47120> failed : Host is down",
    ),
    "store-connect": ("The client socket has failed to connect to any network address of (n1, 29500).",),
    "mpi-interface": ("mca_btl_tcp_endpoint_recv_connect_ack] received unexpected process identifier [[1,1],6]",),
    "mpi-peer": (
        "ORTE has lost communication with a remote daemon.",
        "mpirun noticed that process rank 3 with PID 7 on node n2 exited on signal 11",
        "prterun noticed that process rank 3 with PID 1234 on node n1 exited on signal 9 (Killed).",
    ),
    "nccl-usage": ("ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",),
    "killed-by-signal": ("torch.distributed.elastic.multiprocessing.api.SignalException: Process 77 got signal: 15",),
    "rendezvous-closed": ("torch.distributed.elastic.rendezvous.api.RendezvousClosedError",),
    "child-failed": (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        "pdsh@login: node02: ssh exited with exit code 1",
        "Job has reached the specified backoff limit",
    ),
    "arguments": (
        "train.py: error: unrecognized arguments: --local-rank=0",
        "train.py: error: argument --lr: invalid float value: 'x'",
    ),
    "slurm-step-ended": (
        "srun: error: n2: task 1: Exited with exit code 1\n*** STEP 7.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***",
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
    ),
    "slurm-launch": (
        "srun: error: Task launch for StepId=7.0 failed on node n2: Socket timed out on send/recv operation",
        "srun: error: slurm_receive_msgs: [[gpu-12]:6818] failed: Socket timed out on send/recv operation",
    ),
    "no-gpu-requested": ("MisconfigurationException: No supported gpu backend found!",),
    "slurm-prolog": (
        "salloc: Prolog failure on node n3",
        "slurmstepd: error: TaskProlog failed status=256",
    ),
    "slurm-container": ("slurmstepd: error: container_g_join failed: 131907",),
    "slurm-credential": ("srun: error: Task launch for StepId=4.0 failed on node n1: Invalid job credential",),
    "munge": (
        "slurmstepd: error: Munge encode failed: Failed to access socket",
        "error: Munge decode failed: Expired credential",
    ),
    "slurm-controller": (
        "srun: error: Unable to contact slurm controller (connect failure)",
        "sacct: error: slurm_receive_msgs: Socket timed out on send/recv operation",
    ),
    "nvlink-peers": (
        "NCCL WARN P2P is disabled between NVLINK connected GPUs 1 and 0.",
        "transport/nvls.cc:254 NCCL WARN Cuda failure 401 'the operation cannot be performed in the present state'",
    ),
    "cuda-peer-access": (
        "NCCL WARN failed to open CUDA IPC handle : 217 peer access is not supported between these two devices",
    ),
    "cuda-launch-timeout": ("RuntimeError: CUDA error: the launch timed out and was terminated",),
    "container-runtime": (
        "nvidia-container-cli: initialization error: nvml error: driver not loaded",
        "squashfuse_ll exited: fuse: failed to exec fusermount3",
        'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
    ),
    "local-disk": (
        "Buffer I/O error on device nvme0n1p1, logical block 11272192",
        "EXT4-fs (nvme0n1p1): Remounting filesystem read-only",
        "blk_update_request: critical medium error, dev nvme0n1, sector 123456 op 0x0:(READ)",
    ),
    "object-store": (
        "botocore.exceptions.ClientError: An error occurred (SlowDown) when calling PutObject",
        "botocore.exceptions.ClientError: An error occurred (503) when calling the GetObject operation ("
        "reached max retries: 4): Service Unavailable",
    ),
    "slurm-client": ("srun: fatal: Could not establish a configuration source",),
    "hydra": ("Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.",),
    "memory-hardware": ("Memory failure: 0x9f: Killing python:816 due to hardware memory corruption",),
    "words-user": ("the session was interrupted by the user",),
    "words-scheduler": (
        "the pod was evicted",
        "walltime of 86400 s exceeded",
    ),
    "words-hardware": ("a hardware failure was detected in unit 3",),
    "words-driver": ("the driver of the card is not loaded",),
    "words-filesystem": ("the volume /scratch is full",),
    "words-network": ("could not reach the parameter server",),
    "words-memory": ("container exceeded its memory",),
    "hub-name": (
        "huggingface_hub.errors.RevisionNotFoundError: 404 Client Error. (Request ID: Root=1-ab) Revisio"
        "n Not Found for url: https://huggingface.co/x/y/resolve/v9/config.json.",
        "OSError: gpt5-tiny is not a local folder and is not a valid model identifier listed on 'https:/"
        "/huggingface.co/models'",
    ),
    "object-store-access": (
        "botocore.exceptions.NoCredentialsError: Unable to locate credentials",
        "botocore.exceptions.ClientError: An error occurred (ExpiredToken) when calling the PutObject op"
        "eration: The provided token has expired.",
    ),
    "tracker-access": (
        "wandb.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[your_api_key])",
        'wandb.errors.errors.CommError: failed to upsert bucket: returned error 404: {"errors":[{"messag'
        'e":"entity team not found"}]}',
    ),
    "process-group-missing": (
        "ValueError: Default process group has not been initialized, please make sure to call init_process_group.",
        "AssertionError: DeepSpeed backend not set, please initialize it using init_process_group()",
    ),
    "rendezvous-settings": (
        "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable "
        "MASTER_ADDR expected, but not set",
        "ValueError: The rendezvous backend 'c1od' is not registered. Did you forget to call `register`?",
    ),
    "ssh-connect": (
        "ssh: connect to host node02 port 22: Connection refused",
        "kex_exchange_identification: Connection closed by remote host",
    ),
    "server-unreachable": (
        "curl: (7) Failed to connect to repo.site.org port 443 after 12 ms: Connection refused",
        "dial tcp 10.0.0.1:443: connect: connection refused",
    ),
    "nccl-ranks": (
        "bootstrap.cc:350 NCCL WARN Bootstrap Root : rank 3 of 16 ranks has already checked in",
        "bootstrap.cc:340 NCCL WARN Bootstrap Root : mismatch in rank count from procs 8 : 16",
    ),
    "package-missing": ("ERROR: No matching distribution found for flash-attn==9.9",),
    "address-not-local": (
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network"
        " address. port: 29500, useIpv6: false, code: -99, name: EADDRNOTAVAIL, message: address not ava"
        "ilable",
        "OSError: [Errno 99] Cannot assign requested address",
    ),
    "backend-missing": (
        "RuntimeError: Distributed package doesn't have NCCL built in",
        "RuntimeError: No backend type associated with device type cpu",
    ),
    "world-size": (
        "RuntimeError: Mesh should not be bigger than default world size 8, but found 16 ranks!",
        "deepspeed.elasticity.config.ElasticityIncompatibleWorldSize: World size (7) is not valid with t"
        "he current list of valid GPU counts: [2, 4, 8]",
    ),
    "hub-token": (
        "huggingface_hub.errors.HfHubHTTPError: 401 Client Error: Unauthorized for url: https://huggingf"
        "ace.co/api/whoami-v2 (Request ID: Root=1-ab) Invalid credentials in Authorization header",
        "clearml.backend_api.session.session.LoginError: Unauthorized (invalid credentials) (failed to l"
        "ocate provided credentials)",
    ),
    "proxy-refused": (
        "OSError: Tunnel connection failed: 403 Forbidden",
        "httpx.ProxyError: 403 Forbidden",
    ),
    "object-store-name": (
        "botocore.errorfactory.NoSuchKey: An error occurred (NoSuchKey) when calling the GetObject opera"
        "tion: The specified key does not exist.",
        "botocore.exceptions.NoRegionError: You must specify a region.",
    ),
    "tracker-server": (
        "wandb.errors.errors.CommError: failed to upsert bucket: returned error 502",
        "mlflow.exceptions.MlflowException: API request to http://mlflow:5000/api/2.0/mlflow/runs/log-ba"
        "tch failed with exception HTTPConnectionPool(host='mlflow', port=5000)",
    ),
    "wandb-service": (
        "wandb.sdk.service.service.ServiceStartTimeoutError: Timed out waiting for wandb service to star"
        "t after 30.0 seconds. Try increasing the timeout with the `_service_wait` setting.",
        "wandb.errors.error.Error: Couldn't communicate with backend after 15 seconds",
    ),
    "nccl-gid": (
        "misc/ibvwrap.cc:262 NCCL WARN Call to ibv_modify_qp failed with 22 Invalid argument, on dev mlx"
        "5_0:1, curr state INIT, next state RTR, local GID index 3",
        "misc/ibvwrap.cc:160 NCCL WARN Call to ibv_modify_qp failed with error No data available",
    ),
    "nccl-plugin": (
        "init.cc:86 NCCL WARN Error: network AWS Libfabric not found.",
        "plugin/net.cc:349 NCCL WARN Failed to initialize any NET plugin",
    ),
    "ucx-peer": (
        "[1680000000.1] [n1:77:0] sock.c:323 UCX  ERROR recv(fd=33) failed: Connection reset by remote peer",
        "UCX  ERROR ep 0x7f0: error 'Endpoint timeout' on rc_mlx5/mlx5_0:1",
    ),
    "mpi-daemon": (
        "ORTE was unable to reliably start one or more daemons.\nThis usually is caused by:",
        "A daemon (pid 8923) died unexpectedly with status 255 while attempting\nto launch so we are aborting.",
    ),
    "mpi-executable": (
        "mpirun was unable to find the specified executable file, and therefore did\nnot launch the job.",
        "mpirun was unable to launch the specified application as it could not\naccess an executable:",
    ),
    "mpi-transports": (
        "At least one pair of MPI processes are unable to reach each other for\nMPI communications.  This"
        " means that no Open MPI device has indicated\nthat it can be used to communicate between these p"
        "rocesses.",
        "No components were able to be opened in the pml framework.",
    ),
    "git-access": (
        "fatal: could not read Username for 'https://github.com': terminal prompts disabled",
        "remote: Repository not found.\nfatal: repository 'https://github.com/x/y/' not found",
    ),
    "database-server": (
        "sqlalchemy.exc.OperationalError: (psycopg2.OperationalError) could not connect to server: Connection refused",
        "redis.exceptions.ConnectionError: Error 111 connecting to node:6379. Connection refused.",
    ),
    "database-access": (
        'psycopg2.OperationalError: connection to server at "db" (10.0.0.9), port 5432 failed: FATAL:  p'
        'assword authentication failed for user "x"',
        "pymysql.err.OperationalError: (1045, \"Access denied for user 'x'@'y' (using password: YES)\")",
    ),
    "grpc-peer": (
        "grpc._channel._InactiveRpcError: <_InactiveRpcError of RPC that terminated with:\n\tstatus = Stat"
        'usCode.UNAVAILABLE\n\tdetails = "Stream removed"',
        'status = StatusCode.DEADLINE_EXCEEDED\n\tdetails = "Deadline Exceeded"',
    ),
    "deepspeed-launcher": (
        "RuntimeError: launcher 'pdsh' not installed.",
        "ValueError: Hostfile contains multiple entries for n1, unable to proceed with launching",
    ),
    "nccl-pointer": (
        "misc/argcheck.cc:39 NCCL WARN AllReduce : sendbuff allocated on device 0 mismatchs with NCCL device 1",
        "misc/argcheck.cc:30 NCCL WARN AllReduce : sendbuff 0x7f1e00000000 is not a valid pointer",
    ),
    "nccl-settings": (
        "bootstrap.cc:60 NCCL WARN Invalid NCCL_COMM_ID, please use format: <ipv4>:<port> or [<ipv6>]:<p"
        "ort> or <hostname>:<port>",
        "graph/xml.cc:300 NCCL WARN XML Parse error : expecting '<', got 'v'",
    ),
    "nccl-no-transport": ("transport.cc:52 NCCL WARN No transport found for rank 0[7000] -> rank 1[8000]",),
    "nccl-mixed-adapters": (
        "NCCL WARN NET/IB : Attempted to connect incompatible devices: [0]mlx5_0:1/IB and [3]mlx5_3:1/Ro"
        "CE. Try selecting NICs of only one link type using NCCL_IB_HCA",
    ),
    "nccl-imex": (
        "mnnvl.cc:66 NCCL WARN MNNVL (cliqueSize 18) is available but not working on this system. Check "
        "the IMEX configuration (CUDA_ERROR_NOT_PERMITTED 800).",
    ),
    "nccl-adapters-differ": (
        "init.cc:1339 NCCL WARN Detected mixed local Net device counts across ranks (min 7, max 8). Set "
        "NCCL_IGNORE_NET_MISMATCH=1 to continue.",
    ),
    "nccl-nvml": (
        "misc/nvmlwrap.cc:183 NCCL WARN nvmlDeviceGetHandleByPciBusId() failed: Not Found",
        "NCCL WARN Could not find real path of /sys/class/pci_bus/0000:07/../../0000:07:00.0",
    ),
    "slingshot-queue": (
        "libfabric:71:1::cxi:core:cxip_cq_eq_progress():531<warn> n1: Cassini Event Queue overflow detected.",
        "cxip_evtq_progress(): H/W Event Queue overflow detected.",
    ),
    "omni-path": (
        "PSM2 was unable to open an endpoint. Please make sure that the network link is\nactive on the no"
        "de and the hardware is functioning.",
        "node01.1203 PSM3 can't open nic unit: -1 (err=23)",
    ),
    "mpi-usage": (
        "mpi4py.MPI.Exception: MPI_ERR_TRUNCATE: message truncated",
        "Attempting to use an MPI routine (internal_Comm_rank) before initializing or after finalizing MPICH",
    ),
    "ray-settings": (
        "ray.exceptions.RuntimeEnvSetupError: Failed to set up runtime environment.",
        "ConnectionError: Could not find any running Ray instance. Please specify the one to connect to "
        "by setting `--address` flag or `RAY_ADDRESS` environment variable.",
    ),
    "dask-peer": (
        "distributed.scheduler.KilledWorker: Attempted to run task 'read-parquet-ab12' on 4 different wo"
        "rkers, but all those workers died while running it.",
        "OSError: Timed out trying to connect to tcp://10.0.0.1:8786 after 30 s",
    ),
    "grpc-refused": (
        'status = StatusCode.UNAUTHENTICATED\n\tdetails = "Request had invalid authentication credentials."',
        'status = StatusCode.RESOURCE_EXHAUSTED\n\tdetails = "Received message larger than max (5242880 vs. 4194304)"',
    ),
    "tls-settings": (
        "requests.exceptions.SSLError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries"
        " exceeded with url: / (Caused by SSLError(SSLError(1, '[SSL: WRONG_VERSION_NUMBER] wrong versio"
        "n number (_ssl.c:1129)')))",
        "http: server gave HTTP response to HTTPS client",
    ),
    "url-invalid": (
        "requests.exceptions.MissingSchema: Invalid URL 'mlflow:5000': No scheme supplied. Perhaps you m"
        "eant https://mlflow:5000?",
        "requests.exceptions.InvalidSchema: No connection adapters were found for 's3://bucket/x'",
    ),
    "mlflow-request": (
        "mlflow.exceptions.RestException: RESOURCE_DOES_NOT_EXIST: No Experiment with id=12 exists",
        "mlflow.exceptions.MlflowException: API request to endpoint /api/2.0/mlflow/experiments/get-by-n"
        "ame failed with error code 403 != 200.",
    ),
    "damaged-data": (
        "OSError: Unable to synchronously open file (truncated file: eof = 96, sblock->base_addr = 0, st"
        "ored_eof = 2048)",
        "zipfile.BadZipFile: Bad CRC-32 for file 'arr_0.npy'",
    ),
    "file-exists": ("FileExistsError: [Errno 17] File exists: '/scratch/u/run7/checkpoints'",),
    "image-pull": (
        "slurmstepd: error: pyxis:     [ERROR] URL https://registry-1.docker.io/v2/lab/train/manifests/7"
        " returned error code: 404 Not Found",
        "Error response from daemon: pull access denied for lab/train, repository does not exist or may "
        "require 'docker login'",
    ),
    "container-failed": (
        "slurmstepd: error: pyxis: container start failed with error code: 1",
        "slurmstepd: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1",
    ),
    "file-kind": (
        "IsADirectoryError: [Errno 21] Is a directory: '/scratch/u/run7'",
        "NotADirectoryError: [Errno 20] Not a directory: '/scratch/u/model.pt/config.json'",
    ),
    "shell-script": (
        "train.sh: line 12: syntax error near unexpected token `fi'",
        "/var/spool/slurmd/job4711/slurm_script: line 9: MASTER_PORT: unbound variable",
    ),
    "exit-code-127": (
        "srun: error: gpu-12: task 0: Exited with exit code 127",
        "exits with return code = 127",
    ),
    "conda-environment": (
        "CommandNotFoundError: Your shell has not been properly configured to use 'conda activate'.",
        "EnvironmentNameNotFound: Could not find conda environment: train312",
    ),
    "container-command": (
        'OCI runtime create failed: runc create failed: unable to start container process: exec: "torchr'
        'n": executable file not found in $PATH: unknown',
        'FATAL:   "torchrn": executable file not found in $PATH',
    ),
    "shell-killed": (
        "/var/spool/slurmd/job4711/slurm_script: line 12: 12345 Killed                  python train.py "
        "--config a.yaml",
    ),
    "file-pointer": (
        "_pickle.UnpicklingError: invalid load key, 'v'.",
        "_pickle.UnpicklingError: invalid load key, '<'.",
    ),
    "user-unknown": (
        "KeyError: 'getpwuid(): uid not found: 21004'",
        "No user exists for uid 21004",
    ),
    "filesystem-lost-server": (
        "OSError: [Errno 70] Communication error on send: '/mnt/beegfs/data/shard-0001.tar'",
        "OSError: [Errno 523] Unknown error 523",
    ),
    "slurm-unkillable": (
        "slurmstepd: error: *** JOB 4711 STEPD TERMINATED ON gpu-12 AT 2025-05-01T10:04:00 DUE TO JOB NO"
        "T ENDING WITH SIGNALS ***",
        "gpu-12 drained: Kill task failed",
    ),
    "slurm-step-lost": (
        "srun: error: Aborting, io error and missing step on node 3",
        "srun: error: step_launch_notify_io_failure: aborting, io error with slurmstepd on node 2",
    ),
    "slurm-job-expired": (
        "srun: error: Unable to confirm allocation for job 4711: Invalid job id specified",
        "srun: error: Slurm job 4711 has expired",
    ),
    "slurm-job-ending": ("srun: error: Unable to create step for job 4711: Job/step already completing or completed",),
    "cpu-binding": (
        "srun: error: CPU binding outside of job step allocation, allocated CPUs are: 0x000000000000000F.",
        "srun: error: Task launch for StepId=4711.0 failed on node gpu-12: Unable to satisfy cpu bind request",
    ),
    "working-directory": (
        "slurmstepd: error: couldn't chdir to `/scratch/u/run7': No such file or directory: going to /tmp instead",
        "TERM_CWD_NOTEXIST: Current working directory is not accessible or does not exist on the execution host.",
    ),
    "temporary-directory": (
        "FileNotFoundError: [Errno 2] No usable temporary directory found in ['/tmp', '/var/tmp', '/usr/"
        "tmp', '/home/u']",
        'RuntimeError: torch_shm_manager at "/opt/env/bin/torch_shm_manager": could not generate a rando'
        "m directory for manager socket",
    ),
    "container-mount-source": (
        "slurmstepd: error: pyxis: --container-mounts: source path does not exist: /data/imagenet",
        'docker: Error response from daemon: invalid mount config for type "bind": bind source path does'
        " not exist: /data/imagenet.",
    ),
    "scheduler-node-lost": (
        "=>> PBS: job killed: node 2 (gpu-13) requested job terminate, 'EOF' (code 1099) - received SIST"
        "ER_EOF attempting to communicate with sister MOM's",
        "flux-job: job.exception type=node-failure severity=1 lost contact with job shell on gpu-13 (shell rank 1)",
    ),
    "name-too-long": (
        "OSError: AF_UNIX path too long",
        "OSError: [Errno 36] File name too long: '/scratch/u/lr=0.001,wd=0.1.yaml'",
    ),
    "static-tls": ("ImportError: /opt/env/lib/libgomp.so.1: cannot allocate memory in static TLS block",),
    "library-not-executable": (
        "ImportError: /tmp/u/.triton/cache/3/cuda_utils.so: failed to map segment from shared object: Op"
        "eration not permitted",
        "OSError: /tmp/_MEIx/libx.so: failed to map segment from shared object",
    ),
    "exec-format": (
        "slurmstepd: error: execve(): /home/u/train.sh: Exec format error",
        "bash: ./train: cannot execute binary file: Exec format error",
    ),
    "kubernetes-volume": (
        'Warning  FailedMount  kubelet  MountVolume.SetUp failed for volume "pvc-1" : mount failed: exit status 32',
        'Multi-Attach error for volume "pvc-1" Volume is already exclusively attached to one node and ca'
        "n't be attached to another",
    ),
    "kubernetes-devices": (
        "UnexpectedAdmissionError: Allocate failed due to requested number of devices unavailable for nv"
        "idia.com/gpu. Requested: 8, Available: 7, which is unexpected",
    ),
    "image-registry": (
        'Failed to pull image "nvcr.io/nvidia/pytorch:24.05-py3": rpc error: code = Unknown desc = faile'
        'd to do request: Head "https://nvcr.io/v2/": dial tcp 1.2.3.4:443: i/o timeout',
        'Error response from daemon: Get "https://registry-1.docker.io/v2/": net/http: TLS handshake timeout',
    ),
    "lmdb-limit": (
        "lmdb.MapFullError: mdb_put: MDB_MAP_FULL: Environment mapsize limit reached",
        "lmdb.ReadersFullError: mdb_txn_begin: MDB_READERS_FULL: Environment maxreaders limit reached",
    ),
    "slurm-cgroup": (
        "slurmstepd: error: xcgroup_instantiate: unable to create cgroup '/sys/fs/cgroup/memory/slurm/ui"
        "d_1000/job_4711' : No space left on device",
        "slurmstepd: error: Failed to invoke task plugins: one of task_p_pre_setuid functions returned error",
    ),
    "slurm-closed": (
        "srun: Required node not available (down, drained or reserved)",
        "srun: Required partition not available (inactive or drain)",
    ),
    "container-cuda": (
        "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.4, please update your "
        "driver to a newer version, or use an earlier cuda container: unknown",
    ),
    "bucket": (
        "daemonize.Run: readFromProcess: sub-process: mountWithArgs: mountWithStorageHandle: fs.NewServe"
        "r: create file system: SetUpBucket: OpenBucket: Unknown bucket lab-data: no such file or direct"
        "ory",
    ),
    "sudo": (
        "sudo: a terminal is required to read the password; either use the -S option to read from standa"
        "rd input or configure an askpass helper",
        "sudo: a password is required",
    ),
    "spawn-parent-lost": (
        '  File "<string>", line 1, in <module>\n  File "/usr/lib/python3.11/multiprocessing/spawn.py", l'
        "ine 122, in spawn_main\n    exitcode = _main(fd, parent_sentinel)\n_pickle.UnpicklingError: pickl"
        "e data was truncated",
    ),
    "hdf5-no-locks": (
        "BlockingIOError: [Errno 11] Unable to synchronously create file (file locking disabled on this "
        "file system (use HDF5_USE_FILE_LOCKING environment variable to override), errno = 38, error mes"
        "sage = 'Function not implemented')",
    ),
    "automount": ("OSError: [Errno 40] Too many levels of symbolic links: '/home/u'",),
    "kerberos": (
        "OSError: [Errno 127] Key has expired: '/afs/lab/u/data'",
        "OSError: [Errno 126] Required key not available: '/nfs/home/u'",
    ),
    "operation-unsupported": ("OSError: [Errno 95] Operation not supported: '/mnt/gcs/run7/.lock'",),
    "cross-device": ("OSError: [Errno 18] Invalid cross-device link: '/tmp/a.tmp' -> '/scratch/u/a.json'",),
    "clock": (
        "ssl.SSLCertVerificationError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certi"
        "ficate is not yet valid (_ssl.c:1006)",
        "google.auth.exceptions.InvalidValue: Token used too early, 1746093700 < 1746093731. Check that "
        "your computer's clock is set correctly.",
    ),
    "site-killed": (
        "TERM_ADMIN: job killed by root or LSF administrator.",
        "Aborted by PBS Server",
    ),
    "processor-limit": (
        "=>> PBS: job killed: ncpus 12.30 exceeded limit 4 (sum)",
        "CPU time limit exceeded (core dumped)",
    ),
    "node-shutdown": (
        "The system is going down for reboot NOW!",
        "Broadcast message from root@gpu-12: The system will power off now!",
    ),
    "kernel-panic": (
        "Kernel panic - not syncing: Fatal exception",
        "BUG: unable to handle kernel NULL pointer dereference at 0000000000000008",
    ),
    "machine-check": (
        "mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 4: be00000000800400",
        "pcieport 0000:40:01.1: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Laye"
        "r, (Receiver ID)",
    ),
    "container-format": ("FATAL:   could not open image /scratch/u/train.sif: image format not recognized",),
    "open-files-node": ("OSError: [Errno 23] Too many open files in system: '/data/shard-0001.tar'",),
    "kubernetes-configuration": (
        'Error: secret "hf-token" not found',
        "Warning  Failed  kubelet  CreateContainerConfigError",
    ),
    "slurm-version": (
        "srun: error: Task launch for StepId=4711.0 failed on node gpu-12: Header lengths are longer tha"
        "n data received",
        "srun: error: Task launch for StepId=4711.0 failed on node gpu-12: Zero Bytes were transmitted or received",
    ),
    "slurm-revoked": ("srun: error: Job allocation 4711 has been revoked",),
    "slurm-address": ("srun: error: fwd_tree_thread: can't find address for host gpu-12, check slurm.conf",),
    "cloud-capacity": (
        "InsufficientInstanceCapacity: We currently do not have sufficient p5.48xlarge capacity in the A"
        "vailability Zone you requested",
        "CapacityError: Unable to provision requested ML compute capacity. Please retry using a differen"
        "t ML instance type.",
    ),
    "sqlite-file": (
        "sqlite3.OperationalError: unable to open database file",
        "sqlite3.OperationalError: attempt to write a readonly database",
    ),
    "file-size": (
        "OSError: [Errno 27] File too large",
        "File size limit exceeded (core dumped)",
    ),
    "filesystem-mount": (
        "mount.nfs: access denied by server while mounting 10.0.0.1:/data",
        "s3fs: MOUNTPOINT /mnt/s3 is stale, you could use this command to fix: umount -l /mnt/s3",
    ),
    "licence-missing": (
        "License checkout failed.",
        "Licensed number of users already reached. (-4,342)",
    ),
    "licence-server": (
        'Cannot connect to license server system. (-15,570:115 "Operation now in progress")',
        "License server machine is down or not responding. (-96,491)",
    ),
    "queue-pair": ("ib_iface.c:988  UCX  ERROR iface=0x31: failed to create UD QP TX wr:256: Cannot allocate memory",),
    "local-server": ("HTTPConnectionPool(host='localhost', port=5000): Max retries exceeded with url: /api/2.0",),
    "nfs-busy": ("OSError: [Errno 16] Device or resource busy: '.nfs00000000d41c02ae000001b7'",),
    "container-image-mount": (
        "FATAL: mount hook function failure: while mounting image /proc/self/fd/9: squashfuse_ll exited "
        "with status 255",
    ),
    "linker": ("/usr/bin/ld: cannot find -lcuda: No such file or directory",),
}

NEAR_MISSES: dict[str, tuple[str, ...]] = {
    "proxy-login": ("407 steps",),
    "hub-mode": ("the mode is offline",),
    "container-mount": ("the mount is there",),
    "lsf-limit": ("TERM_RUNLIMIT: job killed",),
    "gloo-interface-name": ("Unable to find address of the file",),
    "efa-peer": ("NET/OFI Request 0x7f completed",),
    "object-store-connection": ("botocore.exceptions.NoCredentialsError",),
    "command-missing": ("the command was found",),
    "hip-assert": ("the assertion in a.hip holds",),
    "ucx-transports": ("UCX  WARN  transports 'knem' are not available",),
    "nccl-wrong-interface": ("NCCL_SOCKET_IFNAME set by environment to ib0",),
    "etcd-server": ("EtcdException: key not found",),
    "mpi-time-limit": ("the time limit of the user",),
    "certificate": ("the certificate was verified",),
    "ssh-access": ("Permission denied: '/etc/shadow'",),
    "server-failed": ("502 batches",),
    "ray-node": ("the node of the task is n3",),
    "gloo-connect-unknown": ("RuntimeError: Gloo connectFullMesh failed with [x.cc:1] timed out connecting: No route",),
    "mpi-connect": ("the TCP connection is complete",),
    "nvshmem-transport": ("nvshmem transport IBRC initialized",),
    "head-lost": ("heartbeats: 3",),
    "local-filesystem": ("EXT4-fs (nvme0n1p1): mounted filesystem",),
    "loop-devices": ("loop devices: 8",),
    "storage-limit": ("storage usage: 3 GiB",),
    "soft-lockup": ("the lock is soft",),
    "loader-ended": ("the background workers have begun",),
    "gpu-reset": ("the counters were reset",),
    "cuda-ecc": (
        "corrected ECC errors: 3",
        "ECC mode: enabled",
    ),
    "cuda-nvlink": ("NVLink is active on all GPUs",),
    "gpu-lost": (
        "GPU utilization lost track",
        "the bus was late",
    ),
    "xid-48-95": (
        "NVRM: Xid (PCI:0000:48:00): 31",
        "NVRM: Xid (PCI:0000:95:00): 63, Row Remapper",
    ),
    "xid-94": ("NVRM: Xid (PCI:0000:94:00): 13", "NVRM: Xid (PCI:0000:3b:00): 31, pid=94, name=python, Ch 00000008"),
    "xid-64": (
        "NVRM: Xid (PCI:0000:64:00): 31",
        "NVRM: Xid (PCI:0000:3b:00): 13, pid=1234, Graphics SM Warp Exception: Out Of Range Address, 64 lanes",
    ),
    "xid-74": ("NVRM: Xid (PCI:0000:74:00): 31",),
    "xid-79": ("NVRM: Xid (PCI:0000:79:00): 31",),
    "xid-119-120": ("NVRM: Xid (PCI:0000:07:00): 13",),
    "xid-61-62": ("NVRM: Xid (PCI:0000:61:00): 79",),
    "xid-63": ("NVRM: Xid (PCI:0000:63:00): 79",),
    "xid-13-31-43": (
        "NVRM: Xid (PCI:0000:13:00): 79",
        "NVRM: Xid (PCI:0000:43:00): 48",
    ),
    "cuda-out-of-memory": ("MemoryError: out of memory on the host",),
    "hip-out-of-memory": ("the ship is out of memory",),
    "triton-out-of-resources": ("out of resources of the project",),
    "cuda-illegal-access": ("an illegal instruction was encountered",),
    "cuda-misaligned": ("the labels are misaligned",),
    "cuda-assert": ("AssertionError: assert x > 0",),
    "cuda-capability": ("CUDA capability sm_90 found",),
    "cuda-no-kernel": ("no image is available",),
    "cuda-invalid-device": ("invalid device function",),
    "cuda-fork": ("initialized CUDA in 3 s",),
    "cuda-driver-old": ("CUDA driver version: 12.4",),
    "driver-mismatch": ("version mismatch between torch and torchvision",),
    "npu-in-use": ("initialized the HCCP process",),
    "cuda-busy": (
        "CUDA device 0 is ready",
        "the device is busy",
    ),
    "cuda-driver-failed": (
        "CUDA driver 570 is loaded",
        "unknown error",
    ),
    "cuda-no-device": ("2 CUDA GPUs are available",),
    "cuda-unknown": ("RuntimeError: unknown error",),
    "cublas-not-initialized": ("CUBLAS_STATUS_SUCCESS",),
    "cublas-failed": ("CUBLAS_STATUS_NOT_SUPPORTED",),
    "memory-used-up": (
        "Loading checkpoint shards: 100%",
        "failed (exitcode: -9)",
    ),
    "memory-limit": (
        "room for one kill",
        "memory used: 3 GiB",
    ),
    "memory-allocation": ("allocated 3 GiB of memory",),
    "shared-memory": ("OSError: [Errno 28] No space left on device: '/tmp/a'",),
    "loader-bus-error": ("DataLoader worker (pid 7) is killed by signal: Killed.",),
    "loader-terminated": ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Aborted.",),
    "loader-killed": ("DataLoader with 4 workers",),
    "loader-timeout": ("DataLoader finished after 60 seconds",),
    "open-files": ("opened 3 files",),
    "openblas-threads": ("OpenBLAS has 8 threads",),
    "processes": ("started a new thread",),
    "filesystem-full": ("3 GiB of space left on device",),
    "quota": ("quota: 5 of 10 GiB",),
    "read-only": ("the array is read-only",),
    "stale-handle": ("the cache is stale",),
    "fuse-ended": ("the endpoint is connected",),
    "input-output": ("input and output have 3 channels",),
    "no-safetensors": ("SafetensorError: invalid UTF-8",),
    "damaged-file": ("PytorchStreamReader: 3 records",),
    "permission": ("permission was granted",),
    "bus-error": ("the bus has no error",),
    "illegal-instruction": ("illegal value",),
    "segmentation-fault": ("image segmentation: 3 classes",),
    "abort": ("aborting is not needed",),
    "poisoned-state": ("the loss is 0.31",),
    "numpy-missing": ("numpy 2.1 is available",),
    "import": ("imported 3 modules",),
    "shared-library": ("opened the shared object",),
    "syntax": ("SyntaxWarning: invalid escape sequence",),
    "missing-file": ("no such key: lr",),
    "pickling": ("pickled 3 objects",),
    "state-dict": ("loaded state_dict of step 3",),
    "model-differs": (
        "DDP expects same model across all ranks, but Rank 3 has 9 params, while rank 0 has inconsistent 0 params.",
    ),
    "shapes": ("the shape is (3, 4)",),
    "devices": ("all tensors are on the same device",),
    "arithmetic": ("killed by SIGKILL",),
    "types": ("type: float32",),
    "autograd": ("the tensor requires grad",),
    "compile": ("compiled in 3 s",),
    "cuda-toolkit": ("Installed CUDA version 12.1",),
    "mpi-start": ("MPI is initialized",),
    "recursion": ("recursive copy of 3 files",),
    "hub-access": ("200 OK",),
    "hub-offline": ("connected to https://huggingface.co",),
    "interrupt": ("interrupts: 3",),
    "slurm-time-limit": ("time limit: 60 minutes",),
    "slurm-preemption": ("PreemptMode=REQUEUE",),
    "preemption": (
        "preemption: requeue",
        "PreemptMode=REQUEUE",
    ),
    "slurm-node-failure": ("DUE TO TIME LIMIT",),
    "slurm-requeue": ("requeued 2 times",),
    "slurm-cancelled": (
        "the run was cancelled",
        "*** STEP 12.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***",
    ),
    "slurm-step-cancelled": ("the step was cancelled",),
    "slurm-configuration": ("the configuration is available",),
    "collective-mismatch": ("AssertionError: mismatch of labels",),
    "preparation": ("with zero_first(main): prepared in 3 s",),
    "ddp-unused-parameters": ("finished reduction of 3 tensors",),
    "nccl-duplicate-gpu": ("detected 8 GPUs",),
    "nccl-version": ("NCCL version 2.21.5+cuda12.4",),
    "nccl-no-interface": ("NCCL INFO Bootstrap : Using ib0:10.0.0.1<0>",),
    "infiniband-driver": ("ibv_query_device(mlx5_0): 1 port",),
    "gpu-direct": ("Got completion from peer 10.0.0.2<1> with status=12 opcode=0",),
    "infiniband": ("NET/IB : Using [0]mlx5_0:1/IB",),
    "efa-address": ("NET/OFI inserted 3 addresses",),
    "libfabric": ("NET/OFI Selected Provider is efa",),
    "ucx": ("UCX  INFO  using rc_mlx5",),
    "network-unreachable": ("the network is reachable",),
    "host-name": ("host name: n1",),
    "address-in-use": ("the address 10.0.0.1 is used",),
    "nccl-timeout": ("timeout: 600 s",),
    "nccl-remote": ("remote branch",),
    "nccl-system": ("system: Linux",),
    "nccl-cuda": ("cuda: 12.4",),
    "gloo-timeout": ("waited 3 s for rank 1",),
    "gloo-connect": ("connected to 3 ranks",),
    "store-timeout": ("the store has 3 keys",),
    "store-lost": ("the remote server is alive",),
    "connection-lost": ("3 connections",),
    "connection-timeout": ("the connection took 3 s",),
    "memory-of-node": ("oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null)",),
    "system-disk": (
        "OSError: [Errno 5] Input/output error: '/data/bin/x'",
        "RuntimeError: unable to mmap 4096 bytes from file </gpfs/proj/lib/vocab.bin>: Input/output error (5)",
        "cat: /scratch/usr/alice/data.txt: Input/output error",
    ),
    "semaphores": ("OSError: [Errno 28] No space left on device: 'a'",),
    "locked-memory": ("Call to ibv_poll_cq failed",),
    "checkpoint-write": ("PytorchStreamReader failed reading",),
    "open-file-removed": ("the directory is not empty",),
    "file-busy": ("the device is busy",),
    "no-memory-map": ("no such device: cuda:9",),
    "file-locked": ("unable to lock file, errno = 37",),
    "file-locks": ("the door is locked",),
    "filesystem-silent": ("the server is responding",),
    "namespaces": ("open: No space left on device",),
    "filesystem-evicted": ("the tenant was evicted",),
    "container-image": ("loading image 7 of the data set",),
    "heap-corruption": ("gc: free 3 objects",),
    "hip-memory-fault": ("memory access of the GPU: 3 GiB",),
    "hip-hardware": ("an exception by the node",),
    "cuda-peer-memory": ("peer access is enabled over nvlink",),
    "cuda-arguments": ("CUDA error: out of memory",),
    "xid-145-149": ("NVRM: Xid (PCI:0000:ba:00): 31",),
    "infiniband-adapter": ("Got async event : port active",),
    "nccl-connect": ("socketAccept: done",),
    "store-connect": ("the client has connected",),
    "mpi-interface": ("received 3 messages",),
    "mpi-peer": ("mpirun: version 4",),
    "nccl-usage": ("nccl usage: 3 GiB",),
    "killed-by-signal": ("the process got a message",),
    "rendezvous-closed": ("the rendezvous was closed",),
    "child-failed": ("the child failed the test",),
    "arguments": ("ValueError: arguments differ",),
    "slurm-step-ended": ("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***",),
    "slurm-launch": ("srun: error: n2: task 1: Killed",),
    "no-gpu-requested": ("no supported format found",),
    "slurm-prolog": ("the prolog has ended",),
    "slurm-container": ("container_g_join",),
    "slurm-credential": ("a valid job credential",),
    "munge": ("credentials are valid",),
    "slurm-controller": ("the controller was contacted",),
    "nvlink-peers": ("NVLS multicast support is available",),
    "cuda-peer-access": ("peer access is on",),
    "cuda-launch-timeout": ("the launch of the job timed out",),
    "container-runtime": ("container started",),
    "local-disk": ("OSError: [Errno 5] Input/output error",),
    "object-store": ("the store is an object",),
    "slurm-client": ("the configuration was found",),
    "hydra": ("overrides of the job",),
    "memory-hardware": ("EDAC MC0: 1 CE memory read error",),
    "words-user": ("2 users",),
    "words-scheduler": ("the time limit is 3 h",),
    "words-hardware": ("hardware: 8 GPUs",),
    "words-driver": ("driver 570",),
    "words-filesystem": ("wrote 3 files to the filesystem",),
    "words-network": ("connected in 3 ms",),
    "words-memory": ("memory: 3 GiB",),
    "hub-name": (
        'HTTP Request: HEAD https://huggingface.co/x/y/resolve/main/adapter_config.json "HTTP/1.1 404 Not Found"',
    ),
    "object-store-access": ("INFO botocore.credentials: Found credentials in environment variables.",),
    "tracker-access": ("wandb: Currently logged in as: user (team). Use `wandb login --relogin` to force relogin",),
    "process-group-missing": (
        "[INFO] [comm.py:652:init_distributed] Initializing TorchBackend in DeepSpeed with backend nccl",
    ),
    "rendezvous-settings": (
        "master_addr is only used for static rdzv_backend and when rdzv_endpoint is not specified.",
    ),
    "ssh-connect": ("Warning: Permanently added 'node02' (ED25519) to the list of known hosts.",),
    "server-unreachable": ("curl: (22) The requested URL returned error: 404",),
    "nccl-ranks": ("NCCL INFO Bootstrap: Using ib0:10.0.0.1<0>",),
    "package-missing": ("Requirement already satisfied: torch in /env/lib/python3.11/site-packages (2.6.0)",),
    "address-not-local": (
        "[W socket.cpp:663] [c10d] The client socket has failed to connect to [localhost]:29500 (errno: "
        "99 - Cannot assign requested address).",
    ),
    "backend-missing": ("[Gloo] Rank 0 is connected to 7 peer ranks. Expected number of connected peer ranks is : 7",),
    "world-size": ("using world size: 16, data-parallel size: 2, tensor-model-parallel size: 8",),
    "hub-token": ("slurmstepd: error: Munge decode failed: Invalid credential",),
    "proxy-refused": ("OSError: Tunnel connection failed: 407 Proxy Authentication Required",),
    "object-store-name": (
        "An error occurred (503) when calling the HeadObject operation (reached max retries: 4): Service Unavailable",
    ),
    "tracker-server": ("wandb: Network error (ConnectTimeout), entering retry loop.",),
    "wandb-service": ("wandb: Run data is saved locally in /scratch/wandb/run-1",),
    "nccl-gid": (
        "NCCL INFO Call to ibv_modify_qp failed with 22 Invalid argument, on dev mlx5_0:1, retrying 1/2 "
        "after 100 msec of sleep",
    ),
    "nccl-plugin": ("NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.",),
    "ucx-peer": ("UCX  ERROR rdma_resolve_addr(src=10.0.0.1, dst=10.0.0.2) failed: No route to host",),
    "mpi-daemon": ("Daemon was launched on n2 - beginning to initialize",),
    "mpi-executable": ("mpirun: launching 8 processes on 2 nodes",),
    "mpi-transports": (
        "A high-performance Open MPI point-to-point messaging module\nwas unable to find any relevant net"
        "work interfaces:",
    ),
    "git-access": ("fatal: not a git repository (or any of the parent directories): .git",),
    "database-server": ("INFO redis: server started on port 6379",),
    "database-access": ("INFO alembic.runtime.migration Context impl PostgresqlImpl.",),
    "grpc-peer": (
        'status = StatusCode.UNAVAILABLE\n\tdetails = "failed to connect to all addresses; last error: UNK'
        'NOWN: ipv4:10.0.0.1:50051"',
    ),
    "deepspeed-launcher": (
        "[WARNING] [runner.py:215:fetch_hostfile] Unable to find hostfile, will proceed with training wi"
        "th local resources only.",
    ),
    "nccl-pointer": (
        "NCCL INFO AllReduce: opCount 3 sendbuff 0x7f1e00000000 recvbuff 0x7f1e00000000 count 1 datatype"
        " 7 op 0 root 0 comm 0x55 [nranks=8]",
    ),
    "nccl-settings": ("NCCL INFO NCCL_TOPO_FILE set by environment to /etc/nccl/topo.xml",),
    "nccl-no-transport": ("NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",),
    "nccl-mixed-adapters": ("NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB ib0:10.0.0.1<0>",),
    "nccl-imex": ("NCCL INFO MNNVL busId 0x901000 fabric UUID 0.0 cliqueId 0x0 state 3 healthMask 0x0",),
    "nccl-adapters-differ": (
        "NCCL INFO Detected mixed local Net device counts across ranks (min 7, max 8). Ignoring due to N"
        "CCL_IGNORE_NET_MISMATCH.",
    ),
    "nccl-nvml": ("NCCL WARN nvmlDeviceGetP2PStatus(0,1,NVML_P2P_CAPS_INDEX_READ) failed: Not Supported",),
    "slingshot-queue": ("FI_CXI_DEFAULT_CQ_SIZE set to 131072",),
    "omni-path": ("PSM2_CUDA environment variable was not set",),
    "mpi-usage": ("*** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,",),
    "ray-settings": ("INFO worker.py:1743 -- Started a local Ray instance. View the dashboard at 127.0.0.1:8265",),
    "dask-peer": ("distributed.nanny - INFO - Closing Nanny at 'tcp://10.0.0.2:34211'. Reason: nanny-close",),
    "grpc-refused": ("grpc.max_receive_message_length = 4194304",),
    "tls-settings": (
        "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get local issuer certificate",
    ),
    "url-invalid": ("Downloading https://example.org/x.tar (scheme https)",),
    "mlflow-request": (
        "INFO mlflow.tracking.fluent: Experiment with name 'x' does not exist. Creating a new experiment.",
    ),
    "damaged-data": ("_pickle.UnpicklingError: invalid load key, 'v'.",),
    "file-exists": ("mkdir: cannot create directory '/scratch/u/run7': File exists",),
    "image-pull": ("slurmstepd: pyxis: importing docker image: nvcr.io/nvidia/pytorch:24.05-py3",),
    "container-failed": ("slurmstepd: pyxis: starting container ...",),
    "file-kind": ("/scratch/u/run7 is a directory, 12 files",),
    "shell-script": ("train.sh: line 12: warning: here-document at line 10 delimited by end-of-file",),
    "exit-code-127": ("srun: error: gpu-12: task 0: Exited with exit code 1",),
    "conda-environment": ("# To activate this environment, use: conda activate train312",),
    "container-command": ('exec: "nvidia-container-runtime": executable file not found in $PATH',),
    "shell-killed": ("/var/spool/slurmd/job4711/slurm_script: line 12: 12345 Terminated              python train.py",),
    "file-pointer": ("_pickle.UnpicklingError: invalid load key, '\\x00'.",),
    "user-unknown": ("groups: cannot find name for group ID 21004",),
    "filesystem-lost-server": ("WebSocket protocol error: code 1002",),
    "slurm-unkillable": ("slurmstepd: error: *** STEP 4711.0 ON gpu-12 CANCELLED AT 2025-05-01T10:00:00 ***",),
    "slurm-step-lost": ("srun: Waiting for nodes to boot (delay looping 450 times @ 0.100000 secs x index)",),
    "slurm-job-expired": (
        "srun: error: Unable to confirm allocation for job 4711: Unable to contact slurm controller (con"
        "nect failure)\nsrun: Check SLURM_JOB_ID environment variable. Expired or invalid job 4711",
    ),
    "slurm-job-ending": ("srun: error: Unable to create step for job 4711: Memory required by task is not available",),
    "cpu-binding": ("libnuma: Warning: /sys not mounted or invalid. Assuming one node: No such file or directory",),
    "working-directory": ("working directory: /scratch/u/run7",),
    "temporary-directory": ("/tmp: usable temporary directory, 120 GB free",),
    "container-mount-source": ("slurmstepd: pyxis: mounting /data/imagenet at /data",),
    "scheduler-node-lost": ("Tolerations: node.kubernetes.io/not-ready:NoExecute op=Exists for 300s",),
    "name-too-long": ("Token indices sequence length is longer than the specified maximum sequence length",),
    "static-tls": ("MemoryError: cannot allocate memory for block 3",),
    "library-not-executable": ("mapped segment 3 of shared object libx.so",),
    "exec-format": ("INFO: image format: sif, exec: /opt/env/bin/python",),
    "kubernetes-volume": ('SuccessfulAttachVolume  AttachVolume.Attach succeeded for volume "pvc-1"',),
    "kubernetes-devices": ("Allocated devices: nvidia.com/gpu 8",),
    "image-registry": ('Successfully pulled image "lab/train:7" in 41.2s',),
    "lmdb-limit": ("lmdb.CorruptedError: mdb_get: MDB_CORRUPTED: Located page was wrong type",),
    "slurm-cgroup": ("slurmstepd: error: task/cgroup: unable to add task[pid=123] to memory cg '(null)'",),
    "slurm-closed": ("srun: Requested node configuration is available in partition gpu",),
    "container-cuda": ("NVIDIA_REQUIRE_CUDA=cuda>=12.4 brand=tesla,driver>=470",),
    "bucket": ("Using bucket lab-data",),
    "sudo": ("WARNING: Running pip as the 'root' user can result in broken permissions",),
    "spawn-parent-lost": ("EOFError: Ran out of input",),
    "hdf5-no-locks": ("file locking enabled",),
    "automount": ("following 2 symbolic links",),
    "kerberos": ("modprobe: ERROR: could not insert 'nvidia': Required key not available",),
    "operation-unsupported": ("RuntimeError: this operation is not supported for sparse tensors",),
    "cross-device": ("creating link /scratch/u/latest -> step-100",),
    "clock": ("make: warning:  Clock skew detected.  Your build may be incomplete.",),
    "site-killed": ("LSF administrator: lsfadmin",),
    "processor-limit": ("cput=12:03:11, ncpus=4, walltime=03:00:00",),
    "node-shutdown": ("shutting down the workers of the loader",),
    "kernel-panic": ("kernel: panic=10 in the command line",),
    "machine-check": ("mce: [Hardware Error]: Machine check events logged",),
    "container-format": ("INFO:    Creating SIF file...",),
    "open-files-node": ("OSError: [Errno 24] Too many open files",),
    "kubernetes-configuration": ('secret "hf-token" created',),
    "slurm-version": ("slurm 23.11.4 client, server version 23.11.4",),
    "slurm-revoked": ("salloc: Granted job allocation 4711",),
    "slurm-address": ("srun: debug: slurm.conf checked, 512 hosts",),
    "cloud-capacity": ("capacity: 8 nvidia.com/gpu",),
    "sqlite-file": ("opening database file /scratch/u/optuna.db",),
    "file-size": ("max file size limit: unlimited",),
    "filesystem-mount": ("mount.nfs: timeout set for Thu May  1 10:02:00 2025",),
    "licence-missing": ("Set parameter Username\nAcademic license - for non-commercial use only",),
    "licence-server": ("license server: lic1, port 27000",),
    "queue-pair": ("created UD QP",),
    "local-server": ("the tracking server is http://localhost:5000",),
    "nfs-busy": ("OSError: [Errno 16] Device or resource busy: '/mnt/a'",),
    "container-image-mount": ("mounting image /a.sif",),
    "linker": ("ld: warning: libc.so.6 has no version",),
}
