"""What must hold after every event, whatever befell the cluster."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import assert_never

from remesh.orchestrator.control.controller import Controller
from remesh.orchestrator.control.memory.checkpoint_book import MAX_RESTORE_FAILURES
from remesh.orchestrator.control.memory.membership import READY, NodeState, WorkerState
from remesh.orchestrator.control.words import commands as cmd
from remesh.orchestrator.control.words.events import (
    CheckpointCommitted,
    ControllerRestarted,
    Event,
    NodeJoined,
    NodeLost,
    RestoreFailed,
    StepsDone,
    VaultTold,
    WorkerLost,
    WorkerParked,
    WorkerReady,
)
from remesh.orchestrator.control.words.phases import ENDED, Phase
from remesh.orchestrator.control.words.records import CheckpointState, PeerState, Restore, VaultSlot
from remesh.orchestrator.control.words.recovery import (
    is_of_checkpoint,
    slot_label,
    slots_of,
    source_label,
)
from remesh.orchestrator.plan.ladder import Ladder
from remesh.orchestrator.sim.checks.health import Health
from remesh.orchestrator.sim.checks.whole_run import WholeRun
from remesh.orchestrator.sim.shells.invariant_error import InvariantError
from remesh.orchestrator.sim.shells.parts import (
    HeldAtSteps,
    held_by_members,
    held_by_whole_groups,
    is_whole,
)
from remesh.parallel.plan.cut import Held


@dataclass(slots=True)
class Invariants:
    """Watches one controller. `dead` are the workers and nodes that it was told are dead,
    `starting` the workers that the newest event has it start, `ending` those that it has ended.
    """

    controller: Controller
    dead: set[str] = field(default_factory=set)
    starting: set[str] = field(default_factory=set)
    ending: set[str] = field(default_factory=set)
    formed: dict[int, cmd.Form] = field(default_factory=dict)
    commits: set[tuple[int, int]] = field(default_factory=set)
    whole: WholeRun = field(default_factory=WholeRun)
    health: Health | None = None
    held: dict[str, tuple[int, int]] = field(default_factory=dict)
    committed: dict[tuple[int, int], str] = field(default_factory=dict)
    failed: dict[str, set[int]] = field(default_factory=dict)
    left: set[tuple[str, int]] = field(default_factory=set)
    conflicts: set[str] = field(default_factory=set)
    told: dict[tuple[str, str], tuple[VaultSlot, ...]] = field(default_factory=dict)
    unreadable: set[str] = field(default_factory=set)
    stood_at: tuple[int, int] = (0, 0)

    def after(self, event: Event, commands: list[cmd.Command]) -> None:
        self.whole.ledger.note(event)
        self._check_old_word(event)
        self._note(event)
        again = isinstance(event, ControllerRestarted)
        if again:
            self._forget_unanswered()
        self.starting = {c.worker for c in commands if isinstance(c, cmd.StartWorker)}
        for command in commands:
            if not (again and self._is_repeated(command)):
                self._check_command(command)
        self._check_state()
        ending = self.controller.state.roster.in_state(WorkerState.ENDING)
        self.ending = {worker.name for worker in ending}
        self.stood_at = self._stands_at

    @property
    def _stands_at(self) -> tuple[int, int]:
        """The newest step, and the newest that is proven."""
        state = self.controller.state
        return state.step, state.current.heard_step if state.generations else 0

    def _check_old_word(self, event: Event) -> None:
        """Steps of a generation that is over do not count."""
        if isinstance(event, (StepsDone, WorkerParked)):
            old = event.generation < max(self.formed, default=0)
            if old and self._stands_at != self.stood_at:
                raise InvariantError(f"{event} counts, of a generation that is over")

    def voted(self, generation: int) -> None:
        """A step of `generation` is done by all its members."""
        state = self.controller.state
        form = self.formed[generation]
        others = [number for number in self.formed if number > generation]
        if others and any(member.worker in state.roster.workers for member in form.members):
            raise InvariantError(f"generation {generation} makes a step beside {max(others)}")

    def at_end(self) -> None:
        """Nothing lost, nothing repeated, up to the step that the run stands on."""
        state = self.controller.state
        saved = state.checkpoints.newest_step or 0
        last = self.controller.options.steps if state.phase is Phase.FINISHED else saved
        self.whole.check_samples(last, self.controller.amendments)

    def _note(self, event: Event) -> None:
        match event:
            case WorkerLost():
                self.dead.add(event.worker)
            case NodeLost():
                self.dead.add(event.node)
            case NodeJoined():
                self.dead.discard(event.node)
            case WorkerReady() if event.device is not None and self._has_device(event):
                self.conflicts.add(event.worker)
            case _:
                self._note_state(event)

    def _note_state(self, event: Event) -> None:
        """Who holds what, and what could not be read. Who has left a mesh says nothing of it."""
        match event:
            case WorkerParked() if event.at_step is None:
                self.left.add((event.worker, event.generation))
            case WorkerParked() if event.at_step is not None:
                held = (event.held_in, event.at_step)
                self.held[event.worker] = max(held, self.held.get(event.worker, held))
                self.left.add((event.worker, event.generation))
            case CheckpointCommitted():
                self.committed[event.generation, event.step] = event.name
            case VaultTold():
                address = self.controller.state.vaults.addresses.get(event.node, "")
                if event.generation == max(self.formed, default=0):
                    self.told[event.node, address] = event.slots
            case RestoreFailed() if event.name.startswith("the slot with "):
                self.unreadable.add(event.name)
            case RestoreFailed() if self._has_left(event.worker, event.generation):
                pass
            case RestoreFailed() if event.generation == max(self.formed, default=0):
                label = source_label(self.formed[event.generation].restore)
                known = self.whole.failed if is_of_checkpoint(label) else self.failed
                known.setdefault(label, set()).add(event.generation)
            case _:
                pass

    def _has_left(self, worker: str, generation: int) -> bool:
        """Whether this member has parked, or was lost: its word is late."""
        known = self.controller.state.roster.workers
        return (worker, generation) in self.left or worker not in known

    def _has_device(self, event: WorkerReady) -> bool:
        """Whether another worker of that node has it."""
        roster = self.controller.state.roster
        there = roster.on(event.node) if event.node in roster.nodes else []
        return any(one.device == event.device and one.name != event.worker for one in there)

    def _forget_unanswered(self) -> None:
        """Commits that died with their controller: each may be asked for again, when it is due."""
        saves = self.controller.state.checkpoints.saves
        self.commits -= {key for key in self.commits if key in saves and not saves[key].asked}

    def _is_repeated(self, command: cmd.Command) -> bool:
        """A restarted controller asks again for what it may not have asked for."""
        if isinstance(command, cmd.Form):
            return self.formed.get(command.generation) == command
        if isinstance(command, cmd.Commit):
            return (command.generation, command.step) in self.commits
        return False

    def _check_command(self, command: cmd.Command) -> None:
        match command:
            case cmd.StartWorker():
                self._check_alive(command, [command.node])
            case cmd.EndWorker():
                self._check_deserved(command)
            case cmd.ReleaseNode():
                self._check_empty(command)
            case cmd.Fence() | cmd.Drain() | cmd.SaveHeld():
                self._check_alive(command, command.workers)
                self._forget_commit(command)
            case cmd.AskVaults():
                self._check_alive(command, command.nodes)
                self.told.clear()
            case cmd.Form():
                self._check_alive(command, [member.worker for member in command.members])
                self._check_form(command)
            case cmd.Commit():
                self._check_commit(command)
            case cmd.Announce() | cmd.End():
                pass
            case _:
                assert_never(command)

    def _check_empty(self, command: cmd.ReleaseNode) -> None:
        self._check_alive(command, [command.node])
        here = {worker.name for worker in self.controller.state.roster.on(command.node)}
        if here - self.starting:
            raise InvariantError(f"{command} with workers there")

    def _forget_commit(self, command: cmd.Fence | cmd.Drain | cmd.SaveHeld) -> None:
        """What parked workers write are other files than those of a commit before."""
        if isinstance(command, cmd.SaveHeld):
            self.commits.discard((command.generation, command.step))

    def _check_form(self, command: cmd.Form) -> None:
        before = max(self.formed, default=self.controller.options.last_generation)
        if command.generation != before + 1:
            raise InvariantError(f"{command} does not follow {before}")
        self._check_nothing_given_away(command)
        self._check_slots(command)
        self._check_bits(command)
        self.formed[command.generation] = command
        self.whole.form(command)

    def _check_commit(self, commit: cmd.Commit) -> None:
        if self._abandoned(commit.generation, commit.step):
            raise InvariantError(f"{commit} is of an abandoned timeline")
        key = (commit.generation, commit.step)
        save = self.controller.state.checkpoints.saves.get(key)
        if key in self.commits and not (save and (save.again or save.retried)):
            raise InvariantError(f"{commit} was asked for before")
        self.commits.add((commit.generation, commit.step))

    def _check_nothing_given_away(self, form: cmd.Form) -> None:
        """The mesh starts from the newest state that members and vaults hold, or a checkpoint has.

        Storage is read only if that is newer.
        """
        members = {member.worker for member in form.members}
        in_memory = self._whole(lambda old, held: held_by_members(old, held, members))
        peers = in_memory | self._whole(lambda old, held: self._within_reach(old, held, form))
        newest = max(peers | self._saved_steps(), default=0)
        doubted = bool(peers) and self._has_failed_in_memory(max(peers))
        if doubted and form.from_step == max(self._saved_steps(), default=0):
            return  # what failed twice is not taken a third time, nor an older state in memory
        if form.from_step != newest:
            raise InvariantError(f"{form} starts from {form.from_step}, not {newest}")
        for life in self.controller.state.generations[-1:]:
            if life.fault is None and life.lost_steps:
                raise InvariantError(f"{form} loses {life.lost_steps} steps, but nothing failed")
        if isinstance(form.restore, CheckpointState) and newest in in_memory:
            raise InvariantError(f"{form} reads from storage what is in memory")

    def _saved_steps(self) -> set[int]:
        """Of the checkpoints that can be read, as far as anybody knows."""
        own = [
            CheckpointState(step=step, name=name)
            for (generation, step), name in self.committed.items()
            if not self._abandoned(generation, step)
        ]
        earlier = self.controller.options.checkpoints
        known = own + [one for one in earlier if not self._gone_back_behind(one.step)]
        return {one.step for one in known if not self._has_failed(one)}

    def _gone_back_behind(self, step: int) -> bool:
        return any(form.from_step < step for form in self.formed.values())

    def _has_failed(self, restore: Restore) -> bool:
        """Whether it has failed too often, a checkpoint in the starts before as well."""
        label = source_label(restore)
        known = self.whole.failed if is_of_checkpoint(label) else self.failed
        return len(known.get(label, ())) >= MAX_RESTORE_FAILURES

    def _has_failed_in_memory(self, step: int) -> bool:
        """Whether a state of this step or a newer one has, which members or vaults held."""
        tried = (form.restore for form in self.formed.values() if form.from_step >= step)
        return any(isinstance(one, PeerState) and self._has_failed(one) for one in tried)

    def _within_reach(self, old: cmd.Form, held: dict[str, int], form: cmd.Form) -> HeldAtSteps:
        """A mesh that is not on the ladder any more may have more units than any that is; one of
        fewer stages may have no place for all who hold some of the old ones, and one of larger
        units none for those who have too few others on their node.
        """
        falls = old.rung.stages != form.rung.stages and len(held) > len(form.members)
        if old.rung not in self._ladder or falls:
            return iter(())
        if form.rung.unit.on_one_node:
            held = self._placed(held, form.rung.unit.workers)
        return held_by_whole_groups(old, held)

    def _placed(self, held: dict[str, int], size: int) -> dict[str, int]:
        """Those of them who have enough others on their node for a unit."""
        workers = self.controller.state.roster.workers
        ready = (one for one in workers.values() if one.state is not WorkerState.STARTING)
        there = Counter(one.node for one in ready if one.name not in self.ending)
        return {name: step for name, step in held.items() if there[workers[name].node] >= size}

    @property
    def _ladder(self) -> Ladder:
        return self.controller.state.ladder or self.controller.options.ladder

    def _check_bits(self, form: cmd.Form) -> None:
        """The bits change only where nothing of the same bits has room, or to those of the job."""
        before = self.formed.get(form.generation - 1)
        own = self._ladder.flights[0].bit_key
        if before is None or form.rung.bit_key in (before.rung.bit_key, own):
            return
        roster, least = self.controller.state.roster, self.controller.options.min_workers
        ready = Counter(w.node for w in roster.workers.values() if w.state in READY)
        for rung in self._ladder.rungs():
            places = sum(number // rung.unit.workers for number in ready.values())
            same = rung.bit_key == before.rung.bit_key
            if same and least <= rung.workers and rung.num_units <= places:
                raise InvariantError(f"{form} changes the bits, and {rung} fits")

    def _check_slots(self, form: cmd.Form) -> None:
        """No slot of another step, or of an abandoned timeline, and none that was not told."""
        there = set(self._slots())
        for slot in slots_of(form.restore):
            if slot.step != form.from_step or slot not in there:
                raise InvariantError(f"{form} takes {slot}")

    def _slots(self) -> Iterator[VaultSlot]:
        """What living vaults have told since they were asked, and can be used and proven."""
        state = self.controller.state
        for (node, address), slots in self.told.items():
            if state.vaults.addresses.get(node) != address:
                continue
            for slot in slots:
                known = slot.step <= state.heard_step(slot.generation)
                usable = known and not self._abandoned(slot.generation, slot.step)
                if usable and slot_label(slot) not in self.unreadable:
                    yield slot

    def _whole(self, parts_of: Callable[[cmd.Form, dict[str, int]], HeldAtSteps]) -> set[int]:
        """The steps whose state is whole among those parts of it, told by the Forms alone."""
        living = self.controller.state.roster.workers.keys() - self.dead - self.ending
        found: dict[int, list[Held]] = {}
        for generation, form in self.formed.items():
            held = {
                name: step
                for name, (held_in, step) in self.held.items()
                if held_in == generation and name in living
                if not self._abandoned(generation, step)
            }
            for step, part in parts_of(form, held):
                found.setdefault(step, []).append(part)
        for slot in self._slots():
            found.setdefault(slot.step, []).append(slot.held)
        return {step for step, parts in found.items() if is_whole(parts)}

    def _abandoned(self, generation: int, step: int) -> bool:
        """Whether a later generation started from before `step`, told by the Forms alone."""
        later = [form for number, form in self.formed.items() if number > generation]
        return any(form.from_step < step for form in later)

    def _check_deserved(self, command: cmd.EndWorker) -> None:
        """Nobody healthy is killed, unless its node is left."""
        self._check_alive(command, [command.node])
        roster = self.controller.state.roster
        node = roster.nodes.get(command.node)
        left = node is None or node.state is not NodeState.USED
        if self.health is None or left or command.worker in self.ending | self.conflicts:
            return
        if not self.health.why_ill(command.worker):
            raise InvariantError(f"{command} is healthy")

    def _check_alive(self, command: cmd.Command, names: list[str] | tuple[str, ...]) -> None:
        if not self.dead.isdisjoint(names):
            raise InvariantError(f"{command} goes to the dead: {self.dead & set(names)}")

    def _check_nodes(self) -> None:
        roster = self.controller.state.roster
        used = [node for node in roster.nodes.values() if node.state is NodeState.USED]
        workers = roster.workers.values()
        ready = {w.node for w in workers if w.state in READY}
        counted = (len(used), sum(node.slots for node in used), sum(n.name in ready for n in used))
        if counted != (roster.num_used, roster.num_slots, roster.num_ready_nodes):
            raise InvariantError(f"counted {counted} nodes, slots and ready nodes, not {roster}")
        warm = [sum(w.node == n.name and w.state in READY for w in workers) for n in used]
        for size, count in roster.counted.items():
            units = (
                sum(node.slots // size for node in used),
                sum(number // size for number in warm),
                sum(node.num_workers // size for node in used),
            )
            if units != (count.slots, count.ready, count.filled):
                raise InvariantError(f"counted {units} units of {size}, not {count}")
        if len(used) > self.controller.options.max_nodes:
            raise InvariantError("more nodes are in use than may be")

    def _check_state(self) -> None:
        state = self.controller.state
        roster = state.roster
        by_state = {one: set(names) for one, names in roster.in_states.items()}
        by_node = {node.name: set(node.workers) for node in roster.nodes.values()}
        for worker in roster.workers.values():
            by_state[worker.state].remove(worker.name)
            by_node[worker.node].remove(worker.name)
        if any(by_state.values()) or any(by_node.values()):
            raise InvariantError(f"nobody of that name is there: {by_state} {by_node}")
        if any(node.num_workers > node.slots for node in state.roster.nodes.values()):
            raise InvariantError("a node holds more workers than it has slots")
        self._check_nodes()
        if state.phase in ENDED:
            return
        if state.started and self.controller.next_deadline_s() is None:
            raise InvariantError(f"{state.phase} could last for ever")
        if state.generations and not state.current.unparked <= state.roster.workers.keys():
            raise InvariantError("a lost worker is waited for")
