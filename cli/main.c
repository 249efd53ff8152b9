/* SPDX-License-Identifier: Apache-2.0 */
/* The table of subcommands. */
#include "cli.h"
#include "tool/device.h"
#include "terminal/terminal.h"
#include "tool/nearest.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

static const struct command commands[] = {
    {"info", "", "what this host has and which kernels it can run",
     "  tileproof info\n"
     "  tileproof info --json | python3 -m json.tool\n",
     COMMAND_INFO, command_info},
    {"explain", " PROBLEM", "which kernel would serve a problem, and why not the others",
     "  tileproof explain \"prefill b1 h32/8 q4096 k4096 d80 bf16 causal\"\n"
     "  tileproof explain q4k h32/8 d128 bf16 causal\n"
     "  tileproof explain q4k d640          exit 3: every candidate with its reason\n"
     "  tileproof explain --disable avx512,avx2,generic q4k    the same, by hand\n"
     "  tileproof explain --machine host.txt q4k               for a recorded machine\n"
     "  tileproof explain 8q1s4k h32/8 d128 bf16 causal paged=16    decode from pages\n",
     COMMAND_EXPLAIN, command_explain},
    {"run", " PROBLEM", "attention on random data, with the receipt of what ran",
     "  tileproof run q1k d64 causal --verify\n"
     "  tileproof run 8q1s4k h32/8 d128 bf16 causal --repeat 5\n"
     "  tileproof run --kernel math --fallback permit q512 d64\n"
     "  tileproof run \"b3 h4/2 seqs=2x5/300,1x1/4096 d64 f16 padded causal\" --verify\n"
     "  tileproof run 2q512s4k_32q1s1k h32/8 d128 bf16 causal packed-q paged=16\n"
     "  tileproof run q1s4k h16/1 d576/512 bf16 latent paged=64 --verify\n",
     COMMAND_RUN, command_run},
    {"check", " [PROBLEM]", "every kernel this host can run, against the double reference",
     "  tileproof check                       everything\n"
     "  tileproof check --quick               every hostile case, a tenth of the grid\n"
     "  tileproof check --kernel '^generic$' --mask window -v\n"
     "  tileproof check --case hostile --list\n"
     "  tileproof check --random 1000 --seed 7    problems drawn over all words\n"
     "  tileproof check --budget 10m --seed 7     the same, for a time\n"
     "  tileproof check \"h2 q5 k40 d16 f32 causal @nan\" --seed 7\n"
     "                                            one problem, every way to run it\n",
     COMMAND_CHECK, command_check},
    {"demo", "", "8,192 tokens on one screen: materialised scores beside tileproof",
     "  tileproof demo\n", COMMAND_DEMO, command_demo},
    {"bench", " [PROBLEM]", "rates beside this host's limits; goals; cliffs; bytes; memory",
     "  tileproof bench                              a short table\n"
     "  tileproof bench -s q512-4k*2 -d 64,128 -c 0,1 -k best,math -j 1,2 -o jsonl\n"
     "  tileproof bench q1k,q4k h32/8 d64-128+16 bf16 causal --verify\n"
     "  tileproof bench @lognormal h4/4 causal -j 2  packed log-normal lengths\n"
     "  tileproof bench -s q1s64k -H 8/8,32/8 -d 128 -c 0 -p 0,16 -S auto,prefill\n"
     "  tileproof bench q1k d128 -k avx2 --against avx512\n"
     "                                               exit 1: slower, 4: undecided\n"
     "  tileproof bench --goals --match '^d128'      exit 1 when a floor is not met\n"
     "  tileproof bench --cliffs --quick             exit 1: a cliff was found\n"
     "  tileproof bench --bytes -s q2k -d 128 -c 1   memory traffic, simulated\n"
     "  tileproof bench --memory -o jsonl            peak memory over lengths\n",
     COMMAND_BENCH, command_bench},
    {"compare", " A.jsonl B.jsonl", "is B, a file of bench -o jsonl, slower than A?",
     "  tileproof bench q256 -o jsonl >> before.jsonl    five times each,\n"
     "  tileproof bench q256 -o jsonl >> after.jsonl     in turns\n"
     "  tileproof compare before.jsonl after.jsonl       exit 1: slower, 4: undecided\n",
     COMMAND_COMPARE, command_compare},
    {"plot", " FILE...", "plots of what bench wrote with -o jsonl, as SVG and PNG",
     "  tileproof bench -s q512-8k*2 -d 64,128 -k best,math -o jsonl >rates.jsonl\n"
     "  tileproof bench --bytes -o jsonl >bytes.jsonl\n"
     "  tileproof plot rates.jsonl bytes.jsonl -o plots\n",
     COMMAND_PLOT, command_plot},
    {"simulated-run", " PROBLEM", NULL, NULL, COMMAND_SIMULATED_RUN, command_simulated_run},
    {"model", " CONFIG...", "what a model's config.json asks of attention, by layer groups",
     "  tileproof model config.json                  a table, with problem texts\n"
     "  tileproof model models/*.json -o md          one row a group\n"
     "  tileproof model llama-3.2-1b                 a shipped model, by name\n"
     "  tileproof model config.json -o json\n"
     "  tileproof model new.json --assume llama      an unknown type, as a llama\n"
     "  cat config.json | tileproof model -\n",
     COMMAND_MODEL, command_model},
    {"qualify", " CONFIG...", "runs a model's attention: a kernel and evidence for each cell",
     "  tileproof qualify config.json --quick        a verdict; -v: all rows\n"
     "  tileproof qualify llama-3.2-1b --quick       a shipped model, by name\n"
     "  tileproof qualify models/*.json -o jsonl >cells.jsonl\n"
     "  tileproof qualify models/*.json --lock my.lock --update --reason \"release 1\"\n"
     "  tileproof qualify models/*.json --lock my.lock     exit 5: something differs\n"
     "  tileproof qualify models/*.json --lock my.lock --update --reason more --resume\n",
     COMMAND_QUALIFY, command_qualify},
    {"lock", " list|show|diff|drop|merge FILE...", "what a lock holds; what changed between two revisions",
     "  tileproof lock list tileproof.lock                 revisions, and the history\n"
     "  tileproof lock show tileproof.lock llama@1a2b      its cells\n"
     "  tileproof lock show tileproof.lock llama/torch     those of an engine\n"
     "  tileproof lock diff tileproof.lock                 each model's last two\n"
     "  tileproof lock diff tileproof.lock @1a2b @9f8e     two of them\n"
     "  tileproof lock diff old.lock new.lock llama        of two files\n"
     "  tileproof lock drop tileproof.lock @1a2b --reason \"withdrawn\"\n"
     "  tileproof lock drop tileproof.lock @1a2b --kv-cache i8 --reason \"of 8 bits\"\n"
     "  tileproof lock merge tileproof.lock other-host.lock --reason \"the AVX2 hosts\"\n",
     COMMAND_LOCK, command_lock},
    {"canary", " LOCK [--model CONFIG...]", "is all as the lock says? choice, witnesses, numerics, speed",
     "  tileproof canary tileproof.lock                  every cell of this host's ISA\n"
     "  tileproof canary tileproof.lock --if-changed     cheap when nothing changed\n"
     "  tileproof canary tileproof.lock --model /srv/llama --metrics tileproof.prom\n"
     "  tileproof canary tileproof.lock --against old/libtileproof.so.0 --budget 60s\n"
     "  tileproof canary tileproof.lock --drill no:HEAD_DIM=96\n"
     "                                                   exit 3: what that would cost\n",
     COMMAND_CANARY, command_canary},
    {"trace", " convert|summary FILE", "calls that --trace wrote: for ui.perfetto.dev, or summed up",
     "  tileproof run 8q1s4k h32/8 d128 bf16 causal --repeat 20 --trace calls.jsonl\n"
     "  tileproof trace convert calls.jsonl -o calls.json     for ui.perfetto.dev\n"
     "  tileproof trace summary calls.jsonl                   p50, p90, p99\n"
     "  zcat calls.jsonl.gz | tileproof trace summary - -o json\n",
     COMMAND_TRACE, command_trace},
    {"capacity", " CONFIG", "KV bytes, pages, workspace; what fits; this host's ceiling",
     "  tileproof capacity llama-3.1-8b --context 128k --concurrency 8\n"
     "  tileproof capacity config.json --context 32k --concurrency 64 --limit 64g\n"
     "                                               exit 1: it does not fit\n"
     "  tileproof capacity config.json --context 8k --concurrency 1 -o json\n",
     COMMAND_CAPACITY, command_capacity},
    {"replay", " REQUESTS", "requests of a trace, through attention: tails by bucket",
     "  tileproof replay --generate -o requests.jsonl llama-3.2-1b qwen2.5-0.5b\n"
     "  tileproof replay requests.jsonl --sample 50\n"
     "  tileproof replay requests.jsonl --fallback permit -o after.json\n"
     "  tileproof replay requests.jsonl --against before.json --fail-above 1.5\n"
     "                                               exit 1: a tail grew\n"
     "  tileproof replay served.jsonl --observed     a log of any engine; no run\n",
     COMMAND_REPLAY, command_replay},
    {"report", " FILE...", "one HTML page of files: evidence, speed, memory, history",
     "  tileproof report build/qualify.json -o report.html\n"
     "  tileproof report old.lock new.lock -o report.html     with what changed\n"
     "  tileproof report qualify.json rates.jsonl peers.jsonl -o report.html\n",
     COMMAND_REPORT, command_report},
    {"completion", " bash|zsh|fish", "a script for a shell that completes the tool's words",
     "  . <(tileproof completion bash)               in this shell\n"
     "  tileproof completion fish >~/.config/fish/completions/tileproof.fish\n"
     "  tileproof completion zsh >~/.zfunc/_tileproof      a folder of fpath\n",
     COMMAND_COMPLETION, command_completion},
    {"manual", " [PAGE]", NULL, NULL, COMMAND_MANUAL, command_manual},
};
enum { COMMAND_COUNT = sizeof commands / sizeof *commands };

