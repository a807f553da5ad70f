#!/bin/sh
# Installs this bundle into a new virtual environment, with no network:
#
#     sh install.sh FOLDER            # PYTHON=/path/to/python names another interpreter
#
# Every file is checked first, and pip checks each wheel against lock.txt again. A folder that exists is
# refused; one that could not be finished is removed.
set -eu

fail() {
    echo "error: $1. Next: $2" >&2
    exit "$3"
}

[ $# -eq 1 ] || fail "one folder expected, $# words given" "sh install.sh FOLDER" 2
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
python=${PYTHON:-python@PYTHON@}
to=$1
[ ! -e "$to" ] || fail "$to: exists already" "name a new folder, or remove it" 2
command -v "$python" >/dev/null || fail "$python: not installed" "install Python @PYTHON@, or set PYTHON" 8

# shellcheck disable=SC2016 # the program is Python's
"$python" -c '
import os, platform, sys
glibc = tuple(int(part) for part in (platform.libc_ver()[1] or "0.0").split(".")[:2])
found = "Python %d.%d, %s, glibc %d.%d" % (*sys.version_info[:2], platform.machine(), *glibc)
wanted = "Python @PYTHON@, @PLATFORM@, glibc @GLIBC@ or newer"
same = "%d.%d" % sys.version_info[:2] == "@PYTHON@" and platform.machine() == "@PLATFORM@"
if not same or glibc < tuple(int(part) for part in "@GLIBC@".split(".")):
    sys.exit("error: the bundle is for %s; this is %s. Next: make a bundle for this machine" % (wanted, found))
folder = os.path.abspath(sys.argv[1])
while not os.path.isdir(folder):
    folder = os.path.dirname(folder)
room = os.statvfs(folder)
free = room.f_bavail * room.f_frsize
if free < @UNPACKED@:
    sys.exit("error: %s: %d MiB needed, %d MiB free. Next: free some space" % (folder, @UNPACKED@ >> 20, free >> 20))
' "$to" || exit 10

echo "checking @COUNT@ files" >&2
(cd "$here" && sha256sum --check --quiet --strict SHA256SUMS >&2) ||
    fail "$here: a file is missing, cut short or altered" "copy the bundle again" 9

trap 'status=$?; if [ "$status" -ne 0 ]; then rm -rf -- "$to"; fi' EXIT
trap 'exit 130' INT TERM
"$python" -m venv --without-pip "$to"
# pip runs from its own wheel: the machine needs no ensurepip.
"$to/bin/python" -I "$here/wheels/@PIP@/pip" --isolated install --no-index --no-deps --require-hashes \
    --no-cache-dir --disable-pip-version-check --root-user-action ignore --quiet ${NO_COMPILE:+--no-compile} \
    --find-links "$here/wheels" --requirement "$here/lock.txt"
echo "installed; next: $to/bin/vllm-spark doctor" >&2
