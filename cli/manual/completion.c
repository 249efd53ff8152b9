/* SPDX-License-Identifier: Apache-2.0 */
#include "manual/manual.h"
#include "tool/nearest.h"

#include <string.h>

/* "refuse|permit|serve" to "refuse permit serve"; 0: it is no list. Brackets hold what may be left out. */
static int read_values(const char *argument, char *values, size_t size) {
    size_t used = 0;
    int inside = 0, several = 0;
    for (; *argument == ' '; argument++) continue;
    for (; *argument && *argument != ' ' && used + 1 < size; argument++) {
        inside += (*argument == '[') - (*argument == ']');
        if (inside || *argument == ']') continue;
        several |= *argument == '|';
        values[used++] = *argument == '|' ? ' ' : *argument;
    }
    values[used] = 0;
    return several;
}

enum wanted wanted_by_option(const struct option_view *option, char *values, size_t size) {
    static const struct {
        const char *name, *argument; /* NULL: any */
        enum wanted wanted;
    } rules[] = {{"--kernel", NULL, WANT_KERNELS}, {"--disable", NULL, WANT_KERNELS}, {NULL, "FILE", WANT_FILES},
                 {NULL, "OLD.so", WANT_FILES},     {NULL, "REPORT", WANT_FILES},      {NULL, "CMD", WANT_FILES},
                 {NULL, "DIR", WANT_FOLDERS},      {NULL, "CONFIG...", WANT_MODELS}};
    if (!option->argument) return WANT_NOTHING;
    if (!strcmp(option->argument, "FORMAT")) { /* of --kv-cache: one for both k and v, or the first of K:V */
        snprintf(values, size, "plain i8 i8/q8_0 i4 e4m3 e4m3/token");
        return WANT_VALUES;
    }
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if ((!rules[i].name || !strcmp(rules[i].name, option->name)) &&
            (!rules[i].argument || !strcmp(rules[i].argument, option->argument)))
            return rules[i].wanted;
    return read_values(option->argument, values, size) ? WANT_VALUES : WANT_NOTHING;
}

enum wanted wanted_by_command(const struct command *command, char *values, size_t size) {
    if (!read_values(command->words, values, size)) *values = 0;
    if (strstr(command->words, "PROBLEM")) return WANT_WORDS;
    if (strstr(command->words, "CONFIG") && strncmp(command->words, " LOCK", 5)) return WANT_MODELS;
    if (strstr(command->words, "REQUESTS")) return WANT_MODELS; /* of --generate */
    if (*command->words && strcmp(command->name, "completion")) return WANT_FILES;
    return WANT_NOTHING;
}

static void print_kernels(const struct options *options, FILE *out) {
    (void)options;
    for (int i = 0; tp_kernel_at(i); i++) fprintf(out, "%s\n", tp_kernel_at(i)->name);
}

/* Of a problem, with '=' where a value follows. */
static void print_words(const struct options *options, FILE *out) {
    static const char *const fixed[] = {"prefill", "decode",  "mixed",  "backward",  "packed", "padded", "packed-q", "paged=",
                                        "latent",  "sparse=", "p=bf16", "invariant", "seqs=",  "scale=", "softcap=", "sinks",
                                        "cascade="};
    (void)options;
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) fprintf(out, "%s\n", fixed[i]);
    for (int i = TP_F32; i <= TP_BF16; i++) fprintf(out, "%s\n", tp_dtype_name((tp_dtype)i));
    for (int i = 0; tp_mask_at(i); i++)
        for (const char *at = tp_mask_at(i)->words; *at; at += strcspn(at, " "), at += *at == ' ') {
            size_t length = strcspn(at, " =");
            if (length && at[0] >= 'a' && at[0] <= 'z') fprintf(out, "%.*s%s\n", (int)length, at, at[length] == '=' ? "=" : "");
        }
}

static void shell_bash(const struct options *options, FILE *out) {
    (void)options, print_bash(out);
}
static void shell_zsh(const struct options *options, FILE *out) {
    (void)options, print_zsh(out);
}
static void shell_fish(const struct options *options, FILE *out) {
    (void)options, print_fish(out);
}

static const struct {
    const char *name;
    enum wanted wanted; /* what the scripts ask for by it */
    void (*print)(const struct options *options, FILE *out);
} lists[] = {{"bash", WANT_NOTHING, shell_bash},    {"zsh", WANT_NOTHING, shell_zsh},         {"fish", WANT_NOTHING, shell_fish},
             {"models", WANT_MODELS, models_print}, {"kernels", WANT_KERNELS, print_kernels}, {"words", WANT_WORDS, print_words}};

const char *list_of(enum wanted wanted) {
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (wanted != WANT_NOTHING && lists[i].wanted == wanted) return lists[i].name;
    return NULL;
}

int command_completion(const struct options *options) {
    struct nearest nearest = nearest_to(options->problem);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        nearest_try(&nearest, lists[i].name);
        if (strcmp(lists[i].name, options->problem)) continue;
        lists[i].print(options, stdout);
        return EXIT_FINE;
    }
    complain("completion is for bash, zsh or fish: '%s' is none of them%s", options->problem, nearest_question(&nearest));
    return EXIT_USAGE;
}
