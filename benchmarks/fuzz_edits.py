"""Seeded damage to valid files: bits, cuts and splices anywhere, and edits of what JSON, YAML and archives say."""

import io
import json
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import yaml

from gradscore.errors import GradscoreError
from gradscore.system import sha256

ODD_VALUES: list[Any] = [
    *(None, True, -1, 0, 1, 2**31, 2**63, 2**200, 0.5, -0.0, 1e308, float("nan"), float("inf")),
    *(
        "",
        "a",
        "\0",
        "../../x",
        "/etc/passwd",
        "~",
        "${HOME}",
        "<b>&'\"",
        "\x1b[2J",
        "\ud800",
        "x" * 5000,
        "1e999",
        "null",
    ),
    *([], {}, [[]], [None], {"": ""}, [1, 2], {"a": {"b": []}}, ["in_dist.test"], [0.1, "x"], [[1]] * 3),
]
INTEGERS = [
    b"\0" * 4,
    b"\xff" * 4,
    b"\xff" * 8,
    b"\x7f\xff\xff\xff",
    b"\0\0\0\x80",
    b"\x01\0\0\0\0\0\0\x80",
    b"PK\x03\x04",
]


def damaged(random: Random, content: bytes) -> bytes:
    """One to three of: flipped bits, a cut, a splice, an insertion, zeros, an odd integer."""
    found = bytearray(content)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        size = len(found)
        if not size:
            return bytes(random.randbytes(8))
        place, length = random.randrange(size), random.randint(1, max(1, min(size, 64)))
        match random.randrange(6):
            case 0:
                for _ in range(random.choice((1, 1, 2, 8))):
                    found[random.randrange(size)] ^= 1 << random.randrange(8)
            case 1:
                del found[place : None if random.random() < 0.5 else place + length]
            case 2:
                start = random.randrange(size)
                found[place : place + random.randrange(length + 1)] = found[start : start + length]
            case 3:
                found[place:place] = random.randbytes(length)
            case 4:
                found[place : place + length] = bytes(length)
            case _:
                integer = random.choice(INTEGERS)
                found[place : place + len(integer)] = integer
    return bytes(found)


def edited(random: Random, value: Any) -> Any:
    """Another value in one place of nested mappings and lists, a place less, or one more; changes `value`."""
    places: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        node = waiting.pop()
        entries = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, entry in list(entries):
            places.append((node, key))
            waiting.append(entry)
    if not places or random.random() < 0.02:
        return random.choice(ODD_VALUES)
    node, key = random.choice(places)
    match random.randrange(5):
        case 0:
            del node[key]
        case 1 if isinstance(node, dict):
            node[
                random.choice(["", "x", "../x", "weights", "a/b", "\x1b", key * 2 if isinstance(key, str) else "k"])
            ] = node.pop(key)
        case 2:
            other, name = random.choice(places)
            node[key] = other[name] if name in other or (isinstance(other, list) and name < len(other)) else None
        case _:
            node[key] = random.choice(ODD_VALUES)
    return value


def plain(value: Any) -> Any:
    """A copy without what refers to itself."""
    return json.loads(json.dumps(value))


def edited_json(random: Random, content: bytes) -> bytes:
    return json.dumps(_edited_often(random, json.loads(content))).encode("utf-8", "surrogatepass")


def edited_yaml(random: Random, content: bytes) -> bytes:
    return yaml.safe_dump(_edited_often(random, yaml.safe_load(content))).encode("utf-8", "surrogatepass")


def _edited_often(random: Random, value: Any) -> Any:
    for _ in range(random.choice((1, 1, 2))):
        try:
            value = plain(edited(random, value))
        except ValueError:  # it contained itself
            return None
    return value


def edited_safetensors(random: Random, content: bytes) -> bytes:
    size = int.from_bytes(content[:8], "little")
    header = edited_json(random, content[8 : 8 + size])
    return len(header).to_bytes(8, "little") + header + content[8 + size :]


def edited_zip(random: Random, content: bytes) -> bytes:
    """The archive anew with right checksums and a member damaged, renamed, repeated or left out."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    place = random.randrange(len(members))
    name, inside = members[place]
    match random.randrange(8):
        case 0:
            members[place] = (random.choice(["../x", "/x", "a\0b", "", name + "x"]), inside)
        case 1:
            del members[place]
        case _:
            members[place] = (name, damaged(random, inside))
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for each, part in members:
            archive.writestr(zipfile.ZipInfo(each), part)
    return stream.getvalue()


def edited_bundle(random: Random, content: bytes) -> bytes:
    """The bundle anew, changed in one member and with right checksums, as an attacker would write it."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    index = json.loads(members.pop("bundle.json"))
    members.pop("bundle.sha256")
    index.pop("members")
    if random.random() < 0.5:
        index = _edited_often(random, index)
    else:
        name = random.choice(sorted(members))
        members[name] = any_edit(random, name, members[name])
        if name.endswith("arrays.safetensors"):
            description = name.replace("arrays.safetensors", "model.json")
            note = json.loads(members[description])
            members[description] = json.dumps({**note, "arrays_sha256": sha256(members[name])}).encode()
    if isinstance(index, dict):
        index["members"] = {name: sha256(each) for name, each in members.items()}
    text = json.dumps(index).encode("utf-8", "surrogatepass")
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("bundle.json", text)
        archive.writestr("bundle.sha256", sha256(text))
        for name, each in members.items():
            archive.writestr(name, each)
    return stream.getvalue()


EDITS: dict[str, Callable[[Random, bytes], bytes]] = {
    ".json": edited_json,
    ".yaml": edited_yaml,
    ".safetensors": edited_safetensors,
    ".pt": edited_zip,
    ".npz": edited_zip,
    ".gradscore": edited_bundle,
}


def any_edit(random: Random, name: str, content: bytes) -> bytes:
    """Damage to the bytes, or where the suffix says what is inside, an edit of that."""
    edit = EDITS.get("." + name.rpartition(".")[2])
    return damaged(random, content) if edit is None or random.random() < 0.4 else edit(random, content)


def outcome(read: Callable[[], object]) -> str:
    """`accepted`, `refused`, or what else came out of it."""
    try:
        read()
    except GradscoreError:
        return "refused"
    except Exception as error:  # noqa: BLE001  what else comes out is what is looked for
        own = [each for each in traceback.extract_tb(error.__traceback__) if "/gradscore/" in each.filename]
        where = f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "nowhere"
        return f"{type(error).__name__} in {where}: {(str(error).splitlines() or [''])[0][:80]}"
    return "accepted"
