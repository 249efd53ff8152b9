#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests of `tileproof model`: bash tests/tools/model.sh PATH/TO/tileproof
set -u
tool=${1:?usage: model.sh PATH/TO/tileproof}
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/tools/expect.sh
. "$here/expect.sh"
models=$here/../../models

put() { # NAME TEXT: a file in the scratch folder
    printf '%s' "$2" >"$scratch/$1"
}

expect help 0 'tileproof model \[OPTIONS\] CONFIG' "$tool" model --help
expect text 0 'text +layers 0-40/2 +h16/8 +d256/256 +bf16 +causal & window, scale 0.0625 softcap 50' "$tool" model "$models/gemma-2-9b.json"
expect text-decode 0 'decode b1 h128/1 q1 k4096 d576/512 causal scale=0.135233775' "$tool" model "$models/deepseek-v3.json"
expect_json json 0 "$tool" model -o json "$models"/*.json
expect_json json-long-option 0 "$tool" model --output=json "$models/gpt2.json"
expect md 0 '^\| falcon-7b.json \| text 0-31 \| 71/1 \| 64/64 \| causal \| 0.125 \| default \|$' "$tool" model -o md "$models/falcon-7b.json"
expect standard-input 0 'standard input: gpt2, 1 layer groups' bash -c "'$tool' model - <'$models/gpt2.json'"

# every problem that the core says it reads, it plans
"$tool" model -o json "$models"/*.json | python3 -c '
import json, sys
for model in json.load(sys.stdin):
    for group in model["groups"]:
        for phase in ("prefill", "decode"):
            call = group.get(phase)
            if call and call["core_reads"]: print(call["problem"])' | sort -u >"$scratch/problems"
[ "$(wc -l <"$scratch/problems")" -gt 20 ] && enough=1 || enough=0
report problems-found "$enough" "  $(wc -l <"$scratch/problems") problems"
while read -r problem; do
    expect "explain $problem" 0 'kernel ' "$tool" explain "$problem"
done < <(awk 'NR % 6 == 1' "$scratch/problems")

# a type that is not known, as a decoder that is
put new.json '{"model_type":"kimi_k2","num_hidden_layers":2,"torch_dtype":"float32","max_position_embeddings":64}'
expect_error assume-nothing 3 'model_type is "kimi_k2": it is not known here' "$tool" model "$scratch/new.json"
expect assume 0 'new.json: kimi_k2, 1 layer groups' "$tool" model "$scratch/new.json" --assume llama
expect assume-says-so 0 'model_type is not known: read as llama, as asked' "$tool" model "$scratch/new.json" --assume llama
expect assume-json 0 '"assumed":"llama"' "$tool" model "$scratch/new.json" --assume llama -o json
expect assume-not-needed 0 'gpt2.json: gpt2, 1' "$tool" model "$models/gpt2.json" --assume llama
expect_error assume-no-decoder 2 'assume is "vit": it must be the model_type of a decoder' "$tool" model "$scratch/new.json" --assume vit
expect assume-qualify 0 '\(as llama\)' "$tool" qualify "$scratch/new.json" --assume llama --quick --phases decode --lock "$scratch/new.lock" --update --reason x
expect assume-lock 0 '"model": ?"new.json \(as llama\)"' cat "$scratch/new.lock"

# by name: in models of the working directory, by --models, beside the installed tool; a file goes by its own name too
expect by-name 0 '^models/gpt2.json: gpt2' env -C "$models/.." "$tool" model gpt2
expect by-option 0 "gpt2.json: gpt2" "$tool" model gpt2 --models "$models"
expect_error by-wrong-name 2 "model 'gtp2' is neither a file nor one of $models. Did you mean gpt2\? It has arctic-embed-m, .*, whisper-large-v3" \
    "$tool" model gtp2 --models "$models"
expect_error by-strange-name 2 "model 'zzzzzz' is neither a file nor one of $models. It has arctic" "$tool" model zzzzzz --models "$models"
expect_error by-no-folder 2 "model 'gpt2' is neither a file nor a name: $scratch/none has no \*.json" "$tool" model gpt2 --models "$scratch/none"
cp "$models/gpt2.json" "$scratch/config"
expect plain-file 0 '^config: gpt2' env -C "$scratch" "$tool" model config
mkdir -p "$scratch/prefix/bin" "$scratch/prefix/share/tileproof" "$scratch/elsewhere"
cp "$tool" "$scratch/prefix/bin/tileproof"
cp -r "$models" "$scratch/prefix/share/tileproof/models"
expect installed 0 'share/tileproof/models/gpt2.json: gpt2' env -C "$scratch/elsewhere" "$scratch/prefix/bin/tileproof" model gpt2
# a folder of that name here does not hide the installed ones, but what it has comes first; a file here comes before both
mkdir "$scratch/elsewhere/models" "$scratch/elsewhere/bert"
expect installed-behind-here 0 'share/tileproof/models/gpt2.json: gpt2' env -C "$scratch/elsewhere" "$scratch/prefix/bin/tileproof" model gpt2
expect_error installed-names 2 "model 'gtp2' is neither a file nor one of models or .*/share/tileproof/models. Did you mean gpt2\\?" \
    env -C "$scratch/elsewhere" "$scratch/prefix/bin/tileproof" model gtp2
