"""Applying and exporting, against git used by hand: any kind of change, any user's settings, all or nothing."""

import shutil
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fakes.upstream_repo import CLEAN, Upstream, lines, message
from vllm_spark import proc
from vllm_spark.distro.series import export
from vllm_spark.distro.series import patch as patches
from vllm_spark.distro.series.apply import ApplyError, apply_series, stack
from vllm_spark.distro.series.store import Series, SeriesFile
from vllm_spark.distro.upstream import git
from vllm_spark.errors import ConfigError, DecisionNeeded, PatchError

MODEL = "vllm/model.py"


def series(*named: tuple[str, bytes]) -> Series:
    parsed = tuple(patches.parse(f"{name}.patch", data) for name, data in named)
    return Series(parsed, SeriesFile(tuple(patch.path for patch in parsed)))


def odd_files() -> dict[str, bytes]:
    return {
        "vllm/crlf.py": lines(1, 9).replace(b"\n", b"\r\n"),
        "vllm/latin.py": b"# caf\xe9\n" + lines(1, 9),
        "vllm/open.py": b"no newline at the end",
        "vllm/blob.bin": bytes(range(256)),
        "vllm/tool.sh": b"#!/bin/sh\n" + lines(1, 9),
        "vllm/sp ace.py": lines(1, 9),
        MODEL: lines(1, 40),
    }


CHANGES: dict[str, tuple[dict[str, bytes | None], tuple[str, ...]]] = {
    "text": ({MODEL: lines(1, 40, l7="seven", l30="thirty")}, ()),
    "crlf": ({"vllm/crlf.py": lines(1, 9, l3="three").replace(b"\n", b"\r\n")}, ()),
    "to-lf": ({"vllm/crlf.py": lines(1, 9)}, ()),
    "non-utf8": ({"vllm/latin.py": b"# caf\xe9 \xfc\n" + lines(1, 9)}, ()),
    "no-newline": ({"vllm/open.py": b"still none"}, ()),
    "binary": ({"vllm/blob.bin": bytes(range(255, -1, -1))}, ()),
    "mode": ({}, ("vllm/tool.sh",)),
    "rename": ({MODEL: None, "vllm/renamed.py": lines(1, 40, l7="seven")}, ()),
    "pure-rename": ({MODEL: None, "vllm/renamed.py": lines(1, 40)}, ()),
    "delete": ({MODEL: None}, ()),
    "create": ({"vllm/new/deep.py": b"x = 1\n"}, ()),
    "empty-file": ({"vllm/empty.py": b""}, ()),
    "space": ({"vllm/sp ace.py": lines(1, 9, l3="three")}, ()),
    "form-feed": ({MODEL: lines(1, 40, l7="a\x0cb\x85c\u2028d")}, ()),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_change_of_every_kind(tmp_path: Path, kind: str) -> None:
    upstream = Upstream(tmp_path)
    upstream.release("0.33.0", odd_files())
    edits, executable = CHANGES[kind]
    data = upstream.patch(message("model/a"), edits, executable=executable)
    one = series(("model/a", data))
    assert one.patches[0].format() == data
    (outcome,) = apply_series(one, upstream.mirror, "0.33.0", tmp_path / "to")
    assert outcome.state == "applied"
    assert set(outcome.files) == set(edits) | set(executable)
    expected = {name: blob for name, blob in {**odd_files(), **edits}.items() if blob is not None}
    written = [path for path in (tmp_path / "to").rglob("*") if path.is_file() and ".git" not in path.parts]
    assert {path.relative_to(tmp_path / "to").as_posix(): path.read_bytes() for path in written} == expected
    modes = {path.relative_to(tmp_path / "to").as_posix() for path in written if path.stat().st_mode & stat.S_IXUSR}
    assert modes == set(executable)
    assert export.refreshed(one, upstream.mirror, "0.33.0") == {"model/a.patch": data}
    base = upstream.mirror.repository.resolve("v0.33.0")
    assert base is not None
    assert export.from_tree(tmp_path / "to", base) == {"model/a.patch": data}


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=30), min_size=1, max_size=8), st.integers(0, 39), st.text(max_size=20))
def test_export_gives_back_what_was_applied(upstream: Upstream, extra: list[bytes], at: int, word: str) -> None:
    old = lines(1, 40).splitlines(keepends=True)
    new = b"".join([*old[:at], *(line.replace(b"\n", b"") + b"\n" for line in extra), *old[at:]])
    word = "".join(char for char in word if char.isprintable()).strip()
    text = message("model/a").replace("Without it", f"Without {word or 'it'}", 1)
    data = upstream.patch(text, {MODEL: new})
    assert export.refreshed(series(("model/a", data)), upstream.mirror, "0.33.0") == {"model/a.patch": data}


