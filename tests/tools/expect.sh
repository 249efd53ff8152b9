# SPDX-License-Identifier: Apache-2.0
# What the tests of the tool share; a test script sources it and ends with `finish`.
#     expect NAME EXIT_CODE PATTERN COMMAND...         exit code and output (both streams) must match; an
#                                                      empty pattern matches anything
#     expect_error NAME EXIT_CODE PATTERN COMMAND...   the same on stderr alone, with nothing on stdout
#     expect_json NAME EXIT_CODE COMMAND...            exit code, and valid JSON on stdout
#     expect_python NAME CODE COMMAND...               stdout goes to python3 as `text`; CODE must not fail, and
#                                                      nothing may be on stderr
# shellcheck shell=bash
passed=0 failed=0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

report() { # NAME OK DETAIL
    if [ "$2" = 1 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAILED %s\n%s\n' "$1" "$3"
    fi
}

expect() {
    local name=$1 code=$2 pattern=$3 output got ok=0
    shift 3
    output=$("$@" 2>&1)
    got=$?
    if [ "$got" = "$code" ] && grep -qE -- "$pattern" <<<"$output"; then ok=1; fi
    report "$name" $ok "  command: $*
  expected exit $code and /$pattern/, got exit $got and:
$(head -20 <<<"$output" | sed 's/^/    /')"
}

# Everything of an error goes to stderr, with the prefix.
expect_error() { # NAME EXIT_CODE PATTERN COMMAND...
    local name=$1 code=$2 pattern=$3 got ok=0
    shift 3
    "$@" >"$scratch/out" 2>"$scratch/errors"
    got=$?
    if [ "$got" = "$code" ] && [ ! -s "$scratch/out" ] && grep -qE -- "^tileproof: " "$scratch/errors" &&
        grep -qE -- "$pattern" "$scratch/errors"; then
        ok=1
    fi
    report "$name" $ok "  command: $*
  expected exit $code, nothing on stdout and /$pattern/ on stderr, got exit $got and:
$(sed 's/^/    /' "$scratch/errors")"
}

expect_json() { # NAME EXIT_CODE COMMAND...
    local name=$1 code=$2 got ok=0
    shift 2
    "$@" >"$scratch/json" 2>"$scratch/errors"
    got=$?
    if [ "$got" = "$code" ] && python3 -m json.tool "$scratch/json" >/dev/null 2>"$scratch/errors"; then
        ok=1
    fi
    report "$name" $ok "  command: $*
  expected exit $code and valid JSON, got exit $got: $(head -3 "$scratch/errors")
$(head -20 "$scratch/json" | sed 's/^/    /')"
}

expect_python() {
    local name=$1 check=$2 ok=0
    shift 2
    "$@" >"$scratch/text" 2>"$scratch/errors"
    if [ ! -s "$scratch/errors" ] && python3 -c "import csv, io, json, re, sys
text = open(sys.argv[1]).read()
$check" "$scratch/text" 2>"$scratch/errors"; then ok=1; fi
    report "$name" $ok "  command: $*
$(tail -3 "$scratch/errors" | sed 's/^/    /')
$(head -5 "$scratch/text" | cut -c1-300 | sed 's/^/    /')"
}

finish() {
    printf '%d passed, %d failed\n' "$passed" "$failed"
    [ "$failed" = 0 ]
}
