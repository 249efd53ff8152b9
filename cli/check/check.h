/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tileproof check: a list of named cases, each run for every kernel.
 *
 *     check.c       options, threads, the walk over the list
 *     case.c        building the list, running one case
 *     grid.c        the generated grid
 *     definition.c  the definition once more, against the library's own
 *     values.c      hostile cases whose answer is known by hand
 *     large.c       of values near FLT_MAX, and of rows with nothing but a sink
 *     poison.c      NaN and infinity, where they may and may not reach
 *     identity.c    two runs that must agree, bit for bit or within the bound
 *     promise.c     what stays the same or must change: threads, layouts, knobs, receipts
 *     cache.c       few rows; caches in pages, by sparse indices and in latent form
 *     masks.c       every mask kind, pairs of them, and what changes scores; tiles by brute force
 *     backward.c    gradients: a grid of their own, bits, what may not be reached
 *     report.c      failures with repro lines, the table, the states
 *     record.c      --record: a device that passed, in a lock
 *     random*.c     --random: random.h
 */
#ifndef TILEPROOF_CLI_CHECK_CHECK_H
#define TILEPROOF_CLI_CHECK_CHECK_H

#include "harness/attempt.h"
#include "cli.h"
#include "harness/gradients.h"
#include "harness/oracle.h"
#include "harness/stats.h"

enum { MAX_KERNELS = 16, MAX_GROUPS = 32 };

struct check_env;
/* 0: passed; otherwise failed, and env->reason says what was expected and got. */
typedef int (*check_function)(struct check_env *env);

struct check_case {
    char name[288];
    char text[160]; /* the problem */
    char mask[64];
    char label[32];
    int group; /* index of the list's group names */
    int slow;  /* left out of --quick */
    int again; /* a case of before, with p=bf16: for kernels that round p, others have run it */
    int loops; /* asks for a loop by name, which the CPU alone has */
    int64_t rows;
    tp_problem problem;
    tp_lengths lengths;
    struct tensors_style style;
    check_function function; /* NULL: compare with the reference */
};

struct check_list {
    struct check_case *cases;
    size_t count, capacity;
    const char *groups[MAX_GROUPS];
    int group_count;
    int broken; /* a case could not be made; the reason was printed */
};

struct check_env {
    tp_context *context;
    tp_context *pool; /* of --random: one of several threads; NULL elsewhere */
    const tp_kernel_info *kernel;
    const struct check_case *test;
    const char *strategy; /* asked for; NULL: by rows */
    int device;           /* that the kernels run on: all on the same */
    tp_arithmetic arithmetic; /* theirs */
    int32_t ran;              /* the arithmetic of the last run, by its receipt */
    uint64_t seed;
    struct workspace workspace;
    char reason[640];
};

enum outcome { NOT_SELECTED, PASSED, FAILED, BEYOND_LIMIT };

struct outcome_of {
    enum outcome outcome;
    char *reason; /* of a failure; on a device, of a refusal */
};

struct check_kernels {
    const tp_kernel_info *selected[MAX_KERNELS]; /* that match and run here */
    int count;
    const tp_kernel_info *absent[MAX_KERNELS]; /* that match and do not */
    int absent_count;
};

/* case.c. The name becomes "group/text" plus the words of the style; every case wants lse
   unless the style says otherwise afterwards. */
struct check_case *check_add(struct check_list *list, const char *group, const char *label,
                             check_function function, struct tensors_style style,
                             const char *format, ...) __attribute__((format(printf, 6, 7)));
/* Each case of bf16 once more, with p=bf16. */
void check_add_again(struct check_list *list);
/* The byte that outputs hold before a run that has this one in its workspace. On a device it is 0x7F: some write a NaN of 16 bits
   as 0xFFFF, which would be an element that was never written. */
int check_outputs_poison(const struct check_env *env, int poison);
/* Does env->kernel serve the problem? A kernel of a device says itself what it does not, and why. */
int check_takes(const struct check_env *env, const tp_problem *problem, char *why, size_t size);
void check_run_case(struct check_env *env, const struct check_kernels *kernels,
                    struct outcome_of *outcomes);
/* For hostile cases: tensors of the case, filled; a run of them; both set env->reason on failure.
 */
int check_make(struct check_env *env, struct tensors *tensors, const tp_problem *problem,
               const tp_lengths *lengths, const struct tensors_style *style);
/* The same, of the case itself. */
int check_make_own(struct check_env *env, struct tensors *tensors);
/* What was computed, every row of it, against the reference. */
int check_oracle(struct check_env *env, struct tensors *tensors);
int check_attend(struct check_env *env, struct tensors *tensors);
int check_attend_by(struct check_env *env, struct tensors *tensors, enum entry entry, int threads,
                    int poison, tp_receipt *receipt);
int check_fail(struct check_env *env, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Nonzero (and the reason, prefixed with what) unless the bits of both rows are equal; two NaN are
   equal whatever their payload. */
int check_same_row(struct check_env *env, const char *what, const struct tensors *a, tp_row in_a,
                   const struct tensors *b, tp_row in_b);
int check_rows_equal(const struct tensors *a, tp_row in_a, const struct tensors *b, tp_row in_b,
                     int64_t *column);
/* All rows of two sets with the same sequences. */
int check_same_rows(struct check_env *env, const char *what, const struct tensors *a,
                    const struct tensors *b);
void check_copy(struct tensors *to, int64_t to_seq, const struct tensors *from, int64_t from_seq,
                enum tensor_id id, int64_t tokens);

/* masks.c: is the bias of this pair -inf? */
int check_bias_hides(const struct tensors *tensors, int64_t seq, int64_t head, int64_t row, int64_t key);

/* definition.c: does the mask let this row see this key? By the manual, not by the library; sparse indices aside. -1:
   it has a kind that is not defined there. */
int check_visible(const struct tensors *tensors, tp_row at, int64_t key);

void check_add_grid(struct check_list *list, uint64_t seed);
void check_add_definition(struct check_list *list);
void check_add_values(struct check_list *list);
void check_add_large(struct check_list *list);
void check_add_poison(struct check_list *list);
void check_add_identity(struct check_list *list);
void check_add_promise(struct check_list *list);
void check_add_cache(struct check_list *list);
void check_add_masks(struct check_list *list);
void check_add_backward(struct check_list *list);
/* A forward run, then a backward one; nonzero and env->reason when either fails or writes where it may not. */
int check_gradients(struct check_env *env, struct tensors *tensors, struct gradients *gradients, enum entry entry,
                    int threads, int poison);

/* record.c: may --record be given? Before anything is run; exit code, reason printed. */
int check_record_asked(const struct options *options);
/* Writes it, if no case failed. The outcomes are of one kernel. Exit code, reason printed. */
int check_record(const struct options *options, const struct check_list *list, const struct outcome_of *outcomes);

/* report.c */
void check_print_failure(const struct check_case *test, const tp_kernel_info *kernel,
                         const char *reason, uint64_t seed);
/* The table and the states; returns the number of failures. */
long check_print_table(const struct check_list *list, const struct check_kernels *kernels,
                       const struct outcome_of *outcomes, uint64_t seed, double seconds);

#endif
