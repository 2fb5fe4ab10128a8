"""After a wipe: held until a complete list of the new life was taken in, and only then let go."""

from tas.epoch import Survivors


def test_n34_nothing_goes_before_the_complete_list() -> None:
    survivors: Survivors[str] = Survivors()
    survivors.begin("e2")
    survivors.name("kept")
    assert not survivors.complete
    assert survivors.finish("e2", ["kept", "gone"]) == ["gone"]
    assert survivors.complete


def test_a_complete_list_of_another_life_says_nothing() -> None:
    survivors: Survivors[str] = Survivors()
    survivors.begin("e2")
    assert survivors.finish("e1", ["kept"]) == []
    assert not survivors.complete


def test_what_was_deleted_before_the_list_was_complete_goes_with_it() -> None:
    survivors: Survivors[str] = Survivors()
    survivors.begin("e1")
    survivors.name("a")
    survivors.unname("a")
    assert survivors.finish("e1", ["a"]) == ["a"]


def test_once_complete_a_list_removes_nothing_more() -> None:
    survivors: Survivors[str] = Survivors()
    survivors.begin("e1")
    survivors.name("a")
    survivors.finish("e1", [])
    assert survivors.finish("e1", ["a", "b"]) == []
