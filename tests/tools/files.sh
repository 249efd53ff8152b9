#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests of what the tool does to files: bash tests/tools/files.sh PATH/TO/tileproof
set -u
tool=$(realpath "${1:?usage: files.sh PATH/TO/tileproof}")
# shellcheck source=tests/tools/expect.sh
. "$(cd "$(dirname "$0")" && pwd)/expect.sh"
cd "$scratch" || exit 1

printf '{"tileproof_model": 1, "groups": [{"layers": "0-3", "problem": "h4/2 d64 f32 causal"}]}' >tiny.json
printf '{"tileproof_model": 1, "groups": [{"layers": "0-3", "problem": "h8/2 d128 f32 causal"}]}' >large.json
cp tiny.json tiny.copy
some=(--quick --phases mixed)
expect lock-made 0 QUALIFIED "$tool" qualify tiny.json "${some[@]}" --lock t.lock --update --reason first
cp t.lock lock.copy
unchanged() { # NAME FILE COPY
    cmp -s "$2" "$3" && ok=1 || ok=0
    report "$1" $ok "  $2 is not as it was"
}

# a journal never takes the place of another file, whatever its name
ln t.lock hard.lock
ln -s t.lock soft.lock
for name in t.lock ./t.lock hard.lock soft.lock "$scratch/t.lock"; do
    expect_error "journal-on-lock $name" 2 'journal and --lock are one file, .*: give one of them another name' \
        "$tool" qualify tiny.json "${some[@]}" --lock t.lock --update --reason x --journal "$name"
    expect_error "journal-on-lock-read $name" 2 'are one file' "$tool" qualify tiny.json "${some[@]}" --lock t.lock --journal "$name"
done
expect_error journal-on-new-lock 2 'are one file' "$tool" qualify tiny.json "${some[@]}" --lock n.lock --update --reason x --journal ./n.lock
expect_error journal-on-config 2 'journal tiny.json is the config tiny.json: .*give it another name' "$tool" qualify tiny.json "${some[@]}" --journal tiny.json
expect_error save-on-config 2 'save ./tiny.json is the config' "$tool" qualify tiny.json "${some[@]}" --save ./tiny.json
expect_error save-on-lock 2 'save and --lock are one file' "$tool" qualify tiny.json "${some[@]}" --save t.lock --lock t.lock
expect_error save-on-journal 2 'journal and --save are one file' "$tool" qualify tiny.json "${some[@]}" --save new --journal new
printf 'a letter\nof two lines\n' >letter
cp letter letter.copy
for more in "" --resume; do # shellcheck disable=SC2086
    expect_error "journal-on-letter $more" 2 'letter is no journal, and is left as it is: give --journal another name' \
        "$tool" qualify tiny.json "${some[@]}" --journal letter $more
done
ln -s letter link.lock.journal
expect_error journal-link 2 'link.lock.journal is a symbolic link' "$tool" qualify tiny.json "${some[@]}" --lock link.lock --update --reason x
mkfifo pipe
expect_error journal-pipe 2 'pipe is no regular file' "$tool" qualify tiny.json "${some[@]}" --journal pipe
mkdir folder
expect_error journal-folder 2 'folder is no regular file' "$tool" qualify tiny.json "${some[@]}" --journal folder
unchanged letter-stays letter letter.copy
unchanged config-stays tiny.json tiny.copy
unchanged lock-stays t.lock lock.copy
# a model may be a name: what counts is the file that was read
mkdir models
cp tiny.json models/named.json
for option in --save --journal "--update --reason x --lock"; do # shellcheck disable=SC2086
    expect_error "name-on-config $option" 2 'models/./named.json is the config models/named.json: it would be written over' \
        "$tool" qualify named "${some[@]}" $option models/./named.json
