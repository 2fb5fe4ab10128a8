"""A directory of policies and the bucket POLICIES on a real bus."""

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from bus.buckets import NODES, POLICIES, SYNCED
from bus.connection import Bus
from bus.records.policies import PolicyRecord, encode_policy
from bus.subjects import policy_key
from tas.policy.directory import MAX_LISTED_PROBLEMS, FileProblems
from tas.policy.policy import Policy, PolicyKey, StrategyType
from tas.values.quantity import NANO
from tests.integration.servers import Server, eventually
from tests.integration.workers.running import entry_on, epoch_on, policies_on, policy_names, put, running, synced_on
from workers.policies.files import FolderListing
from workers.policies.worker import PolicyDirectory


def manifest(name: str, *, target: int = 1, namespace: str | None = None, **spec: object) -> dict[str, object]:
    metadata = {"name": name} if namespace is None else {"name": name, "namespace": namespace}
    rules = [{"metricname": "health_metric", "operator": "Equals", "target": target}]
    return {
        "apiVersion": "telemetry.intel.com/v1alpha1",
        "kind": "TASPolicy",
        "metadata": metadata,
        "spec": {"strategies": {"dontschedule": {"rules": rules}}, **spec},
    }


def text(*manifests: Mapping[str, object]) -> str:
    return "\n---\n".join(orjson.dumps(one).decode() for one in manifests)


class Directory:
    """The directory, its worker, and the bus it writes to."""

    def __init__(self, path: Path, bus: Bus, worker: PolicyDirectory, registry: CollectorRegistry) -> None:
        self.path = path
        self.bus = bus
        self.worker = worker
        self.registry = registry

    def write(self, name: str, content: str | bytes) -> None:
        """Writes a file atomically, as most editors do."""
        unfinished = self.path / f".{name}.unfinished"
        unfinished.write_bytes(content.encode() if isinstance(content, str) else content)
        unfinished.replace(self.path / name)

    def metric(self, name: str, **labels: str) -> float:
        value = self.registry.get_sample_value(name, labels)
        assert value is not None
        return value

    async def ready(self) -> float:
        return await eventually(lambda: self.worker.unready() is None)

    async def holds(self, *names: str) -> float:
        async def are_stored() -> bool:
            return await policy_names(self.bus) == set(names)

        return await eventually(are_stored)

    async def target(self, name: str) -> float:
        record = (await policies_on(self.bus))[f"default/{name}"]
        target = record.policy.strategies[StrategyType.DONTSCHEDULE].rules[0].target
        assert target is not None
        return target / NANO

    async def has_target(self, name: str, target: float) -> None:
        async def is_stored() -> bool:
            return await self.target(name) == target

        await eventually(is_stored)

    async def reports(self, *fragments: str) -> None:
        """Waits until the problems of the worker contain these texts, in this order."""

        def are_reported() -> bool:
            problems = self.worker.problems
            return len(problems) == len(fragments) and all(
                fragment in str(problem) for fragment, problem in zip(fragments, problems, strict=True)
            )

        await eventually(are_reported)

    async def file_problems(self) -> FileProblems:
        """What `_synced` says about the files."""
        synced = await synced_on(self.bus, POLICIES)
        return FileProblems() if synced is None else synced.file_problems

    async def stores_problems_of(self, *origins: str) -> None:
        """Waits until the problems on the bus are those of these files."""

        async def are_stored() -> bool:
            return tuple(problem.origin for problem in (await self.file_problems()).listed) == origins

        await eventually(are_stored)

    async def pass_ended(self) -> None:
        """Waits until a pass has ended that began after this call: it has written a policy of this call."""
        marker = f"marker-{time.monotonic_ns()}"
        self.write(f"{marker}.yaml", text(manifest(marker)))

        async def written() -> bool:
            return marker in await policy_names(self.bus)

        await eventually(written)
        (self.path / f"{marker}.yaml").unlink()

        async def removed() -> bool:
            return marker not in await policy_names(self.bus)

        await eventually(removed)


