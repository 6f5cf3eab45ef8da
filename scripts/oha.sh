#!/bin/sh
# The oha command of the benchmarks, for use by hand. Needs oha (cargo install oha --locked); starts nothing else.
#
#   scripts/oha.sh URL [CONNECTIONS] [SECONDS]
#
# 200 connections are the scenarios puma, go and uvicorn. The path selects the application's delay: /delay?ms=20 of
# the origins in bench/origins.
#
# To compare two servers, run them in turn several times; one figure alone says little.
set -eu
url=${1:?usage: $0 URL [CONNECTIONS] [SECONDS]}
# A separate session, as servers have: with autogroup scheduling each session has its share of the processor.
exec setsid --wait oha --no-tui -z "${3:-5}s" -t 30s -c "${2:-200}" "$url"
