"""`vllm-spark index build|verify|yank|rollback DIR`."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from vllm_spark import console
from vllm_spark.distro.index import lines, releases, tree
from vllm_spark.distro.index import verify as verifying
from vllm_spark.distro.index.facts import ProjectFact, ReleaseFact
from vllm_spark.errors import ArtefactError, ConfigError

if TYPE_CHECKING:
    import argparse

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the sub-verbs."""
    verbs = parser.add_subparsers(dest="what", required=True, metavar="build|verify|yank|rollback")
    build = verbs.add_parser("build", help="add wheels; without any, write the pages anew", allow_abbrev=False)
    build.add_argument("dir", type=Path, metavar="DIR", help="the index; made if it is not there")
    build.add_argument("wheels", type=Path, nargs="*", metavar="WHEEL")
    build.add_argument("--base-url", metavar="URL", help="public address of DIR, for the lines that people copy")
    build.add_argument("--files-url", metavar="URL", help="where these wheels are published, if not below DIR")
    build.add_argument("--uploaded", metavar="TIME", help="when the release was made, as 2026-01-31T12:00:00Z")
    build.add_argument("--release", type=Path, metavar="JSON", help="what the landing page says of the release")
    build.add_argument(
        "--tracks", action="append", default=[], metavar="PROJECT=URL", help="the same project elsewhere (PEP 708)"
    )
    build.set_defaults(act=_build)
    verify = verbs.add_parser("verify", help="check every rule; exit 7 when one fails", allow_abbrev=False)
    verify.add_argument("dir", type=Path, metavar="DIR")
    verify.add_argument("--against", type=Path, metavar="OLD", help="an older copy that must be contained")
    verify.add_argument("--without-clients", action="store_true", help="do not ask pip and uv (rule I004)")
    verify.set_defaults(act=_verify)
    yank = verbs.add_parser("yank", help="take a release back; it stays for those who pin it", allow_abbrev=False)
    yank.add_argument("dir", type=Path, metavar="DIR")
    yank.add_argument("version", metavar="VERSION")
    yank.add_argument("--reason", required=True, metavar="TEXT")
    yank.set_defaults(act=_yank)
    rollback = verbs.add_parser("rollback", help="the lines that go back to an older release", allow_abbrev=False)
    rollback.add_argument("dir", type=Path, metavar="DIR")
    rollback.add_argument("version", nargs="?", metavar="VERSION", help="default: the last good one before the newest")
    rollback.set_defaults(act=_rollback)


def run(args: argparse.Namespace) -> int:
    """Run the sub-verb."""
    return int(args.act(args))


def _build(args: argparse.Namespace) -> int:
    built = tree.build(
        args.dir,
        args.wheels,
        base_url=args.base_url,
        files_url=args.files_url,
        uploaded=_time(args.uploaded) if args.uploaded else None,
        projects=_projects(args.tracks),
        releases=[_release(args.release)] if args.release else [],
    )
    rows = [(fact.filename, f"{fact.size / 2**20:.1f} MiB", fact.sha256) for fact in built.added]
    if rows:
        console.table(f"Added to {args.dir}", ("file", "size", "sha256"), rows)
    console.say(f"{args.dir}: {built.kept} files kept, {len(built.added)} added, {len(built.written)} written")
    return 0


def _verify(args: argparse.Namespace) -> int:
    report = verifying.verify(args.dir, against=args.against, with_clients=not args.without_clients)
    for name in report.elsewhere:
        console.warn(f"{name}: hosted elsewhere, its bytes were not read")
    if report.problems:
        console.table("Violations", ("rule", "what"), [(problem.rule, problem.what) for problem in report.problems])
        what = f"{len(report.problems)} violations in {report.files} files"
        raise ArtefactError(what, where=str(args.dir), hint="restore the published copy, or build the index anew")
    rules = [rule.id for rule in verifying.RULES if not (args.without_clients and rule is verifying.ClientsInstall)]
    console.result(f"{args.dir}: {report.files} files, rules {' '.join(rules)} hold")
    return 0


def _yank(args: argparse.Namespace) -> int:
    for fact in releases.yank(args.dir, args.version, args.reason):
        console.result(f"yanked: {fact.filename}")
    return 0


def _rollback(args: argparse.Namespace) -> int:
    back = releases.rollback(args.dir, args.version)
    console.say(f"back to {lines.MAIN} {back.version}; either of:")
    console.result(f"# pip\n{back.lines.pip}\n\n# uv\n{back.lines.uv}")
    return 0


def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError as err:
        raise ConfigError(str(err), where="--uploaded", hint="write it as 2026-01-31T12:00:00Z") from err


def _projects(tracks: list[str]) -> list[ProjectFact]:
    by_name: dict[str, list[str]] = {}
    for text in tracks:
        name, separator, url = text.partition("=")
        if not separator:
            raise ConfigError(f"{text}: no URL", where="--tracks", hint="write it as PROJECT=URL")
        by_name.setdefault(name, []).append(url)
    try:
        return [msgspec.convert({"kind": "project", "name": n, "tracks": u}, ProjectFact) for n, u in by_name.items()]
    except msgspec.ValidationError as err:
        raise ConfigError(str(err), where="--tracks", hint="write it as PROJECT=URL") from err


def _release(path: Path) -> ReleaseFact:
    try:
        return msgspec.json.decode(path.read_bytes(), type=ReleaseFact)
    except (OSError, msgspec.DecodeError) as err:
        raise ConfigError(f"not a release description: {err}", where=str(path), hint="docs/index.md shows one") from err
