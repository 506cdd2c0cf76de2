import sys, time, gc
from benchmarks.model.cluster import *
from benchmarks.model.parameters import *
size=int(sys.argv[1])
t=time.time()
c=Cluster(size, Model(), least=max(1,size//2))
c.start(); gc.collect(); gc.freeze(); gc.disable()
def show(what,e): print(f"{what:12} {e.seconds:7.3f} s  {e.requests/size:6.1f} requests/node (most {e.most}) {e.messages/size:6.1f} messages/node  {e.read/1e6:8.1f} MB read  {1000*e.processor/size:6.2f} ms cpu/node   [{time.time()-t:.0f} s]", dict(c.servers.counts), flush=True)
show("cold", c.until_round(1,size))
c.servers.counts.clear()
c.idle(20); c.servers.counts.clear()
e=c.idle(30); show("idle 30", e); print(e.requests/30,"requests/s, lease", c.nodes[5].rendezvous.lease_duration.seconds)
c.servers.counts.clear()
c.lose([size//2]); show("one lost", c.until_round(2,size-1))
print(directory_sizes(c), version_size(c), c.failed[:3])
c.close()
