"""Registries: what is built in, what is added, and what other packages bring."""

import sys

import pytest
from packages import write_package

from gradscore.errors import ConfigError
from gradscore.system import Registry

GROUP = "gradscore.fruits"
PACKAGES = ("grove", "meadow")


def fruits():
    return Registry("fruit", GROUP, {"apple": 1.0, "pear": 2.0}, wanted=float)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs a package with fruits: its code, and objects by entry point."""

    def run(code, points, *, name="grove"):
        monkeypatch.syspath_prepend(str(write_package(tmp_path / name, name, code, {GROUP: points})))

    yield run
    for name in PACKAGES:
        sys.modules.pop(name, None)


def test_entries_of_packages_stand_behind_the_others(install):
    install("FIG = 4.0", {"fig": "FIG"})
    found = fruits()
    found.add("quince", 3.0)
    assert list(found.items()) == [("apple", 1.0), ("pear", 2.0), ("quince", 3.0), ("fig", 4.0)]
    assert len(found) == 4
    assert found.built_in == ("apple", "pear")
    assert found.find("pear", where="basket") == 2.0


def test_only_entries_of_the_group_are_taken(tmp_path, monkeypatch):
    folder = write_package(tmp_path, "grove", "OAK = 5.0", {"gradscore.trees": {"oak": "OAK"}})
    monkeypatch.syspath_prepend(str(folder))
    assert "oak" not in fruits()


USES = {
    "listing": list,
    "counting": len,
    "asking for another": lambda found: found["apple"],
    "asking whether it is there": lambda found: "fig" in found,
    "finding another": lambda found: found.find("apple", where="basket"),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_what_is_not_asked_for_is_not_imported(install, use):
    install("raise RuntimeError('never imported')", {"fig": "FIG"})
    assert use(fruits())
    assert "grove" not in sys.modules


def test_an_entry_is_loaded_once(install):
    install("class Fig(float): pass\nFIG = Fig(4)", {"fig": "FIG"})
    found = fruits()
    assert found["fig"] is found["fig"]


UNKNOWN = {
    "near one that is built in": ("aple", r"basket: no fruit 'aple'; did you mean 'apple'\?"),
    "near one of a package": ("figg", r"basket: no fruit 'figg'; did you mean 'fig'\?"),
    "near none": ("xyz", r"basket: no fruit 'xyz'; valid: apple, pear, fig"),
}


@pytest.mark.parametrize(("name", "message"), UNKNOWN.values(), ids=UNKNOWN)
def test_unknown_names_get_a_hint(install, name, message):
    install("FIG = 4.0", {"fig": "FIG"})
    with pytest.raises(ConfigError, match=message):
        fruits().find(name, where="basket")


BROKEN = {
    "a module that fails": ("import not_there", "FIG", r"ModuleNotFoundError: No module named 'not_there'"),
    "an object that is missing": ("", "FIG", "AttributeError: .*'FIG'.*"),
}


@pytest.mark.parametrize(("code", "target", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_package_is_named(install, code, target, message):
    install(code, {"fig": target})
    wanted = rf"fruit 'fig': grove:{target} of the package grove cannot be loaded \({message}\); repair or uninstall"
    with pytest.raises(ConfigError, match=wanted):
        fruits()["fig"]


def test_a_package_with_something_else_is_named(install):
    install("FIG = 'four'", {"fig": "FIG"})
    with pytest.raises(ConfigError, match="fruit 'fig' of the package grove: wanted a float, got str"):
        fruits()["fig"]


def test_a_package_cannot_take_a_name_that_is_built_in(install):
    install("PEAR = 9.0", {"pear": "PEAR"})
    with pytest.raises(ConfigError, match="fruit 'pear' of the package grove: there is one of this name already"):
        list(fruits())


def test_two_packages_cannot_share_a_name(install):
    install("FIG = 4.0", {"fig": "FIG"})
    install("FIG = 5.0", {"fig": "FIG"}, name="meadow")
    wanted = "fruit 'fig' of the package (grove|meadow): the package (grove|meadow) has one of this name; rename"
    with pytest.raises(ConfigError, match=wanted):
        list(fruits())


@pytest.mark.parametrize("name", ["apple", "fig"])
def test_a_name_that_is_taken_cannot_be_added(install, name):
    install("FIG = 4.0", {"fig": "FIG"})
    with pytest.raises(ConfigError, match=f"fruit '{name}': there is one of this name already"):
        fruits().add(name, 9.0)


def test_where_no_class_is_wanted_anything_that_can_be_called_will_do():
    found = Registry("verb", GROUP, {"shout": str.upper})
    found.add("whisper", str.lower)
    assert found["whisper"]("A") == "a"
    with pytest.raises(ConfigError, match="verb 'mumble' of add: wanted something to call, got str"):
        found.add("mumble", "m")


NAMES = {"a slash": "dried/fig", "a colon": "fig:dried", "a space": "dried fig", "nothing": ""}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_names_that_columns_and_settings_could_not_hold_cannot_be_added(name):
    with pytest.raises(ConfigError, match=f"fruit '{name}': wanted a name of letters, digits"):
        fruits().add(name, 4.0)


def test_names_that_columns_and_settings_could_not_hold_are_refused_of_packages(install):
    install("FIG = 4.0", {"dried/fig": "FIG"})
    with pytest.raises(ConfigError, match="fruit 'dried/fig' of the package grove: wanted a name of letters, digits"):
        list(fruits())


def test_a_name_with_a_meaning_of_its_own_cannot_be_added():
    found = Registry("fruit", GROUP, {"apple": 1.0}, wanted=float, reserved=("tomato",))
    with pytest.raises(ConfigError, match="fruit 'tomato': this name means something else already"):
        found.add("tomato", 4.0)
