#!/usr/bin/env bash
# Puts the parts that `python -m tests.gpu.pack` wrote into SITE: unpack.sh SITE PART…
set -euo pipefail
site=$1
shift
mkdir -p "$site"
for part in "$@"; do
    if [ -d "$part" ]; then
        python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$site" "$part"/*.whl
    else
        tar -xJf "$part" -C "$site"
    fi
done