cp "$models/falcon-7b.json" "$scratch/elsewhere/models/gpt2.json"
cp "$models/falcon-7b.json" "$scratch/elsewhere/models/bert.json"
expect here-before-installed 0 '^models/gpt2.json: falcon' env -C "$scratch/elsewhere" "$scratch/prefix/bin/tileproof" model gpt2
expect name-before-folder 0 '^models/bert.json: falcon' env -C "$scratch/elsewhere" "$scratch/prefix/bin/tileproof" model bert
cp "$models/gpt2.json" "$scratch/elsewhere/config"
cp "$models/falcon-7b.json" "$scratch/elsewhere/models/config.json"
expect file-before-name 0 '^config: gpt2' env -C "$scratch/elsewhere" "$scratch/prefix/bin/tileproof" model config
expect_error long-folder 2 '--models is too long' "$tool" model gpt2 --models "$(printf 'a%.0s' {1..2000})"
expect_error long-name 2 "is neither a file nor" "$tool" model "$(printf 'a%.0s' {1..3000})" --models "$models"

# usage
expect_error no-file 2 'no file given' "$tool" model
expect_error bad-format 2 "output is 'xml': it must be text, json or md" "$tool" model -o xml "$models/gpt2.json"
expect_error missing-file 2 'none.json: No such file' "$tool" model "$scratch/none.json"
expect_error folder 2 'Is a directory' "$tool" model "$scratch"
expect_error other-option 2 "unknown option '--seed' for model" "$tool" model --seed 1 "$models/gpt2.json"

# bad files: exit 2 with file and line; exit 3 for what is not known
put cut.json '{"model_type":"llama",'
put line.json $'{"model_type":"llama",\n"hidden_size":-1}'
put type.json '{"model_type":"brandnew"}'
put key.json '{"model_type":"llama","attention_window_shape":"ring"}'
expect_error truncated 2 'cut.json:1: not JSON' "$tool" model "$scratch/cut.json"
expect_error negative 2 'line.json:2: hidden_size is -1: it must be a whole number' "$tool" model "$scratch/line.json"
expect_error unknown-type 3 'model_type is "brandnew": it is not known' "$tool" model "$scratch/type.json"
expect_error unknown-key 3 'key.json:1: attention_window_shape is "ring": this key is not known' "$tool" model "$scratch/key.json"
head -c 17000000 /dev/zero | tr '\0' '[' >"$scratch/huge.json"
expect_error huge 2 'it must have at most 16777216 bytes' "$tool" model "$scratch/huge.json"
# one bad file among good ones: nothing is written
expect_error one-bad 3 'brandnew' "$tool" model -o json "$models/gpt2.json" "$scratch/type.json"
expect_error one-bad-md 2 'cut.json' "$tool" model -o md "$models/gpt2.json" "$scratch/cut.json" "$models/gpt2.json"

# the page shows what the tool prints
expect docs-table 0 '^$' bash -c "cd '$here/../..' && diff <('$tool' model -o md models/*.json) <(sed -n '/^| file | layers/,/^\$/p' docs/models.md | sed '/^\$/d') && echo"

finish