const struct command *command_at(int index) { return index < COMMAND_COUNT ? &commands[index] : NULL; }

static int run_command(const struct command *command, int count, char **words) {
    struct options options;
    int code = options_parse(&options, command, count, words);
    if (code) return code;
    if (options.help) {
        help_command(stdout, command);
        return EXIT_FINE;
    }
    progress_ask(options.progress);
    code = command->function(&options);
    progress_end();
    return code;
}

static const struct command *find_command(const char *name) {
    for (int i = 0; i < COMMAND_COUNT; i++)
        if (!strcmp(name, commands[i].name)) return &commands[i];
    return NULL;
}

/* With the names of the table. */
static int complain_command(const char *word) {
    char names[256] = "";
    struct nearest nearest = nearest_to(word ? word : "");
    for (int i = 0; i < COMMAND_COUNT; i++) {
        if (!commands[i].help) continue;
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", used ? i + 1 == COMMAND_COUNT ? " or " : ", " : "",
                 commands[i].name);
        nearest_try(&nearest, commands[i].name);
    }
    if (word)
        complain("unknown command '%s': it must be %s%s", word, names, nearest_question(&nearest));
    else
        complain("no command given: it must be %s (tileproof --help shows examples)", names);
    return EXIT_USAGE;
}

/* "help", and "help COMMAND". */
static int help(const char *word) {
    const struct command *command = word ? find_command(word) : NULL;
    if (word && (!command || !command->help)) return complain_command(word);
    if (command)
        help_command(stdout, command);
    else
        help_tool(stdout);
    return EXIT_FINE;
}

/* Where a standard stream is closed the next file would take its place, and what is printed would go there. */
static void hold_streams(void) {
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0) (void)!open("/dev/null", fd ? O_RDONLY : O_WRONLY); /* so that use of it fails */
}

/* What was printed has arrived, or the command has failed. */
static int printed(int code) {
    errno = 0;
    if (!ferror(stdout) && !fflush(stdout)) return code;
    complain("standard output could not be written%s%s", errno ? ": " : "", errno ? strerror(errno) : "");
    return EXIT_FAILED;
}

int main(int argc, char **argv) {
    const char *word = argc > 1 ? argv[1] : NULL;
    hold_streams();
    stop_remember(argc, argv);
    if (!word) return complain_command(NULL);
    if (!strcmp(word, "--help") || !strcmp(word, "-h") || !strcmp(word, "help")) return printed(help(argv[2]));
    if (!strcmp(word, "--version")) {
        printf("tileproof %s\n", tp_version());
        return printed(EXIT_FINE);
    }
    const struct command *command = find_command(word);
    if (!command) return complain_command(word);
    int code = run_command(command, argc - 2, argv + 2);
    device_close();
    return printed(code);
}