@asynccontextmanager
async def following(path: Path, bus: Bus, *, reread_seconds: float = 60.0) -> AsyncIterator[Directory]:
    """A worker on `path`. Its regular passes are so rare that a test sees only the effects of notifications."""
    registry = CollectorRegistry()
    worker = PolicyDirectory(bus, directory=path, registry=registry, reread_seconds=reread_seconds)
    async with running(worker):
        yield Directory(path, bus, worker, registry)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "policies"
    path.mkdir()
    return path


@pytest.fixture
async def directory(path: Path, bus: Bus) -> AsyncIterator[Directory]:
    """An empty directory, after the first pass."""
    async with following(path, bus) as directory:
        await directory.ready()
        yield directory


async def test_all_policies_of_the_directory_are_written_before_synced(path: Path, bus: Bus) -> None:
    (path / "a.yaml").write_text(text(manifest("one"), manifest("two", namespace="other")))
    (path / "b.yml").write_text(text(manifest("three")))
    (path / "c.json").write_text(text(manifest("four")))
    (path / "notes.txt").write_text("no policy")
    (path / "sub").mkdir()
    (path / "sub" / "d.yaml").write_text(text(manifest("five")))
    async with following(path, bus) as directory:
        assert directory.worker.unready() is not None
        await directory.ready()
        records = await policies_on(bus)
        assert set(records) == {"default/one", "other/two", "default/three", "default/four", "default/five"}
        assert records["default/five"].origin == "sub/d.yaml"
        for bucket, count in ((POLICIES, 5), (NODES, 0)):
            synced = await synced_on(bus, bucket)
            assert synced is not None
            assert (synced.epoch, synced.count, synced.writer, synced.cluster) == (
                (await epoch_on(bus, bucket)).created,
                count,
                "directory",
                False,
            )
        assert directory.metric("tas_policies") == 5
        assert directory.metric("tas_policy_files") == 4
        assert directory.worker.problems == ()


async def test_an_empty_directory_is_a_complete_list(directory: Directory) -> None:
    synced = await synced_on(directory.bus, POLICIES)
    assert synced is not None
    assert synced.count == 0


async def test_a_new_an_edited_and_a_deleted_file_change_the_bucket(directory: Directory) -> None:
    directory.write("a.yaml", text(manifest("one")))
    await directory.holds("one")
    directory.write("a.yaml", text(manifest("one", target=7)))
    await directory.has_target("one", 7)
    (directory.path / "a.yaml").unlink()
    await directory.holds()
    await eventually(lambda: directory.metric("tas_policy_writes_total", operation="delete") == 1)
    assert directory.metric("tas_policy_writes_total", operation="put") == 2

    async def count_is_zero() -> bool:
        synced = await synced_on(directory.bus, POLICIES)
        return synced is not None and synced.count == 0

    await eventually(count_is_zero)


async def test_a_file_that_is_written_in_pieces_is_stored_when_it_is_complete(directory: Directory) -> None:
    whole = text(manifest("one"), manifest("two"))
    with (directory.path / "a.yaml").open("w", buffering=1) as file:
        for piece in (whole[:50], whole[50:200], whole[200:]):
            file.write(piece)
            file.flush()
            await directory.pass_ended()
    await directory.holds("one", "two")
    await directory.reports()


async def test_the_policy_of_a_file_that_is_emptied_and_written_again_is_never_deleted(directory: Directory) -> None:
    directory.write("a.yaml", text(manifest("one")))
    await directory.holds("one")
    with (directory.path / "a.yaml").open("w") as file:
        await directory.reports("holds no policy")
        await directory.pass_ended()
        assert await policy_names(directory.bus) == {"one"}
        file.write(text(manifest("one", target=8)))
    await directory.has_target("one", 8)
    await directory.reports()
    assert directory.metric("tas_policy_writes_total", operation="delete") == 1  # the marker of `pass_ended`


async def test_uid_follows_the_name_and_generation_the_spec(directory: Directory) -> None:
    directory.write("a.yaml", text(manifest("one")))
    await directory.holds("one")
    before = (await policies_on(directory.bus))["default/one"]
    directory.write("a.yaml", text(manifest("one", target=2)))
    await directory.has_target("one", 2)
    edited = (await policies_on(directory.bus))["default/one"]
    assert edited.uid == before.uid
    assert edited.generation != before.generation
    (directory.path / "a.yaml").unlink()
    await directory.holds()
    directory.write("b.yaml", text(manifest("one")))
    await directory.holds("one")
    again = (await policies_on(directory.bus))["default/one"]
    assert (again.uid, again.generation) == (before.uid, before.generation)
    assert again.generation > 0


