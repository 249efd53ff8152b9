/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tileproof check --random: problems drawn over all words of the text form at once, with data to match. A trial is a
 * text: the problem's words, then words with an @ that say how its tensors lie and what is in them. Text and seed
 * are all of it: the same two give the same numbers and runs, whatever drew them. A failure may also depend on earlier
 * trials in the same worker, because its contexts serve trial after trial. If it does not repeat alone, the report says so.
 *
 *     random.c            options, the walk, failures as they come
 *     random_draw.c       a problem text from dice, by a table of words
 *     random_shapes.c     its lengths, heads, head dims and dtypes
 *     random_traits.c     the @ words: a table, read and drawn
 *     random_data.c       tensors of a trial: values of every size, NaN where it may and may not reach; what rows see
 *     random_try.c        one trial on one kernel: the reference, receipts by brute force
 *     random_gradients.c  the same for a backward trial
 *     random_cuts.c       runs that must have the same bits: tasks, layouts, pages, strategies, entry points
 *     random_views.c      the same for parts of a call: one sequence alone, rows in chunks
 *     random_isolated.c   child processes: a crash or a hang costs one trial
 *     random_shrink.c     a failure made as small as it gets
 *     random_cover.c      how often each word, pair of words and loop was drawn
 */
#ifndef TILEPROOF_CLI_CHECK_RANDOM_H
#define TILEPROOF_CLI_CHECK_RANDOM_H

#include "check/check.h"

/* Against naive, drawn problems are allowed so much more than the cases of check: among thousands of small ones there are
   some where naive is lucky, by its order of sums or because its tanh is libm's. The bounds have no allowance. */
enum { TRIAL_TEXT = 480, TRIAL_ALLOWANCE = 4 };

enum trial_values {
    VALUES_NORMAL,
    VALUES_TINY, /* subnormal */
    VALUES_HUGE, /* v, and some of q and k, up to the largest of their dtype */
    VALUES_WIDE  /* a power of two for each: 2^-20 to 2^20 in v, 2^-3 to 4 in q and k */
};

enum trial_nan { NAN_NOWHERE, NAN_ANYWHERE, NAN_GRADIENTS /* in d_o and d_lse alone */ };

struct trial {
    char text[TRIAL_TEXT]; /* whole, with its @ words */
    uint64_t seed;
    tp_problem problem;
    tp_lengths lengths;
    struct tensors_style style;
    int values; /* enum trial_values */
    int nan;    /* enum trial_nan: NaN and infinity in some places of q, k, v and d_o */
    int hidden; /* NaN and infinity in everything that no row sees, and in rows that see nothing */
};

struct dice {
    uint64_t seed, at;
};
/* 0..below-1 */
int64_t dice_roll(struct dice *dice, int64_t below);
/* With this chance of a thousand. */
int dice_chance(struct dice *dice, int of_thousand);

/* The trial of this number; two with the same seed and number are the same. */
void trial_draw(struct trial *trial, uint64_t seed, int64_t number);
/* Reads a text. 0, or nonzero and the reason. */
int trial_read(struct trial *trial, const char *text, uint64_t seed, char *reason, size_t size);

