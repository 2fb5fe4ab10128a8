"""When pods were bound, by the API server's own log: nothing has to watch the pods meanwhile."""

import json
import os
from datetime import datetime
from pathlib import Path

MARK = b'"subresource":"binding"'


class Bindings:
    """The bindings that the API server has accepted since this object was made; `read` takes in new ones.

    Attributes:
        times: When each was answered, in seconds since 1970, in the order of the log.
    """

    def __init__(self, log: Path) -> None:
        self.times: list[float] = []
        self._path = log
        self._file = log.open("rb")
        self._file.seek(0, os.SEEK_END)
        self._rest = b""

    def close(self) -> None:
        """Reads no more."""
        self._file.close()

    def read(self) -> int:
        """Takes in what the log has now, and returns the number of all bindings so far."""
        self._take_in()
        if self._path.stat().st_ino != os.fstat(self._file.fileno()).st_ino:  # a full log is renamed
            self._take_in()
            self._file.close()
            self._file = self._path.open("rb")
            self._take_in()
        return len(self.times)

    def _take_in(self) -> None:
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        for line in lines:
            if MARK in line:
                entry = json.loads(line)
                if entry["responseStatus"]["code"] == 201:
                    self.times.append(datetime.fromisoformat(entry["stageTimestamp"]).timestamp())
