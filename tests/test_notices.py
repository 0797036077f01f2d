"""Sentences for the reader, with a level."""

import pickle

from gradscore.notices import Notice, by_urgency, notes, urgent


def test_notices_are_sorted_by_urgency_and_keep_their_level() -> None:
    found = by_urgency(["a", Notice("b", "caution"), Notice("c", "warning"), "d"])
    assert [(str(each), each.level) for each in found] == [
        ("c", "warning"), ("b", "caution"), ("a", "note"), ("d", "note")
    ]  # fmt: skip
    assert urgent(found) == ["c", "b"]
    assert [each.level for each in notes(found)] == [each.level for each in found]


def test_a_notice_goes_to_another_process_with_its_level() -> None:
    sent = pickle.loads(pickle.dumps(Notice("a", "warning")))
    assert (sent, sent.level) == ("a", "warning")
