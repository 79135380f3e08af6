"""The process of one local node: it begins what is to be warm, and is `ray start` from then on.

It runs as `python -m remesh.actors.cluster.local_node start ...`, with the words of Ray's own
command. What ranks import takes longest of all that a start waits for, and Ray needs half a second
to load before it calls any hook: so that is begun here, before Ray is imported.
"""

import os
from contextlib import suppress

from remesh.actors.cluster.warm_start import EARLY, begin_early


def main() -> None:
    if EARLY in os.environ:
        with suppress(OSError):  # its agent starts one then
            begin_early(os.environ[EARLY])
    from ray.scripts.scripts import main as ray_command  # noqa: PLC0415 - see above

    ray_command()


if __name__ == "__main__":
    main()
