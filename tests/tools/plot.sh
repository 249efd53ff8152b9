#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests of tileproof plot: bash tests/tools/plot.sh PATH/TO/tileproof
set -u
tool=${1:?usage: plot.sh PATH/TO/tileproof}
# shellcheck source=tests/tools/expect.sh
. "$(dirname "$0")/expect.sh"
cd "$scratch" || exit 1

python3 - <<'PYTHON'
import json
def write(name, rows):
    with open(name, "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
origin = {"host": "Some \"CPU\" `x` \\n", "date": "2026-11-15"}
rate = [dict(origin, problem=f"prefill b1 h1/1 q{s} k{s} d{d} f32", phase="prefill", kernel=k, isa="avx2", threads=1,
             gflops=50 + d / 8, min_ns=1e6, bytes_model=1e6, fma_peak_gflops=100, read_gbps_limit=10)
        for s in (512, 1024) for d in (64, 128) for k in ("avx2", "math")]
both = [dict(origin, kind=kind, problem=f"prefill b1 h1/1 q{s} k{s} d64 f32", phase="prefill", kernel=k,
             sim_bytes=s * n, compulsory_read=s, compulsory_written=s, cache_ll=1 << 20, peak_bytes=s * n)
        for kind in ("bytes", "memory") for s in (512, 1024) for n, k in ((10, "avx2"), (1000, "math"))]
peer = dict(origin, kind="peer", row="prefill b1 h1/1 q512 k512 d64 f32", phase="prefill", dtype="f32", threads=2,
            peer="it's 2.x", ours_ns=10, peer_ns=14, ratio=1.4, ratio_lo=1.3, ratio_hi=1.5, kernel="avx2")
write("rate.jsonl", rate)
write("both.jsonl", both)
write("peer.jsonl", [peer])
write("many.jsonl", [dict(rate[0], problem=f"prefill b1 h{h}/1 q{512 * (i + 1)} k{512 * (i + 1)} d64 f32")
                     for h in range(1, 21) for i in (0, 1)])
# Lines that break a rule, each behind a good one and a blank one.
bad = {"no-json": "{", "array": "[1]", "twice": '{"kind": "bytes", "kind": "bytes"}'}
for name, row in {
    "kind": dict(rate[0], kind="speed"), "kind-number": dict(rate[0], kind=1), "no-kernel": dict(rate[0], kernel=None),
    "empty": dict(rate[0], kernel=""), "long": dict(rate[0], kernel="x" * 64), "nul": dict(rate[0], isa="a\0b"),
    "text": dict(rate[0], gflops="50"), "zero": dict(both[0], sim_bytes=0), "negative": dict(rate[0], read_gbps_limit=-1),
    "null": dict(rate[0], gflops=None), "problem": dict(rate[0], problem="q512 z9"), "row": dict(peer, row="q512 z9"),
    "order": dict(peer, ratio_lo=1.45), "host": dict(rate[0], host=7),
}.items():
    bad[name] = json.dumps(row)
for name, line in bad.items():
    with open(f"bad-{name}.jsonl", "w") as file:
        file.write(json.dumps(rate[0]) + "\n\n" + line + "\n")
PYTHON

rule() { # NAME PATTERN: line 3 breaks a rule, and nothing is written
    expect_error "$1" 2 "bad-$1.jsonl:3: $2" "$tool" plot rate.jsonl "bad-$1.jsonl" -o "none"
}
rule no-json 'a line must be a JSON object: '
rule array 'a line must be a JSON object$'
rule twice 'a line must be a JSON object: .*duplicate'
rule kind "field 'kind': it must be rate, bytes, memory or peer"
rule kind-number "field 'kind': it must be rate"
rule no-kernel "field 'kernel': it must be a text of 1 to 63 bytes"
rule empty "field 'kernel': it must be a text"
rule long "field 'kernel': it must be a text"
rule nul 'a line must be a JSON object'
rule text "field 'gflops': it must be a number above 0$"
rule zero "field 'sim_bytes': it must be a number above 0$"
rule negative "field 'read_gbps_limit': it must be a number above 0, or null"
rule null "field 'gflops': it must be a number above 0$"
rule problem "field 'problem': .*z9"
rule row "field 'row': .*z9"
rule order "field 'ratio': it must lie in ratio_lo\.\.ratio_hi"
rule host "field 'host': it must be a text"
report nothing-written "$([ ! -e none ] && echo 1)" "  $(ls none 2>&1)"

: >empty.jsonl
expect_error no-file 2 'no file given' "$tool" plot -o none
expect_error missing 2 'nosuch.jsonl: No such file' "$tool" plot nosuch.jsonl -o none
expect_error no-rows 2 'empty.jsonl: it holds no rows' "$tool" plot empty.jsonl -o none
expect_error not-a-folder 2 "output is 'empty.jsonl': it must be a directory" "$tool" plot rate.jsonl -o empty.jsonl
expect_error deep-folder 2 "output is 'a/b': No such file" "$tool" plot rate.jsonl -o a/b
expect_error option 2 "unknown option '-s' for plot" "$tool" plot -s q1k
expect help 0 'where the plots go' "$tool" plot --help
mkdir empty
expect no-gnuplot 3 'not run here: gnuplot was not found' env PATH="$scratch/empty" "$tool" plot rate.jsonl -o empty
report no-rubbish "$([ -z "$(ls -A empty)" ] && echo 1)" "  left behind: $(ls -A empty)"

pictures() { # NAME FOLDER PLOT...: these files and no others, whole, titled
    local name=$1 folder=$2 ok=0
    shift 2
    if python3 - "$folder" "$@" 2>errors <<'PYTHON'; then ok=1; fi
import os, struct, sys, xml.etree.ElementTree as tree
folder, plots = sys.argv[1], sys.argv[2:]
assert sorted(os.listdir(folder)) == sorted(p + end for p in plots for end in (".png", ".svg")), os.listdir(folder)
for plot in plots:
    data = open(f"{folder}/{plot}.png", "rb").read()
    width, height = struct.unpack(">II", data[16:24])
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and data[-8:-4] == b"IEND" and width > 800 and height > 200, plot
    root = tree.parse(f"{folder}/{plot}.svg").getroot()
    text = " ".join("".join(root.itertext()).split())
    assert root.tag.endswith("svg") and "Some CPU x n, 2026-11-15" in text.replace(" ,", ","), text
PYTHON
    report "$name" $ok "  $(tail -1 errors)"
}
expect rates 0 'not drawn: bytes-length: no rows of kind bytes$' "$tool" plot rate.jsonl -o rates
pictures rates-files rates roofline rate-length rate-head-dim
expect peers 0 'not drawn: roofline: no rows of kind rate$' "$tool" plot peer.jsonl -o peers
pictures peers-files peers peers
expect everything 0 'drawn: all/peers.svg and .png' "$tool" plot rate.jsonl both.jsonl peer.jsonl -o all
pictures everything-files all roofline rate-length rate-head-dim bytes-length memory-length peers
expect one-length 0 'not drawn: rate-length: no rows of kind rate of two or more lengths' \
    "$tool" plot <(grep q512 rate.jsonl) -o rates
expect many 0 'rate-length shows 14 series; 6 more are left out' "$tool" plot many.jsonl -o rates
expect one-point 3 'nothing was drawn' "$tool" plot <(head -1 both.jsonl) -o rates
"$tool" bench --repeat 1 --seconds 0.001 --read-mib 4 q16,32 d8,16 -k best,math -o jsonl >real.jsonl
expect real 0 'drawn: real/rate-head-dim.svg' "$tool" plot real.jsonl -o real
finish