def test_git_am_makes_the_same_tree(upstream: Upstream, tmp_path: Path) -> None:
    a = upstream.patch(message("model/a"), {MODEL: lines(1, 40, l7="seven")})
    b = upstream.patch(message("model/b", Spark_Needs="model/a"), {MODEL: lines(1, 40, l7="7", l8="8")}, after=(a,))
    outcomes = apply_series(series(("model/a", a), ("model/b", b)), upstream.mirror, "0.33.0", tmp_path / "to")
    tree = tmp_path / "am"
    upstream.git(tmp_path, "clone", "-q", "-b", "v0.33.0", str(upstream.mirror.path), str(tree))
    upstream.git(tree, "am", "-q", "--keep-non-patch", "--keep-cr", stdin=a)
    upstream.git(tree, "am", "-q", "--keep-non-patch", "--keep-cr", stdin=b)
    ours = upstream.git(tmp_path / "to", "log", "--format=%T %an %ae %ad %B", "-2").text
    assert ours == upstream.git(tree, "log", "--format=%T %an %ae %ad %B", "-2").text
    assert upstream.git(tmp_path / "to", "status", "--porcelain").text == ""
    assert [outcome.patch.meta.needs for outcome in outcomes] == [(), ("model/a",)]


def test_one_that_fails_hides_no_other(upstream: Upstream, tmp_path: Path) -> None:
    a = upstream.patch(message("model/a"), {MODEL: lines(1, 40, l7="seven", l30="thirty")})
    b = upstream.patch(message("model/b", Spark_Needs="model/a"), {MODEL: lines(1, 40, l7="7")}, after=(a,))
    c = upstream.patch(message("load/c"), {"vllm/loader.py": lines(1, 20, l3="three")})
    d = upstream.patch(message("model/d", Spark_Needs="model/b"), {"vllm/loader.py": lines(1, 20, l18="x")})
    stale = a.replace(b" line 28\n", b" line twenty-eight\n")
    whole = series(("model/a", stale), ("model/b", b), ("load/c", c), ("model/d", d))
    with pytest.raises(ApplyError) as caught:
        apply_series(whole, upstream.mirror, "0.33.0", tmp_path / "new" / "to")
    err = caught.value
    assert [outcome.state for outcome in err.outcomes] == ["failed", "skipped", "applied", "skipped"]
    assert err.outcomes[3].blocked_by == ("model/b",)
    (failure,) = err.outcomes[0].failures
    assert (failure.file, failure.hunk, failure.line) == (MODEL, 2, 27)
    assert any(line.endswith("| line 28") for line in failure.text)
    assert "model/a.patch: does not apply: vllm/model.py: hunk 2 (line 27)" in str(err)
    assert "1 of 4 patches apply, 1 fail, 2 wait" in str(err)
    assert err.exit_code == 4
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize(
    ("edits", "what"),
    [
        ({"vllm/gone.py": lines(1, 9, l3="x")}, "vllm/gone.py: no such file"),
        ({"vllm/loader.py": b"created here\n"}, "vllm/loader.py: upstream has a file of this name already"),
        ({"vllm/blob.bin": b"\0\1"}, "vllm/blob.bin"),
    ],
)
def test_file_as_a_whole_does_not_fit(
    upstream: Upstream, edits: dict[str, bytes | None], what: str, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = Upstream(tmp_path / "other")
    other.release("0.33.0", {"README": b"r\n", "vllm/gone.py": lines(1, 9), "vllm/blob.bin": b"\0"})
    data = other.patch(message("model/a"), edits)
    with pytest.raises(ApplyError) as caught:
        apply_series(series(("model/a", data)), upstream.mirror, "0.33.0", tmp_path / "to")
    assert what in str(caught.value)
    assert not (tmp_path / "to").exists()


def test_moved_lines_are_told(upstream: Upstream) -> None:
    data = upstream.patch(message("model/a"), {MODEL: lines(1, 40, l7="seven")})
    with stack(upstream.mirror, "0.34.0") as onto:
        outcome = onto.push(patches.parse("model/a.patch", data))
    assert outcome.state == "offset"
    assert outcome.offsets == ("Hunk #1 succeeded at 5 (offset 1 line)",)


HOSTILE = """
[diff]
    noprefix = true
    algorithm = patience
    context = 1
    mnemonicPrefix = true
    external = /bin/false
    renames = false
[format]
    signOff = true
    attach = true
    pretty = raw
    subjectPrefix = OTHER
    headers = "X-Leak: yes"
[core]
    autocrlf = true
    abbrev = 5
    hooksPath = hooks
    fsmonitor = /bin/false
[commit]
    gpgSign = true
[apply]
    whitespace = fix
[user]
    useConfigOnly = true
[i18n]
    commitEncoding = latin1
"""


@pytest.mark.parametrize("where", ["HOME", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "tree"])
def test_no_user_setting_leaks(upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    data = upstream.patch(message("model/a"), {MODEL: lines(1, 40, l7="seven  "), "crlf": b"a\r\n"})
    one, home, to = series(("model/a", data)), tmp_path / "home", tmp_path / "to"
    (home / "git").mkdir(parents=True)
    (home / ".gitconfig").write_text(HOSTILE)
    (home / "git" / "config").write_text(HOSTILE)
    if where != "tree":
        monkeypatch.setenv(where, str(home / ".gitconfig" if where == "GIT_CONFIG_GLOBAL" else home))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index-of-the-caller"))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", "/bin/false")
    apply_series(one, upstream.mirror, "0.33.0", to)
    if where == "tree":
        with (to / ".git" / "config").open("a") as file:
            file.write(HOSTILE)
    base = upstream.mirror.repository.resolve("v0.33.0")
    assert base is not None
    assert export.from_tree(to, base) == {"model/a.patch": data}
    assert (to / "crlf").read_bytes() == b"a\r\n"
    assert not (tmp_path / "index-of-the-caller").exists()


def test_hostile_settings_would_leak_into_plain_git(upstream: Upstream, tmp_path: Path) -> None:
    """The settings above are not harmless: the same command without our pins writes something else."""
    data = upstream.patch(message("model/a"), {MODEL: lines(1, 40, l7="seven")})
    (tmp_path / "config").write_text(HOSTILE.replace("external = /bin/false", ""))
    env = {**CLEAN, "GIT_CONFIG_GLOBAL": str(tmp_path / "config")}
    words = ["format-patch", "--zero-commit", "--full-index", "--no-signature", "--stat=72", "-k", "-N", "-U3"]
    assert proc.run(["git", *words, "--stdout", "-1"], cwd=tmp_path / "work1", env=env).stdout != data


def test_tree_of_another_owner(upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's root unpacks trees with foreign owners, and git then refuses whatever it has to search for."""
    data = upstream.patch(message("model/a"), {MODEL: lines(1, 40, l7="seven")})
    foreign = {"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"}
    apply_series(series(("model/a", data)), upstream.mirror, "0.33.0", tmp_path / "to")
    plain = proc.run(["git", "status"], cwd=tmp_path / "to", env={**CLEAN, **foreign}, check=False)
    assert "dubious ownership" in plain.output
    clean = git._environment
    monkeypatch.setattr(git, "_environment", lambda extra: {**clean(extra), **foreign})
    base = upstream.mirror.repository.resolve("v0.33.0")
    assert base is not None
    assert export.from_tree(tmp_path / "to", base) == {"model/a.patch": data}
    apply_series(series(("model/a", data)), upstream.mirror, "0.33.0", tmp_path / "to")


def edited(upstream: Upstream, to: Path) -> bytes:
    data = upstream.patch(message("model/a"), {MODEL: lines(1, 40, l7="seven")})
    apply_series(series(("model/a", data)), upstream.mirror, "0.33.0", to)
    return data


def test_tree_without_work_is_replaced(upstream: Upstream, tmp_path: Path) -> None:
    data = edited(upstream, tmp_path / "to")
    cache = tmp_path / "to" / "vllm" / "__pycache__"
    cache.mkdir()
    (cache / "model.pyc").write_bytes(b"")
    apply_series(series(("model/a", data)), upstream.mirror, "0.33.0", tmp_path / "to")
    assert not cache.exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".to")]


