"""Work that might crash, hang or eat memory, done in a child of the test's process."""

import json
import os
import resource
import sys
import traceback

ROOM_BYTES = 2**30


def forked(work, *args, cpu_s=20):
    """What `work(*args)` returns, as JSON; fails if that crashes or would never end.

    The limits are for that alone: a test states the work that it allows in what it counts. The
    child must not compute with torch, whose threads it does not have.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(writer, cpu_s, work, args)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code == 0, f"the child ended with {code}: {said.decode()[-2000:]}"
    return json.loads(said)


def _child(writer, cpu_s, work, args):
    code = 1
    with os.fdopen(writer, "w") as pipe:
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
            room = _address_bytes() + ROOM_BYTES
            resource.setrlimit(resource.RLIMIT_AS, (room, room))
            pipe.write(json.dumps(work(*args)))
            code = 0
        except BaseException:  # noqa: BLE001 - whatever it is, the parent is told
            pipe.write(traceback.format_exc())
        finally:
            pipe.flush()
            os._exit(code)


def _address_bytes():
    with open("/proc/self/statm") as file:  # noqa: PTH123 - as few frames as may be
        return int(file.read().split()[0]) * resource.getpagesize()


def counted(work, *args):
    """What `work(*args)` returns, and how many calls of functions it took."""
    calls = 0

    def note(_frame, event, _arg):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        found = work(*args)
    finally:
        sys.setprofile(None)
    return found, calls


def instructions(work, *args):
    """How many instructions of Python `work(*args)` takes: loops that call nothing count too."""
    steps = 0

    def each(frame, event, _arg):
        nonlocal steps
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        steps += event == "opcode"
        return each

    sys.settrace(each)
    try:
        work(*args)
    finally:
        sys.settrace(None)
    return steps