async def test_an_edit_that_changes_nothing_writes_nothing(directory: Directory) -> None:
    directory.write("a.yaml", text(manifest("one")))
    await directory.holds("one")
    entry = await entry_on(directory.bus, POLICIES, "default.one")
    directory.write("a.yaml", "# a comment\n" + text(manifest("one")) + "\n\n")
    await directory.pass_ended()
    assert await entry_on(directory.bus, POLICIES, "default.one") == entry


async def test_stored_policies_are_not_written_again_after_a_restart(path: Path, bus: Bus) -> None:
    (path / "a.yaml").write_text(text(manifest("one"), manifest("two", suspend=True, staleAfter="30s")))
    async with following(path, bus) as directory:
        await directory.ready()
    before = (await epoch_on(bus, POLICIES)).last_sequence, (await epoch_on(bus, NODES)).last_sequence
    async with following(path, bus) as directory:
        await directory.ready()
    assert ((await epoch_on(bus, POLICIES)).last_sequence, (await epoch_on(bus, NODES)).last_sequence) == before


async def test_changes_of_the_directory_without_a_worker_are_stored_at_the_next_start(path: Path, bus: Bus) -> None:
    (path / "a.yaml").write_text(text(manifest("one")))
    (path / "b.yaml").write_text(text(manifest("two")))
    async with following(path, bus) as directory:
        await directory.ready()
    (path / "a.yaml").unlink()
    (path / "b.yaml").write_text(text(manifest("two", target=5)))
    (path / "c.yaml").write_text(text(manifest("three")))
    async with following(path, bus) as directory:
        await directory.ready()
        assert await policy_names(bus) == {"two", "three"}
        assert await directory.target("two") == 5


@pytest.mark.ci
async def test_500_new_files_and_250_deletions_are_all_stored(directory: Directory) -> None:
    names = [f"policy-{number}" for number in range(500)]
    for name in names:
        directory.write(f"{name}.yaml", text(manifest(name)))
    await directory.holds(*names)
    for name in names[::2]:
        (directory.path / f"{name}.yaml").unlink()
    await directory.holds(*names[1::2])


async def test_250_of_500_files_deleted_during_the_first_writes_leave_250_policies(directory: Directory) -> None:
    names = [f"policy-{number}" for number in range(500)]
    for name in names:
        directory.write(f"{name}.yaml", text(manifest(name)))
        await asyncio.sleep(0)

    async def begun() -> bool:
        return bool(await policy_names(directory.bus))

    await eventually(begun)
    for name in names[:250]:
        (directory.path / f"{name}.yaml").unlink()
    await directory.holds(*names[250:])


BAD_FILES: dict[str, tuple[str | bytes, str]] = {
    "not-yaml": ("a: b: c", "no YAML: line 1"),
    "not-json-in-json": ("{", "no JSON"),
    "half-written": (text(manifest("one"))[:60], "no YAML"),
    "empty": ("", "holds no policy"),
    "binary": (b"\x89PNG\r\n\x1a\n\x00\x00", "no YAML"),
    "not-a-policy": ('{"apiVersion": "v1", "kind": "TASPolicy", "metadata": {"name": "one"}}', "apiVersion"),
    "plain-text": ("hello", "must be an object"),
    "no-name": (text({**manifest("x"), "metadata": {}}), "metadata.name"),
    "emoji-name": (text(manifest("\U0001f600")), "metadata.name"),
    "schema-violation": (text(manifest("one", suspend="perhaps")), "spec.suspend"),
    "operator": (text(manifest("one")).replace("Equals", "Equal"), "operator"),
    "too-large": ("#" * (2 << 20), "more than 1048576 bytes"),
    "deep": ("[" * 500_000, "nested more than"),
    "alias-bomb": (
        "a: &a [x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=True)),
        "more than 100000 values",
    ),
}