@pytest.mark.parametrize("work", ["edit", "untracked", "commit", "foreign", "file", "other repository"])
def test_work_is_never_overwritten(upstream: Upstream, tmp_path: Path, work: str) -> None:
    to = tmp_path / "to"
    data = edited(upstream, to)
    precious = to / "precious.py"
    match work:
        case "edit":
            precious = to / MODEL
            precious.write_text("mine")
        case "untracked":
            precious.write_text("mine")
        case "commit":
            precious.write_text("mine")
            upstream.git(to, "add", "-A")
            upstream.git(to, "commit", "-qm", "mine")
        case "file":
            shutil.rmtree(to)
            precious = to
            precious.write_text("mine")
        case _:
            shutil.rmtree(to / ".git")
            precious.write_text("mine")
            if work == "other repository":
                upstream.git(to, "init", "-q")
    with pytest.raises(ConfigError) as caught:
        apply_series(series(("model/a", data)), upstream.mirror, "0.33.0", to)
    assert caught.value.exit_code == 2
    assert str(to) in str(caught.value)
    assert precious.read_text() == "mine"


def test_amended_tree_is_exported(upstream: Upstream, tmp_path: Path) -> None:
    to, folder = tmp_path / "to", tmp_path / "patches"
    data = edited(upstream, to)
    old = series(("model/a", data))
    export.write(folder, Series(()), {"model/a.patch": data}, ())
    (to / MODEL).write_bytes(lines(1, 40, l7="SEVEN"))
    upstream.git(to, "commit", "-qa", "--amend", "--no-edit")
    (to / "vllm" / "new.py").write_bytes(b"n = 1\n")
    upstream.git(to, "add", "-A")
    upstream.git(to, "commit", "-q", "-F", "-", stdin=message("load/new").encode())
    base = upstream.mirror.repository.resolve("v0.33.0")
    assert base is not None
    files = export.from_tree(to, base)
    assert list(files) == ["model/a.patch", "load/new.patch"]
    assert export.write(folder, old, files, ()) == ["model/a.patch", "load/new.patch", "series"]
    assert (folder / "series").read_text() == "model/a.patch\nload/new.patch\n"
    assert b"+SEVEN" in (folder / "model" / "a.patch").read_bytes()


