"""Which checkpoints are good, which are being written, and which led to failures.

A checkpoint is committed once all its writers have left their files and the journal holds the
record of every step in it: otherwise a run that resumes from it could not prove what it stands on,
should all workers die at once with records that they had not reported.
"""

from dataclasses import dataclass, field

from remesh.orchestrator.control.words.events import FilesSaved
from remesh.orchestrator.control.words.records import CheckpointState
from remesh.parallel.state.root_manifest import ShardFile

MAX_RESTORE_FAILURES = 2


@dataclass(slots=True, kw_only=True)
class Save:
    """A checkpoint in the making: the writers that have not reported, the files of the others.

    `asked` for its commit; `failed` if that came to nothing.
    """

    waiting: set[str]
    files: list[ShardFile] = field(default_factory=list)
    asked: bool = False
    failed: bool = False

    @property
    def is_under_way(self) -> bool:
        return self.asked and not self.failed


@dataclass(slots=True, kw_only=True)
class Checkpoints:
    """`good` is newest first. Only complete sets of files are ever handed out for a commit."""

    good: list[CheckpointState] = field(default_factory=list)
    writers: dict[int, frozenset[str]] = field(default_factory=dict)
    saves: dict[tuple[int, int], Save] = field(default_factory=dict)
    restore_failures: dict[str, int] = field(default_factory=dict)

    @property
    def newest_step(self) -> int | None:
        return self.good[0].step if self.good else None

    @property
    def avoid(self) -> frozenset[str]:
        """Labels of the sources of state that have failed too often."""
        failures = self.restore_failures.items()
        return frozenset(label for label, count in failures if count >= MAX_RESTORE_FAILURES)

    def begin(self, generation: int, members: frozenset[str], from_step: int) -> None:
        """A generation starts from `from_step`: what lies beyond it is abandoned.

        The files of its forerunner may still come in; those of older ones no longer.
        """
        self.good = [state for state in self.good if state.step <= from_step]
        kept = max(self.writers, default=generation)
        self.writers = {older: names for older, names in self.writers.items() if older == kept}
        self.writers[generation] = members
        self.saves = {
            (older, step): save
            for (older, step), save in self.saves.items()
            if older == kept and step <= from_step
        }

    def add_files(self, event: FilesSaved) -> None:
        """Takes note of a writer's files. Doubled and stale reports change nothing."""
        writers = self.writers.get(event.generation, frozenset())
        newest = self.newest_step
        if event.worker not in writers or (newest is not None and event.step <= newest):
            return
        key = (event.generation, event.step)
        save = self.saves.setdefault(key, Save(waiting=set(writers)))
        if event.worker in save.waiting:
            save.waiting.remove(event.worker)
            save.files.extend(event.files)

    def awaits(self, worker: str, generation: int, step: int) -> bool:
        """Whether this worker's files of a checkpoint are still to come."""
        newest = self.newest_step
        saved = newest is not None and newest >= step
        if saved or worker not in self.writers.get(generation, ()):
            return False
        save = self.saves.get((generation, step))
        return save is None or worker in save.waiting

    def complete(self, generation: int, heard_step: int) -> tuple[int, Save] | None:
        """The save of a generation that is to be committed now; each is given out once.

        One after the other, by step: the commit of a newer one sweeps what an older one has left.
        """
        own = [
            (step, save)
            for (of, step), save in sorted(self.saves.items(), key=lambda item: item[0])
            if of == generation
        ]
        if any(save.is_under_way for _, save in own):
            return None
        for step, save in own:
            if step <= heard_step and not save.waiting and not save.asked:
                save.asked = True
                return step, save
        return None

    def ask_again(self) -> list[int]:
        """The generations of the commits that are under way, which are given out once more."""
        under_way = [(of, save) for (of, _), save in self.saves.items() if save.is_under_way]
        for _, save in under_way:
            save.asked = False
        return sorted({generation for generation, _ in under_way})

    def fail(self, generation: int, step: int) -> None:
        """A commit that came to nothing holds up no later one."""
        if save := self.saves.get((generation, step)):
            save.failed = True

    def committed(self, state: CheckpointState) -> bool:
        """Takes a committed checkpoint into the list; False if it is there or older."""
        newest = self.newest_step
        if newest is not None and state.step <= newest:
            return False
        self.good.insert(0, state)
        self.saves = {key: save for key, save in self.saves.items() if key[1] > state.step}
        return True

    def blame(self, label: str) -> None:
        self.restore_failures[label] = self.restore_failures.get(label, 0) + 1
