"""What somebody without privileges would see, in a process of his own."""

import os

NOBODY = 65534


def as_nobody(action):
    """What `action` returns there, or its error, as Python writes it."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        if os.geteuid() == 0:
            os.setuid(NOBODY)
        try:
            answer = repr(action())
        except BaseException as error:  # noqa: BLE001 - the parent is told
            answer = repr(error)
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    return answer
