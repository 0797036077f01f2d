"""What a bundle or a run folder names is run only where it lies near, as it was, after it was shown."""

import importlib.util
import py_compile
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from bundle_parts import parts_of, put_together
from commands import cli
from PIL import Image

from gradscore.deployment import Scorer, make_bundle, read_bundle, write_bundle
from gradscore.detector import Detector
from gradscore.errors import BundleError, ModelError
from gradscore.inspect import inspect_config
from gradscore.models import code_sha256, trusting_code
from gradscore.store import RunFolder, changing
from gradscore.system import file_sha256

MARK = "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\n"


@pytest.fixture
def place(small_bundle: Path, tmp_path: Path) -> Path:
    """A folder with a bundle and the code of its model beside it, and the same code in a folder further up."""
    (tmp_path / "here").mkdir()
    shutil.copy(small_bundle, tmp_path / "here" / "x.gradscore")
    shutil.copy(small_bundle.with_name("net.py"), tmp_path / "here" / "net.py")
    shutil.copy(small_bundle.with_name("net.py"), tmp_path / "net.py")
    return tmp_path / "here"


def renamed(bundle: Path, source: str, **fields: object) -> Path:
    """The bundle anew, with another source of its model and right checksums."""
    index, members = parts_of(bundle)
    index["model"] |= {"source": source, **fields}
    put_together(bundle, index, members)
    return bundle


ELSEWHERE = {
    "an absolute path": "python:/usr/lib/python3/os.py:system",
    "a link that leads out": "python:link.py:net",
    "a module": "python:os:system",
    "a file of an installed package": "python:.venv/lib/python3.11/site-packages/net.py:net",
}


@pytest.mark.parametrize("source", ELSEWHERE.values(), ids=ELSEWHERE)
def test_code_elsewhere_is_not_run(place: Path, source: str) -> None:
    (place / "link.py").symlink_to(place.parent / "net.py")
    installed = place / ".venv" / "lib" / "python3.11" / "site-packages"
    installed.mkdir(parents=True)
    shutil.copy(place / "net.py", installed / "net.py")
    with pytest.raises(ModelError, match=r"wants to run .*: wanted a file below .*name it yourself: --model 'python:"):
        Scorer.load(renamed(place / "x.gradscore", source), trust_code=True)


def test_all_that_a_bundle_in_another_folder_needs_is_said_at_once(small_run: Path, tmp_path: Path) -> None:
    bundle = make_bundle(RunFolder(small_run), alpha=0.1, trust_code=True)
    write_bundle(tmp_path / "x.gradscore", bundle)
    advice = r"--model 'python:FOLDER/net.py:net' --weights FILE --trust-code, in Python .*trust_code=True$"
    with pytest.raises(ModelError, match=advice):
        Scorer.load(renamed(tmp_path / "x.gradscore", "python:net.py:net", checkpoint="net.safetensors"))
    shutil.copy(small_run.parent / "net.py", tmp_path)
    with pytest.raises(ModelError, match=r"--trust-code .*; say where .*net.safetensors is now: --weights FILE"):
        Scorer.load(tmp_path / "x.gradscore")


def test_a_detector_takes_what_its_message_advises(small_run: Path, tmp_path: Path) -> None:
    write_bundle(tmp_path / "x.gradscore", make_bundle(RunFolder(small_run), alpha=0.1, trust_code=True))
    bundle = renamed(tmp_path / "x.gradscore", "python:net.py:net", checkpoint="net.safetensors")
    code = f"python:{small_run.parent}/net.py:net"
    weights = RunFolder(small_run).config.model.checkpoint
    with pytest.raises(ModelError, match=r"in Python model_source=\.\.\., weights=\.\.\., trust_code=True$"):
        Detector.load(bundle)
    with pytest.raises(BundleError, match="SHA-256"):
        Detector.load(bundle, model_source=code, weights=weights, trust_code=True, sha256="0" * 64)
    loaded = Detector.load(bundle, model_source=code, weights=weights, trust_code=True)
    assert loaded.save(tmp_path / "y.gradscore", with_weights=False)
    source = parts_of(tmp_path / "y.gradscore")[0]["model"]["source"]
    assert (tmp_path / source.split(":")[1]).resolve() == small_run.parent.resolve() / "net.py"
    again = Detector.load(tmp_path / "y.gradscore", model_source=code, trust_code=True)
    assert again.bundle.detectors.keys() == {"wrong", "ood"}