@pytest.mark.parametrize("case", BAD_FILES)
async def test_an_invalid_edit_keeps_the_last_good_version_and_is_logged_once(directory: Directory, case: str) -> None:
    content, words = BAD_FILES[case]
    suffix = "json" if case == "not-json-in-json" else "yaml"
    with capture_logs() as logs:
        directory.write(f"a.{suffix}", text(manifest("one", target=4)))
        directory.write("b.yaml", text(manifest("two")))
        await directory.holds("one", "two")
        before = await entry_on(directory.bus, POLICIES, "default.one")
        directory.write(f"a.{suffix}", content)
        await directory.reports(words)
        await directory.pass_ended()
        assert await entry_on(directory.bus, POLICIES, "default.one") == before
        assert directory.metric("tas_policy_files_unreadable") == 1
        directory.write(f"a.{suffix}", text(manifest("one", target=6)))
        await directory.has_target("one", 6)
        await directory.reports()
        assert directory.metric("tas_policy_files_unreadable") == 0
    logged = [line for line in logs if line["event"] == "policy_file_invalid" and words in str(line)]
    assert len(logged) == 1
    assert logged[0]["file"] == f"a.{suffix}"
    assert {"object", "field", "value", "reason"} <= logged[0].keys()
    assert logged[0]["in_force"] == "last good version"
    assert "unknown for every node" not in logged[0]["reason"]
    assert [line["file"] for line in logs if line["event"] == "policy_file_valid"] == [f"a.{suffix}"]


async def test_the_problems_of_files_are_on_the_bus_while_they_exist(directory: Directory) -> None:
    directory.write("a.yaml", text(manifest("one")))
    await directory.holds("one")
    directory.write("b.yaml", text(manifest("two", suspend="perhaps")))
    await directory.stores_problems_of("b.yaml")
    (problem,) = (await directory.file_problems()).listed
    assert (problem.subject, problem.field, problem.value) == ("policy default/two", "spec.suspend", "'perhaps'")
    assert problem.in_force == "nothing"
    directory.write("a.yaml", "a: b: c")
    await directory.stores_problems_of("a.yaml", "b.yaml")
    assert await policy_names(directory.bus) == {"one"}
    for file in directory.path.iterdir():
        file.unlink()
    await directory.stores_problems_of()
    for number in range(MAX_LISTED_PROBLEMS + 20):
        directory.write(f"{number}.yaml", "a: b: c")

    async def all_counted() -> bool:
        return (await directory.file_problems()).others == 20

    await eventually(all_counted)


async def test_the_deletion_of_an_invalid_file_removes_its_policy(directory: Directory) -> None:
    directory.write("a.yaml", text(manifest("one")))
    await directory.holds("one")
    directory.write("a.yaml", "a: b: c")
    await directory.reports("no YAML")
    (directory.path / "a.yaml").unlink()
    await directory.holds()
    await directory.reports()


async def test_a_policy_that_is_accepted_with_problems_is_stored_with_them(directory: Directory) -> None:
    directory.write("a.yaml", text(manifest("one")).replace('"spec":{', '"spec":{"suspended":true,'))
    await directory.holds("one")
    (problem,) = (await policies_on(directory.bus))["default/one"].problems
    assert problem.field == "spec.suspended"
    assert not problem.refused
    assert directory.worker.problems == ()


async def test_an_invalid_document_does_not_affect_the_others_of_its_file(directory: Directory) -> None:
    directory.write("a.yaml", text(manifest("one"), manifest("two"), manifest("three")))
    await directory.holds("one", "two", "three")
    directory.write("a.yaml", text(manifest("one", target=9), manifest("two", suspend="no?")))
    await directory.has_target("one", 9)
    await directory.reports("spec.suspend")
    assert await policy_names(directory.bus) == {"one", "two", "three"}