done
unchanged named-stays models/named.json tiny.copy
printf '{"model":"named","time":0,"prompt":8,"cached":0,"output":2}\n' >one.jsonl
cp one.jsonl one.copy
for option in --trace --metrics -o; do
    expect_error "replay-on-config $option" 2 'is the config models/named.json: ' "$tool" replay one.jsonl --modelled "$option" ./models/named.json
    expect_error "replay-on-requests $option" 2 'is the file of requests one.jsonl: ' "$tool" replay one.jsonl --modelled "$option" ./one.jsonl
done
expect_error replay-on-trace 2 'trace and -o are one file' "$tool" replay one.jsonl --modelled --trace same -o ./same
unchanged named-stays-replayed models/named.json tiny.copy
unchanged requests-stay one.jsonl one.copy
cp tiny.json convert.jsonl
expect_error convert-on-trace 2 'o ./convert.jsonl is the trace convert.jsonl' "$tool" trace convert convert.jsonl -o ./convert.jsonl
# a journal is no stream
expect_error journal-stream 2 "journal is '-': a journal is read again, so it must be a file" "$tool" qualify tiny.json "${some[@]}" --journal - </dev/null
[ ! -e - ] && ok=1 || ok=0
report no-file-of-a-dash "$ok" "$(ls)"
# a path as long as the system allows: the journal's is longer, and is not cut to the lock's
long=$scratch
while [ ${#long} -lt 3890 ]; do long=$long/$(printf 'd%.0s' $(seq 100)); done
(mkdir -p "$long" && cp t.lock "$long/l") 2>/dev/null
rest=$((4095 - ${#long} - 1))
name=$(printf 'l%.0s' $(seq "$((rest < 240 ? rest : 240))"))
cp t.lock "$long/$name"
expect_error journal-path-too-long 1 'File name too long' "$tool" qualify tiny.json "${some[@]}" --lock "$long/$name" --update --reason x
unchanged long-lock-stays "$long/$name" lock.copy
# names of 240 bytes have their parts, too
cp t.lock "$(printf 'n%.0s' $(seq 240)).lock"
expect long-name 0 QUALIFIED "$tool" qualify tiny.json "${some[@]}" --lock "$(printf 'n%.0s' $(seq 240)).lock" --update --reason x --journal j1
# a journal of ours, of this version or another, and an empty file are written over, and go at the end
printf 'tileproof journal of build 00\n{"nonsense":1}\n' >old.journal
expect old-journal 0 QUALIFIED "$tool" qualify tiny.json "${some[@]}" --journal old.journal
: >empty.journal
expect empty-journal 0 QUALIFIED "$tool" qualify tiny.json "${some[@]}" --journal empty.journal --resume
[ ! -e old.journal ] && [ ! -e empty.journal ] && ok=1 || ok=0
report journals-go "$ok" "$(ls)"
printf 'tileproof journal of build 00\n{"nonsense":1}\n' >old.journal
expect_error old-journal-resumed 2 'old.journal:1: the journal of another version of this tool: run without --resume' "$tool" qualify tiny.json "${some[@]}" --journal old.journal --resume

# --resume takes cells only of a run that was made as this one
run=(large.json tiny.json --lock r.lock --update --reason killed)
"$tool" qualify "${run[@]}" >/dev/null 2>&1 &
pid=$!
for _ in $(seq 1200); do
    [ "$(grep -c '"problem"' r.lock.journal 2>/dev/null)" -ge 2 ] 2>/dev/null && break
    sleep 0.02
done
expect_error two-runs 2 'r.lock.journal is being written by another run' "$tool" qualify "${run[@]}"
printf 'nonsense' >r.lock # the journal is asked for before the lock is read: what another run writes there is not lost
expect_error two-runs-first 2 'r.lock.journal is being written by another run' "$tool" qualify "${run[@]}"
rm r.lock
kill -9 $pid
wait $pid 2>/dev/null
printf '{"problem":"half' >>r.lock.journal
cp r.lock.journal r.copy
printf 'nonsense' >r.lock
expect_error bad-lock 2 'r.lock:1: not JSON' "$tool" qualify "${run[@]}"
unchanged journal-of-bad-lock r.lock.journal r.copy
rm r.lock
differs() { # NAME PATTERN OPTIONS...
    local name=$1 pattern=$2
    shift 2
    expect_error "resume-$name" 2 "made otherwise: $pattern.*Run as then to resume, or without --resume to begin anew" \
        "$tool" qualify "$@" --resume
}
differs disable '--disable: journal has none, here generic' "${run[@]}" --disable generic
differs fallback '--fallback: journal has refuse, here permit' "${run[@]}" --fallback permit
differs both '--disable: journal has none, here math; --fallback: journal has refuse, here permit' "${run[@]}" --disable math --fallback permit
differs quick '--quick: journal has no, here yes' "${run[@]}" --quick
differs declare '--declare: journal has none, here engine=2' "${run[@]}" --declare engine=2
differs dtype '--dtype: journal has bf16, here f16' "${run[@]}" -t f16
differs paged '--paged: journal has 16, here 32' "${run[@]}" -p 32
differs threads '--threads: journal has all, here 1' "${run[@]}" --threads 1
differs phases '--phases: journal has all, here decode' "${run[@]}" --phases decode
differs fewer 'config of tiny.json: journal has [0-9a-f]{64}, here none' large.json --lock r.lock --update --reason x
sed 's/"0-3"/"0-2"/' tiny.copy >tiny.json
differs config 'config of tiny.json: journal has [0-9a-f]{64}, here [0-9a-f]{64}' "${run[@]}"
cp tiny.copy tiny.json
for term in build compiler cpu os libc isa version parser seed; do
    sed "2s/\"$term\":\"[^\"]*\"/\"$term\":\"other\"/" r.copy >r.lock.journal
    differs "$term" "$term: journal has other, here " "${run[@]}"
done
sed '2s/{/{"--more":"x",/' r.copy >r.lock.journal
differs unknown '--more: journal has x, here none' "${run[@]}"
cp r.copy r.lock.journal
expect resumed 0 'from the journal' "$tool" qualify "${run[@]}" --resume
[ -s r.lock ] && [ ! -e r.lock.journal ] && ok=1 || ok=0
report resumed-lock "$ok" "$(ls)"

# texts that are not UTF-8 are refused before anything runs
expect_error reason-not-utf8 2 'reason is not UTF-8' "$tool" qualify large.json --lock u.lock --update --reason $'caf\xe9'
expect reason-utf8 0 QUALIFIED "$tool" qualify tiny.json "${some[@]}" --lock u.lock --update --reason $'caf\xc3\xa9'
cp tiny.json $'caf\xe9.json'
expect_error name-not-utf8 2 'the name of a config is not UTF-8' "$tool" qualify $'caf\xe9.json' "${some[@]}" -o json
expect_error name-not-utf8-model 2 'the name of a config is not UTF-8' "$tool" model $'caf\xe9.json' -o json
cp tiny.json $'caf\xc3\xa9.json'
expect_json name-utf8 0 "$tool" qualify $'caf\xc3\xa9.json' "${some[@]}" -o json
expect_error disable-not-utf8 2 "disable is 'a.xff': it must be UTF-8" "$tool" qualify tiny.json "${some[@]}" --disable $'a\xff' --journal j2
[ ! -e j2 ] && ok=1 || ok=0
report disable-leaves-no-journal "$ok" "$(ls)"

# every command notices that its output does not arrive
head -c 100 /dev/zero | tr '\0' x >x.txt
"$tool" run q16 d8 --trace calls.jsonl >/dev/null
"$tool" replay --generate --requests 2 -o requests.jsonl tiny
cp tiny.json large.json folder/
outputs=("--help" "-h" "help" "--version" "run --help" "info" "info --json" "explain q64" "explain q64 --json" "run q16 d8" "check --list"
    "model tiny.json" "model tiny.json -o json" "model tiny.json -o md" "qualify tiny.json --quick --phases mixed -o csv"
    "canary t.lock" "bench q8 d8 --read-mib 0 --repeat 1 --seconds 0.001" "trace convert calls.jsonl"
    "replay --generate --requests 2 tiny" "replay requests.jsonl --models folder --modelled" "run q16 d8 --metrics -")
for words in "${outputs[@]}"; do # shellcheck disable=SC2086
    "$tool" $words >/dev/full 2>errors
    [ $? = 1 ] && grep -qE '^tileproof: standard output' errors && ok=1 || ok=0
    report "full: $words" "$ok" "$(head -3 errors)"
    # shellcheck disable=SC2086
    "$tool" $words >&- 2>errors
    [ $? = 1 ] && grep -qE '^tileproof: standard output' errors && ok=1 || ok=0
    report "closed: $words" "$ok" "$(head -3 errors)"
done
expect_error full-says-why 1 'standard output could not be written: No space left on device' bash -c "$tool --version >/dev/full"
# a closed stream's place is not taken by a file that is written
"$tool" qualify tiny.json "${some[@]}" --lock closed.lock --update --reason x >&- 2>/dev/null
expect closed-lock-whole 0 QUALIFIED "$tool" qualify tiny.json "${some[@]}" --lock closed.lock
"$tool" run q16 d8 --repeat 3000 --json --trace closed.jsonl >&- 2>/dev/null # prints more than a buffer holds
expect closed-trace-whole 0 '' "$tool" trace convert closed.jsonl -o closed.json

# a link stays a link, and what it points to is replaced, with its permissions
mkdir there
cp t.lock there/real.lock
chmod 640 there/real.lock
ln -s there/real.lock one.lock
ln -s one.lock two.lock
ln -s there/fresh.lock dangling.lock
ln -s loop.lock loop.lock
expect link-updated 0 QUALIFIED "$tool" qualify tiny.json "${some[@]}" --lock two.lock --update --reason through
[ -L two.lock ] && [ -L one.lock ] && grep -q through there/real.lock && [ "$(stat -c %a there/real.lock)" = 640 ] && ok=1 || ok=0
report link-stays "$ok" "$(ls -l . there)"
expect link-dangling 0 QUALIFIED "$tool" qualify tiny.json "${some[@]}" --lock dangling.lock --update --reason x
[ -L dangling.lock ] && [ -s there/fresh.lock ] && ok=1 || ok=0
report link-target-made "$ok" "$(ls -l . there)"
expect_error link-loop 1 'loop.lock: Too many levels' "$tool" qualify tiny.json "${some[@]}" --lock loop.lock --update --reason x
# what is no file is written as it is, and is there afterwards
expect to-null 0 '' "$tool" run q16 d8 --trace /dev/null --metrics /dev/null
[ -c /dev/null ] && ok=1 || ok=0
report null-stays "$ok" "$(ls -l /dev/null)"
# a pipe of the shell has a link that is no path; a descriptor is written from where it stands, and stays the shell's
expect_json save-to-pipe 0 bash -o pipefail -c "'$tool' qualify tiny.json --quick --phases mixed --save /dev/stdout 2>/dev/null | sed -n '/^\[/,/^\]/p'"
"$tool" run q16 d8 --trace >(cat >caught.jsonl) >/dev/null
"$tool" run q16 d8 --metrics /dev/fd/5 5>&1 >/dev/null | cat >caught.prom
"$tool" run q16 d8 --trace /dev/stderr 2>&1 >/dev/null | cat >caught.err
for _ in $(seq 500); do [ -s caught.jsonl ] && break; sleep 0.02; done
expect trace-to-process 0 '' "$tool" trace convert caught.jsonl -o caught.json
expect metrics-to-descriptor 0 '^tileproof_' cat caught.prom
expect trace-to-errors 0 '' "$tool" trace convert caught.err -o caught.json
ln -s /dev/stdout out.link
for name in /dev/stdout /dev/fd/1 /proc/self/fd/1 out.link; do
    { echo first; "$tool" run q16 d8 --trace "$name"; echo last; } >said.txt
    [ "$(sed -n 1p said.txt)" = first ] && [ "$(tail -1 said.txt)" = last ] && grep -q '^{' said.txt && grep -q kernel said.txt && ok=1 || ok=0
    report "trace-to-own $name" "$ok" "$(head -5 said.txt)"
done
{ echo first; "$tool" run q16 d8 --trace /dev/fd/7 7>&1 >/dev/null; echo last; } >said.txt
[ "$(sed -n 1p said.txt)" = first ] && [ "$(tail -1 said.txt)" = last ] && [ "$(grep -c '^{' said.txt)" -ge 1 ] && ok=1 || ok=0
report "trace-to-descriptor" "$ok" "$(head -5 said.txt)"
expect_error to-closed 1 '/dev/fd/77: ' "$tool" replay --generate --requests 2 -o /dev/fd/77 tiny
[ -z "$(ls -d ./*.part 2>/dev/null | grep -v t.lock)" ] && [ -L out.link ] && ok=1 || ok=0
report no-parts-of-descriptors "$ok" "$(ls)"
expect_error to-full 1 '/dev/full: No space left' "$tool" replay --generate --requests 2 -o /dev/full tiny
expect_error to-folder 1 'folder: Is a directory' "$tool" replay --generate --requests 2 -o folder tiny
expect_error trace-on-metrics 2 'trace and --metrics are one file' "$tool" run q16 d8 --trace same --metrics ./same

# what a kill left goes with the next write; what somebody still writes, and what is somebody else's, stays
touch t.lock.tileproof-1-0.part "t.lock.tileproof-$$-7.part" t.lock.part t.lock.12.part t.lock.tileproof-x-1.part t.lock.tileproof-1-0.part.txt
python3 -c 'import fcntl, time
held = open("t.lock.tileproof-2-0.part", "w")
fcntl.flock(held, fcntl.LOCK_EX)
open("held", "w")
time.sleep(600)' &
holder=$!
for _ in $(seq 500); do [ -e held ] && break; sleep 0.02; done
expect parts 0 QUALIFIED "$tool" qualify tiny.json "${some[@]}" --lock t.lock --update --reason parts
kill $holder
wait $holder 2>/dev/null
left=$(echo t.lock.*part*)
[ "$left" = "t.lock.12.part t.lock.part t.lock.tileproof-1-0.part.txt t.lock.tileproof-2-0.part t.lock.tileproof-x-1.part" ] && ok=1 || ok=0
report parts-left "$ok" "  $left"

# readers have a limit
expect_error zero-machine 2 '/dev/zero: it must have at most 65536 bytes' "$tool" explain q64 --machine /dev/zero
expect_error zero-goals 2 '/dev/zero: it must have at most 1048576 bytes' "$tool" bench --goals --goals-file /dev/zero
expect_error zero-model 2 '/dev/zero: it must have at most 16777216 bytes' "$tool" model /dev/zero
expect_error zero-lock 2 '/dev/zero: it must have at most 67108864 bytes' "$tool" canary /dev/zero
for words in "compare /dev/zero /dev/zero" "plot /dev/zero" "trace convert /dev/zero" "replay /dev/zero" \
    "replay requests.jsonl --models folder --against /dev/zero"; do # shellcheck disable=SC2086
    expect_error "zero: $words" 2 '/dev/zero: it must have at most 268435456 bytes' "$tool" $words
done
limit='the line has more than 268435456 bytes: in a trace each call has a line, of at most 1048576'
expect_error zero-line 2 "/dev/zero:1: $limit\$" "$tool" trace summary /dev/zero
zeros_behind_two_lines() { { printf 'one\ntwo\n' && cat /dev/zero; } 2>/dev/null | "$tool" trace summary -; }
expect_error zero-third-line 2 "-:3: $limit; head -n 2 has the lines before it\$" zeros_behind_two_lines
printf 'a\0b' >nul.txt
expect_error nul-goals 2 'nul.txt: it holds a byte of 0' "$tool" bench --goals --goals-file nul.txt

finish