def test_code_in_a_folder_below_is_run(place: Path) -> None:
    (place / "code").mkdir()
    (place / "net.py").rename(place / "code" / "net.py")
    scorer = Scorer.load(renamed(place / "x.gradscore", "python:code/net.py:net"), trust_code=True)
    assert scorer.bundle.code_sha256 == file_sha256(place / "code" / "net.py")


def test_code_elsewhere_is_run_where_its_user_names_it(place: Path) -> None:
    bundle = renamed(place / "x.gradscore", "python:../net.py:net")
    told: list[str] = []
    source = f"python:{place.parent}/net.py:net"
    with trusting_code(tell=told.append):
        Scorer.load(bundle, model_source=source)
    assert told == [f"{source} with arguments {{}}, SHA-256 of the code {file_sha256(place.parent / 'net.py')}"]


def test_a_module_is_run_where_its_user_names_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "pack").mkdir()
    (place / "pack" / "__init__.py").touch()
    (place / "net.py").rename(place / "pack" / "net_of_pack.py")
    monkeypatch.syspath_prepend(place)
    scorer = Scorer.load(place / "x.gradscore", trust_code=True, model_source="python:pack.net_of_pack:net")
    assert scorer.bundle.code_sha256 == file_sha256(place / "pack" / "net_of_pack.py")


SOURCES = {"named by the bundle": None, "named by the user": "python:{place}/net.py:net"}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_other_code_is_refused_before_it_runs(place: Path, source: str | None) -> None:
    (place / "net.py").write_text(MARK + (place / "net.py").read_text())
    named = None if source is None else source.format(place=place)
    with pytest.raises(ModelError, match=r"made with code of SHA-256 \w{12}\.\.\., .*nothing of it was run.*anew"):
        Scorer.load(place / "x.gradscore", trust_code=True, model_source=named)
    assert not (place / "ran").exists()


def test_a_file_that_the_code_imports_may_be_what_changed(place: Path) -> None:
    (place / "helper.py").write_text((place / "net.py").read_text())
    (place / "net.py").write_text("from helper import net\n")
    index, members = parts_of(place / "x.gradscore")
    index["code_sha256"] = code_sha256(f"python:{place}/net.py:net")
    put_together(place / "x.gradscore", index, members)
    Scorer.load(place / "x.gradscore", trust_code=True)
    (place / "helper.py").write_text(MARK + (place / "helper.py").read_text())
    with pytest.raises(ModelError, match=r"net\.py with what it imports has \w{12}\.\.\.; nothing of it was run"):
        Scorer.load(place / "x.gradscore", trust_code=True)
    assert not (place / "ran").exists()


def test_a_module_with_other_code_is_refused_before_its_package_runs(place: Path, monkeypatch) -> None:
    (place / "marked").mkdir()
    (place / "marked" / "__init__.py").write_text(MARK)
    (place / "marked" / "net.py").write_text(MARK + (place / "net.py").read_text())
    monkeypatch.syspath_prepend(place)
    with pytest.raises(ModelError, match="made with code of SHA-256"):
        Scorer.load(place / "x.gradscore", trust_code=True, model_source="python:marked.net:net")
    assert not (place / "marked" / "ran").exists()


def test_a_bundle_without_the_hash_of_its_code_is_refused(place: Path) -> None:
    index, members = parts_of(place / "x.gradscore")
    put_together(place / "x.gradscore", index | {"code_sha256": None}, members)
    with pytest.raises(ModelError, match="made with code of SHA-256 unknown"):
        Scorer.load(place / "x.gradscore", trust_code=True)


def test_compiled_code_beside_the_file_is_not_run(place: Path) -> None:
    """Python takes a .pyc for the file whose size and time it names, whatever is in it."""
    stamp = (place / "net.py").stat()
    (place / "evil.py").write_text(MARK)
    cached = Path(importlib.util.cache_from_source(str(place / "net.py")))
    py_compile.compile(str(place / "evil.py"), cfile=str(cached))
    content = bytearray(cached.read_bytes())
    content[8:16] = int(stamp.st_mtime).to_bytes(4, "little") + stamp.st_size.to_bytes(4, "little")
    cached.write_bytes(content)
    Scorer.load(place / "x.gradscore", trust_code=True)
    assert not (place / "ran").exists()


