"""Files of a directory of policies: what a problem says of a file that is no policy."""

import json
from pathlib import Path

import msgspec
import pytest

from workers.policies.files import DirectoryReader

SECRET = "sEcReT"

CONTENTS = [
    SECRET,
    f"spec: 1\n{SECRET}: 1",
    f"{SECRET} and more\n{SECRET}: x: y",
    f"&{SECRET} [*{SECRET}x]",
    f"*{SECRET}",
    f"!{SECRET} x",
    f"%{SECRET} x\n---\n",
    f"{{{SECRET}: 1, {SECRET}: 2}}",
    f"- {SECRET}",
    f'"{SECRET}',
    f"{SECRET}: [",
    f"kind: {SECRET}List",
    f"kind: '{SECRET} {SECRET}'\napiVersion: telemetry.intel.com/v1alpha1",
    f"apiVersion: [{SECRET}]",
    f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----\n",
    f"{{{SECRET}",
    json.dumps({"token": SECRET, "metadata": SECRET}),
    json.dumps(SECRET),
    json.dumps([SECRET]),
]


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
@pytest.mark.parametrize("content", CONTENTS)
def test_a_problem_quotes_nothing_of_a_file_that_is_no_policy(tmp_path: Path, content: str, suffix: str) -> None:
    secret, policies = tmp_path / "secret", tmp_path / "policies"
    secret.write_text(content)
    policies.mkdir()
    (policies / f"a{suffix}").symlink_to(secret)
    (file,) = DirectoryReader(policies).read().files
    assert file.problems
    assert file.policies == ()
    assert SECRET not in str(msgspec.to_builtins(file.problems))
