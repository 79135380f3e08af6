"""Plays the cluster around a controller whose every event is journalled and counted."""

from control_drive import Drive
from control_values import records

from remesh.actors.serving.metrics import render
from remesh.actors.serving.picture import Picture
from remesh.orchestrator.accounts.tally import Tally
from remesh.orchestrator.accounts.view import view_of
from remesh.orchestrator.control import journal
from remesh.orchestrator.control.words import events as ev


class TalliedDrive(Drive):
    """Keeps a tally and a journal of what it does."""

    def __init__(self, tally=None, **options):
        self.tally = tally or Tally()
        self.lines = []
        super().__init__(**options)

    def do(self, *events, after_s=0.01):
        self.now_s += after_s
        new = []
        for event in events:
            self.lines.append(journal.encode(event, self.now_s))
            new += self.controller.handle(event, self.now_s)
            self.tally.note(event, self.now_s, self.state)
        self.commands += new
        return new

    def steps(self, last, *, step_s=0.2):
        """Steps that end one after the other, the last of them now."""
        first = self.state.step + 1
        self.now_s += step_s * (last - first + 1)
        done = [
            record
            for step in range(first, last + 1)
            for record in records(step, step, self.now_s - step_s * (last - step))
        ]
        generation, rank_0 = self.state.last_generation, self.members[0]
        news = ev.StepsDone(worker=rank_0, generation=generation, records=tuple(done))
        self.do(news, after_s=0.0)


def tallied(last, **options):
    drive = TalliedDrive(**options)
    drive.ready()
    return drive.train(last)


def scrape(drive):
    view = view_of(drive.controller)
    return render(Picture(run="tiny", version="1.0", view=view, tally=drive.tally))


def through_everything():
    """A run that saves, loses a worker and three steps, shrinks, grows, and stops."""
    drive = tallied(10)
    drive.save(10)
    drive.commit(10)
    drive.steps(13)
    drive.lose(drive.members[0])
    drive.park(None, drained=False)
    drive.train(15)
    drive.ready()
    drive.park(15, drained=True)
    drive.train(20)
    drive.do(ev.StopRequested(reason="enough"))
    drive.park(20, drained=True)
    drive.save(20)
    drive.commit(20)
    return drive


def flat(tally):
    """Every number that must never go back."""
    goodput, saves = tally.goodput, tally.saves
    return [
        tally.starts,
        tally.steps,
        tally.tokens,
        tally.skipped_steps,
        tally.lost_steps,
        tally.recoveries,
        goodput.productive_s,
        saves.failed,
        tally.step_s.sum_s,
        saves.took_s.sum_s,
        *tally.step_s.counts,
        *saves.took_s.counts,
        *tally.failures.values(),
        *tally.recovery_s.values(),
        *goodput.unproductive_s.values(),
        *goodput.phase_s.values(),
    ]


def dealt_s(tally):
    return tally.goodput.productive_s + sum(tally.goodput.unproductive_s.values())
