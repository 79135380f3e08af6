"""What stands in for hosts (hosts.py) where nobody may make namespaces."""

import os
import signal

from place import until

from remesh.actors.cluster.local_cluster import LocalCluster
from remesh.actors.node.processes import kill, look, session_members


class LocalHosts:
    """The same operations: a session of processes on this machine is a host."""

    def __init__(self, cluster):
        self._cluster = cluster

    @classmethod
    def start(cls, num):
        return cls(LocalCluster.start(nodes=num, workers_per_node=1))

    @property
    def address(self):
        return self._cluster.address

    @property
    def up(self):
        return [session for session in self._cluster.sessions if look(session)]

    def environment(self):
        return self._cluster.environment()

    def prefix(self, folder):  # noqa: ARG002 - it runs where it is started
        return []

    def stand(self, num):
        for session in self.up[num:]:
            self.drain(session)
            until(lambda session=session: not look(session), "it leaves")
        for _ in range(num - len(self.up)):
            self.join()

    def join(self):
        return self._cluster.add_node(num_cpus=1)

    def crash(self, session):
        for pid in session_members({session}):
            kill(pid)

    def slow(self, rate):
        """Nobody can."""

    def fast(self):
        """It is."""

    def worker_listeners(self):
        return {}

    def drain(self, session):
        os.kill(session, signal.SIGTERM)

    def close(self):
        self._cluster.close()
