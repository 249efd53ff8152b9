/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every kernel function by itself, on every ISA that this host has, against plain C in double: trial.h.
 *
 *     kernel_functions [--seed N] [--trials N] [--only TEXT] [--bench]
 *
 * --only takes functions whose name has the text. A failure names its seed and trial; --first N goes straight there. --bench
 * times each function at a typical size instead: best of some milliseconds, for one call.
 */
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernels/trial.h"

static struct trial now; /* whose call may be ended by a signal */
static long now_number;
static uint64_t seed = 1;

static void print_failure(const char *what) {
    printf("FAILED %s, content %d:%s\n    %s\n    kernel_functions --seed %llu --only %s --first %ld --trials 1\n", now.name,
           (int)now.content, now.shape, what, (unsigned long long)seed, now.name, now_number);
}

static void died(int number) {
    print_failure(number == SIGSEGV || number == SIGBUS ? "it touched memory that is not its own" : "it was ended by a signal");
    fflush(stdout);
    _exit(1);
}

static const struct function {
    tp_dtype dtype;
    void (*test)(struct trial *t);
} functions[] = {
#define f32 TP_F32
#define f16 TP_F16
#define bf16 TP_BF16
#define e4m3 TP_E4M3
#define i8 TP_I8
#define i4 TP_I4
#define q8_0 (tp_dtype)TP__Q8_0 /* tp__stored_as */
#define TP_FUNCTION(op, dtype, ...) {dtype, test_##op},
#include "kernels/functions.inc"
#undef TP_FUNCTION
};
enum { FUNCTIONS = sizeof functions / sizeof *functions };

static void begin(const tp__kernel_set *set, const struct function *function, const char *name, long number, int bench) {
    uint64_t mixed = seed;
    for (const char *c = name; *c; c++) mixed = (mixed ^ (unsigned char)*c) * 0x100000001B3u;
    now = (struct trial){.set = set,
                         .dtype = function->dtype,
                         .name = name,
                         .seed = mixed + (uint64_t)number * 0xD1B54A32D192ED03u,
                         .content = bench ? ORDINARY : (enum content)(number % CONTENTS),
                         .bench = bench};
    now_number = number;
}

static void end(void) {
    for (int i = 0; i < now.zones; i++) guard_free(&now.zone[i].memory);
}

/* Failures of one function. */
static int check(const tp__kernel_set *set, const struct function *function, const char *name, long first, long trials) {
    for (long i = first; i < first + trials; i++) {
        begin(set, function, name, i, 0);
        function->test(&now);
        end();
        if (!now.failed) continue;
        print_failure(now.reason);
        return 1;
    }
    return 0;
}

static void time_it(const tp__kernel_set *set, const struct function *function, const char *name) {
    begin(set, function, name, 0, 1);
    function->test(&now);
    end();
    printf("%-28s %12.1f ns %s\n", name, now.ns, now.shape);
}

static int usage(void) {
    fprintf(stderr, "usage: kernel_functions [--seed N] [--trials N] [--first N] [--only TEXT] [--bench]\n");
    return 2;
}

int main(int count, char **words) {
    long trials = getenv("TILEPROOF_TEST_QUICK") ? 24 : 60, first = 0, done = 0, failed = 0;
    const char *only = "";
    int bench = 0;
    for (int i = 1; i < count; i++) {
        int more = i + 1 < count;
        if (!strcmp(words[i], "--bench")) bench = 1;
        else if (!strcmp(words[i], "--seed") && more) seed = strtoull(words[++i], NULL, 10);
        else if (!strcmp(words[i], "--trials") && more) trials = strtol(words[++i], NULL, 10);
        else if (!strcmp(words[i], "--first") && more) first = strtol(words[++i], NULL, 10);
        else if (!strcmp(words[i], "--only") && more) only = words[++i];
        else return usage();
    }
    tp_machine machine;
    if (tp_machine_detect(&machine, NULL) != TP_OK) return 1;
    signal(SIGSEGV, died);
    signal(SIGBUS, died);
    signal(SIGILL, died);
    signal(SIGFPE, died);
    for (int s = 0; s < TP__SETS; s++) {
        const tp__kernel_set *set = tp__kernel_sets[s];
        int absent = (set->needs & ~machine.isa) != 0;
        for (int f = 0; f < FUNCTIONS; f++) {
            const char *name = set->function_name[f]; /* what a set lacks it takes from another, where it is tried */
            if (name == NULL || strstr(name, only) == NULL) continue;
            if (absent) {
                printf("not run here: %s\n", name);
            } else if (bench) {
                time_it(set, &functions[f], name);
            } else {
                failed += check(set, &functions[f], name, first, trials);
                done++;
            }
        }
    }
    if (!bench)
        printf("%ld kernel functions, %ld trials each, seed %llu: %ld failed\n", done, trials, (unsigned long long)seed, failed);
    return failed != 0 || (!bench && done == 0);
}
