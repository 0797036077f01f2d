"""Registries: what is built in, and what is added."""

import pytest

from gradscore.errors import ConfigError
from gradscore.system import Registry, closest, some


def fruits():
    found = Registry("fruit", {"apple": 1.0, "pear": 2.0}, wanted=float)
    found.add("fig", 4.0)
    return found


def test_entries_that_were_added_stand_behind_the_others():
    found = fruits()
    assert list(found.items()) == [("apple", 1.0), ("pear", 2.0), ("fig", 4.0)]
    assert (len(found), found.built_in) == (3, ("apple", "pear"))
    assert found.find("fig", where="basket") == 4.0


UNKNOWN = {
    "near one that is built in": ("aple", r"basket: no fruit 'aple'; did you mean 'apple'\?"),
    "near one that was added": ("figg", r"basket: no fruit 'figg'; did you mean 'fig'\?"),
    "near none": ("xyz", r"basket: no fruit 'xyz'; valid: apple, pear, fig"),
}


@pytest.mark.parametrize(("name", "message"), UNKNOWN.values(), ids=UNKNOWN)
def test_unknown_names_get_a_hint(name, message):
    with pytest.raises(ConfigError, match=message):
        fruits().find(name, where="basket")


def test_of_many_names_the_first_are_listed():
    assert closest("xyz", map(str, range(50))) == f"valid: {', '.join(map(str, range(40)))} and 10 more"


def test_names_whose_blanks_cannot_be_seen_are_in_quotes():
    assert some(["", " ", " a", "a ", "a b", "a"], shown=6) == "'', ' ', ' a', 'a ', a b, a"


@pytest.mark.parametrize("name", ["apple", "fig"])
def test_a_name_that_is_taken_cannot_be_added(name):
    with pytest.raises(ConfigError, match=f"fruit '{name}': there is one of this name already"):
        fruits().add(name, 9.0)


def test_something_else_cannot_be_added():
    with pytest.raises(ConfigError, match="fruit 'plum': wanted a float, got str"):
        fruits().add("plum", "four")


def test_where_no_class_is_wanted_anything_that_can_be_called_will_do():
    found = Registry("verb", {"shout": str.upper})
    found.add("whisper", str.lower)
    assert found["whisper"]("A") == "a"
    with pytest.raises(ConfigError, match="verb 'mumble': wanted something to call, got str"):
        found.add("mumble", "m")


NAMES = {"a slash": "dried/fig", "a colon": "fig:dried", "a space": "dried fig", "nothing": ""}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_names_that_columns_and_settings_could_not_hold_cannot_be_added(name):
    with pytest.raises(ConfigError, match=f"fruit '{name}': wanted a name of letters, digits"):
        fruits().add(name, 4.0)


def test_a_name_with_a_meaning_of_its_own_cannot_be_added():
    found = Registry("fruit", {"apple": 1.0}, wanted=float, reserved=("tomato",))
    with pytest.raises(ConfigError, match="fruit 'tomato': this name means something else already"):
        found.add("tomato", 4.0)
