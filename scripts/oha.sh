#!/bin/sh
# The oha line of the benchmarks, for use by hand. Needs oha (cargo install oha --locked); starts nothing else.
#
#   scripts/oha.sh URL [CONNECTIONS] [SECONDS]
#
# 200 connections: the scenarios puma, go and uvicorn; 4 and 32: overload. The application's delay is in the
# path: /delay?ms=20 of the origins in bench/origins.
#
# Compare two servers by running them in turn, several times; one figure alone says little.
set -eu
url=${1:?usage: $0 URL [CONNECTIONS] [SECONDS]}
# A session of its own, as servers have: with autogroup scheduling a session has its share of the processor.
exec setsid --wait oha --no-tui -z "${3:-5}s" -t 30s -c "${2:-200}" "$url"