def test_patch_goes_only_with_a_reason(upstream: Upstream, tmp_path: Path) -> None:
    data = edited(upstream, tmp_path / "to")
    old = series(("model/a", data))
    export.write(tmp_path / "patches", Series(()), {"model/a.patch": data}, ())
    with pytest.raises(DecisionNeeded, match=r"model/a\.patch.*ledger"):
        export.write(tmp_path / "patches", old, {}, ())
    assert (tmp_path / "patches" / "model" / "a.patch").read_bytes() == data
    assert export.write(tmp_path / "patches", old, {}, ("model/a",)) == ["series", "model/a.patch"]
    assert (tmp_path / "patches" / "series").read_bytes() == b""


def test_commits_that_are_no_patches_are_refused(upstream: Upstream, tmp_path: Path) -> None:
    to = tmp_path / "to"
    edited(upstream, to)
    base = upstream.mirror.repository.resolve("v0.33.0")
    assert base is not None
    upstream.git(to, "commit", "-q", "--allow-empty", "-F", "-", stdin=message("model/b").encode())
    with pytest.raises(PatchError, match="changes nothing"):
        export.from_tree(to, base)
    (to / "x").write_bytes(b"x\n")
    upstream.git(to, "add", "-A")
    upstream.git(to, "commit", "-q", "--amend", "-F", "-", stdin=message("model/a").encode())
    with pytest.raises(PatchError, match="two commits are model/a"):
        export.from_tree(to, base)
    with pytest.raises(ConfigError, match="another release"):
        export.from_tree(to, "0" * 40)
    upstream.git(to, "commit", "-q", "--amend", "-F", "-", stdin=message("model/b").encode())
    upstream.git(to, "checkout", "-q", "-b", "side", "HEAD~1")
    (to / "y").write_bytes(b"y\n")
    upstream.git(to, "add", "-A")
    upstream.git(to, "commit", "-q", "-F", "-", stdin=message("model/y").encode())
    upstream.git(to, "merge", "-q", "--no-edit", "series")
    with pytest.raises(PatchError, match="is a merge"):
        export.from_tree(to, base)
