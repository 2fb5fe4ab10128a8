"""Lists that are read while they arrive: only a complete one counts, and nothing of one that broke off."""

from typing import Any

from workers.kubernetes.client import Change, ChangeType, Listing
from workers.kubernetes.followers import Gathered, Shared, Whole
from workers.kubernetes.resources import Metadata, Object


def found(name: str) -> Object:
    return Object(metadata=Metadata(name=name, uid=f"uid-{name}", resource_version="1"))


def added(name: str) -> Change[Object]:
    return Change(type=ChangeType.ADDED, object=found(name))


class Seen:
    """What a follower has handed over."""

    def __init__(self) -> None:
        self.lists: list[Any] = []
        self.changes: list[str] = []

    def change(self, change: Change[Object]) -> None:
        self.changes.append(change.object.metadata.name)

    def gathered(self) -> Gathered[Object, str]:
        def read(each: Object) -> tuple[str, str] | None:
            return None if each.metadata.name == "unneeded" else (each.metadata.name, each.metadata.uid)

        return Gathered(read, on_list=self.lists.append, on_change=self.change)


def test_only_what_is_needed_of_a_complete_list_is_handed_over() -> None:
    seen = Seen()
    gathered = seen.gathered()
    gathered.begin()
    gathered.read([found("a")])
    gathered.begin()  # the first list broke off
    gathered.read([found("b"), found("unneeded")])
    gathered.read([found("c")])
    assert seen.lists == []
    gathered.end("7")
    assert seen.lists == [{"b": "uid-b", "c": "uid-c"}]

    gathered.change(added("d"))
    assert seen.changes == ["d"]
    gathered.begin()
    gathered.end("8")
    assert seen.lists[1:] == [{}]
    assert seen.lists[0]  # the list before stays with who has it


def test_a_whole_list_has_the_objects_of_one_attempt() -> None:
    seen = Seen()
    whole = Whole(seen.lists.append, seen.change)
    for names in ("a", "bc"):
        whole.begin()
        whole.read([found(name) for name in names])
    whole.end("7")
    assert seen.lists == [Listing(items=(found("b"), found("c")), resource_version="7")]


def test_all_followers_get_everything() -> None:
    first, second = Seen(), Seen()
    shared = Shared(first.gathered(), second.gathered())
    shared.begin()
    shared.read([found("a")])
    shared.begin()
    shared.read([found("b")])
    shared.end("7")
    shared.change(added("c"))
    for seen in (first, second):
        assert (seen.lists, seen.changes) == ([{"b": "uid-b"}], ["c"])
