#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests of the tool tileproof: bash tests/tools/cli.sh PATH/TO/tileproof
set -u
tool=${1:?usage: run.sh PATH/TO/tileproof}
# shellcheck source=tests/tools/expect.sh
. "$(dirname "$0")/expect.sh"

# help and version
expect help 0 'Start with' "$tool" --help
expect help-exit-codes 0 '3  only a fallback would serve' "$tool" --help
expect version 0 '^tileproof [0-9]+\.[0-9]+\.[0-9]+$' "$tool" --version
for command in info explain run check demo; do
    expect "help-$command" 0 'Examples:' "$tool" $command --help
    expect "help-$command-options" 0 -- "$tool" $command --help
done

for command in info explain run check demo bench compare plot model qualify canary trace replay lock capacity completion; do
    expect "help-of-$command" 0 "^tileproof $command: " "$tool" help $command
    [ "$("$tool" help $command)" = "$("$tool" $command --help)" ] && same=1 || same=0
    report "help-$command-is-its-help" $same "  help $command differs from $command --help"
    expect_error "no-command-names-$command" 2 "\b$command\b" "$tool"
done
expect help-main 0 'Start with' "$tool" help
expect_error help-unknown 2 "unknown command 'qualfy'.*Did you mean qualify\?" "$tool" help qualfy
expect_error completion-of-no-shell 2 "completion is for bash, zsh or fish: 'bsh' is none of them. Did you mean bash\?" "$tool" completion bsh
expect_error completion-of-nothing 2 "completion is for bash, zsh or fish: ''" "$tool" completion
expect_error manual-of-nothing 2 "manual has no page 'zebra'" "$tool" manual zebra
expect_error help-manual 2 "unknown command 'manual'" "$tool" help manual
expect_error help-hidden 2 "unknown command 'simulated-run'" "$tool" help simulated-run

# what was meant
while read -r wrong right; do
    expect_error "meant-$wrong" 2 "unknown command '$wrong'.*\. Did you mean $right\?\$" "$tool" "$wrong"
done <<'END'
expain explain
qualfy qualify
qual qualify
cehck check
replya replay
benhc bench
inof info
rnu run
comparee compare
END
while read -r command wrong right; do
    expect_error "meant-$command-$wrong" 2 "unknown option '$wrong' for $command: .*\. Did you mean $right\?\$" "$tool" "$command" "$wrong" 1
done <<'END'
run --fallbak --fallback
run --thread --threads
explain --kernal --kernel
bench --head_dim --head-dim
qualify --upate --update
replay --model --models
END
for nothing in zebra x qqqqqqq "" lock; do
    "$tool" "$nothing" 2>"$scratch/errors"
    grep -q 'Did you mean' "$scratch/errors" && none=0 || none=1
    report "meant-nothing-$nothing" $none "$(cat "$scratch/errors")"
done

# usage
expect_error no-command 2 'no command given' "$tool"
expect_error bad-command 2 "unknown command 'expain'" "$tool" expain
expect_error bad-option 2 "unknown option '--colour' for run" "$tool" run --colour q16
expect_error other-command-option 2 "unknown option '--verify' for explain" "$tool" explain --verify q16
expect_error missing-value 2 'seed needs a value' "$tool" run q16 --seed
expect_error bad-number 2 "seed is 'x1'.*whole number" "$tool" run q16 --seed x1
expect_error negative-number 2 "seed is '-1'" "$tool" run q16 --seed -1
expect_error flag-with-value 2 'json takes no value' "$tool" info --json=yes
expect_error bad-fallback 2 "fallback is 'maybe': it must be refuse, permit or serve" "$tool" run --fallback maybe q16
expect_error zero-repeat 2 'repeat is 0' "$tool" run --repeat 0 q16
expect_error word-too-many 2 "info takes no words: 'q16'" "$tool" info q16
expect_error no-problem 2 'no problem given' "$tool" explain
expect_error bad-machine-file 2 'No such file' "$tool" explain --machine "$scratch/none" q16

# refusals name the remedy, and it is one
expect_error remedy-fallback 3 'lets math serve it, slower.*; on the command line: --fallback permit \(TP_FALLBACK_REFUSED\)' \
    "$tool" run q64 d640
expect remedy-explain 3 '^permit     --fallback permit: math serves this, slower$' "$tool" explain q64 d640
expect remedy-helps 0 'kernel +math' "$tool" run q64 d640 --fallback permit
if ! nm "$tool" 2>/dev/null | grep -q __asan_init; then
    few_threads() { (ulimit -v 300000 && timeout 60 "$tool" "$@"); }
    expect_error remedy-threads 1 'threads is 256: [0-9]+ can be had.*could not be started.*; on the command line: --threads N \(TP_NO_MEMORY\)' \
        few_threads run q64 d64 --threads 256
    expect few-threads-do 0 'kernel' few_threads run q64 d64 --threads 4
