#!/bin/sh
# `docker run IMAGE MODEL --option …` is `vllm serve MODEL --option …`. Who repeats `vllm serve` is understood.
# `docker run IMAGE vllm …` and `… vllm-spark …` run those commands as they stand.
set -eu

case "${1:-}" in
vllm-spark) exec "$@" ;;
vllm)
    [ "${2:-}" = serve ] || exec "$@"
    shift 2
    ;;
serve) shift ;;
esac
exec vllm serve "$@"
