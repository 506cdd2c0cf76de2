"""The doorbell and the presence of neighbours: news by network, so that nobody waits for a poll or a lease.

Nothing here decides anything: what comes by network says where to look, and the shared filesystem says what is true.
"""

from hpcelastic.network.keys import make_key as make_key
from hpcelastic.network.keys import shared_key as shared_key
from hpcelastic.network.network import Network as Network
from hpcelastic.network.peers import Heard as Heard
from hpcelastic.network.peers import News as News
from hpcelastic.network.peers import Peer as Peer
from hpcelastic.network.peers import Refused as Refused
from hpcelastic.network.peers import Rung as Rung
from hpcelastic.network.peers import Shaken as Shaken
from hpcelastic.network.peers import Silent as Silent
from hpcelastic.network.peers import neighbours as neighbours
