/* SPDX-License-Identifier: Apache-2.0 */
/* Help that teaches by example; cli/manual makes the man pages and completions of the same texts and tables. */
#include "cli.h"

#include <string.h>

static const char words_help[] =
    "A PROBLEM is a text of words, quoted or not, in any order after the first:\n"
    "  prefill b2 h32/8 q512 k4096 d128 bf16 causal window=4095,0\n"
    "      b sequences, h query heads / KV heads, q rows, k keys,\n"
    "      d head dim (d192/128: qk / v),\n"
    "      f32 | f16 | bf16 | bf16->f32, packed | padded, top-left, scale=X,\n"
    "      paged=N: k and v in pages of N tokens,\n"
    "      sparse=N | sparse-sorted=N: up to N keys for each row, by index,\n"
    "      latent: v is part of k, invariant: the same bits for decode and prefill,\n"
    "      cascade=N: up to N first keys that sequences share are computed once,\n"
    "      p=bf16: probabilities may be rounded to bf16 where they meet v,\n"
    "      bf16:i8:i8: k and v quantised (i8, i4, e4m3),\n"
    "      scales=token|tensor|group|q8_0: what shares one scale\n"
    "      scores: softcap=X alibi bias=f32 sinks qscale=BETA,LENGTH,OFFSET\n"
    "      positions: mask positions of their own; masks:";
static const char shapes_help[] =
    "or starts with a shape, and the other words follow (default h1/1 d128 f32):\n"
    "  q2k             one sequence of 2,048 rows on its own 2,048 keys\n"
    "  8q1s4k          8 sequences, 1 row on 4,096 keys each\n"
    "  2q2k_32q1s1k    2 of 2,048 and 32 of 1 row on 1,024 keys, packed\n";

const char help_exit[] =
    "Exit codes:\n"
    "  0  fine\n"
    "  1  a check failed, a result is wrong, a run broke, a floor is missed,\n"
    "     a cliff was found, something is slower than what it is compared with,\n"
    "     or output could not be written\n"
    "  2  usage: bad words, a bad problem text or file\n"
    "  3  only a fallback would serve and the policy refuses it, or nothing serves;\n"
    "     there was nothing to measure, to check or to draw; a device, runner,\n"
    "     gnuplot or valgrind is not here; or a model is not known\n"
    "  4  a comparison cannot be decided, the host's own A/A is not SAME,\n"
    "     a cell proves nothing, or a run was stopped\n"
    "  5  something is not as a lock says\n";

void help_problem(FILE *out) {
    size_t column = 0;
    fprintf(out, "%s", words_help);
    for (int i = 0; tp_mask_at(i); i++) {
        const char *words = tp_mask_at(i)->words;
        if (column == 0 || column + strlen(words) > TERMINAL_COLUMNS - 1) column = (size_t)fprintf(out, "\n         ") - 1;
        column += (size_t)fprintf(out, " %s", words);
    }
    fprintf(out, "\n%s\n", shapes_help);
}

void help_tool(FILE *out) {
    fprintf(out, "tileproof %s: exact attention that never writes the score matrix,\n"
           "and says what ran\n\nUsage: tileproof COMMAND [WORDS]\n\n",
           tp_version());
    for (int i = 0; command_at(i); i++)
        if (command_at(i)->help) fprintf(out, "  %-10s %s\n", command_at(i)->name, command_at(i)->help);
    fprintf(out, "\nStart with:\n"
           "  tileproof demo\n"
           "  tileproof explain q4k h32/8 d128 bf16 causal\n"
           "  tileproof run q1k d64 causal --verify\n"
           "  tileproof help COMMAND\n\n");
    help_problem(out);
    fprintf(out, "%s", help_exit);
}

void help_command(FILE *out, const struct command *command) {
    fprintf(out, "tileproof %s: %s\n\nUsage: tileproof %s [OPTIONS]%s\n\nExamples:\n%s\nOptions:\n",
           command->name, command->help, command->name, command->words, command->examples);
    options_print_help(out, command->bit);
    fprintf(out, "\n");
    if (strstr(command->words, "PROBLEM")) help_problem(out);
    fprintf(out, "%s", help_exit);
}