/* random_draw.c: the words it can draw; NULL ends the list. Names are those of the parser. */
const char *draw_word(int index);
enum draw_kind { DRAW_FORWARD, DRAW_SPARSE, DRAW_BACKWARD, DRAW_KINDS };
enum { DRAFT_PACKS = 2, DRAFT_KEPT = 64 }; /* of draft.taken: how q and keys lie was said */
/* What was drawn so far. */
struct draft {
    struct dice dice;
    char text[TRIAL_TEXT];
    enum draw_kind kind;
    unsigned taken;    /* groups of words of which one excludes the others */
    int latent;
    int hostile;       /* few rows and keys whose scores overflow or drown each other; NaN in d_o or d_lse meets what is gone */
    const char *k_dtype, *v_dtype;
    int keys_for_rows; /* every row needs a key of its own */
    int64_t heads, kv_heads, dim, dim_v, keys, rows, cost; /* cost: pairs times head dims that are allowed */
};
void draft_say(struct draft *draft, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* random_shapes.c: words with numbers that depend on each other. */
void draw_heads(struct draft *draft);
void draw_dims(struct draft *draft);
void draw_dtypes(struct draft *draft);
void draw_lengths(struct draft *draft); /* b, q and k */
void draw_sequences(struct draft *draft);
int64_t draw_number(struct draft *draft, int64_t max); /* 0..max, often at a border */

/* random_traits.c */
void traits_draw(struct trial *trial, struct draft *draft, char *text, size_t size);
int traits_read(struct trial *trial, const char *word); /* nonzero: no such word */
const char *trait_word(int index);                     /* NULL ends the list */
/* Nonzero and the reason: two words of which one leaves nothing to the other. */
int traits_clash(const struct trial *trial, char *reason, size_t size);

/* random_data.c: what every row sees, by the manual; with sparse indices, how often. */
struct visibility {
    int64_t heads;    /* 1 where all see the same */
    int64_t *start;   /* by sequence */
    uint32_t *times;  /* [sequence][head][row][key] */
};
int visibility_create(struct visibility *visibility, const struct tensors *tensors);
void visibility_destroy(struct visibility *visibility);
int64_t visibility_of(const struct visibility *visibility, const struct tensors *tensors, tp_row row, int64_t key);
/* Tensors of the trial with other problem, lengths and style: the same numbers at the same places. */
int trial_make(const struct trial *trial, const tp_problem *problem, const tp_lengths *lengths,
               const struct tensors_style *style, struct tensors *tensors);
/* What the trial wants in d_o. */
void trial_spoil_gradients(const struct trial *trial, const struct tensors *tensors, const struct visibility *visibility,
                           struct gradients *gradients);

/* A trial at work: data, reference and visibility serve all kernels. */
struct subject {
    const struct trial *trial;
    struct tensors tensors;
    struct visibility visibility;
    struct oracle oracle;
    struct gradients gradients;
    struct gradients_oracle gradients_oracle;
    int64_t rows, unbounded; /* as in a finding */
    int sums_left;
    struct check_env *env;
    void (*step)(void *user, const char *name); /* hears what is tried next */
    void *step_user;
};
/* Copies of a call's outputs, as tensors whose inputs are the call's. */
struct kept {
    struct tensors tensors;
    void *memory[2];
};
int kept_create(struct kept *kept, const struct tensors *tensors);
void kept_destroy(struct kept *kept);

void subject_step(struct subject *subject, const char *name);
int try_threads(const struct subject *subject); /* tasks of its first run */
/* random_try.c: 0, or nonzero and env->reason. */
int subject_create(struct subject *subject, struct check_env *env, const struct trial *trial);
void subject_destroy(struct subject *subject);
int subject_try(struct subject *subject);
int try_gradients(struct subject *subject); /* random_gradients.c */
/* Can the kernel's loops be asked for by name? */
int has_loops(const struct check_env *env);
/* The counts of a receipt against brute force. */
int try_receipt(struct subject *subject, const tp_receipt *receipt);
/* random_cuts.c, random_views.c: against the bits that were kept. */
int try_cuts(struct subject *subject, const struct kept *first);
int try_views(struct subject *subject, const struct kept *first);

/* random_isolated.c */
enum verdict { TRIAL_PASSED, TRIAL_FAILED, TRIAL_BEYOND };
struct finding {
    int64_t number;
    int kernel;
    enum verdict verdict;
    int died;          /* the signal that ended it; 0: it came back */
    int late;          /* it did not end in the time that it had */
    int64_t rows, unbounded; /* rows, or rows and keys, that were to be compared; of which without a finite bound */
    int sums_left;     /* gradients of bias, slopes and sinks were not compared, because some row has no bound */
    char step[48];
    char reason[400];
};
struct isolated {
    const struct check_kernels *kernels;
    uint64_t seed;
    int64_t count;     /* trials; INT64_MAX: until time is up */
    double seconds;    /* budget; 0: none */
    int threads;       /* of the pool's context */
    int workers;
    int patience;      /* seconds for one trial on one kernel; 0: 300 */
    int64_t done;      /* out */
    void (*found)(void *user, const struct finding *finding);
    int (*walking)(void *user, int64_t begun); /* now and then; trials begun. Nonzero ends the walk */
    void *user;
};
/* Every trial on every kernel, in worker processes. */
int isolated_walk(struct isolated *isolated);
/* One trial on one kernel, in a process of its own. */
void isolated_one(const struct isolated *isolated, const struct trial *trial, int kernel, struct finding *finding);

/* random_shrink.c: replaces the trial and the finding by smaller ones that fail alike, for a minute at most. */
void shrink(const struct isolated *isolated, struct trial *trial, struct finding *finding);

/* random_cover.c */
struct cover;
struct cover *cover_new(void);
void cover_add(struct cover *cover, const struct trial *trial);
int cover_never(const struct cover *cover); /* words that were not drawn */
/* Prints it; returns how many words the parser has and the table has not. */
int cover_print(const struct cover *cover, const struct check_kernels *kernels, int verbose);
void cover_free(struct cover *cover);

/* random.c */
int command_check_random(const struct options *options, const struct check_kernels *kernels, int threads);
int command_check_problem(const struct options *options, const struct check_kernels *kernels, int threads);

#endif
