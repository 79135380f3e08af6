"""A node's agent without Ray: its one thread over real processes, and a controller that answers."""

import atexit
import functools
import json
import os
import pickle
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import Future
from pathlib import Path

from waiting import soon

from remesh.actors.agent.forker import Forker
from remesh.actors.agent.node_loop import NodeLoop, NodePlace
from remesh.actors.agent.words import (
    EndRank,
    NodeAnswer,
    NodeOrders,
    StartRank,
    StartVault,
    answer_bytes,
    beat_of,
)
from remesh.actors.cluster.warm_start import EARLY, begin_early
from remesh.actors.node.own_log import log_folder_of
from remesh.actors.node.stamps import folder_of, vault_folder_of
from remesh.actors.orders import RunSpec
from remesh.actors.run.folder import RunFolder
from remesh.data.building.prepare import build
from remesh.orchestrator.control.words.events import VaultUp, WorkerLost, WorkerReady
from remesh.orchestrator.job.job import parse_job
from remesh.parallel.doors.letters import LetterBox

NODE = "127.0.0.1-abcdef"
SEQ_LEN = 16

JOB = """
job.name = "house"
job.seed = 7
model = { num_layers = 1, width = 16, num_heads = 2, ffn_width = 32 }
data = { dir = "%s", source = "%s" }
train = { steps = 20, global_batch = 4, microbatch = 1, seq_len = 16, warmup_steps = 2 }
checkpoint = { every = 10 }
elastic = { max_workers = 4, patience_s = %s }
"""


def house_spec(folder, patience_s=5.0, settings=()):
    """A start of a run whose ranks are ready in a moment."""
    source = folder / "text"
    source.mkdir()
    (source / "a.txt").write_text("to be or not to be " * 200)
    build(str(source), folder / "data", SEQ_LEN)
    run, text = secrets.token_hex(4), JOB % (folder / "data", source, patience_s)
    runs = RunFolder(folder / "run")
    runs.probe()
    return RunSpec(
        run=run,
        job=parse_job(text, name="house", overrides=settings),
        folder=str(folder / "run"),
        data_digest="",
        fingerprint={},
        incarnation=(claim := runs.claim(run)),
        start=claim,
        max_members=4,
        faults=(),
        driver_lease_s=20.0,
        vault_token="secret",
    )


class House:
    """Orders are told by `tell`; what the agent says is kept in `words` and `events`."""

    def __init__(self, spec, *, devices=(), start=True, early=False, environment=None):
        """An `early` one was begun before there was a controller.

        Unless an environment is given it is that of a command's own node, where a process waits
        that is warm already: so each house costs a fork, and not what all of them would load.
        """
        self.spec = spec
        self.incarnation = spec.incarnation
        self.told_numbers = Counter()
        self.words = []
        self.events = []
        self.heard = 0
        self.clear = False
        self.leased = True
        self.loses = 0
        self.calls = 0
        self.letters_in_a_row = 0
        self.box = None
        place = NodePlace(node=NODE, node_ip="127.0.0.1", agent=time.time_ns(), devices=devices)
        own = environment or {**os.environ, EARLY: place_of_the_warm()}
        forker = Forker(pickle.dumps(spec), own)
        self.loop = NodeLoop(spec, place, 0 if early else spec.incarnation, self._hear, forker)
        self.thread = threading.Thread(target=self._run, daemon=True)
        if start:
            self.thread.start()

    @property
    def household(self):
        return self.loop.household

    def tell(self, *orders, incarnation=None):
        number = self.incarnation if incarnation is None else incarnation
        self.told_numbers[number] += 1
        told = NodeOrders(incarnation=number, number=self.told_numbers[number], orders=orders)
        self.loop.take(told)

    def start(self, *workers):
        """The processes of these workers, once they are ready."""
        self.tell(*(StartRank(worker=worker) for worker in workers))
        assert soon(lambda: {*self.told(WorkerReady), *self.told(WorkerLost)}.issuperset(workers))
        return [known(self.household.rank(worker)) for worker in workers]

    def start_vault(self):
        self.tell(StartVault())
        assert soon(lambda: [e for e in self.events if isinstance(e, VaultUp)])
        return known(self.household.vault())

    def end(self, worker):
        self.tell(EndRank(worker=worker))
        return self.lost(worker)

    def lost(self, worker):
        """How it was lost, as soon as that is told."""
        soon(lambda: worker in self.told(WorkerLost))
        return self.told(WorkerLost)[worker]

    def told(self, kind):
        """The events of this kind by worker, the newest of each."""
        return {event.worker: event for event in list(self.events) if isinstance(event, kind)}

    def close(self):
        self.loop.end()
        if self.thread.is_alive():
            self.thread.join()
        clear_folders(self.spec.run)

    def _run(self):
        try:
            self.loop.run()
        finally:
            self.loop.close()

    def read_letters(self, *, arrive=True):
        """From now on beats are answered that come without a call, if they `arrive`."""
        self.box = LetterBox("127.0.0.1", self.spec.vault_token, self._read)
        if arrive:
            self.box.start()
        else:
            self.box.close()

    def _read(self, letter):
        self.letters_in_a_row += 1
        return answer_bytes(self._answered(beat_of(letter)))

    def _hear(self, word):
        """Answers at once, unless it is to lose the word or its answer."""
        self.calls += 1
        self.letters_in_a_row = 0
        answer = Future()
        if self.loses:
            self.words.append(word)
            self.loses -= 1
            answer.set_exception(ConnectionError("lost"))
            return answer
        answer.set_result(self._answered(word))
        return answer

    def _answered(self, word):
        self.words.append(word)
        news = word.events[max(0, self.heard + 1 - word.first) :]
        self.events += news
        self.heard = max(self.heard, word.first + len(word.events) - 1)
        return NodeAnswer(
            incarnation=self.incarnation,
            heard=self.heard,
            num_nodes=1,
            leased=self.leased,
            clear=self.clear,
            letters=self.box.address if self.box else "",
        )


@functools.cache
def place_of_the_warm():
    """Where a warm process waits, as long as this one lives, for whichever house comes next."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    begin_early(f"{folder}/warm")
    return f"{folder}/warm"


def known(resident):
    """Once the agent has its pid, if it is there: that comes from who has forked it.

    It may say that it is ready before. What a test sends to 0 its own processes would get.
    """
    assert resident is None or soon(lambda: resident.pid)
    return resident


def clear_folders(run):
    """What an agent that ends by itself removes."""
    for folder in (folder_of(run, NODE), vault_folder_of(run, NODE), log_folder_of(run, NODE)):
        shutil.rmtree(folder, ignore_errors=True)


def descriptors(pid):
    """How many this process holds."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def main():
    """An agent with two ranks and a vault, which goes on until it is killed."""
    house = House(house_spec(Path(sys.argv[1])), environment=os.environ)
    ranks = {one.worker: one.pid for one in house.start("worker-0", "worker-1")}
    own = {"run": house.spec.run, "warm": house.household._forker.warm_pid}
    own["door"] = house.words[-1].door
    told = json.dumps({**ranks, **own, "vault": house.start_vault().pid})
    sys.stdout.write(told + "\n")
    sys.stdout.flush()
    house.thread.join()


if __name__ == "__main__":
    main()
