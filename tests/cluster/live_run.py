"""A run that a command drives, as its live controller tells of it."""

from place import until

from remesh.actors.run.contact import ask


class LiveRun:
    """Seen from outside, in its folder; the command has to be there as long as it is asked for."""

    def __init__(self, command, folder):
        self.command = command
        self.folder = folder

    def status(self, fulfils=lambda _: True, what="an answer"):
        """The first that the live controller answers and that fulfils this."""

        def told():
            assert self.command.poll() is None, self.command.communicate()
            contact = self.folder.contact()
            status = contact and ask(contact, "/status")
            return status if status and fulfils(status) else None

        return until(told, what)

    def reaches(self, step):
        return self.status(lambda status: status["step"] >= step, f"step {step}")
