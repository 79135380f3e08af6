"""Which checkpoints are good, which are being written, and which led to failures.

A checkpoint is committed once all its writers have left their files and the journal holds the
record of every step in it: otherwise a run that resumes from it could not prove what it stands on,
should all workers die at once with records that they had not reported.
"""

from dataclasses import dataclass, field

from remesh.orchestrator.control.words.events import FilesSaved, SaveFailed
from remesh.orchestrator.control.words.records import CheckpointState
from remesh.parallel.state.root_manifest import ShardFile

MAX_RESTORE_FAILURES = 2
MAX_SAVES = 4  # in the making at a time: files of older ones are waited for no more


@dataclass(slots=True, kw_only=True)
class Save:
    """A checkpoint in the making: the writers that have not reported, the files of the others.

    `asked` for its commit, which has to come by `due_s`. Where a mesh waits for it, it is asked for
    `again` if none came, and `retried` if it was refused. `failure` is why it comes to nothing; it
    may come all the same if it is only `late`. `refused` are the writers that could not write.
    """

    waiting: set[str]
    files: list[ShardFile] = field(default_factory=list)
    asked: bool = False
    due_s: float = 0.0
    failure: str = ""
    refused: set[str] = field(default_factory=set)
    late: bool = False
    again: bool = False
    retried: bool = False

    @property
    def is_under_way(self) -> bool:
        return self.asked and not self.failure


@dataclass(slots=True, kw_only=True)
class Checkpoints:
    """`good` is newest first. Only complete sets of files are ever handed out for a commit.

    `stalled`: one that a mesh was left for was not saved, and none has been since. `silent` are the
    writers that could not write, or wrote nothing while others of the same checkpoint did.
    """

    good: list[CheckpointState] = field(default_factory=list)
    writers: dict[int, frozenset[str]] = field(default_factory=dict)
    saves: dict[tuple[int, int], Save] = field(default_factory=dict)
    restore_failures: dict[str, int] = field(default_factory=dict)
    stalled: bool = False
    silent: set[str] = field(default_factory=set)

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

    def is_under_way(self, key: tuple[int, int]) -> bool:
        """Whether the commit of that (generation, step) is asked for and has no answer yet."""
        save = self.saves.get(key)
        return save is not None and save.is_under_way

    def begin_held(self, key: tuple[int, int], writers: frozenset[str]) -> None:
        """These, who are parked, write the checkpoint of that (generation, step)."""
        self.saves[key] = Save(waiting=set(writers))

    def add_files(self, event: FilesSaved) -> bool:
        """Whether a writer's files are news. Doubled and stale reports change nothing."""
        newest = self.newest_step
        if newest is not None and event.step <= newest:
            return False
        save = self._save_of(event.worker, (event.generation, event.step))
        if save is None or event.worker not in save.waiting:
            return False
        save.waiting.remove(event.worker)
        save.files.extend(event.files)
        return True

    def awaits(self, worker: str, generation: int, step: int) -> bool:
        """Whether this worker's files of a checkpoint are still to come."""
        newest = self.newest_step
        if newest is not None and newest >= step:
            return False
        save = self.saves.get((generation, step))
        waiting = self.writers.get(generation, frozenset()) if save is None else save.waiting
        return worker in waiting

    def complete(
        self, generation: int, heard_step: int, *, last: bool = False
    ) -> tuple[int, Save] | None:
        """The save of a generation that is to be committed now; each is given out once.

        One after the other, by step: the commit of a newer one sweeps what an older one has left.
        The `last` one of a mesh waits for none before it, which may have no answer for long.
        """
        own = [
            (step, save)
            for (of, step), save in sorted(self.saves.items(), key=lambda item: item[0])
            if of == generation
        ]
        if not last and any(save.is_under_way for _, save in own):
            return None
        for step, save in reversed(own) if last else own:
            if last and save.is_under_way:
                return None
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

    def note_late(self, now_s: float, why: str) -> list[tuple[int, int]]:
        """The (generation, step) of the commits that were to come by now: no later one waits."""
        late = [k for k, save in self.saves.items() if save.is_under_way and save.due_s <= now_s]
        for key in late:
            self.saves[key].failure, self.saves[key].late = why, True
        return late

    def next_due_s(self) -> float | None:
        dues = (save.due_s for save in self.saves.values() if save.is_under_way)
        return min(dues, default=None)

    def put_off(self, by_s: float, not_before_s: float = 0.0) -> None:
        """All commits come so much later, and none before that moment."""
        for save in self.saves.values():
            save.due_s = max(save.due_s + by_s, not_before_s)

    def ask_once_more(self, key: tuple[int, int]) -> bool:
        """A commit that has failed may be asked for again, once after it gave no answer and once
        after it was refused: that puts nothing twice.
        """
        save = self.saves[key]
        if not save.asked or (save.again if save.late else save.retried):
            return False
        save.again, save.retried = save.again or save.late, save.retried or not save.late
        save.asked, save.failure, save.late = False, "", False
        return True

    def note_silent(self, key: tuple[int, int]) -> list[str]:
        """Who has written nothing of what others have written their parts of."""
        save = self.saves.get(key)
        late = sorted(save.waiting) if save is not None and save.files else []
        self.silent.update(late)
        return late

    def fail(self, generation: int, step: int, why: str) -> None:
        """A checkpoint that came to nothing holds up no later one."""
        if save := self.saves.get((generation, step)):
            save.failure = why

    def fail_save(self, event: SaveFailed, why: str) -> None:
        """One of its writers cannot write its part."""
        save = self._save_of(event.worker, (event.generation, event.step))
        if save is not None and event.worker in save.waiting:
            save.failure = why
            save.refused.add(event.worker)

    def committed(self, state: CheckpointState) -> bool:
        """Takes a committed checkpoint into the list; False if it is there or older."""
        newest = self.newest_step
        if newest is not None and state.step <= newest:
            return False
        self.good.insert(0, state)
        self.stalled = False
        self.silent.clear()
        self.saves = {key: save for key, save in self.saves.items() if key[1] > state.step}
        return True

    def avoid_now(self, label: str) -> None:
        """No further try with it."""
        self.restore_failures[label] = MAX_RESTORE_FAILURES

    def blame(self, label: str) -> None:
        self.restore_failures[label] = self.restore_failures.get(label, 0) + 1

    def _save_of(self, worker: str, key: tuple[int, int]) -> Save | None:
        """What this worker's files are of: a new one at the first file, None for none.

        Cost: linear in the writers for the first file of a checkpoint, none for the others.
        """
        save = self.saves.get(key)
        writers = self.writers.get(key[0], frozenset())
        if save is None and worker in writers:
            self._make_room(key[0])
            save = self.saves[key] = Save(waiting=set(writers))
        return save

    def _make_room(self, generation: int) -> None:
        own = sorted(key for key in self.saves if key[0] == generation)
        idle = [key for key in own if not self.saves[key].is_under_way]
        for key in idle[: max(0, len(own) + 1 - MAX_SAVES)]:
            del self.saves[key]
