"""Real hosts on one machine: each has its own network, processes, host name and /etc.

A host is a holder process with a network, mount and UTS namespace of its own, on a bridge that
stands in a further namespace, and in it a pid namespace whose PID 1 is `ray start --block`. Nothing
of it has a name in this machine's own tables: the kernel removes namespaces, links and addresses
with their last process, and the supervisor of the local cluster ends those when the pipe from the
test closes, by `kill -9` too. No route leads out of the bridge, and no name server answers.

As on many installations, a host's own name resolves to 127.0.1.1 on it.
"""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from place import until

from remesh.actors.cluster.light_node import HEAD, HOOK
from remesh.actors.cluster.local_cluster import HEALTH, OBJECT_STORE_BYTES
from remesh.actors.node.processes import kill, look, processes

PORT = 6379
SERVER_PORT = 8265
LISTEN = "0A"
FOREVER_S = "1000000"
RAY_START = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-gpus", "0",
             "--disable-usage-stats", "--log-style", "record", "--include-log-monitor", "false",
             "--dashboard-agent-listen-port", "0",
             "--object-store-memory", str(OBJECT_STORE_BYTES)]  # fmt: skip
HOLD = (
    'echo "$1" > /proc/sys/kernel/hostname && mount --bind "$2/hosts" /etc/hosts && '
    'mount --bind "$2/resolv.conf" /etc/resolv.conf && exec sleep ' + FOREVER_S
)
NAMES = "127.0.0.1 localhost\n127.0.1.1 {name}\n"


@dataclass(slots=True, kw_only=True)
class Host:
    """`holder` keeps the namespaces, as long as the fixture stands; `node` waits for PID 1."""

    name: str
    address: str
    holder: int
    folder: Path
    node: int = 0

    @property
    def init(self):
        """The pid of its PID 1 as this machine counts, None once the host is down."""
        return next((found.pid for found in processes() if found.parent == self.node), None)