else
    echo "not run here: a limit of address space, of which the address sanitizer reserves terabytes"
fi

# problems and shapes
expect_error bad-problem 2 "word 'x9'" "$tool" explain "q16 k16 d64 x9"
expect_error bad-heads 2 'multiple of kv_heads' "$tool" explain "h3/2 q16 k16 d64"
expect_error wrong-phase 2 'these lengths are decode' "$tool" explain "prefill q1 k16 d64"
expect_error bad-shape 2 "shape '2q2k_x' is not understood near 'x'" "$tool" explain 2q2k_x
expect_error bad-shape-count 2 "is not understood" "$tool" explain 2kq16
expect_error shape-overflow 2 "is not understood" "$tool" explain q99999999999999999999
expect_error shape-and-length 2 "'k16' is one too many" "$tool" explain q2k k16
expect_error shape-too-many 2 'more than 16 segments' "$tool" explain q1_q2_q3_q4_q5_q6_q7_q8_q9_q10_q11_q12_q13_q14_q15_q16_q17
expect shape-square 0 'b1 h1/1 q2048 k2048 d128 f32' "$tool" explain q2k
expect shape-decode 0 'decode b8 h1/1 q1 k4096 d128 f32' "$tool" explain 8q1s4k
expect shape-mega 0 'q1 k1048576 d128' "$tool" explain q1s1m
expect shape-words 0 'b1 h32/8 q4096 k4096 d80 bf16 causal' "$tool" explain q4k h32/8 d80 bf16 causal
expect shape-mixed 0 'b34 .*packed' "$tool" explain 2q2k_32q1s1k
expect shape-run-mixed 0 'seqs=2x40/40,3x1/1024 d16 f32 packed' "$tool" run 2q40_3q1s1k d16
expect shape-run-padded 0 'seqs=2x40/40,3x1/100 d16 f32 padded' "$tool" run 2q40_3q1s100 d16 padded
expect shape-paged 0 'b6 h8/2 .*packed-q paged=16' "$tool" explain '2q5s1k_4q1s2k h8/2 d64 bf16 paged=16'
expect shape-paged-run 0 'seqs=2x5/40,3x1/100 d16 f32 packed-q paged=16' "$tool" run 2q5s40_3q1s100 d16 paged=16 --verify
expect shape-paged-one 0 'b8 h8/2 q1 k4096 d64 bf16 paged=16' "$tool" explain 8q1s4k h8/2 d64 bf16 paged=16
expect_error shape-paged-packed 2 "word 'paged=16' contradicts 'packed'" "$tool" explain 2q5_4q1s2k paged=16 packed
for dtypes in i8 i8:i8:i8 i4:i4:i4 e4m3; do
  expect_error "shape-dtype-$dtypes" 3 "q_dtype is ${dtypes%%:*} .*k and v alone may be quantised" "$tool" explain "q1s1k h8/2 d64 $dtypes"
done
expect shape-codes 0 'q1 k1024 d64 bf16:i8:i8->bf16' "$tool" explain q1s1k h8/2 d64 bf16:i8:i8
expect_error shape-dtype-unknown 2 "word 'f64'" "$tool" explain q1s1k h8/2 d64 f64
expect text-not-shape 0 'q512 k4096 d64' "$tool" explain q512 k4096 d64

