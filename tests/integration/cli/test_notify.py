"""`tas run notify` as a user starts it."""

from pathlib import Path

from tests.integration.cli.tas import HEALTH, Tas


async def test_a_wrong_file_of_sinks_is_one_line_and_exit_code_2(tas: Tas, tmp_path: Path) -> None:
    sinks = tmp_path / "sinks.yaml"
    sinks.write_text("sinks: {team: {type: chat}, k: {type: kubernetes-events}}")
    done = await tas("run", "notify", "--bus", "nats://127.0.0.1:9", "--sinks", str(sinks), *HEALTH)
    assert done.code == 2
    (line,) = done.err.splitlines()
    assert "sinks.team" in line
