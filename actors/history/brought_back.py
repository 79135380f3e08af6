"""The journal of a run whose folder is gone, on another machine for example."""

from datetime import UTC, datetime
from pathlib import Path

from remesh.actors.history.newest_journal import read_newest
from remesh.actors.history.replay import replayed
from remesh.actors.history.segments import bring_back
from remesh.orchestrator.control.words.phases import ENDED
from remesh.parallel.state.storage import Storage


def journal_brought_back(storage: Storage, run_folder: Path) -> str | None:
    """What there is to say of it, None if nothing was missing. Afterwards the folder has it.

    The last seconds of a start that did not come to its end may never have reached the storage.
    Raises: OSError; RunFormatError.
    """
    if not bring_back(storage, run_folder):
        return None
    says = "the run's journal was not whole here and is taken from where its checkpoints are"
    for found in read_newest(run_folder).starts[-1:]:
        if replayed([found]).state.phase not in ENDED:
            newest = datetime.fromtimestamp(found.newest_s(), UTC)
            number = found.options.start
            says += f"; what start {number} did after {newest:%Y-%m-%d %H:%M:%S} UTC is not proven"
    return says
