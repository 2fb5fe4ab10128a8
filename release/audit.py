"""Asks PyPI for known weaknesses of the packages that a deployed worker needs: those of `requirements.txt`.

Fails if there is one. Without an answer it says so, and does not fail: a check must work on a machine without network.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

REQUIREMENTS = Path(__file__).parents[1] / "requirements.txt"

SECONDS = 60.0
"""The time limit of all questions."""


def findings(report: dict[str, Any]) -> tuple[list[str], int, int]:
    """A line for each weakness in a report of pip-audit, and how many packages were audited, and were not."""
    found: list[str] = []
    audited = 0
    for package in report["dependencies"]:
        if "skip_reason" in package:
            continue
        audited += 1
        for weakness in package["vulns"]:
            fixed = ", ".join(weakness["fix_versions"]) or "no version yet"
            found.append(f"{package['name']} {package['version']}: {weakness['id']}, fixed in {fixed}")
    return found, audited, len(report["dependencies"]) - audited


def main() -> int:
    """The exit code: 1 if there is a weakness."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(REQUIREMENTS)]
    command += ["--require-hashes", "--disable-pip", "--format", "json", "--progress-spinner", "off"]
    try:
        # The exit code is 1 for a weakness and for no network alike: the report says which.
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)  # noqa: S603
        report = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        print("packages not audited: PyPI does not answer")  # noqa: T201
        return 0
    found, audited, others = findings(report)
    for line in found:
        print(line)  # noqa: T201
    print(f"{audited} packages audited, {len(found)} known weaknesses; PyPI has no answer for {others}")  # noqa: T201
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