async def test_of_two_policies_of_one_name_the_first_path_is_stored_and_the_other_is_reported(
    directory: Directory,
) -> None:
    directory.write("b.yaml", text(manifest("one", target=2)))
    await directory.holds("one")
    directory.write("a.yaml", text(manifest("one", target=1)))
    await directory.has_target("one", 1)
    await directory.reports("file b.yaml: policy default/one: metadata.name")
    assert directory.metric("tas_policy_duplicates") == 1
    (directory.path / "a.yaml").unlink()
    await directory.has_target("one", 2)
    await directory.reports()


async def test_a_policy_that_moves_to_another_file_is_never_deleted(directory: Directory) -> None:
    directory.write("a.yaml", text(manifest("one")))
    await directory.holds("one")
    first = await entry_on(directory.bus, POLICIES, "default.one")
    assert first is not None
    (directory.path / "a.yaml").rename(directory.path / "b.yaml")

    async def moved() -> bool:
        return (await policies_on(directory.bus))["default/one"].origin == "b.yaml"

    await eventually(moved)
    assert directory.metric("tas_policy_writes_total", operation="delete") == 0


async def test_a_missing_directory_removes_no_policy_and_is_logged(directory: Directory) -> None:
    directory.write("a.yaml", text(manifest("one")))
    await directory.holds("one")
    away = directory.path.with_name("away")
    with capture_logs() as logs:
        directory.path.rename(away)
        await eventually(lambda: directory.metric("tas_policy_directory_readable") == 0)
        assert await policy_names(directory.bus) == {"one"}
        assert directory.worker.unready() is None
        (away / "b.yaml").write_text(text(manifest("two")))
        away.rename(directory.path)
        await directory.holds("one", "two")
    events = [line["event"] for line in logs]
    assert events.count("policy_directory_unreadable") == 1
    assert events.count("policy_directory_readable") == 1
    assert directory.metric("tas_policy_directory_readable") == 1


async def test_a_directory_that_replaces_the_first_one_is_followed(directory: Directory) -> None:
    directory.write("a.yaml", text(manifest("one")))
    await directory.holds("one")
    other = directory.path.with_name("other")
    other.mkdir()
    (other / "b.yaml").write_text(text(manifest("two")))
    directory.path.rename(directory.path.with_name("old"))
    other.rename(directory.path)
    await directory.holds("two")
    directory.write("c.yaml", text(manifest("three")))
    await directory.holds("two", "three")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unreadable to root; run the tests as another user")
async def test_an_unreadable_directory_removes_no_policy(directory: Directory) -> None:
    directory.write("a.yaml", text(manifest("one")))
    await directory.holds("one")
    directory.path.chmod(0)
    try:
        await eventually(lambda: directory.metric("tas_policy_directory_readable") == 0)
        assert await policy_names(directory.bus) == {"one"}
    finally:
        directory.path.chmod(0o755)


async def test_a_file_in_the_place_of_the_directory_removes_no_policy(directory: Directory) -> None:
    directory.write("a.yaml", text(manifest("one")))
    await directory.holds("one")
    directory.path.rename(directory.path.with_name("away"))
    directory.path.write_text("no directory")
    await eventually(lambda: directory.metric("tas_policy_directory_readable") == 0)
    assert await policy_names(directory.bus) == {"one"}
    await directory.ready()
    (concern,) = directory.worker.concerns()
    assert concern.startswith("the directory cannot be read, so no change of it counts: ")
    directory.path.unlink()
    directory.path.with_name("away").rename(directory.path)
    await eventually(lambda: list(directory.worker.concerns()) == [])


async def test_a_new_version_of_a_mounted_config_map_is_one_edit(path: Path, bus: Bus) -> None:
    def version(name: str, **targets: int) -> Path:
        folder = path / name
        folder.mkdir()
        for policy, target in targets.items():
            (folder / f"{policy}.yaml").write_text(text(manifest(policy, target=target)))
        return folder

    version("..2026_01", one=1, two=1)
    (path / "..data").symlink_to("..2026_01")
    for policy in ("one", "two"):
        (path / f"{policy}.yaml").symlink_to(f"..data/{policy}.yaml")
    async with following(path, bus) as directory:
        await directory.ready()
        assert await policy_names(bus) == {"one", "two"}
        assert (await policies_on(bus))["default/one"].origin == "one.yaml"
        version("..2026_02", one=2, two=2)
        (path / "..data_tmp").symlink_to("..2026_02")
        (path / "..data_tmp").replace(path / "..data")
        shutil.rmtree(path / "..2026_01")
        await directory.has_target("one", 2)
        await directory.has_target("two", 2)
        assert directory.metric("tas_policy_writes_total", operation="delete") == 0
        # A key that is removed from the ConfigMap: its link points nowhere until it is deleted.
        version("..2026_03", one=3)
        (path / "..data_tmp").symlink_to("..2026_03")
        (path / "..data_tmp").replace(path / "..data")
        await directory.has_target("one", 3)
        await directory.reports("file two.yaml: file: path")
        assert await policy_names(bus) == {"one", "two"}
        (path / "two.yaml").unlink()
        await directory.holds("one")


