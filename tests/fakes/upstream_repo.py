"""A small upstream in a temporary folder: real sdists, a real mirror, and patches made with real git by hand.

Nothing here uses the code that applies and exports patches, so that it can judge that code.
"""

import hashlib
import io
import os
import tarfile
from pathlib import Path

from vllm_spark import proc
from vllm_spark.distro.upstream.mirror import Mirror

__all__ = ["CLEAN", "Upstream", "lines", "message", "sdist"]

# what a maintainer's git must not see of the machine, so that the patches made here are always the same
CLEAN = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Ada Müller",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_AUTHOR_DATE": "2026-11-01T10:20:30 +0100",
    "GIT_COMMITTER_NAME": "C",
    "GIT_COMMITTER_EMAIL": "c@example.org",
    "GIT_COMMITTER_DATE": "2026-11-02T00:00:00 +0000",
}
_FORMAT = ["--zero-commit", "--full-index", "--no-signature", "--stat=72", "-k", "-N", "-U3"]


def lines(*numbers: int, **changed: str) -> bytes:
    """Numbered lines, all different; `l7="x"` replaces line 7."""
    first, last = numbers
    return "".join(f"{changed.get(f'l{n}', f'line {n}')}\n" for n in range(first, last + 1)).encode()


def message(name: str, *, drop: tuple[str, ...] = (), **trailers: str | tuple[str, ...]) -> str:
    """A complete commit message; keyword arguments replace trailers (`Spark_Kind="fix"`), `drop` leaves some out."""
    values: dict[str, str | tuple[str, ...]] = {
        "Spark-Patch": name,
        "Spark-Kind": "fix",
        "Spark-Class": "python",
        "Spark-Upstream": "local: only this test needs it",
        "Spark-Origin": "own",
        "Spark-Drop-When": "never",
        "Spark-Guard": "guards/guard_model.py::test_model",
        "Spark-Needs": (),
        "Signed-off-by": "Ada Müller <ada@example.org>",
    }
    values.update({key.replace("_", "-"): value for key, value in trailers.items()})
    rows = [(key, row) for key, value in values.items() for row in ([value] if isinstance(value, str) else value)]
    tail = "\n".join(f"{key}: {value}" for key, value in rows if key not in drop)
    return f"model: change {name}\n\nWithout it nothing here would change, and a plugin cannot do it.\n\n{tail}\n"


def sdist(folder: Path, project: str, version: str, files: dict[str, bytes], executable: tuple[str, ...] = ()) -> Path:
    """An sdist of these files."""
    path = folder / f"{project}-{version}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(f"{project}-{version}/{name}")
            member.size, member.mode = len(data), 0o755 if name in executable else 0o644
            archive.addfile(member, io.BytesIO(data))
    return path


class Upstream:
    """A mirror with releases, and a maintainer's work tree on it."""

    def __init__(self, root: Path, *, mirror: Path | None = None, project: str = "vllm") -> None:
        self.root = root
        self.mirror = Mirror(project, mirror or root / "mirror.git")
        self._count = 0

    def release(self, version: str, files: dict[str, bytes], *, executable: tuple[str, ...] = ()) -> Path:
        """Publish a release: its sdist, imported into the mirror."""
        path = sdist(self.root, self.mirror.project, version, files, executable)
        self.mirror.add(version, path, hashlib.sha256(path.read_bytes()).hexdigest())
        return path

    def patch(
        self,
        text: str,
        edits: dict[str, bytes | None],
        *,
        version: str = "0.33.0",
        after: tuple[bytes, ...] = (),
        executable: tuple[str, ...] = (),
    ) -> bytes:
        """What `git format-patch` makes of edits (None deletes) to a release with the patches `after` applied."""
        self._count += 1
        tree = self.root / f"work{self._count}"
        self.git(self.root, "clone", "-q", "-b", f"v{version}", str(self.mirror.path), str(tree))
        for earlier in after:
            self.git(tree, "am", "-q", "--keep-non-patch", "--keep-cr", stdin=earlier)
        for name, data in edits.items():
            path = tree / name
            if data is None:
                path.unlink()
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        for name in executable:
            (tree / name).chmod(0o755)
        self.git(tree, "add", "-A")
        self.git(tree, "commit", "-q", "--cleanup=verbatim", "-F", "-", stdin=text.encode())
        return self.git(tree, "format-patch", *_FORMAT, "--stdout", "-1").stdout

    def many(self, commits: list[tuple[str, dict[str, bytes]]], *, version: str = "0.33.0") -> list[bytes]:
        """What `git format-patch` makes of many commits on a release, each a message and the files that it writes."""
        self._count += 1
        tree, out = self.root / f"work{self._count}", self.root / f"out{self._count}"
        self.git(self.root, "clone", "-q", "-b", f"v{version}", str(self.mirror.path), str(tree))
        for text, edits in commits:
            for name, data in edits.items():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                (tree / name).write_bytes(data)
            self.git(tree, "add", "-A")
            self.git(tree, "commit", "-q", "--cleanup=verbatim", "-F", "-", stdin=text.encode())
        self.git(tree, "format-patch", *_FORMAT, "-o", str(out), f"v{version}")
        return [path.read_bytes() for path in sorted(out.iterdir())]

    @staticmethod
    def git(folder: Path, *words: str, stdin: bytes | None = None) -> proc.Finished:
        """git as a maintainer runs it."""
        return proc.run(["git", *words], cwd=folder, env=CLEAN, stdin=stdin)
