"""Notifications between agents, and failure detection of neighbours, so that no node waits for a poll or a lease.

Agents transfer bulk data over connections of their own.

Nothing here decides anything: network news shows what to read, and the shared filesystem is authoritative.
"""

from hpcelastic.network.keys import make_key as make_key
from hpcelastic.network.keys import shared_key as shared_key
from hpcelastic.network.network import Network as Network
from hpcelastic.network.transfer import Transfer as Transfer
from hpcelastic.network.transfer import TransferError as TransferError
from hpcelastic.network.transfer import dial as dial
from hpcelastic.protocol.peers import News as News
from hpcelastic.protocol.peers import Notification as Notification
from hpcelastic.protocol.peers import Peer as Peer
from hpcelastic.protocol.peers import PeerHeard as PeerHeard
from hpcelastic.protocol.peers import PeerLinkLost as PeerLinkLost
from hpcelastic.protocol.peers import PeerRefused as PeerRefused
from hpcelastic.protocol.peers import PeerSilent as PeerSilent
from hpcelastic.protocol.peers import neighbours as neighbours
