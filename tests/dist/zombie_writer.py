"""A worker that heeds nothing: it writes one snapshot after the other into its slots, for ever."""

import sys
from contextlib import suppress
from pathlib import Path

from remesh.actors.vault.slot_memory import SlotMemory
from remesh.actors.vault.wire import Line
from remesh.orchestrator.vault.vault_words import LeaseSlots, SealSlot, SlotState
from remesh.parallel.plan.cut import held_by
from remesh.parallel.plan.layout import Layout
from remesh.parallel.state.fragments import whole
from remesh.parallel.state.headers import lay_out
from remesh.parallel.state.root_manifest import CheckpointRef

HELD = held_by(Layout(dp=2), 2, 0)
PART = whole("w", (1 << 16,), "float32")
NUM_SEALED = 3
MOST_LOOKS = 50_000


def main(address, token, generation, buddy=""):
    start, header = lay_out(CheckpointRef(step=2**40, generation=generation), [PART])
    line = Line.open(address, token, 5.0)
    asked = LeaseSlots(
        generation=generation, held=HELD, size_bytes=header.size_bytes, from_step=0, buddy=buddy
    )
    slots = [SlotMemory.open(Path(path)) for path in line.ask(asked, 5.0).paths]
    step = 0
    while True:
        number, step = step % len(slots), step + 1
        slot = slots[number]
        slot.state, slot.step = SlotState.WRITING, step
        slot.shard[: len(start)] = start
        for at in range(len(start), slot.size_bytes, 4096):
            slot.shard[at : at + 4096] = bytes([step % 251]) * min(4096, slot.size_bytes - at)
        slot.state = SlotState.COPIED
        with suppress(OSError, EOFError):
            line.send(SealSlot(slot=number))
            for _ in range(MOST_LOOKS):  # there is no answer once the generation is over
                if line.poll() is not None:
                    break
        if step == NUM_SEALED:
            sys.stdout.write("\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
