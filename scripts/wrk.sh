#!/bin/sh
# The wrk commands of the benchmarks, for use by hand. Needs wrk; starts nothing else.
#
#   scripts/wrk.sh URL [file|echo|new] [SECONDS]
#
#   file  1 thread, 50 connections: the scenarios 1kb, 64kb and 1mb (default)
#   echo  4 threads, 500 connections: the scenario echo
#   new   as file, with a new connection per request: the scenario new-connections
#
# To compare two servers, run them in turn several times; one figure alone says little.
set -eu
usage="usage: $0 URL [file|echo|new] [SECONDS]"
url=${1:?$usage}
kind=${2:-file}
seconds=${3:-5}
done=$(dirname "$0")/../bench/wrk/done.lua
case $kind in
    file) set -- -t1 -c50 ;;
    echo) set -- -t4 -c500 ;;
    new) set -- -t1 -c50 -H 'Connection: close' ;;
    *) echo "$usage" >&2; exit 2 ;;
esac
# A separate session, as servers have: with autogroup scheduling each session has its share of the processor.
# The script adds one line with p99.9, which --latency does not print.
exec setsid --wait wrk "$@" "-d${seconds}s" --latency --timeout 30s -s "$done" "$url"
