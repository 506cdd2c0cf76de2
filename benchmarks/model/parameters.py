"""The parameters of the model, with their sources. Times are in seconds."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Storage:
    """A filesystem with one metadata server and one data server for a file."""

    operations: float = 20_000.0
    """Operations that the metadata server executes in a second, one after the other."""

    round_trip: float = 0.0003
    """From a client to the server and back, without the wait for the server."""

    entries: int = 64 * 1024
    """Bytes of directory entries in one reply. A long listing needs several replies."""

    entry: int = 40
    """Bytes of an entry, without its name."""

    sync: float = 0.001
    """The time in which the server makes a change durable."""

    bandwidth: float = 5e9
    """Bytes in a second from the data server to all clients together."""


@dataclass(frozen=True)
class Fabric:
    """The network between nodes, and the processor time of a message."""

    latency: float = 0.0001
    """From the sender to the receiver."""

    sending: float = 4.4e-6
    """Processor time of the sender for each message."""

    receiving: float = 12e-6
    """Processor time of the receiver for each message."""

    refusal: float = 0.105
    """From the end of a node's last process until its neighbours have reported that its kernel refuses connections; see
    `hpcelastic.protocol.failure_detector`."""


@dataclass(frozen=True)
class Processor:
    """Processor time that the model does not measure, because the code in question does not run in it."""

    start: float = 0.001
    """The start of the threads and sockets of an agent."""

    call: float = 15e-6
    """An operation on a filesystem in the kernel of the node."""

    entry: float = 0.5e-6
    """An entry of a listing, in the kernel of the node and in `os.listdir`."""

    turn: float = 0.0002
    """A turn of a thread: the wake-up, and the agent's main thread."""

    switch: float = 0.005
    """The time after which another thread of the process takes its turn, as `sys.getswitchinterval` returns it."""

    byte: float = 10e-9
    """Decoding a byte of the register. The model decodes each version once for all nodes."""

    speed: float = 1.0
    """The processor time that the code takes here, in relation to the time on a node."""

    shared: int = 0
    """The number of processors that all nodes share, as processes of one machine do; 0 if each node has its own."""


@dataclass(frozen=True)
class Model:
    """All parameters. The defaults are a cluster with Lustre; see docs/scale.md for the sources."""

    storage: Storage = field(default_factory=Storage)
    fabric: Fabric = field(default_factory=Fabric)
    processor: Processor = field(default_factory=Processor)
