"""Failures of containers: their images, their runtimes, and Kubernetes."""

from hpcelastic.health.incidents import IncidentKind
from hpcelastic.health.known_causes.cause import Blame, Certainty, KnownCause, Weight

CAUSES = (
    KnownCause(
        "container-image-mount",
        r"while mounting image [^\n]*(?:squashfuse|fuse2fs|failed to mount|exited with status)|"
        r"mount image error: kernel reported a bad superblock",
        "The image of the container could not be mounted.",
        Blame.UNKNOWN,
        Certainty.LIKELY,
        "run the image on the node by hand; if it works on other nodes, report the node, else build the image again",
        "Apptainer, image drivers",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "container-command",
        r"exec: \"(?!fusermount|/?\S*nvidia-)[^\"\n]+\": (?:executable file not found in \$PATH|"
        r"stat [^\n]*no such file or directory|permission denied)|"
        r"FATAL: +\"[^\"\n]+\": executable file not found in \$PATH|"
        r"OCI runtime attempted to invoke a command that was not found",
        "The image of the container does not have the command that should be started.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "correct the command, or name it with its full path in the image",
        "runc; Podman, libpod/define/errors.go; Apptainer",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "container-cuda",
        r"unsatisfied condition: (?:cuda|driver|arch|brand)",
        "The image of the container needs a newer driver of the GPUs than the node has.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "use an image for an older CUDA, or nodes with a newer driver; NVIDIA_DISABLE_REQUIRE=1 skips the check",
        "NVIDIA Container Toolkit, NVIDIA_REQUIRE_CUDA",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "container-runtime",
        r"nvidia-container-cli\b|[Ee]rror running hook|pyxis: seccomp filter failed|cgroup\.procs' failed|"
        r"pthread_create failed[^\n]*Operation not permitted|failed to exec fusermount|"
        r"(?<!No space left on device\n)\[ERROR\] [^\n]*hooks\.d/\S+ exited with return code|"
        r"could not select device driver \"|Is the docker daemon running|failed to discover GPU vendor from CDI|"
        r"unresolvable CDI devices|Failed to set effective UID to 0|starter-suid doesn't have setuid bit set|"
        r"Could not acquire rootfs lock|(?:^|\n)(?!INFO|WARNING)[^\n]*fuse:? device not found|"
        r"failed to open /dev/fuse|exec: \"fusermount3?\": executable file not found|fusermount3?: mount failed|"
        r"FAILED to (?:loop mount image|mount image)",
        "The node cannot start a container: a program or a permission for it is missing.",
        Blame.NODE,
        Certainty.LIKELY,
        "check the installation of the container runtime on the node; drain the node if it is the only one",
        "NVIDIA Container Toolkit; enroot; Apptainer, Admin Guide",
        IncidentKind.SUSPECT,
        Weight.DETAIL,
    ),
    KnownCause(
        "container-mount",
        r"mount hook function failure|destination /\S+ doesn't exist in container",
        "A directory cannot be mounted in the container, because its image has no such directory.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "create the directory in the image, or mount it elsewhere",
        "Apptainer, User Guide",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "container-image",
        r"while mounting image|squashfuse\w* failed to mount|failed to mount (?:squashfs|image)|SQUASHFS error: ",
        "The image of the container could not be mounted in time.",
        Blame.FILESYSTEM,
        Certainty.LIKELY,
        "copy the image to a fast or local filesystem before the job",
        "Apptainer, User Guide",
    ),
    KnownCause(
        "namespaces",
        r"(?:user namespace|unshare|newuidmap|newgidmap|clone)[^\n]*(?:No space left on device|"
        r"Operation not permitted)|can't init user\+mount namespaces|No permissions to create new namespace|"
        r"setting up [ug]id map: Permission|Could not write info to setgroups|event for user namespace mappings|"
        r"not enough IDs available in the namespace|insufficient UIDs or GIDs available|"
        r"no sub[ug]id ranges found for user|[Uu]ser namespace (?:required|needed) but not allowed|"
        r"[Cc]reating new namespace failed|user namespaces? (?:is|are) (?:not enabled|disabled)",
        "The node does not permit a container to make its namespaces.",
        Blame.NODE,
        Certainty.LIKELY,
        "raise user.max_user_namespaces on the node, or permit unprivileged namespaces",
        "Linux, user_namespaces(7)",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "image-registry",
        r"(?:Failed to pull image|failed to (?:pull and unpack image|resolve reference|do request|fetch)|"
        r"docker://\S+ uri|image from oci registry|fetching image|/v2/\S*)[^\n]*(?:i/o timeout|"
        r"TLS handshake timeout|: no such host\b|connect: connection refused|connection reset by peer|"
        r"context deadline exceeded|Client\.Timeout exceeded|no route to host)|"
        r"\[ERROR\] URL \S+ returned error code: (?:429|5\d\d|000)",
        "The registry of the container's image cannot be reached.",
        Blame.NETWORK,
        Certainty.LIKELY,
        "import the image once before the job, into a file that all nodes share",
        "containerd, core/remotes; enroot, docker.sh; Apptainer",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "image-pull",
        r"\bErrImagePull\b|\bImagePullBackOff\b|\bErrImageNeverPull\b|\bInvalidImageName\b|pull access denied for|"
        r"manifest unknown|manifest for \S+ not found|(?<![.\w])toomanyrequests: |"
        r"\[ERROR\] URL \S+ returned error code: 4\d\d|(?:Unable to handle (?:docker|oras|library|shub|"
        r"https?)://\S+ uri|While (?:making|pulling) (?:library |shub )?image\b|failed to pull and unpack image|"
        r"error fetching image to cache)(?![^\n]*(?:no space left|quota exceeded))|"
        r"repository does not exist or may require 'docker login'|FAILED to (?:find requested|lookup \S+) image|"
        r"FAILED to get image \S+ of type",
        "The image of the container cannot be loaded from its registry.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "check its name and the login; import it once before the job, into a file that all nodes share",
        "Kubernetes, images; enroot, docker.sh; pyxis; Apptainer, build sources; moby, distribution/errors.go; Shifter",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "container-failed",
        r"pyxis: (?:container start (?:failed|error)|failed to (?:start container|create container filesystem)|"
        r"child \d+ failed with error code|container exited too soon|failed to import docker image)|"
        r"a previous task terminated unexpectedly during container setup|"
        r"spank: required plugin \S+ \w+\(\) failed with rc|Failed to invoke spank plugin stack|"
        r"OCI runtime create failed|failed to create (?:containerd|shim) task|Failed to create pod sandbox|"
        r"failed to setup network for sandbox",
        "A container could not be started.",
        Blame.UNKNOWN,
        Certainty.LIKELY,
        "read the error of the container's runtime, above in the log; start the image by hand on that node",
        "pyxis, pyxis_slurmstepd.c; SLURM, spank(7); containerd",
        weight=Weight.VAGUE,
    ),
    KnownCause(
        "container-mount-source",
        r"--container-mounts: source path does not exist|bind source path does not exist|can't bind: (?:source|"
        r"destination) not found|mount source \S+ doesn't exist|FAILED to find volume \"(?:from|to)\"|"
        r"BIND MOUNT FAILED from|enroot-mount: failed to mount: \S+ at \S+: No such file",
        "A directory that should be mounted into the container does not exist on the node or in the image.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "correct the path, or check that its filesystem is mounted on the node",
        "pyxis, args.c; moby, volume mounts; Charliecloud, ch_core.c; Shifter, shifter_core.c",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "kubernetes-volume",
        r"MountVolume\.\w+ failed for volume(?![^\n]*(?:secret|configmap)s? \"[^\"\n]+\" not found)|"
        r"Unable to attach or mount volumes|Multi-Attach error for volume|AttachVolume\.Attach failed|"
        r"persistentvolumeclaim \"[^\"\n]+\" (?:not found|is being deleted)",
        "A volume could not be attached or mounted on the node.",
        Blame.FILESYSTEM,
        Certainty.LIKELY,
        "look at the events of the pod and the volume (kubectl describe), and release the volume from other nodes",
        "Kubernetes, persistent volumes",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "kubernetes-devices",
        r"requested number of devices unavailable for|cannot allocate unhealthy devices",
        "The node has less working GPUs than it has announced.",
        Blame.NODE,
        Certainty.LIKELY,
        "drain the node, and restart its device plug-in; look for Xids in its kernel's log",
        "Kubernetes, pkg/kubelet/cm/devicemanager",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "container-format",
        r"image format not recognized|kernel reported a bad superblock|contains a bad superblock|"
        r"Invalid image format: |unknown image type: ",
        "The file of the image is no image of a container, or it is damaged.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "compare its size and checksum with the source, and copy or build it again",
        "Apptainer, pkg/image and runtime/engine; enroot, runtime.sh; Charliecloud",
    ),
    KnownCause(
        "kubernetes-configuration",
        r"\bCreateContainerConfigError\b|(?:secret|configmap)s? \"[^\"\n]+\" not found|"
        r"couldn't find key \S+ in (?:Secret|ConfigMap)|serviceaccount \"[^\"\n]+\" not found",
        "The pod names a secret or a map of settings that does not exist.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "create it in the namespace of the job, or correct its name",
        "Kubernetes, pods and secrets",
        weight=Weight.DETAIL,
    ),
)
