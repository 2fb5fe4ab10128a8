"""Processes for tests."""

import msgspec

from tas.processes.process import Process, Running


def process(name: str, *workers: str, version: str = "1", unready: str = "") -> Process:
    return Process(version=version, name=name, started=0.0, workers=dict.fromkeys(workers, unready))


def running(role: str, count: int, *, version: str = "1", unready: str = "", stored: float = 0.0) -> list[Running]:
    """So many processes that run the worker of the role."""
    found = [process(f"h-{number}", role, version=version, unready=unready) for number in range(count)]
    return [
        Running(role, f"{each.name}-{version}", msgspec.structs.replace(each, time=stored), stored) for each in found
    ]
