"""What the account of a run came to, kept beside its journals for whoever asks again.

It is a function of the journals' bytes and of little else. So it is believed only where all of them
are those that it was made of, by their hash, and its own bytes are whole; whatever does not fit is
as if it were not there, and all is read again. What lost: to keep the state of a fold, which could
go on with lines that come later, but is believed or not as a whole, and holds far more.
"""

import json
import math
import os
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from remesh.actors.history.journal_files import FOLDER
from remesh.data.regular_file import open_regular

NAME = "account.kept"
FORMAT = 1  # another one whenever an account of the same journals would come to something else
READ_BYTES = 1 << 20

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class KeptAccount:
    """Of the run in this folder; `asked` says of what else the account is."""

    run_folder: Path
    asked: str

    def sizes(self) -> Sizes:
        """Those of the journals that there are now, none where they cannot be looked at."""
        paths = sorted((self.run_folder / FOLDER).glob("*.jsonl"))
        try:
            return {path.name: path.stat().st_size for path in paths}
        except OSError:
            return {}

    def told(self) -> dict[str, Any] | None:
        """The account, None if none is kept of what there is now.

        Cost: reads the journals, of which nothing is taken apart.
        """
        try:
            with open_regular(self.run_folder / FOLDER / NAME) as file:
                proof, body = file.readline().strip(), file.read()
            if proof != _proof(body):
                return None
            line, _, losses = body.partition(b"\n")
            head = json.loads(line)
            if head["sizes"] != self.sizes() or head["of"] != self._of(head["sizes"]):
                return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return {**head["told"], "losses": _unpacked(losses)}

    def keep(self, account: Mapping[str, Any], sizes: Sizes) -> None:
        """An account of journals that had these sizes before it was made.

        Of some that have grown meanwhile nobody knows how much is in it: then nothing is kept.
        """
        told = {key: value for key, value in account.items() if key != "losses"}
        place = self.run_folder / FOLDER / NAME
        unfinished = place.with_suffix(f".{os.getpid()}")
        try:
            of = self._of(sizes)
            if sizes != self.sizes() or not sizes:
                return
            head = json.dumps({"sizes": sizes, "of": of, "told": told}).encode()
            body = head + b"\n" + _packed(account["losses"])
            unfinished.write_bytes(_proof(body) + b"\n" + body)
            unfinished.replace(place)
        except OSError:  # it is only for speed
            unfinished.unlink(missing_ok=True)

    def _of(self, sizes: Sizes) -> str:
        """The hash of what the account is a function of."""
        found = xxhash.xxh3_128(f"{FORMAT}\n{self.asked}\n{json.dumps(sizes)}\n".encode())
        for name in sizes:
            with open_regular(self.run_folder / FOLDER / name) as file:
                while piece := file.read(READ_BYTES):
                    found.update(piece)
        return found.hexdigest()


def _proof(body: bytes) -> bytes:
    return xxhash.xxh3_128_hexdigest(body).encode()


def _packed(losses: list[float | None]) -> bytes:
    return array("d", [math.nan if loss is None else loss for loss in losses]).tobytes()


def _unpacked(data: bytes) -> list[float | None]:
    losses = array("d")
    losses.frombytes(data)
    return [None if math.isnan(loss) else loss for loss in losses]