class Hosts:
    """The first host is Ray's head, at `address`; commands run on it behind `prefix`."""

    def __init__(self, num_cpus=1, *, whole_ray=False):
        self.hosts = []
        self._num_cpus = str(num_cpus)
        self._whole_ray = whole_ray
        self.token = secrets.token_hex(16)
        # Ray limits the length of socket paths, so it is not TMPDIR.
        self.folder = Path(tempfile.mkdtemp(prefix="remesh-hosts-", dir="/tmp"))
        self.supervisor = subprocess.Popen(
            [sys.executable, "-m", "remesh.actors.cluster.supervisor", str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.switch = self._hold(["unshare", "--net", "sleep", FOREVER_S])
        self._ip(self.switch, "link add bridge type bridge", "link set bridge up")

    @classmethod
    def start(cls, num, *, job_server=False, num_cpus=1):
        """Ready for a driver, with all of the hosts joined, of `num_cpus` workers each."""
        hosts = cls(num_cpus, whole_ray=job_server)
        server = ["true", "--dashboard-host", "0.0.0.0", "--dashboard-port", str(SERVER_PORT)]
        try:
            hosts._boot("--head", "--port", str(PORT), "--include-dashboard",
                        *(server if job_server else ["false"]))  # fmt: skip
            begun = hosts._head_listens if job_server else lambda: hosts.up
            until(begun, "the head begins")
            hosts.stand(num)
            if job_server:
                until(lambda: hosts._head_listens(SERVER_PORT), "the job server")
        except BaseException:
            hosts.close()
            raise
        return hosts

    @property
    def address(self):
        return f"{self.hosts[0].address}:{PORT}"

    @property
    def up(self):
        """The hosts that run, in the order of their joining."""
        return [host for host in self.hosts if host.init]

    def environment(self):
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token}

    @property
    def job_server(self):
        return f"http://{self.hosts[0].address}:{SERVER_PORT}"

    def prefix(self, folder, *, host=0, hidden=False):
        """What makes a command run on a host, in this folder; it ends with this process.

        What the folder holds can be `hidden` from it.
        """
        hide = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"']
        return [*_inside(self.hosts[host].holder), *([*hide, str(folder)] if hidden else ()),
                "env", "-C", str(folder), "setpriv", "--pdeathsig", "KILL"]  # fmt: skip

    def stand(self, num):
        """So many hosts run: more join, or the newest drain and leave."""
        for host in self.up[num:]:
            self.drain(host)
            until(lambda host=host: not host.init, f"{host.name} leaves")
        joining = [self.join() for _ in range(num - len(self.up))]
        for host in [self.hosts[0], *joining]:
            until(lambda host=host: _serves(host), f"{host.name} joins")

    def join(self):
        """A new host, that is still about to join."""
        return self.join_at(self.address)

    def join_at(self, address):
        """A new host that looks for the head at this address."""
        return self._boot("--address", address)

    def crash(self, host):
        """Every process of the host ends at once."""
        kill(host.init)

    def cut(self, host):
        """No packet reaches the host or leaves it."""
        self._ip(self.switch, f"link set {host.name} down")

    def heal(self, host):
        self._ip(self.switch, f"link set {host.name} up")

    def slow(self, rate):
        """Let the links to the present hosts carry no more than this, where the kernel can."""
        for host in self.up:
            self._tc(host, "replace", "tbf", "rate", rate, "burst", "64kb", "latency", "400ms")

    def fast(self):
        for host in self.up:
            self._tc(host, "del")

    def drain(self, host):
        """Ask its `ray start --block` to end, as a platform does that takes the host away."""
        os.kill(host.init, signal.SIGTERM)

    def workers(self, host):
        """Pids, as this machine counts, of the run's workers on the host."""
        inside = _family(host.init) if host.init else []
        return [pid for pid in inside if _name(pid).startswith("worker-")]

    def commands(self):
        """By pid, as this machine counts, the command line of each process of the hosts."""
        inside = [pid for host in self.up for pid in _family(host.init)]
        return {pid: _command(pid) for pid in inside}

    def worker_listeners(self):
        """By each host's address, those at which the run's workers on it listen."""
        return {host.address: self._worker_listeners(host) for host in self.up}

    def close(self):
        """Nothing is left when it returns."""
        self.supervisor.stdin.close()
        self.supervisor.wait(timeout=30)
        self.supervisor.stdout.close()

    def _boot(self, *role):
        index = len(self.hosts) + 1
        name, address = f"host-{index}", f"10.77.0.{index}"
        folder = self.folder / name
        folder.mkdir()
        (folder / "hosts").write_text(NAMES.format(name=name))
        (folder / "resolv.conf").write_text("nameserver 127.0.0.1\n")
        namespaces = ["unshare", "--net", "--mount", "--uts"]
        holder = self._hold([*namespaces, "sh", "-c", HOLD, "sh", name, str(folder)])
        host = Host(name=name, address=address, holder=holder, folder=folder)
        self._plug_in(host)
        # A head cannot guess its address where no route leads out; the others ask the way to it.
        own = ["--node-ip-address", address] if "--head" in role else []
        ray = [
            *RAY_START,
            *role,
            *own,
            "--num-cpus",
            str(self._num_cpus),
            "--temp-dir",
            str(folder),
        ]
        pids = ["unshare", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
        host.node = self._ask([*_inside(holder), *pids, *ray], folder)
        self.hosts.append(host)
        return host

    def _plug_in(self, host):
        peer = f"peer name eth0 netns {host.holder}"
        self._ip(
            self.switch,
            f"link add {host.name} type veth {peer}",
            f"link set {host.name} master bridge up",
        )
        self._ip(
            host.holder,
            "link set lo up",
            f"addr add {host.address}/24 dev eth0",
            "link set eth0 up",
        )

    def _hold(self, argv):
        """The pid of a process that keeps its namespaces; ready once it sleeps."""
        pid = self._ask(argv, self.folder)
        until(lambda: _command(pid).startswith(b"sleep"), "namespaces are made")
        return pid

    def _ask(self, argv, folder):
        env = {**os.environ, **self.environment(), **HEALTH, "OMP_NUM_THREADS": "1",
               "RAY_DISABLE_MEMORY_MONITOR": "1", "TMPDIR": str(folder)}  # fmt: skip
        if not self._whole_ray:
            env |= {"RAY_START_HOOK": HOOK, HEAD: f"10.77.0.1:{PORT}"}
        # Should even the supervisor be killed, the hosts still end.
        argv = ["setpriv", "--pdeathsig", "KILL", *argv]
        request = {"argv": argv, "env": env, "log": str(folder / "log")}
        self.supervisor.stdin.write(json.dumps(request).encode() + b"\n")
        self.supervisor.stdin.flush()
        return int(self.supervisor.stdout.readline())

    @staticmethod
    def _ip(pid, *commands):
        lines = "".join(f"{command}\n" for command in commands)
        entered = ["nsenter", f"--net=/proc/{pid}/ns/net", "ip", "-batch", "-"]
        subprocess.run(entered, input=lines, text=True, check=True, stdout=subprocess.DEVNULL)

    def _worker_listeners(self, host):
        sockets = {inode for pid in self.workers(host) for inode in _sockets(pid)}
        return {address for address, _, inode in _listeners(host.holder) if inode in sockets}

    def _tc(self, host, verb, *limit):
        entered = ["nsenter", f"--net=/proc/{self.switch}/ns/net"]
        command = [*entered, "tc", "qdisc", verb, "dev", host.name, "root", *limit]
        subprocess.run(command, check=False, stderr=subprocess.DEVNULL)

    def _head_listens(self, port=PORT):
        head = self.hosts[0]
        assert look(head.node), (head.folder / "log").read_text()
        return port in {found for _, found, _ in _listeners(head.holder)}


def why_not():
    """Why this machine cannot have hosts of its own, None if it can."""
    if missing := [t for t in ("ip", "unshare", "nsenter", "setpriv") if not shutil.which(t)]:
        return f"no {', '.join(missing)}"
    trial = ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--mount-proc",
             "ip", "link", "add", "bridge", "type", "bridge"]  # fmt: skip
    tried = subprocess.run(trial, capture_output=True, text=True, check=False)
    return tried.stderr.strip() or None


def _inside(holder):
    """What makes a command run in the namespaces of this process, but for its pids."""
    kinds = {"net": "net", "mount": "mnt", "uts": "uts"}
    return ["nsenter", *(f"--{kind}=/proc/{holder}/ns/{file}" for kind, file in kinds.items())]


def _serves(host):
    """Its raylet is up."""
    assert look(host.node), (host.folder / "log").read_text()
    return any(host.folder.glob("session_*/sockets/raylet"))


def _family(root):
    """The pids of a process and all that descend from it."""
    parents = {found.pid: found.parent for found in processes()}
    family = {root}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sorted(family)


def _command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _name(pid):
    """What the process is called, empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


def _sockets(pid):
    """Inodes of the sockets that a process holds."""
    links = [_target(file) for file in Path(f"/proc/{pid}/fd").iterdir()]
    return {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}


def _target(file):
    """What a descriptor stands for, nothing once it is closed."""
    try:
        return str(file.readlink())
    except OSError:
        return ""


def _listeners(pid):
    """(IPv4 address, port, inode) of each socket that listens in the network of a process."""
    files = (Path(f"/proc/{pid}/net/{family}") for family in ("tcp", "tcp6"))
    rows = [row.split() for file in files for row in file.read_text().splitlines()[1:]]
    local = [(*row[1].split(":"), row[9]) for row in rows if row[3] == LISTEN]
    return {(_ipv4(address), int(port, 16), inode) for address, port, inode in local}


def _ipv4(text):
    """Of a mapped address too: each 32 bits stand in the host's order."""
    return ".".join(str(part) for part in reversed(bytes.fromhex(text)[-4:]))
