"""After a wipe, keys are missing only once a complete list of the new epoch was read."""

from tas.view.epoch_keys import EpochKeys


def test_facts_n34_no_key_is_missing_before_the_complete_list() -> None:
    epoch_keys: EpochKeys[str] = EpochKeys()
    epoch_keys.start_epoch("e2")
    epoch_keys.add("kept")
    assert not epoch_keys.complete
    assert epoch_keys.complete_epoch("e2", ["kept", "gone"]) == ["gone"]
    assert epoch_keys.complete


def test_a_complete_list_of_another_epoch_changes_nothing() -> None:
    epoch_keys: EpochKeys[str] = EpochKeys()
    epoch_keys.start_epoch("e2")
    assert epoch_keys.complete_epoch("e1", ["kept"]) == []
    assert not epoch_keys.complete


def test_a_key_deleted_before_the_list_was_complete_is_missing() -> None:
    epoch_keys: EpochKeys[str] = EpochKeys()
    epoch_keys.start_epoch("e1")
    epoch_keys.add("a")
    epoch_keys.discard("a")
    assert epoch_keys.complete_epoch("e1", ["a"]) == ["a"]


def test_after_a_complete_list_no_further_key_is_missing() -> None:
    epoch_keys: EpochKeys[str] = EpochKeys()
    epoch_keys.start_epoch("e1")
    epoch_keys.add("a")
    epoch_keys.complete_epoch("e1", [])
    assert epoch_keys.complete_epoch("e1", ["a", "b"]) == []


def test_a_key_of_an_earlier_epoch_is_missing_in_this_one() -> None:
    epoch_keys: EpochKeys[str] = EpochKeys()
    epoch_keys.start_epoch("e1")
    epoch_keys.add("a")
    epoch_keys.start_epoch("e2")
    assert epoch_keys.complete_epoch("e2", ["a"]) == ["a"]
