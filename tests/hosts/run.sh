#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A test as on another host: bash tests/hosts/run.sh HOST TOOL TEST [WORDS]
#     HOST  haswell: AVX2 alone; nehalem: neither AVX2 nor AVX-512; both by qemu-user
#           host: this machine; bare: this machine with one core, no terminal, no HOME, no TERM, an unknown locale
#     TOOL  the built tileproof
#     TEST  a program, run with the words; or a script that takes the path of the tool first: script.sh TOOL [WORDS];
#           or `info`: only the look at the host
# Before the test the tool must list exactly that CPU's kernels, so nothing passes by running natively. qemu-user does
# not follow a program into the programs it starts: tests that let the tool start itself are not for these hosts.
set -euo pipefail
host=$1 tool=$2 test=$3
shift 3
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export TILEPROOF_TEST_QUICK=1

# A native program of the host, its qemu model, the kernels that it must run.
qemu= expected=
case $host in
    # what TCG has not is taken away by hand, or qemu says so on stderr each time
    haswell) qemu="-cpu Haswell,-pcid,-x2apic,-tsc-deadline,-invpcid,-hle,-rtm" expected="avx2 generic math" ;;
    nehalem) qemu="-cpu Nehalem" expected="generic math" ;;
    host | bare)
        flags=" $(grep -m1 '^flags' /proc/cpuinfo || true) "
        has() { for flag; do [[ $flags == *" $flag "* ]] || return 1; done; }
        if has avx2 fma f16c; then
            expected=avx2
            if has avx512f avx512bw avx512vl avx512dq; then expected="avx512 avx2"; fi
            if [ "$expected" = "avx512 avx2" ] && has avx512_bf16; then expected="avx512_bf16 $expected"; fi
        fi
        expected="$expected generic math"
        ;;
    *) echo "usage: run.sh haswell|nehalem|host|bare TOOL TEST [WORDS]" >&2; exit 2 ;;
esac
if [ -n "$qemu" ] && ! command -v qemu-x86_64 >/dev/null; then
    echo "not run here: $host needs qemu-x86_64 (Debian: qemu-user): make test-hosts installs it"
    exit 77
fi

# Runs a program as on the host. A script gets a stand-in for the tool that does the same.
on_host() {
    case $host in
        haswell | nehalem)
            # shellcheck disable=SC2086
            qemu-x86_64 $qemu "$@"
            ;;
        host) "$@" ;;
        bare)
            local core
            core=$(taskset -cp $$ | sed 's/.*: *\([0-9]*\).*/\1/')
            env -u TERM -u HOME LANG=xx_YY.UTF-8 LC_ALL=xx_YY.UTF-8 taskset -c "$core" setsid -w "$@" </dev/null
            ;;
    esac
}

info=$(on_host "$tool" info) # whole: a reader that leaves early would end the tool by SIGPIPE
listed=$(awk '$NF == "runs" {print $1}' <<<"$info" | xargs)
if [ -n "$qemu" ]; then export TILEPROOF_TEST_QEMU=1; fi
# Some virtual machines advertise AMX and trap: that the library lists it is right here, that it does not may be.
if [ -z "$qemu" ] && [[ $listed == amx_bf16\ * ]] && has amx_tile amx_bf16; then expected="amx_bf16 $expected"; fi
if [ "$listed" != "${expected# }" ]; then
    echo "FAILED: $host must run '${expected# }' and tileproof info lists '$listed'"
    exit 1
fi
echo "$host runs $listed"
absent=$(awk '$NF == "no" {print "not run here: " $1}' <<<"$info")
if [ -n "$qemu" ] && [ -z "$absent" ]; then
    echo "FAILED: $host lacks instructions, and tileproof info says of no kernel that it does not run here"
    exit 1
fi
[ -z "$absent" ] || echo "$absent"
if [ "$host" = bare ] && ! grep -qx 'threads *1' <<<"$info"; then
    echo "FAILED: with one core the tool must have one thread"
    exit 1
fi
case $test in
    info) ;;
    *.sh)
        if [ -n "$qemu" ]; then
            printf '#!/bin/sh\nexec qemu-x86_64 %s "%s" "$@"\n' "$qemu" "$tool" >"$scratch/tileproof"
            chmod +x "$scratch/tileproof"
            bash "$test" "$scratch/tileproof" "$@"
        else
            on_host bash "$test" "$tool" "$@"
        fi
        ;;
    *) on_host "$test" "$@" ;;
esac