async def test_a_path_that_is_no_regular_file_is_reported_and_not_read(directory: Directory) -> None:
    os.mkfifo(directory.path / "pipe.yaml")
    directory.write("a.yaml", text(manifest("one")))
    await directory.holds("one")
    await directory.reports("file pipe.yaml: file: path = 'pipe.yaml': not a regular file")


async def test_a_file_whose_name_is_not_valid_text_is_followed(directory: Directory) -> None:
    directory.write(os.fsdecode(b"\xff.yaml"), text(manifest("one")))
    await directory.holds("one")
    assert (await policies_on(directory.bus))["default/one"].origin == "\\xff.yaml"


async def test_without_notifications_the_regular_passes_find_changes(
    path: Path, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHFILES_FORCE_POLLING", "true")
    monkeypatch.setenv("WATCHFILES_POLL_DELAY_MS", "60000")
    async with following(path, bus, reread_seconds=0.2) as directory:
        await directory.ready()
        directory.write("a.yaml", text(manifest("one")))
        await directory.holds("one")


async def test_policies_that_came_from_no_file_are_not_changed(path: Path, bus: Bus) -> None:
    key = PolicyKey("default", "theirs")
    record = PolicyRecord(policy=Policy(key=key, strategies={}), uid="u", generation=3)
    await put(bus, POLICIES, policy_key(key), encode_policy(record))
    async with following(path, bus) as directory:
        await directory.ready()
        await directory.pass_ended()
        assert await policies_on(bus) == {"default/theirs": record}


async def test_policies_that_somebody_else_deleted_or_overwrote_are_written_again(path: Path, bus: Bus) -> None:
    for name in ("one", "two"):
        (path / f"{name}.yaml").write_text(text(manifest(name)))
    async with following(path, bus) as directory:
        await directory.ready()
        await put(bus, POLICIES, "default.one", None)
        await put(bus, POLICIES, "default.two", b"{")
        directory.write("three.yaml", text(manifest("three")))

        async def good() -> bool:
            entry = await entry_on(bus, POLICIES, "default.two")
            return entry is not None and entry.value != b"{" and await policy_names(bus) == {"one", "two", "three"}

        await eventually(good)


async def test_two_replicas_do_not_write_against_each_other(path: Path, bus: Bus, server: Server) -> None:
    (path / "a.yaml").write_text(text(manifest("one")))
    (path / "bad.yaml").write_text("a: b: c")
    async with (
        Bus.connect(server.url, name="second") as second_bus,
        following(path, bus) as first,
        following(path, second_bus) as second,
    ):
        await first.ready()
        await second.ready()
        for target in range(2, 12):
            first.write("a.yaml", text(manifest("one", target=target)))
            await first.has_target("one", target)
        names = [f"policy-{number}" for number in range(50)]
        for name in names:
            first.write(f"{name}.yaml", text(manifest(name)))
        await first.holds("one", *names)
        await first.pass_ended()
        last = (await epoch_on(bus, POLICIES)).last_sequence
        await second.pass_ended()
        # Two markers, each written and removed, and `_synced` with each count: no replica undoes a write of the other.
        assert (await epoch_on(bus, POLICIES)).last_sequence - last <= 8


async def test_after_a_wipe_everything_is_published_again(directory: Directory, server: Server) -> None:
    directory.write("a.yaml", text(manifest("one")))
    directory.write("b.yaml", text(manifest("two", target=3)))
    await directory.holds("one", "two")
    # A policy whose file is invalid now is only on the bus and in the memory of the worker.
    directory.write("b.yaml", "a: b: c")
    await directory.stores_problems_of("b.yaml")
    before = await epoch_on(directory.bus, POLICIES)
    await server.restart(wiped=True)
    await directory.holds("one", "two")
    assert await directory.target("two") == 3
    await directory.ready()
    epoch = await epoch_on(directory.bus, POLICIES)
    assert epoch.created != before.created
    for bucket in (POLICIES, NODES):
        synced = await synced_on(directory.bus, bucket)
        assert synced is not None
        assert synced.epoch == (await epoch_on(directory.bus, bucket)).created
    await directory.stores_problems_of("b.yaml")


async def wiped_twice(
    directory: Directory, server: Server, monkeypatch: pytest.MonkeyPatch, *, wiped: list[object]
) -> None:
    """Wipes the bus, and again once all policies are published again: `wiped` gets the epoch between the two."""
    worker = directory.worker
    before, write_all = worker._records.epoch, worker._write_all

    async def write_and_be_wiped(*arguments: Any) -> bool:
        written = await write_all(*arguments)
        epoch = worker._records.epoch
        if written and epoch is not before and not wiped:
            wiped.append(epoch)
            await server.restart(wiped=True)
            await eventually(lambda: worker._records.epoch is not epoch)
        return written

    monkeypatch.setattr(worker, "_write_all", write_and_be_wiped)
    await server.restart(wiped=True)
    await eventually(lambda: bool(wiped) and worker._records.epoch is not wiped[0] and worker.unready() is None)


async def test_a_second_wipe_while_policies_are_published_again_loses_none(
    directory: Directory, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.write("a.yaml", text(manifest("one")))
    await directory.holds("one")
    directory.write("a.yaml", "a: b: c")
    await directory.stores_problems_of("a.yaml")
    await wiped_twice(directory, server, monkeypatch, wiped=[])
    await directory.holds("one")


async def test_a_second_wipe_while_policies_are_published_again_brings_no_deleted_policy_back(
    directory: Directory, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file was deleted between the wipes, and after the second one the directory cannot be read."""
    for file, name in (("a.yaml", "one"), ("b.yaml", "two")):
        directory.write(file, text(manifest(name)))
    await directory.holds("one", "two")
    worker, before = directory.worker, directory.worker._records.epoch
    read = worker._reader.read
    wiped: list[object] = []

    def read_after_a_change() -> FolderListing:
        if worker._records.epoch is not before:
            (directory.path / "b.yaml").unlink(missing_ok=True)
        return replace(read(), problem="gone") if wiped else read()

    monkeypatch.setattr(worker._reader, "read", read_after_a_change)
    await wiped_twice(directory, server, monkeypatch, wiped=wiped)
    await directory.holds("one")


async def test_changes_during_an_outage_of_the_bus_are_stored_after_it(directory: Directory, server: Server) -> None:
    directory.write("a.yaml", text(manifest("one")))
    await directory.holds("one")
    await server.kill()
    directory.write("b.yaml", text(manifest("two")))
    (directory.path / "a.yaml").unlink()
    await server.start()
    await directory.holds("two")


async def test_without_the_directory_at_start_no_list_is_complete(tmp_path: Path, bus: Bus) -> None:
    async with following(tmp_path / "nowhere", bus) as directory:
        await eventually(lambda: "cannot be read" in (directory.worker.unready() or ""))
        assert await entry_on(bus, POLICIES, SYNCED) is None
        directory.path.mkdir()
        directory.write("a.yaml", text(manifest("one")))
        await directory.ready()
        await directory.holds("one")


async def test_with_a_full_server_the_list_is_not_complete(path: Path, server: Server) -> None:
    await server.stop()
    await server.start(store_bytes=1)
    (path / "a.yaml").write_text(text(manifest("one")))
    async with Bus.connect(server.url, name="full") as bus, following(path, bus) as directory:
        await eventually(lambda: "not caught up" in (directory.worker.unready() or ""))
        assert directory.worker.unready() is not None
