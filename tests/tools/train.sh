#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The example that trains a layer: its loss falls, with the same digits on 1 and 2 threads.     train.sh PROGRAM
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$1" 1 >"$work/one"
"$1" 2 >"$work/two"
cmp "$work/one" "$work/two"
awk '/^step/ {if (!first) first = $4; last = $4} END {exit !(NR == 13 && first > 0.2 && last < first / 20)}' "$work/one"
