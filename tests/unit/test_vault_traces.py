"""Golden traces of a vault: what it is told, in a few words a line, and below it what is done.

To accept new ones, run the test with REMESH_REWRITE_TRACES=1 and read the difference. What is quick
in life (room, hashes, the buddy's answer) answers at once here, unless the line says `slow`.
"""

import os
from pathlib import Path

import pytest
from shelf_drive import DrivenShelf, claim

from remesh.orchestrator.vault import shelf_words as sw
from remesh.orchestrator.vault.vault_words import SlotState, SlotWord

TRACES = sorted((Path(__file__).parent.parent / "traces" / "vault").glob("*.txt"))


def lease(shelf, number, **options):
    more = {"guest": "guest" in options, "copied": "copied" in options}
    shelf.lease(number, claim(int(options["gen"]), from_step=int(options.get("from", 0)), **more))


def written(shelf, number, **options):
    """Without a word to the vault."""
    slot = shelf.machine.leases[number].places[int(options["slot"])].slot
    state = SlotState.COPIED if "whole" in options else SlotState.WRITING
    shelf.words[slot] = SlotWord(state=state, step=int(options["step"]))


KINDS = {
    "lease": lease,
    "copied": lambda shelf, number, slot, step: shelf.copy(number, int(slot), int(step)),
    "writes": written,
    "put": lambda shelf, number, slot, step: shelf.put(number, int(slot), int(step)),
    "taken": lambda shelf, number: shelf.say(sw.CopyTaken(lease=number)),
    "buddy-gone": lambda shelf, number: shelf.say(sw.CopiesRefused(lease=number, error="dead")),
    "stable": lambda shelf, number: shelf.say(sw.StableSaid(lease=number)),
    "hung-up": lambda shelf, number: shelf.say(sw.HungUp(lease=number)),
    "let-go": lambda shelf, number: shelf.let_go(number),
    "asked": lambda shelf, number: shelf.say(sw.VaultAsked(generation=number)),
    "waited": lambda shelf, _: shelf.say(sw.WaitedEnough()),
    "done": lambda shelf, _: shelf.go_on(),
    "room": lambda shelf, number: setattr(shelf, "room", number),
}


def slots_of(do):
    return ", ".join(map(str, do.slots)) or "none"


SAID = {
    sw.MakeRoom: lambda do: f"make room for {do.count} slots of lease {do.lease}",
    sw.FreeSlots: lambda do: f"free slots {slots_of(do)}",
    sw.TrimFree: lambda _: "trim",
    sw.Grant: lambda do: f"grant lease {do.lease} slots {slots_of(do)}",
    sw.Refuse: lambda do: f"refuse lease {do.lease}: {do.reason or 'its generation is over'}",
    sw.WatchMapper: lambda do: f"watch the mapper of lease {do.lease}",
    sw.Prove: lambda do: f"prove slot {do.slot} at step {do.step}",
    sw.TellRank: lambda do: f"tell the rank of lease {do.lease}: {do.word}",
    sw.TakeIn: lambda do: f"take in step {do.step} into slot {do.slot}",
    sw.AnswerPut: lambda do: f"answer the put of lease {do.lease}: {do.error or 'kept'}",
    sw.RefusePut: lambda do: f"refuse the put of lease {do.lease}",
    sw.SendCopy: lambda do: f"send step {do.step} of lease {do.lease} to the buddy",
    sw.SendStable: lambda do: f"say stable to the buddy of lease {do.lease}",
    sw.EndCopies: lambda do: f"end the copies of lease {do.lease}",
    sw.RescueSlot: lambda do: f"copy slot {do.slot} at step {do.step} to where nobody can write",
    sw.TellSlots: lambda do: (
        "tell "
        + (", ".join(f"{one.generation}@{one.step} in {one.slot}" for one in do.slots) or "nothing")
    ),
}


def play(text):
    """The trace again, with what today's machine does."""
    shelf, lines = DrivenShelf(), []
    for line in text.splitlines():
        if line.startswith(" "):
            continue
        lines.append(line)
        words = line.split()
        if not words or line.startswith("#"):
            continue
        shelf.slow = "slow" in words
        before = len(shelf.said)
        options = dict(word.partition("=")[::2] for word in words[2:] if word != "slow")
        KINDS[words[0]](shelf, int(words[1]) if len(words) > 1 else 0, **options)
        lines += [f"    {SAID[type(do)](do)}" for do in shelf.said[before:]]
    return "\n".join(lines) + "\n", shelf


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_does_as_in_the_golden_trace_of_a_vault(path):
    text = path.read_text()
    played, _ = play(text)
    if os.environ.get("REMESH_REWRITE_TRACES"):
        path.write_text(played)
    assert played == text


def test_every_thing_that_a_vault_does_is_in_some_trace():
    done = {type(do) for path in TRACES for do in play(path.read_text())[1].said}
    assert done == set(SAID)
