"""Servers of a cluster demand a password from each other, with the configuration of docs/how-to/close-the-bus.md."""

import json
import re
from contextlib import ExitStack
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from bus.server import find_binary
from tests.e2e.processes import free_ports, running, until
from tests.integration.cli.tas import Tas

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "close-the-bus.md"
(CLUSTER,) = re.findall(r"```\n(cluster \{\n(?:.*\n)*?\})\n```", PAGE.read_text())
AUTHORIZATION = re.compile(r"^ *authorization .*\n", re.MULTILINE)


def joined(monitor: int) -> set[str]:
    """The names of the servers that a server has routes to: between two servers are several, opened bit by bit."""
    try:
        with urlopen(f"http://127.0.0.1:{monitor}/routez", timeout=60) as answer:
            return {route["remote_name"] for route in json.load(answer)["routes"]}
    except URLError:  # it does not listen yet
        return set()


async def test_nobody_joins_a_closed_cluster_without_its_password(tas: Tas, tmp_path: Path) -> None:
    operator = tmp_path / "operator"
    assert (await tas("bus", "init", str(operator))).code == 0
    password = (operator / "cluster.password").read_text().strip()
    addresses, monitors, clients = free_ports(4), free_ports(4), free_ports(4)
    binary, logs = str(await find_binary()), [tmp_path / "logs" / f"{name}.log" for name in ("one", "two", "third")]

    def server(name: str, number: int, *, shown: str, cluster: str) -> tuple[list[str], dict[str, str]]:
        """The command of a server that shows a password to the first two, and its environment."""
        user = f"tas:{shown}@" if shown else ""
        to = [f"nats://{user}127.0.0.1:{port}" for port in addresses[:2]]
        file = tmp_path / f"{name}.conf"
        file.write_text(
            f'listen: "127.0.0.1:{clients[number]}"\nhttp: "127.0.0.1:{monitors[number]}"\nserver_name: {name}\n'
            + cluster.replace("0.0.0.0:6222", f"127.0.0.1:{addresses[number]}")
            + f'\ninclude "{operator.relative_to(tmp_path)}/auth.conf"\n'
        )
        return [binary, "--config", str(file)], {"CLUSTER_PASSWORD": password, "CLUSTER_ROUTES": json.dumps(to)}

    with ExitStack() as stack:
        for number, name in enumerate(("one", "two")):
            command, env = server(name, number, shown=password, cluster=CLUSTER)
            stack.enter_context(running(name, command, folder=tmp_path, env=env))
        one, two, _, third = monitors
        until(lambda: (joined(one), joined(two)) == ({"two"}, {"one"}), "the two servers have found each other")
        # The intruder has the rest of the configuration: auth.conf is no secret, and it lets everybody in.
        for shown in ("", "guessed"):
            command, env = server(f"intruder-{shown}", 2, shown=shown, cluster=AUTHORIZATION.sub("", CLUSTER))
            with running(f"intruder-{shown}", command, folder=tmp_path, env=env) as intruder:
                until(lambda: intruder.log.read_text().count("Authorization Violation") > 2, "the intruder is refused")
                # The intruder itself lists a server for the moment between its greeting and its refusal.
                assert (joined(one), joined(two)) == ({"two"}, {"one"})
        addresses_of_clients = ",".join(f"nats://127.0.0.1:{clients[number]}" for number in (0, 1, 3))
        command, env = server("third", 3, shown="guessed", cluster=CLUSTER.replace("$CLUSTER_PASSWORD", "guessed"))
        with running("apart", command, folder=tmp_path, env=env) as apart:
            until(lambda: "Listening for route connections" in apart.log.read_text(), "it listens")
            done = await tas("bus", "check", str(operator), "--bus", addresses_of_clients)
            assert "these servers do not reach each other: one, two; third: do they have" in done.out
        command, env = server("third", 3, shown=password, cluster=CLUSTER)
        with running("third", command, folder=tmp_path, env=env):
            until(lambda: joined(third) == {"one", "two"}, "with the password the same server joins both")
            until(lambda: (joined(one), joined(two)) == ({"two", "third"}, {"one", "third"}), "the others know it")
            done = await tas("bus", "check", str(operator), "--bus", addresses_of_clients)
            assert {"server one: ok", "server two: ok", "server third: ok"} < set(done.out.splitlines())
            assert "reach each other" not in done.out
    assert password not in "".join(each.read_text() for each in logs)
