"""The `vllm-spark` command: finds the verb's module, runs it, and turns errors into exit codes."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from typing import TYPE_CHECKING, NoReturn, Protocol, cast

from vllm_spark import console
from vllm_spark.errors import ConfigError, SparkError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["VERBS", "main"]

# Verb -> one-line help. Each verb is the module `vllm_spark.cli.<verb>`, imported only when it is asked for,
# so that an owner's machine needs none of the maintainers' libraries.
VERBS = {
    "series": "the patch series: lint, apply, export, status, guards",
    "rebase": "carry the series to another vLLM release: plan, run, continue, abort, report",
    "ext": "the compiled extension: toolchain, build",
    "wheel": "wheels: repack, inspect, audit",
    "aot": "machine code for PTX, ahead of time: status, compile, splice, verify, pack, unpack",
    "index": "the static package index: build, verify, yank, rollback",
    "release": "the whole release: build, assemble, verify",
    "bundle": "installing without a network: make, verify, unpack",
    "image": "the container image: plan, build, verify",
    "layers": "what a quantisation policy does to each layer of a checkpoint",
    "cache": "quantised weights kept by earlier loads: list, verify, prune",
    "doctor": "is this machine fit to run vllm-spark?",
}


class Verb(Protocol):
    """What a verb's module offers."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the verb's arguments and sub-verbs."""

    def run(self, args: argparse.Namespace) -> int:
        """Do it; the return value is the exit code."""


class _Parser(argparse.ArgumentParser):
    """argparse, with abbreviations off and its errors as ours."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message, where=self.prog, hint=f"{self.prog} --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="vllm-spark", description=__doc__, allow_abbrev=False)
    parser.add_argument("-v", "--verbose", action="count", default=0, help="also show the commands that are run")
    parser.add_argument("-q", "--quiet", action="store_true", help="results and errors only")
    verbs = "\n".join(f"  {name:10} {text}" for name, text in VERBS.items())
    parser.add_argument("verb", choices=VERBS, metavar="VERB", help="one of: " + ", ".join(VERBS))
    parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = f"verbs:\n{verbs}\n\nvllm-spark VERB --help tells more."
    return parser


def _dispatch(argv: Sequence[str] | None) -> int:
    args = _parser().parse_args(argv)
    console.set_verbosity(-1 if args.quiet else args.verbose)
    module = cast("Verb", importlib.import_module(f"vllm_spark.cli.{args.verb}"))
    parser = _Parser(prog=f"vllm-spark {args.verb}", description=VERBS[args.verb], allow_abbrev=False)
    module.configure(parser)
    return module.run(parser.parse_args(args.rest))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's own) and return its exit code."""
    # A polite stop must unwind like Ctrl-C does, so that half-made files go away.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _dispatch(argv)
    except SparkError as err:
        console.error(err)
        return err.exit_code
    except KeyboardInterrupt:
        print("interrupted; nothing half-written was kept", file=sys.stderr)
        return 130
