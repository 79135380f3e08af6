"""A job server that holds its jobs in memory, and loses replies and connections as it is told."""

from dataclasses import replace

from remesh.actors.jobs.cluster_jobs import RayJob
from remesh.actors.jobs.questions import KEY, answer_all, read_questions
from remesh.orchestrator.user_errors import RemeshError, UnreachableError


class FakeJobs:
    def __init__(self, room=None):
        self.jobs = {}
        self.submits = 0
        self.replies_lost = 0
        self.requests_lost = 0
        self.mute = 0
        self.texts = {}
        self.pieces = []
        self.room_there = room

    def submit(self, ray_id, metadata):
        self.submits += 1
        if self.requests_lost:
            self.requests_lost -= 1
            raise UnreachableError("no answer")
        if ray_id in self.jobs:
            raise RemeshError("already exists")
        started_s = float(len(self.jobs))
        # Nobody here asks other runs.
        status = "failed" if KEY in metadata else "running"
        self.jobs[ray_id] = RayJob(
            ray_id=ray_id, status=status, started_s=started_s, metadata=metadata
        )
        if self.replies_lost:
            self.replies_lost -= 1
            raise UnreachableError("the connection was reset")

    def list(self):
        if self.mute:
            self.mute -= 1
            raise UnreachableError("no answer")
        return list(self.jobs.values())

    def stop(self, ray_id):
        self.end(ray_id, "stopped")

    def logs(self, ray_id):
        return self.texts.get(ray_id, "")

    def last_lines(self, ray_id):
        return "".join(self.texts.get(ray_id, "").splitlines(keepends=True)[-3:])

    def delete(self, ray_id):
        del self.jobs[ray_id]

    def tail(self, _ray_id):
        """One list of pieces after the other; each is the log from its start. None cuts it off."""
        for piece in self.pieces.pop(0) if self.pieces else ():
            if piece is None:
                raise UnreachableError("cut off")
            yield piece

    def room(self):
        return self.room_there

    def end(self, ray_id, status, **values):
        self.jobs[ray_id] = replace(self.jobs[ray_id], status=status, **values)


class Head(FakeJobs):
    """A job server whose jobs with questions run at once, in this process; all others never."""

    def __init__(self, *, ending="finished", cut=False):
        super().__init__()
        self.ending = ending
        self.cut = cut

    def submit(self, ray_id, metadata):
        super().submit(ray_id, metadata)
        questions = read_questions(metadata)
        if questions is not None:
            lines = []
            answer_all(questions, lines.append, wait=lambda _: None)
            whole = "\n".join(["Running entrypoint", *lines, ""])
            self.texts[ray_id] = whole[: len(whole) // 2] if self.cut else whole
            self.end(ray_id, self.ending)

    def logs(self, ray_id):
        assert ray_id.startswith("remesh-asks-")  # never that of a driver, which is long
        return super().logs(ray_id)