# explain
# every fused kernel, best first: with all of them disabled only math is left, a fallback
"$tool" info --json >"$scratch/info"
fused=$(python3 -c 'import json, sys
print(",".join(k["name"] for k in json.load(sys.stdin)["kernels"] if k["name"] != "math"))' <"$scratch/info")
# those that run here, and those that do not
kernels=$(python3 -c 'import json, sys
print(*(k["name"] for k in json.load(sys.stdin)["kernels"] if k["runs_here"]))' <"$scratch/info")
absent=$(python3 -c 'import json, sys
print(*(k["name"] for k in json.load(sys.stdin)["kernels"] if not k["runs_here"]))' <"$scratch/info")
sample="prefill b1 h32/8 q4096 k4096 d80 bf16 causal"
expect explain 0 'still quadratic' "$tool" explain "$sample"
expect explain-scores 0 'scores +16777216' "$tool" explain "$sample"
expect_json explain-json 0 "$tool" explain --json "$sample"
expect explain-refused 3 'TP_FALLBACK_REFUSED' "$tool" explain --disable "$fused" "$sample"
expect_json explain-refused-json 3 "$tool" explain --json --disable "$fused" "$sample"
expect explain-nothing 3 'TP_UNSUPPORTED' "$tool" explain --disable "$fused" --disable math "$sample"
expect explain-permit 0 '^kernel +math \(math\), a FALLBACK$' "$tool" explain --disable "$fused" --fallback permit "$sample"
expect_error explain-bad-kernel 2 "nosuch.*generic.*math" "$tool" explain --kernel nosuch "$sample"
expect_error explain-bad-disable 2 "nosuch.*generic.*math" "$tool" explain --disable nosuch "$sample"

# Every kernel that exists stands in a refusal, with a reason in brackets.
refusal=$("$tool" explain --disable "$fused" "$sample")
for kernel in $("$tool" info --json | python3 -c 'import json, sys
for kernel in json.load(sys.stdin)["kernels"]: print(kernel["name"])'); do
    ok=0
    grep -qE -- "^ +$kernel .*refused: .*\[[a-z_]+\]" <<<"$refusal" && ok=1
    report "refusal-of-$kernel" $ok "$refusal"
done

# recorded machines
printf '# recorded\nx86-64 isa=none threads=8 l1d=32768 l2=0 l3=0 name=Old one\n' >"$scratch/old"
expect explain-machine 0 'generic' "$tool" explain --machine "$scratch/old" q64 d64
echo 'x86-64 isa=avx9' >"$scratch/bad"
expect_error explain-bad-machine 2 'avx9' "$tool" explain --machine "$scratch/bad" q64 d64

# info
expect info 0 '^generic +none +4x8' "$tool" info
expect info-decode 0 'decode loop  up to 32 rows of a KV head in f32, 24 in 16 bits' "$tool" info
expect info-math 0 '^math +none +- +any' "$tool" info
wide=$("$tool" info | awk 'length > 80')
case $wide in *emulated* | '') ok=1 ;; *) ok=0 ;; esac # names of emulated kernels are longer
report info-within-80-columns $ok "$wide"
expect_json info-json 0 "$tool" info --json

# decode, pages, lists
expect explain-decode 0 '^kernel +(avx512|avx2|generic) \(decode\)$' "$tool" explain q1s4k h32/8 d128
expect explain-loop 0 '^loop +decode: 4 chunks of 1024 keys a sequence' "$tool" explain q1s4k h32/8 d128
expect explain-loop-prefill 0 '^loop +prefill: 2 chunks of 4096' "$tool" explain q64 k5000 d64
expect explain-pages 0 '^pages +512,' "$tool" explain 2q1s4k h32/8 d128 paged=16
expect explain-kv-bytes 0 ' 33554432 of them k and v' "$tool" explain q1s4k h32/8 d128
expect explain-kv-latent 0 ' 4718592 of them k and v' "$tool" explain q1s4k h16/1 d576/512 bf16 latent
expect explain-kv-lists 0 ' 204800 of them k and v' "$tool" explain q2 k4000 d128 sparse=100
expect explain-strategy 0 'numerics +decode/' "$tool" explain --strategy decode q64 d64
expect explain-invariant 0 'numerics +prefill/' "$tool" explain q1s64 d64 invariant
expect explain-decode-json 0 '"chunks": ?4, "decode": ?true|"chunks":4,"decode":true' "$tool" explain --json q1s4k d64
expect_error bad-strategy 2 "strategy is 'fast': it must be prefill or decode" "$tool" run --strategy fast q16
expect_error bad-strategy-invariant 2 'strategy is decode though the problem is invariant' "$tool" explain --strategy decode q16 d64 invariant
expect_error bad-paged 2 "paged=0" "$tool" run q16 d64 paged=0
expect_error paged-packed 2 "contradicts 'packed'" "$tool" run q16 d64 packed paged=16
expect_error lists-mask 2 'a mask needs sparse_sorted' "$tool" run q16 d64 sparse=4 causal
expect_error latent-dims 2 "latent with k f32 of head dim 64" "$tool" run q16 d64/65 latent
for kernel in $absent; do
    echo "not run here: $kernel"
    expect "absent-$kernel" 3 "$kernel: isa .*need" "$tool" run --kernel "$kernel" --fallback permit q16 d64
done
for name in $kernels; do
    for words in 'q1 k1100 h8/2 d64 f32 paged=16' 'seqs=1x40/300,3x1/1030 h4/2 d64 bf16 packed-q paged=3 causal' \
        'q20 k300 h4/2 d40 f16 sparse=33' 'q3 k300 h4/2 d40 f32 paged=16 sparse-sorted=33 causal' \
        'q1 k300 h16/1 d576/512 bf16 paged=64 latent' 'q2 k1100 h4/2 d40 bf16 causal window=50,0 paged=16' \
        'q5 k1100 h4/2 d40 f32 invariant causal'; do
        if [[ $name == *bf16* ]]; then words=$(sed -E 's/ (f32|f16|bf16)( |$)/ bf16 p=bf16\2/' <<<"$words"); fi
        expect "run-cache-$name-${words// /-}" 0 'within the rule' \
            "$tool" run --kernel "$name" --fallback permit --verify "$words"
    done
done
for strategy in prefill decode; do
    expect "run-strategy-$strategy" 0 'within the rule' "$tool" run --strategy $strategy q40 k300 h4/2 d64 causal --verify
    expect "run-strategy-id-$strategy" 0 "numerics.* $strategy/" "$tool" run --strategy $strategy q40 k300 h4/2 d64
done

# run
expect run-receipt 0 'scores_written +0' "$tool" run q100 d64 causal
expect run-verify 0 'within the rule' "$tool" run q100 d64 causal --verify
expect run-verify-bf16 0 'within the rule' "$tool" run 3q1s700 h8/2 d128 bf16 causal --verify --threads 1
expect run-padded 0 'within the rule' "$tool" run --verify "b3 h4/2 seqs=2x5/300,1x1/4096 d64 f16 padded causal"
expect run-empty 0 'within the rule' "$tool" run --verify "q4 k0 d16"
expect run-verify-nearest 0 'nearest to its bound: seq 0 head [01] row [0-9]+, error [0-9.e-]+ of [0-9.e-]+, ratio 0' \
    "$tool" run q100 h2 d64 bf16 causal --verify
expect_python run-verify-nearest-json "verify = json.loads(text)['verify']
row = verify['nearest']
assert 0 <= row['seq'] < 2 and 0 <= row['head'] < 2 and 0 <= row['row'] < 100, row
assert 0 < row['error'] <= verify['max_error'] and 0 < row['ratio'] <= 1, verify
assert abs(row['error'] / row['bound'] / row['ratio'] - 1) < 1e-4, row" "$tool" run b2 q100 h2 d64 bf16 causal --verify --json
expect run-repeat 0 'repeat: 3 runs' "$tool" run q64 d32 --repeat 3
expect run-math 0 'scores_written +4096' "$tool" run q64 d32 --kernel math --fallback permit
expect_error run-math-refused 3 'TP_FALLBACK_REFUSED' "$tool" run q64 d32 --kernel math
expect_error run-too-large 1 '3/4 of this host' "$tool" run q1s1024m h64/64
expect_error run-huge-pages 1 '3/4 of this host' "$tool" run q1s100 d64 paged=1099511627776
expect_error run-huge-lists 1 '3/4 of this host' "$tool" run q1s100 d64 sparse=1099511627776
expect_json run-json 0 "$tool" run q64 d32 --json
expect_json run-json-verify 0 "$tool" run q64 d32 --json --verify --repeat 2

# check
expect check-list 0 'hostile/ones.*mask none' "$tool" check --list
expect_error check-bad-regex 2 'regular expression' "$tool" check --case '('
expect_error check-no-case 2 'no case matches' "$tool" check --case nosuchcase
expect_error check-no-kernel 2 "matches none of.*generic" "$tool" check --kernel nosuch
expect check-one 0 '^2 passed, 0 failed' "$tool" check --kernel '^generic$' --case 'own-key.* f32' --seed 9
expect check-mask 0 'mask causal window' "$tool" check --list --mask '^causal window$'
expect check-verbose 0 '^passed  hostile/merge' "$tool" check -v --case merge
expect check-groups 0 '^latent +[0-9]+' "$tool" check --case '^latent/'
expect check-pages 0 '^33 passed, 0 failed' "$tool" check --kernel '^generic$' --case 'hostile/pages'
# seeds that once failed: tiles between what two rows see; the gradients of a sink and of a slope from an o stored in bf16
expect check-seed-tiles 0 '^[0-9]+ passed, 0 failed' "$tool" check --seed 900913 --case 'tiles.*documents tree'
expect check-seed-sinks 0 '^[0-9]+ passed, 0 failed' "$tool" check --seed 600945509 --case 'backward/.*prefix=33 sinks dropout'
expect check-seed-slopes 0 '^[0-9]+ passed, 0 failed' "$tool" check --seed 102 --case 'backward/.*causal bits softcap=2 alibi'
# of the grid, which is all but the hostile cases, --quick takes about a tenth, as its help says
grid() { "$tool" check --list "$@" | grep '/' | grep -vc '^hostile/'; }
quick=$(grid --quick) all=$(grid)
report check-quick-is-a-tenth $((quick * 8 < all && quick * 12 > all)) "  $quick of $all cases"
# the tenth itself; the hostile cases and the rest are the slow test check
expect check-quick 0 '^[0-9]+ passed, 0 failed' "$tool" check --quick --case '^([^h]|head)'

# demo
demo=$("$tool" demo)
expect demo 0 '67,108,864 +0 +128 MiB in bf16$' printf '%s\n' "$demo"
lines=$(wc -l <<<"$demo")
ok=0
[ "$lines" -lt 25 ] && ok=1
report demo-one-screen $ok "  expected fewer than 25 lines, got $lines"

finish