def test_a_bundle_is_read_once(small_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is hashed is what is used, even where the file is another one a moment later."""
    digest, real, reads = file_sha256(small_bundle), Path.read_bytes, []

    def read(path: Path) -> bytes:
        reads.append(path)
        return b"other" if reads.count(small_bundle) > 1 else real(path)

    monkeypatch.setattr(Path, "read_bytes", read)
    assert read_bundle(small_bundle, sha256=digest).alpha == 0.1
    assert reads.count(small_bundle) == 1


def copied(small_run: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder whose configuration names code outside its surroundings."""
    shutil.copytree(small_run, folder / "deep" / "run")
    (folder / "empty").mkdir()
    monkeypatch.chdir(folder / "empty")
    return folder / "deep" / "run"


USES: dict[str, Callable[[RunFolder], object]] = {
    "bundle": lambda run: make_bundle(run, alpha=0.1, trust_code=True),
    "inspect": lambda run: trusting_code(origin=run.code)(inspect_config)(run.config, samples=4),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_run_folder_from_elsewhere_names_no_code(small_run: Path, tmp_path: Path, monkeypatch, use) -> None:
    run = RunFolder(copied(small_run, tmp_path, monkeypatch))
    with pytest.raises(ModelError, match=r"run wants to run .*wanted a file below .*deep or .*empty"):
        use(run)


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_code_that_changed_since_the_run_is_not_run(small_run: Path, tmp_path: Path, monkeypatch, use) -> None:
    run = copied(small_run, tmp_path, monkeypatch)
    (tmp_path / "deep" / "net.py").write_text(MARK + (small_run.parent / "net.py").read_text())
    text = (run / "config.yaml").read_text()
    with changing(run, ["config.yaml"]):
        (run / "config.yaml").write_text(text.replace(f"{small_run.parent}/net.py", f"{tmp_path}/deep/net.py"))
    with pytest.raises(ModelError, match="run was made with code of SHA-256"):
        use(RunFolder(run))
    assert not (tmp_path / "deep" / "ran").exists()


def test_bundling_code_that_the_user_names(small_run: Path, tmp_path: Path, monkeypatch) -> None:
    run, source = copied(small_run, tmp_path, monkeypatch), f"python:{small_run.parent}/net.py:net"
    assert make_bundle(RunFolder(run), alpha=0.1, trust_code=True, model_source=source).model.source == source


SHAS = {
    "the right one": (lambda bundle: ["--trust-code", "--sha256", file_sha256(bundle).upper()], 0, "running python:"),
    "another one": (
        lambda bundle: ["--trust-code", "--sha256", "0" * 64],
        2,
        f"wanted the file with SHA-256 {'0' * 64}, got",
    ),
    "none": (lambda bundle: [], 2, "in Python trust_code=True"),
}


@pytest.mark.parametrize(("options", "code", "message"), SHAS.values(), ids=SHAS)
def test_trust_on_the_command_line(place: Path, options, code: int, message: str) -> None:
    Image.new("L", (8, 8)).save(place / "a.png")
    bundle = place / "x.gradscore"
    result = cli("score", *options(bundle), bundle, place / "a.png")
    assert (result.exit_code, message in result.stderr) == (code, True)


def test_what_runs_is_shown_before_it_runs(place: Path) -> None:
    Image.new("L", (8, 8)).save(place / "a.png")
    renamed(place / "x.gradscore", "python:net.py:net", arguments={"outputs": "\x1b[2J"})
    result = cli("score", place / "x.gradscore", place / "a.png", "--trust-code")
    digest = file_sha256(place / "net.py")
    wanted = (
        f'running python:{place}/net.py:net with arguments {{"outputs": "\\u001b[2J"}}, SHA-256 of the code {digest}'
    )
    assert result.stderr.splitlines()[0] == wanted
    assert read_bundle(place / "x.gradscore").model.arguments == {"outputs": "\x1b[2J"}


@pytest.mark.parametrize(("command", "out"), [("score", "out.csv"), ("monitor", "out")])
def test_quiet_commands_do_not_show_it(place: Path, command: str, out: str) -> None:
    Image.new("L", (8, 8)).save(place / "a.png")
    given = [command, str(place / "x.gradscore"), str(place / "a.png"), "--out", str(place / out), "--trust-code"]
    loud, quiet = (cli(*given, *extra) for extra in ([], ["-q"]))
    assert (loud.exit_code, quiet.exit_code) == (0, 0)
    assert "running python:" in loud.stderr
    assert quiet.stderr == ""


def test_a_folder_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="wanted the file of a bundle, got something else"):
        read_bundle(tmp_path)


def test_a_run_folder_is_no_bundle_and_makes_one(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_text("{}")
    with pytest.raises(BundleError, match=r"run: a run folder, and no bundle; make one with gradscore bundle .*run$"):
        read_bundle(tmp_path / "run")
