#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests of `tileproof check --random`: bash tests/tools/random.sh PATH/TO/tileproof [daily]
# daily draws problems that were not drawn the day before: the seed is the date, in UTC, and the first line printed.
set -u
tool=${1:?usage: random.sh PATH/TO/tileproof [daily]}
# shellcheck source=tests/tools/expect.sh
. "$(dirname "$0")/expect.sh"
problems=400 daily=800
[ -z "${TILEPROOF_TEST_QUICK:-}" ] || problems=120 daily=120

if [ "${2:-}" = daily ]; then
    seed=$(date -u +%Y%m%d)
    echo "seed $seed: $tool check --random $daily --seed $seed"
    # what a slow host does not get done in time it leaves out, by number: the first ones are always the same
    "$tool" check --random $daily --seed "$seed" --budget 60s
    exit
fi

drawn=$("$tool" check --random $problems --seed 20261116)
report fixed "$(grep -qE "^$problems problems: [0-9]+ passed, 0 failed" <<<"$drawn" && echo 1)" "$drawn"
[ "$problems" = 400 ] || drawn=$("$tool" check --random 400 --seed 20261116 --kernel '^generic$')
report words-all-drawn "$(grep -q '^never drawn: none' <<<"$drawn" && echo 1)" "$drawn"
expect loops 0 '^loops .*prefill [1-9][0-9]* .*decode [1-9][0-9]* .*backward [1-9][0-9]* .*split [1-9][0-9]* .*math 0' \
    "$tool" check --random 100 --seed 20261116 --kernel '^generic$'
expect budget 0 '^[0-9]+ problems: ' "$tool" check --budget 1s --seed 5 --kernel '^generic$'
expect verbose 0 '^passed  #2  ' "$tool" check --random 3 --seed 5 --kernel '^generic$' -v
expect pairs 0 '^pair +h d 3$' "$tool" check --random 3 --seed 5 --kernel '^generic$' -v
expect one-problem 0 '^passed  kernel generic' "$tool" check "h4/2 q40 k70 d24 bf16 causal @nan @hidden @i64" --seed 9 --kernel '^generic$'
expect one-gradient 0 '^passed  kernel generic' "$tool" check backward h4/2 q40 k70 d24 f32 causal sinks --kernel '^generic$'
expect one-beyond 0 '^beyond  kernel math' "$tool" check backward q4 d8 --kernel '^math$'
expect rows 0 '^rows [1-9][0-9]*, without a bound [0-9]+; calls with none left [0-9]+, without their bias, slopes and sinks [0-9]+$' \
    "$tool" check --random 30 --seed 5 --kernel '^generic$'
expect keys-listed-often 0 '^passed  kernel generic' "$tool" check h1 q1 k1 d8 f32 sparse=70000 --kernel '^generic$'
expect help 0 '--random N' "$tool" check --help
expect_error unknown-trait 2 "word '@nosuch' is unknown; words with an @ are @heads" "$tool" check "q4 d8 @nosuch"
expect_error bad-problem 2 "word 'x9'" "$tool" check "q4 d8 x9"
expect_error none 2 'random is 0: it must be at least 1' "$tool" check --random 0
expect_error clash 2 "'@nan' sets single values, which @broadcast shares" "$tool" check "q4 d8 @broadcast @nan"
expect_error bad-budget 2 "budget is 'soon': it must be seconds" "$tool" check --budget soon
expect_error with-cases 2 'choose among the cases' "$tool" check --random 5 --case hostile
expect_error two-ways 2 "'q4 d8' is one too many" "$tool" check --random 5 "q4 d8"
expect_error no-kernel 2 'matches none of' "$tool" check --random 5 --kernel nosuch
finish
