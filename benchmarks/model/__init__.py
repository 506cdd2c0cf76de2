"""A model of runs on thousands of nodes: the real rendezvous in virtual time, over a modelled filesystem and network.

Each node runs the code of `hpcelastic.rendezvous`, `hpcelastic.storage` and `hpcelastic.protocol` on the clock and the
files of `tests.simulation`. Nothing fails here by chance. Instead, operations wait for a metadata server with a limited
rate, messages take time, and the processor time that the code takes on this machine passes on the node's clock too.
"""
