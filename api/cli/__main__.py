"""The command from its first moment on, also as `python -m remesh.cli`.

Ctrl-C while it still loads ends it as ever, and not in a traceback.
"""

import signal
import sys


def main() -> int:
    """The exit code of the command."""
    try:
        from remesh.cli.main import main as command  # noqa: PLC0415 - a tenth of a second
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return command()


if __name__ == "__main__":
    sys.exit(main())
