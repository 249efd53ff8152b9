/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tileproof: exact attention that never writes the score matrix, and says what ran.
 *
 *     O = softmax(scale * Q K^T, masked) V        LSE = log(sum(exp(scores)))
 *
 * This header is the manual. Read as far as you need:
 *
 *     0  conventions        dtypes, status and error, struct sizes, ownership, threads
 *     1  one call           tp_context, tp_problem, tp_tensors, tp_attention
 *     2  plan and run       tp_plan, tp_exec, workspace, the caller's own threads
 *     3  explain            candidates, reasons, the text form of a problem
 *     4  receipt            what ran, what was refused, bytes, time; watching: events, counts, metrics,
 *                           trace, flight recorder
 *     5  machine            what this host has; recorded hosts
 *     6  oracle and merge   the double reference and its error bounds, tp_merge
 *     7  what exists        tables of kernels, masks and kernel functions, for tools
 *     8  quantised caches   rows to codes and back
 *
 * "Exact" means: the same function as dense attention with bounded rounding, no approximation.
 * docs/numerics.md is the contract line by line, each line with the test that holds it.
 */
#ifndef TILEPROOF_H
#define TILEPROOF_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The one source of the version; the build reads it here. */
#define TP_VERSION_MAJOR 0
#define TP_VERSION_MINOR 2
#define TP_VERSION_PATCH 0

#if defined(__GNUC__)
#define TP_API __attribute__((visibility("default")))
#else
#define TP_API
#endif

/* "0.2.0" of the library that is loaded, which may differ from the header's. */
TP_API const char *tp_version(void);
/* SHA-256, in hex, of what that library was built from: every source, compiler, flags and options. Two libraries
   with the same hash do the same, wherever they were built. Another compiler gives another hash. */
TP_API const char *tp_build_hash(void);
TP_API const char *tp_build_compiler(void); /* "GNU 12.2.0 -O3 ... pthreadpool=ON": part of the hash */

/* ------------------------------------------------------------------------------------------
 * 0  Conventions
 *
 * Words     q, k, v, o: the four tensors. m, l: running row maximum and row sum. lse: the log of the sum of
 *           exponentials of a row's scores (natural log, float32). group: query heads that share one KV head;
 *           query head h reads KV head h / group.
 * Sizes     A struct that starts with struct_size may have more fields in a later version, always at its end.
 *           Program and library may be of different versions, in both directions, because each struct says how
 *           long its owner made it. Set one up with its init function or INIT macro: they use sizeof of your
 *           header. A function that fills a struct is an inline function here. It calls NAME_sized, which takes
 *           the size; programs that load symbols by name call that.
 *             - Shorter than the library's, but not shorter than in 0.2.0: fields that the program does not know
 *               are taken as 0 and never written.
 *             - Longer: what lies beyond must be 0. Anything else is refused with TP_INVALID, because the
 *               program asks for something that the library does not have. In a struct that is filled, it is set
 *               to 0.
 *             - Shorter than in 0.2.0, or above 65,536: refused with TP_INVALID.
 *           Structs that the library gives by pointer (decisions, events, rows of tables) have the library's
 *           size: read them where they are, do not copy them. A newer program asks TP_HAS before it reads a
 *           field that 0.2.0 did not have.
 *           Structs without struct_size lie in arrays or inside others. They stay as they are for ever:
 *           tp_tensor, tp_mask_node, tp_row, tp_permit, and an entry of tp_lengths.seq, of which there are 16.
 * Growth    From 0.2.0 on, a later version may add functions, enum numbers, bits of flags, words of the text
 *           form, keys of JSON, and fields at the end of a struct. If a new field is 0, the library behaves as
 *           before. Until 1.0 nothing that exists is removed or gets another meaning. What is to go in 1.0 is
 *           marked deprecated here, with what replaces it, at least one minor version before. The SONAME is the
 *           major number, so it changes only when something is removed. Texts of errors, and the choice between
 *           kernels, are not part of this.
 * Errors    Every call that can fail returns a tp_status and, when the tp_error pointer is not NULL, fills in a
 *           text that names the value and the rule. Nothing is ever printed, nothing aborts. On failure no
 *           output is written.
 * Ownership The caller owns every struct it passes, every tensor and the workspace. The library owns tp_context,
 *           tp_plan and tp_decision until their destroy function is called. A plan refers to its context, and a
 *           receipt to its plan's decision: destroy the plan after the last use of its receipts, and the context
 *           last. Names (of kernels, dtypes, functions) live as long as the library. tp_plan_submit says what
 *           must stay while a call is under way.
 * Threads   A plan is immutable: any number of threads may run it, one workspace each. tp_attention may be
 *           called from any thread; calls on one context take turns, because they share its workspace and pool.
 *           Creating plans from one context is thread-safe. Running attention from inside a task or a mask's
 *           callback gives TP_BUSY. In a forked child every function that takes a context or a plan gives
 *           TP_FORKED, if it returns a status, and none hangs; tp_context_count_next gives 0. A child makes a
 *           context of its own. It may destroy its copy of the parent's; memory that a thread of the parent was
 *           changing when it forked is then not freed.
 * State     A context owns the machine value, the pool, the cache of decisions, counters, policy, and a grow-only
 *           workspace that tp_attention alone uses. One thread-local mark says "this thread is inside a task",
 *           which is how TP_BUSY is known. One thing is kept for the whole process: whether AMX works, found out
 *           once, when a machine is first detected. If the CPU has AMX, the library then asks Linux to permit its
 *           tiles to this process (arch_prctl). From then on sigaltstack refuses stacks that cannot hold the
 *           tiles. The library reads no environment variable.
 * Floats    Every call computes in the default floating-point environment and restores the caller's. The
 *           caller's rounding mode, flush to zero and trapping exceptions do not change results.
 * ------------------------------------------------------------------------------------------ */

/* Does the struct that the pointer leads to reach as far as this field? */
#define TP_HAS(pointer, field) \
    ((pointer)->struct_size >= (size_t)((const char *)(&(pointer)->field + 1) - (const char *)(pointer)))

typedef enum tp_status {
    TP_OK = 0,
    TP_INVALID = 1,          /* an argument breaks a rule; the text names value and rule        */
    TP_UNSUPPORTED = 2,      /* well formed, but no kernel of this library serves it            */
    TP_FALLBACK_REFUSED = 3, /* only a slower tier would serve it, and the policy refuses that  */
    TP_NO_MEMORY = 4,        /* an allocation failed (tp_plan_run allocates with TP_EXEC_CHECK_DEEP only),
                                or threads of a context could not be started                    */
    TP_WORKSPACE = 5,        /* workspace too small, misaligned or missing                      */
    TP_MACHINE = 6,          /* detection failed, or the plan's ISA is not on this host         */
    TP_BUSY = 7,             /* called from inside one of its own tasks                         */
    TP_FORKED = 8,           /* the context was made before this process was forked             */
    TP_NOT_LOCKED = 9,       /* the policy is locked, and what would serve is not permitted     */
    TP_DEVICE_FAILED = 10,   /* a device, its driver or its backend failed; the text says where */
    TP_PENDING = 11,         /* tp_ticket_wait: the call is not done yet                        */
    TP_CACHE_FULL = 12       /* tileproof_cache.h: a cache has too few free pages or slots       */
} tp_status;

/* "TP_INVALID" and so on; "TP_?" for a number that is no status. */
TP_API const char *tp_status_name(tp_status status);

typedef struct tp_error {
    uint32_t struct_size;
    int32_t status;
    char text[512]; /* "head_dim_qk is 0: it must be in 1..1048576" */
} tp_error;
#define TP_ERROR_INIT { sizeof(tp_error), 0, { 0 } }

/* Numbers are fixed for ever; 0 is "not set". f32, f16 and bf16 have kernels; i8, i4 and e4m3 have them as k and v, with
   scales (section 8). */
typedef enum tp_dtype {
    TP_F32 = 1,
    TP_F16 = 2,
    TP_BF16 = 3,
    TP_E4M3 = 4,
    TP_E5M2 = 5,
    TP_I8 = 6,
    TP_I4 = 7
} tp_dtype;
TP_API const char *tp_dtype_name(tp_dtype dtype); /* "bf16"; "dtype?" when unknown */
/* Bytes of one element; 0 for unknown dtypes and for i4, which packs two in a byte. */
TP_API size_t tp_dtype_bytes(tp_dtype dtype);

/* How codes of a quantised cache are scaled: what is stored is code * scale. Numbers are fixed for ever; 0 is "not
   quantised". i8 takes TOKEN or Q8_0, e4m3 TENSOR or TOKEN, i4 GROUP. docs/quantised.md shows the formats. */
typedef enum tp_scales {
    TP_SCALES_NONE = 0,
    TP_SCALES_TENSOR = 1, /* one float32 for a whole tensor */
    TP_SCALES_TOKEN = 2,  /* one float32 for each token and KV head */
    TP_SCALES_GROUP = 3,  /* one f16 for each 32 elements of a row; the last group may have fewer */
    TP_SCALES_Q8_0 = 4    /* ggml's q8_0 blocks: an f16 scale, then 32 codes, 34 bytes. Strides count bytes */
} tp_scales;
TP_API const char *tp_scales_name(tp_scales kind); /* "token"; "scales?" when unknown */

/* How a kernel rounds its products and sums: tp_reference's bounds depend on it. Numbers are fixed for ever. */
typedef enum tp_arithmetic {
    TP_ARITHMETIC_F32 = 0,    /* float32 throughout: elements of 16 bits are widened, which is exact. Probabilities below 2^-99
                                 of the greatest may count as 0, where the problem's p_dtype is TP_BF16 those below 2^-58 */
    TP_ARITHMETIC_OPENCL = 1, /* the same in blocks of 32 keys, without chunks or in splits of 512, with a log of 3 ulp */
    TP_ARITHMETIC_P_BF16 = 2  /* float32, but probabilities are rounded to bf16 where they meet v; those below 2^-58 of the
                                 greatest may count as 0 */
} tp_arithmetic;
TP_API const char *tp_arithmetic_name(tp_arithmetic arithmetic); /* "f32", "opencl", "p=bf16"; "arithmetic?" when unknown */

/* Where kernels run and memory lies: TP_CPU, or the number of the context's backend, 1..255. */
typedef enum tp_device { TP_CPU = 0 } tp_device;

typedef enum tp_index_type { TP_I32 = 0, TP_I64 = 1 } tp_index_type;

/* What may happen when the first tier (TP_TIER_BEST) cannot serve. */
typedef enum tp_policy {
    TP_REFUSE = 0, /* TP_FALLBACK_REFUSED: the default                                            */
    TP_PERMIT = 1, /* serve from a lower tier and flag it on the receipt                           */
    TP_SERVE = 2,  /* the same, and the context's event function is called for each such call      */
    TP_LOCKED = 3  /* only what tp_context_permit named, of whatever tier; otherwise TP_NOT_LOCKED */
} tp_policy;

/* Receives a text in pieces. Returns 0 to go on; anything else stops the writing, which then gives TP_INVALID. */
typedef int (*tp_write)(void *cookie, const char *bytes, size_t size);

/* ------------------------------------------------------------------------------------------
 * 1  One call
 *
 *     tp_context *ctx;
 *     tp_context_create(NULL, &ctx, &err);
 *     tp_problem p;  tp_problem_init(&p);
 *     p.batch = 1; p.q_heads = 32; p.kv_heads = 8; p.q_len = p.kv_len = 4096;
 *     p.head_dim_qk = p.head_dim_v = 128;
 *     tp_problem_dtype(&p, TP_BF16);
 *     tp_problem_causal(&p);
 *     tp_tensors t;  tp_tensors_init(&t, &p, q, k, v, o);          // plain contiguous bshd
 *     tp_status s = tp_attention(ctx, &p, NULL, &t, &receipt, &err);
 * ------------------------------------------------------------------------------------------ */

typedef struct tp_context tp_context;

typedef struct tp_machine tp_machine; /* section 5 */
typedef struct tp_event tp_event;     /* section 4 */
typedef void (*tp_event_function)(void *user, const tp_event *event);
typedef struct tp_backend tp_backend; /* tileproof_backend.h */

/* Host memory for the context's workspace, and for tp_memory_allocate on TP_CPU. The library asks for multiples of the
   alignment, 64. Both functions may be called on several threads at once, and must not call the library. */
typedef struct tp_allocator {
    uint32_t struct_size;
    int32_t reserved;                                                    /* 0 */
    void *(*allocate)(void *user, size_t bytes, size_t alignment);       /* NULL: there is none */
    void (*release)(void *user, void *memory, size_t bytes);
    void *user;
} tp_allocator;
#define TP_ALLOCATOR_INIT { sizeof(tp_allocator), 0, NULL, NULL, NULL }

typedef void (*tp_task)(void *task_context, size_t index);
/* Equals: for (size_t i = 0; i < count; i++) task(task_context, i);
   in any order, on any threads, returning when all are done. */
typedef void (*tp_parallel_for)(void *user, size_t count, tp_task task, void *task_context);

typedef struct tp_context_options {
    uint32_t struct_size;
    int32_t threads;           /* 0: min(affinity, cgroup quota); 1: serial; otherwise that many */
    int32_t policy;            /* tp_policy                                                      */
    int32_t cached_plans;      /* bound of the decision cache; 0: 64                             */
    const char *disable;       /* names from tp_kernel_info, "a,b"; copied; NULL: none. An entry
                                  head_dim=96 makes every fused kernel refuse that head dim: a drill for
                                  what happens to a model that no fused kernel serves             */
    const tp_machine *machine; /* NULL: detect; otherwise plan for that one; copied              */
    /* Watching: section 4. Each may be NULL. */
    tp_event_function event;   /* called for fallbacks under serve and locked, and for refusals  */
    void *event_user;
    tp_write trace;            /* gets one line of JSON a call                                   */
    void *trace_cookie;
    tp_write dump;             /* after a call that failed: what the flight recorder holds       */
    void *dump_cookie;
    int32_t recorded;          /* decisions that the flight recorder keeps; 0: 64; -1: none      */
    int32_t reserved;          /* 0 */
    const tp_backend *backend; /* kernels on a device, whose number tp_choice and tp_tensors name; its table is copied, what
                                  it points to must outlive the context. NULL: the CPU alone     */
    const tp_allocator *allocator; /* copied; NULL: posix_memalign and free                      */
    int32_t counted;           /* 0: calls are counted by label, with histograms of their time; -1: only in tp_counters */
    int32_t reserved2;         /* 0 */
    tp_parallel_for parallel_for; /* the caller's threads, for all calls of the context: no pool is made, and `threads` says
                                     into how many tasks work is cut. NULL: a pool of the context's own */
    void *parallel_user;
} tp_context_options;
#define TP_CONTEXT_OPTIONS_INIT \
    { \
        sizeof(tp_context_options), 0, TP_REFUSE, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, NULL, NULL, 0, 0, \
            NULL, NULL \
    }

/* The context has exactly the threads asked for, or the call fails with TP_NO_MEMORY. The library first starts so
   many threads as a trial and ends them, because libpthreadpool waits for ever when one of its threads cannot be
   started. This can still happen if other programs reach a limit of threads between the trial and the start of the
   pool. */
TP_API tp_status tp_context_create(const tp_context_options *options, tp_context **context,
                                   tp_error *error);
TP_API void tp_context_destroy(tp_context *context);
TP_API int tp_context_threads(const tp_context *context);
TP_API const tp_machine *tp_context_machine(const tp_context *context);

/* What policy locked permits: a kernel, by name, for problems of a class (tp_problem_class). Permits are copied and
   added to those the context has; permits NULL with count 0 removes all. Existing plans stay as they are;
   tp_attention decides again. A context holds at most 65,536 permits. */
typedef struct tp_permit {
    const char *problem_class;
    const char *kernel;
} tp_permit;
TP_API tp_status tp_context_permit(tp_context *context, const tp_permit *permits, int64_t count,
                                   tp_error *error);

/* How the tokens of all sequences lie in a tensor. */
typedef enum tp_layout {
    TP_BATCH = 0, /* sequence s, token t, head h at s*stride[0] + t*stride[1] + h*stride[2]; every
                     sequence holds the same number of tokens, of which q_lens / kv_lens, if given,
                     says how many are used                                                      */
    TP_PACKED = 1, /* sequences lie one after another; sequence s is tokens cu[s]..cu[s+1]-1 and
                     stride[0] is ignored                                                        */
    TP_PAGED = 2  /* k and v only: pages of page_size tokens in a pool, in any order; key j of sequence s
                     is token j % page_size of page k_pages[s][j / page_size], and page p, token t,
                     head h lies at p*stride[0] + t*stride[1] + h*stride[2]: NHD and HND alike     */
} tp_layout;

/* Alignment sets the default mask positions and nothing else; k_pos of key j is j. */
typedef enum tp_align {
    TP_BOTTOM_RIGHT = 0, /* q_pos of row i is i + kv_len - q_len, by the used lengths of its sequence
                            (q_lens and kv_lens, or what cu_seqlens holds): its last row stands at its
                            last key, wherever padding or a page ends                             */
    TP_TOP_LEFT = 1      /* q_pos of row i is i                                                   */
} tp_align;

/* A mask is a tree in postfix order: {causal}, {window}, {and}. No node: every key is visible. docs/masks.md
   shows each kind with a picture. q_pos and k_pos are mask positions: those of the alignment, or the
   tensors' own (tp_problem.positions). A kind marked "data" reads arrays of tp_tensors. */
typedef enum tp_mask_kind {
    TP_MASK_AND = 1,
    TP_MASK_OR = 2,
    TP_MASK_CAUSAL = 16, /* k_pos <= q_pos                                                        */
    TP_MASK_WINDOW = 17, /* q_pos - a <= k_pos <= q_pos + b; -1: that side is unbounded. The row's
                            own position counts on neither side: (0,0) sees one key, and a causal
                            model's "sliding_window W" is window(W-1, 0).                          */
    TP_MASK_CHUNK = 18,  /* floor(k_pos / a) == floor(q_pos / a)                                   */
    TP_MASK_PREFIX = 19, /* k_pos < a; a = -1, data: k_pos < prefix_lens[sequence]                 */
    TP_MASK_FIRST = 20,  /* key < a: an index, whatever its position                               */
    TP_MASK_DOCUMENTS = 21, /* data: row and key have the same id, which is not negative           */
    TP_MASK_SPANS = 22,  /* data: row and key lie in the same span                                 */
    TP_MASK_TREE = 23,   /* data: rows are the last q_len keys, drafts that each name a parent; a row
                            sees all keys before the drafts, itself and its ancestors              */
    TP_MASK_BITS = 24,   /* data: the bit of (sequence, head, row, key) is set                     */
    TP_MASK_CALLBACK = 25 /* data: the caller's function says so: tp_mask_callback                 */
} tp_mask_kind;

typedef struct tp_mask_node {
    int32_t kind;
    int32_t reserved; /* 0 */
    int64_t a, b;
} tp_mask_node;

#define TP_MAX_MASK_NODES 15
#define TP_MAX_HEAD_DIM 576

typedef enum tp_op {
    TP_FORWARD = 0,
    TP_BACKWARD = 1 /* gradients of a forward call: tp_tensors.gradients */
} tp_op;

/* What is asked. Lengths and batch are upper bounds: a plan serves every run within them. */
typedef struct tp_problem {
    uint32_t struct_size;
    int32_t op; /* tp_op */
    int32_t q_dtype, k_dtype, v_dtype, o_dtype;
    int32_t q_layout, kv_layout; /* tp_layout */
    int32_t align;               /* tp_align  */
    int32_t scale_set;           /* 0: 1/sqrt(head_dim_qk) */
    float scale;                 /* any finite value with scale*log2(e) finite; 0 and negative too */
    int32_t mask_nodes;
    int64_t batch;               /* sequences, at most */
    int64_t q_heads, kv_heads;   /* q_heads must be a multiple of kv_heads */
    int64_t head_dim_qk, head_dim_v;
    int64_t q_len, kv_len;       /* of one sequence, at most */
    tp_mask_node mask[TP_MAX_MASK_NODES];
    int64_t page_size;           /* TP_PAGED: tokens of a page, at least 1; otherwise 0 */
    int64_t sparse_len;          /* sparse indices: each token of q names the keys that it may see, at most this many;
                                    0: none                                                         */
    int32_t sparse_sorted;       /* promise: the indices of a token ascend, no key twice. Masks need it */
    int32_t latent;              /* 1: v's rows are parts of k's, as in a latent cache: the same strides
                                    and dtype, v.data at or behind k.data. Each row is then read once */
    int32_t reserved;            /* 0 */
    int32_t invariant;           /* 1: a row's bits depend on its own q and keys alone, not on how many
                                    rows its sequence has in the call: decode, prefill in chunks and prefill
                                    at once agree bit for bit. Costs speed with few rows            */
    /* Scores, in the order in which it is applied (docs/maths.md section 7); 0: not asked for.
           s = scale * (1 + beta*log(1 + floor(max(q_pos + offset, 0) / length))) * q.k    qscale
           s = softcap * tanh(s / softcap)                                                 softcap
           s = s - slope * |q_pos - k_pos|                                                 alibi
           s = s + bias                        -inf: the key is hidden                     bias
       then the mask, then one more logit a head that has no key and no value: the sink. */
    int32_t positions;      /* 1: tensors.q_positions and k_positions are the mask positions */
    int32_t bias_dtype;     /* 0: no bias; TP_F32, TP_F16, TP_BF16 */
    int32_t alibi;          /* 1: tensors.alibi_slopes */
    int32_t sinks;          /* 1: tensors.sinks */
    float softcap;          /* 0 or positive */
    float qscale_beta;
    int64_t qscale_length;  /* 0: no scale by position */
    int64_t qscale_offset;
    float dropout;          /* each probability is dropped with this probability, 0 <= p < 1; those that
                               stay are divided by 1 - p. Which ones: Philox4x32-10 of (seed, offset, sequence,
                               query head, row, key), whatever the tiling. lse knows nothing of it      */
    int32_t reserved2;      /* 0 */
    int32_t p_dtype;        /* the dtype to which a kernel may round probabilities before it multiplies them by v; in
                               backward also gradients of scores, before products with d_o, q and k. 0: float32.
                               TP_BF16 permits rounding and does not demand it: the receipt's arithmetic says what was
                               done. Sequences of few rows are not rounded: where no others are within the problem's bounds,
                               it is TP_ARITHMETIC_F32. Probabilities below 2^-58 of the greatest may count as 0 in any case */
    int32_t reserved3;      /* 0 */
    int64_t cascade;        /* 0: every sequence reads all its keys. Otherwise what sequences share at their beginning
                               (tensors.shared_with, shared_lens; this many keys at most) is read and computed once for all of
                               them. Needs paged keys, and goes with causal, window, qscale, softcap and sinks only. It changes
                               bits, because keys are cut at other places; with `invariant` it changes none */
    int32_t k_scales, v_scales; /* tp_scales of a k and v in i8, i4 or e4m3; otherwise 0. Attention is exact for what is
                               stored, code * scale. Forward only */
} tp_problem;

/* batch 1, heads 1/1, f32, no mask, bottom-right, default scale; dims and lengths 0. The init functions
   do nothing for NULL. */
TP_API void tp_problem_init_sized(tp_problem *problem, size_t size);
static inline void tp_problem_init(tp_problem *problem) { tp_problem_init_sized(problem, sizeof *problem); }
TP_API void tp_problem_dtype(tp_problem *problem, tp_dtype all); /* q, k, v and o */
/* Join one more mask with the tree by AND. TP_INVALID, with the problem as it was: struct_size is wrong, the tree
   already has TP_MAX_MASK_NODES nodes, or a window is below -1 or above 2^40. There is no tp_error here;
   tp_problem_check explains what is wrong with a problem. */
TP_API tp_status tp_problem_causal(tp_problem *problem);
TP_API tp_status tp_problem_window(tp_problem *problem, int64_t left, int64_t right);
/* Join one more kind with the tree so far by TP_MASK_AND or TP_MASK_OR. The first kind of a problem is joined with nothing:
   (causal AND window) OR spans is three calls. TP_INVALID as above. */
TP_API tp_status tp_problem_mask(tp_problem *problem, tp_mask_kind join, tp_mask_kind kind, int64_t a,
                                 int64_t b);
/* Every rule a problem must keep, without any machine: TP_OK or the first one broken. */
TP_API tp_status tp_problem_check(const tp_problem *problem, tp_error *error);

/* Strides count elements and may be 0 on inputs; the head dim itself is contiguous. Element
   alignment is enough. Inputs are never written. */
typedef struct tp_tensor {
    void *data;
    int64_t stride[3]; /* {batch, token, head} */
} tp_tensor;
#define TP_TENSOR_INIT { NULL, { 0, 0, 0 } }

/* Is this key visible to this row of this sequence? May be called from any thread. A run asks once for each
   (sequence, row, key), before anything is computed, and keeps the answers. A callback whose answers change between
   calls gives another mask, but never an access outside the tensors. tp_check_deep, TP_EXEC_CHECK_DEEP, tp_reference
   and tp_mask_visible ask again. When tp_reference has checked the pages and the callback then shows a key that lies
   in no page, the key counts as hidden. Inside a callback every function may be called, but running attention gives
   TP_BUSY. */
typedef int (*tp_mask_callback)(void *user, int64_t seq, int64_t row, int64_t key);

/* A backward call's own tensors. o and lse of tp_tensors are then inputs: what the forward call wrote. */
typedef struct tp_gradients {
    uint32_t struct_size;
    int32_t reserved;
    tp_tensor d_o;          /* in: of o_dtype, laid out like o                                      */
    tp_tensor d_lse;        /* in: float32, like lse; data NULL: zero                               */
    tp_tensor d_q, d_k, d_v; /* out: of q's, k's and v's dtype, laid out like them; data NULL: not wanted.
                               Their rows may be slices of one tensor                               */
    float *d_bias;          /* out: summed where its strides share an element; NULL: not wanted     */
    int64_t d_bias_stride[4];
    float *d_alibi_slopes;  /* out: [query head], summed over sequences where the slopes are shared */
    int64_t d_alibi_stride;
    float *d_sinks;         /* out: [query head], summed over sequences                             */
} tp_gradients;
#define TP_GRADIENTS_INIT \
    { sizeof(tp_gradients), 0, TP_TENSOR_INIT, TP_TENSOR_INIT, TP_TENSOR_INIT, TP_TENSOR_INIT, TP_TENSOR_INIT, \
      NULL, { 0, 0, 0, 0 }, NULL, 0, NULL }

/* Whose call it is: for events, trace and counts (section 4). The model is also a label of the counts. They keep the
   names of the first 32 models of a context; all others are counted as "other". */
typedef struct tp_tags {
    uint32_t struct_size;
    int32_t layer;       /* -1: not said */
    const char *model;   /* 1..63 bytes; NULL: not said */
    const char *request; /* likewise */
} tp_tags;
#define TP_TAGS_INIT { sizeof(tp_tags), -1, NULL, NULL }

typedef struct tp_tensors {
    uint32_t struct_size;
    int32_t device;       /* tp_device: where all memory below lies but the arrays of index_type. On a device other than
                             TP_CPU the host does not read this memory: it only computes with the addresses, and checks
                             no values */
    int32_t index_type;   /* tp_index_type of every array of whole numbers below: cu_seqlens, used lengths,
                             page tables, sparse indices, positions, ids, spans, parents           */
    int32_t index_device; /* where these arrays lie: TP_CPU, or the same as device, if its backend takes that. The host does
                             not read them there: a wrong value in one is TP_INVALID when the call is done, and lengths in
                             receipts and labels are the bounds */
    int64_t batch;        /* sequences in this call */
    int64_t q_len, kv_len;       /* TP_BATCH: tokens each sequence holds, at most the problem's; ignored when
                                    packed. TP_PAGED: kv_len likewise, the keys of each sequence where
                                    kv_lens is NULL; a page may hold more than are used              */
    int64_t q_tokens, kv_tokens; /* TP_PACKED: tokens the whole tensor holds; otherwise ignored */
    tp_tensor q, k, v;
    tp_tensor o;
    tp_tensor lse;               /* float32, one value a row and query head; data NULL: not wanted */
    const void *cu_seqlens_q, *cu_seqlens_kv; /* [batch+1], TP_PACKED only; starts at >= 0 */
    const void *q_lens, *kv_lens;             /* [batch] used lengths; NULL: all */
    /* TP_PAGED: tables [batch][page_slots] of page numbers. k.data is the pool: its page p begins at element
       p*k.stride[0], whatever sequence holds it, and tp_tensors_init sets the strides of pages that lie one
       after another, [page][token][head][dim] (NHD). For [page][head][token][dim] (HND) stride[1] is the
       head dim and stride[2] page_size times that. Set page_slots, pages and k_pages; kv_lens in most
       cases. Entries of pages that no row sees may hold anything; a key that only a bias hides counts as
       seen. examples/paged.c is a whole program. */
    const void *k_pages, *v_pages;            /* v_pages NULL: the same table for both */
    int64_t page_slots;                       /* entries a sequence has in a table */
    int64_t pages;                            /* pages the pool of k, and that of v, holds */
    /* Sparse indices: for each token of q, the keys that its rows may see, as indices within the sequence. All heads of
       a token share them. Token t of sequence s has row s*q_len + t of the array; packed: row cu_seqlens_q[s] + t. -1 ends a
       row early. Unless sparse_sorted, a key that stands twice counts twice, and there may be more indices than keys. */
    const void *sparse_indices;               /* [rows][sparse_len] */
    int64_t sparse_stride;                    /* elements from one row to the next */
    /* What masks and scores read. Ignored unless the problem asks for it. Arrays are of
       index_type; "by row" means [batch][q_len], or [q_tokens] when packed; "by key" likewise,
       and [batch][kv_len] when paged. */
    const void *q_positions, *k_positions;    /* by row, by key; each within +-2^40, in any order */
    const void *prefix_lens;                  /* [batch] */
    const void *q_documents, *k_documents;    /* ids by row, by key; negative: of no document. q NULL:
                                                 a row has the id of the first key whose position is its
                                                 own (key q_pos, without positions); none there: of no
                                                 document                                            */
    const void *q_spans, *k_spans;            /* ids, likewise; or instead a list of spans: */
    const void *spans, *span_offsets;         /* [n][2] start, end of positions, ascending, no overlap;
                                                 sequence s has spans offsets[s]..offsets[s+1]-1     */
    const void *parents;                      /* by row: an earlier row of the sequence, or -1       */
    const void *bits;                         /* bit key%8 of byte key/8 of a row: tp_mask_pack      */
    int64_t bits_stride[3];                   /* {batch, query head, row} in bytes; 0: shared        */
    tp_mask_callback callback;
    void *callback_user;
    const void *bias;                         /* of bias_dtype, natural units                        */
    int64_t bias_stride[4];                   /* {batch, query head, row, key} in elements; 0: shared */
    const float *alibi_slopes;                /* [query head], finite                                */
    int64_t alibi_stride;                     /* from one sequence's slopes to the next's; 0: shared */
    const float *sinks;                       /* [query head] logits; -inf: none                     */
    uint64_t dropout_seed, dropout_offset;
    const tp_gradients *gradients;            /* of a backward call; a forward call ignores it       */
    const tp_tags *tags;                      /* whose call it is; NULL: not said                    */
    /* cascade: sequence s begins with the first shared_lens[s] keys of the earlier sequence shared_with[s], on the same pages;
       -1: it shares with no sequence, and its shared_lens is ignored. A sequence may share with one that itself shares. Sequences
       of more than 256 rows of a KV head, or whose rows do not see all of these keys, read what they see of them by themselves.
       tp_cache_prefixes fills both. */
    const void *shared_with, *shared_lens;    /* [batch] */
    /* Scales of a quantised k and v, laid out like these, with strides in scales. TP_SCALES_TOKEN: float32, one for each token
       and KV head. TP_SCALES_GROUP: f16, a row's groups one after another. TP_SCALES_TENSOR: data is the one float32, strides are
       ignored. Otherwise data is NULL: q8_0 has scales inside its blocks. Strides of k and v in q8_0 count bytes, those in i4 are
       even. A scale that is not finite makes its elements NaN. latent: v's scales are those of k that its elements have. */
    tp_tensor k_scales, v_scales;
    /* What this k and v lost when they were stored: the greatest error of any row relative to its greatest |value|, as
       tp_quantise says it. The call copies the number to its receipt, and does nothing else with it. It is read at that moment,
       and may be raised by other threads: tp_cache_tensors points to its layer's. NULL: not said. */
    const double *kv_loss;                    /* of host memory: finite, not negative                */
} tp_tensors;

/* Packs a mask of bytes, [rows][keys] with row_stride bytes from row to row, not 0 meaning visible, into
   bits, [rows][bits_row_bytes]; bits_row_bytes is at least (keys+7)/8. */
TP_API tp_status tp_mask_pack(int64_t rows, int64_t keys, const void *bytes, int64_t row_stride,
                              void *bits, int64_t bits_row_bytes, tp_error *error);

/* Contiguous tensors of the problem's bounds: bshd, or thd when packed (q_tokens and kv_tokens are
   then batch times the bound), or pools of NHD pages when paged. No lse, no length arrays, no page tables; scales have strides
   but no data. Change what differs afterwards. */
TP_API void tp_tensors_init_sized(tp_tensors *tensors, size_t size, const tp_problem *problem, const void *q,
                                  const void *k, const void *v, void *o);
static inline void tp_tensors_init(tp_tensors *tensors, const tp_problem *problem, const void *q, const void *k,
                                   const void *v, void *o) {
    tp_tensors_init_sized(tensors, sizeof *tensors, problem, q, k, v, o);
}

typedef struct tp_receipt tp_receipt; /* section 4 */

/* How one plan or call may be chosen. NULL: the context's own policy and disable list. */
typedef struct tp_choice {
    uint32_t struct_size;
    int32_t policy;      /* tp_policy */
    const char *disable; /* added to the context's list; NULL: nothing */
    const char *kernel;  /* only this candidate, by name; NULL: the best */
    const char *strategy; /* "prefill" or "decode" for every sequence; NULL: by its number of rows */
    int32_t device;      /* tp_device that the tensors will lie on: its kernels serve, no others       */
    int32_t reserved;    /* 0 */
} tp_choice;
#define TP_CHOICE_INIT { sizeof(tp_choice), TP_REFUSE, NULL, NULL, NULL, TP_CPU, 0 }

/* Attention on the context's pool and workspace. The decision is cached by scalars and layout
   classes, not by lengths, so a decode loop plans once; math, callbacks and backward are planned anew each
   time, because lengths decide whether they fit. The workspace is that of the problem's own bounds: it grows
   when a problem needs more than any before. Receipt and error may be NULL. */
TP_API tp_status tp_attention(tp_context *context, const tp_problem *problem,
                              const tp_choice *choice, const tp_tensors *tensors,
                              tp_receipt *receipt, tp_error *error);

/* Gradients of that call, by recomputation: tensors with q, k, v, o, lse and gradients. The same as
   tp_attention with op TP_BACKWARD, which it sets. Deterministic: the same bits for any number of threads. */
TP_API tp_status tp_backward(tp_context *context, const tp_problem *problem, const tp_choice *choice,
                             const tp_tensors *tensors, tp_receipt *receipt, tp_error *error);

/* ------------------------------------------------------------------------------------------
 * 2  Plan and run
 *
 * A plan fixes the decision and the upper bounds. Actual lengths come to run, which schedules
 * inside the workspace and allocates nothing. Equal numerics_id and equal input give equal bits:
 * for any number of threads, any neighbours in the batch, and any run.
 * ------------------------------------------------------------------------------------------ */

typedef struct tp_plan tp_plan;

TP_API tp_status tp_plan_create(tp_context *context, const tp_problem *problem,
                                const tp_choice *choice, tp_plan **plan, tp_error *error);
TP_API void tp_plan_destroy(tp_plan *plan);

/* The device that the plan's tensors and workspace lie on; TP_CPU for NULL. */
TP_API int tp_plan_device(const tp_plan *plan);

/* Bytes of 64-byte aligned workspace, in the memory of the plan's device, that a run cut into this many tasks needs, at
   the plan's bounds. A device chooses its number of tasks itself and ignores `threads`. */
TP_API size_t tp_plan_workspace(const tp_plan *plan, int threads);

/* Memory of a device, 64-byte aligned, for tensors and workspaces: of TP_CPU by the context's allocator, of others by the
   backend. tp_memory_free needs the same context, device and bytes. tp_memory_copy returns when the bytes are there; the two
   places may be any, but it is not ordered with calls that are not done. */
TP_API tp_status tp_memory_allocate(tp_context *context, int device, size_t bytes, void **memory, tp_error *error);
TP_API tp_status tp_memory_free(tp_context *context, int device, void *memory, size_t bytes, tp_error *error);
TP_API tp_status tp_memory_copy(tp_context *context, int to_device, void *to, int from_device, const void *from,
                                size_t bytes, tp_error *error);

struct pthreadpool;

/* A call of tp_plan_submit is done. The receipt is written by then; text: what failed, or "". Called once, by the thread
   that completed the call: for the CPU the caller's, before tp_plan_submit returns, for a device mostly one of its driver.
   Inside it running, submitting and waiting give TP_BUSY; it may destroy its ticket, but not plan or context. */
typedef void (*tp_done)(void *user, tp_status status, const char *text);

/* threads, pool and parallel_for are the CPU's: a device does not look at them. */
typedef struct tp_exec {
    uint32_t struct_size;
    int32_t threads;            /* tasks to cut the work into; 0: as many as the context or pool has threads
                                   (1 with parallel_for); 1: serial, on the calling thread        */
    struct pthreadpool *pool;   /* the caller's libpthreadpool pool; NULL: the context's pool or parallel_for. A call
                                   from inside a job of that same pool would hang in libpthreadpool,
                                   as any nested use of one pool does                             */
    tp_parallel_for parallel_for; /* the caller's own; used instead of a pool when not NULL       */
    void *parallel_user;
    void *workspace;            /* 64-byte aligned */
    size_t workspace_size;
    void *queue;                /* of a device: the caller's own, as its backend says; NULL: the backend's. CPU: NULL */
    int32_t reserved;           /* 0 */
    uint32_t flags;             /* TP_EXEC_* */
    tp_done done;               /* tp_plan_submit only; NULL: nobody is called */
    void *done_user;
} tp_exec;
#define TP_EXEC_INIT { sizeof(tp_exec), 0, NULL, NULL, NULL, NULL, 0, NULL, 0, 0, NULL, NULL }
#define TP_EXEC_CHECK_DEEP 1u /* tp_check_deep before running */

TP_API tp_status tp_plan_run(const tp_plan *plan, const tp_tensors *tensors, const tp_exec *exec,
                             tp_receipt *receipt, tp_error *error);

/*
 * The same without waiting. TP_OK: the call is on its way, and *ticket stands for it until tp_ticket_destroy; ticket NULL: none
 * is wanted. Otherwise nothing was begun. A plan of the CPU runs at once: its ticket is done when tp_plan_submit returns.
 *
 * Structs and index arrays on the host may be changed as soon as tp_plan_submit has returned. Tensors, index arrays on the
 * device, workspace and receipt belong to the call until it is done; calls on one queue that keeps their order may share a
 * workspace. The receipt is written then, whole, with the call's status; o, lse and gradients of a call that failed on its way
 * may hold anything. Counts, trace and events (section 4) come when it is done, on the thread that completed it.
 *
 * Destroy ticket, plan and context in this order. Destroying a ticket, plan or context waits until their calls are done and
 * their tp_done functions have returned. In a forked child nothing is waited for, and what the backend gave is left.
 */
typedef struct tp_ticket tp_ticket;
TP_API tp_status tp_plan_submit(const tp_plan *plan, const tp_tensors *tensors, const tp_exec *exec, tp_receipt *receipt,
                                tp_ticket **ticket, tp_error *error);
/* The call's status and, if it failed, its text; TP_PENDING when it is not done after so many nanoseconds: 0 asks,
   a negative number waits for ever. Any number of threads may wait, any number of times. */
TP_API tp_status tp_ticket_wait(tp_ticket *ticket, int64_t timeout_ns, tp_error *error);
/* The driver's event of the call's completion (a cl_event), as its backend says; NULL: there is none. It lives as long as the
   ticket. */
TP_API void *tp_ticket_event(const tp_ticket *ticket);
TP_API void tp_ticket_destroy(tp_ticket *ticket);

/* Every run checks pointers, strides, length arrays and whether outputs can overlap. That takes time proportional to
   the batch and, where masks read data by token, to the tokens. tp_check_deep adds what always takes time
   proportional to the tokens: it compares the bytes of every output row with those of every other output and input. */
TP_API tp_status tp_check_deep(const tp_problem *problem, const tp_tensors *tensors,
                               tp_error *error);

/* ------------------------------------------------------------------------------------------
 * 3  Explain
 *
 * tp_explain answers without tensors, from the same code that plans, also when everything was
 * refused (the returned status is then the decision's).
 * ------------------------------------------------------------------------------------------ */

/* Why a candidate was not taken. Numbers are fixed; a later version may add some (section 0, Growth). have and need are
   numbers where the rule is about a number, otherwise 0. */
typedef enum tp_reason_code {
    TP_WHY_ISA = 1,       /* the host lacks an instruction set: have, need are ISA bits         */
    TP_WHY_DISABLED = 2,  /* disabled by hand; have: the head dim, where an entry head_dim=N did it */
    TP_WHY_HEAD_DIM = 3,  /* have: the larger head dim; need: the most it takes                 */
    TP_WHY_POLICY = 4,    /* would serve, but is a fallback and the policy is refuse:
                             have, need are tp_tier, its own and the one that the policy
                             accepts. The text counts tiers from 1                              */
    TP_WHY_NOT_ASKED = 5, /* another kernel was asked for by name                               */
    TP_WHY_NOT_BEST = 6,  /* would serve; a better one was taken: have: its index among the
                             candidates; need: that of the one taken. The text has its rank,
                             which is the index + 1                                             */
    TP_WHY_MEMORY = 7,    /* its temporary memory cannot be addressed, or a device has less of some
                             kind than it needs: have, need in bytes                            */
    TP_WHY_OP = 8,        /* it has no backward: have, need are tp_op                           */
    TP_WHY_NOT_LOCKED = 9, /* would serve, but the policy is locked and no permit names it for
                             the problem's class: have: permits of that class; need: 1          */
    TP_WHY_DTYPE = 10,    /* it does not serve the dtype of q, k or v: have: the first such dtype;
                             need: those it serves, as in tp_kernel_info.dtypes. Or it rounds p to
                             a dtype (need) that the problem does not permit                    */
    TP_WHY_DEVICE = 11,   /* it runs on another device than was asked for: have: tp_choice.device;
                             need: its own                                                      */
    TP_WHY_ABSENT = 12,   /* its device, or the driver of it, is not there: the text says what  */
    TP_WHY_FEATURE = 13   /* it does not take something that the problem asks for: the text names it */
} tp_reason_code;
TP_API const char *tp_reason_name(tp_reason_code code);

/* Relative to what this host could serve this problem with. What is disabled by hand, or not asked for, counts as
   something it could; a kernel that does not serve the problem's dtype, head dim or op does not. */
typedef enum tp_tier {
    TP_TIER_BEST = 0,  /* "first tier": fused, and no better fused candidate could serve */
    TP_TIER_LOWER = 1, /* fused, behind one that could serve: a fallback    */
    TP_TIER_MATH = 2   /* materialises the scores: a fallback               */
} tp_tier;

/* Decisions, candidates and reasons are the library's own: read them, and reach the next one by its function. Texts
   live as long as the decision. */
typedef struct tp_reason {
    uint32_t struct_size;
    int32_t code; /* tp_reason_code */
    int64_t have, need;
    const char *text; /* "head_dim 640, need <= 576" */
} tp_reason;

typedef struct tp_candidate {
    uint32_t struct_size;
    int32_t tier;         /* tp_tier */
    int32_t chosen;
    int32_t reason_count; /* 0 when chosen */
    const char *kernel;   /* "generic", "math": the name that disable and tp_choice take */
    const char *strategy; /* "prefill", "decode", "backward", "math" */
    int32_t arithmetic;   /* tp_arithmetic of what the problem's bounds allow: the kernel's, or float32 where all goes by the
                             decode loop */
    int32_t reserved;
    const char *device;   /* that it runs on: "cpu", or the backend's name */
} tp_candidate;

#define TP_REWRITE_PADDED_V 1u /* head_dim_v padded with zero columns inside the workspace: exact */

typedef struct tp_decision {
    uint32_t struct_size;
    int32_t status;   /* TP_OK, TP_FALLBACK_REFUSED, TP_UNSUPPORTED or TP_NOT_LOCKED */
    int32_t chosen;   /* index of the candidate, or -1 */
    int32_t fallback; /* the chosen one is not of the first tier */
    int32_t candidate_count;
    uint32_t rewrites; /* TP_REWRITE_* */
    const char *hint;          /* the single change that unlocks a faster path, or "" */
    const char *problem;       /* its text form */
    const char *problem_class; /* what a permit names: tp_problem_class */
    const char *numerics_id;   /* equal id and equal input: equal bits; "" when nothing was chosen */
    /* at the problem's bounds */
    int64_t pairs;            /* visible (row, key) pairs over all heads; see pairs_exact       */
    double flops;             /* 2 * pairs * (head_dim_qk + head_dim_v): still quadratic; backward, with its
                                 five products: 2 * pairs * (3 * head_dim_qk + 2 * head_dim_v)  */
    double flops_usual;       /* 4 * q * k * d * heads, halved when causal: the usual count     */
    int64_t scores_per_head;  /* q_len * kv_len, or q_len * sparse_len: never written by a fused kernel */
    int64_t bytes_compulsory; /* each element of q, k, v and o once; backward: gradients and lse, too */
    int64_t workspace_bytes;  /* with one task; of the device's memory                          */
    int64_t bytes_kv;         /* of bytes_compulsory, those of k and v, and of their gradients  */
    int64_t pages;            /* paged: of all sequences; otherwise 0                           */
    int64_t chunk_keys;       /* keys are cut at its multiples: tasks may take a chunk each     */
    int64_t chunks;           /* of one sequence                                                */
    int32_t decode;           /* 1: sequences go by the decode loop, 0: by prefill's, or math   */
    int32_t threads;          /* of the context's, how many can be kept busy                    */
    int32_t arithmetic;       /* tp_arithmetic of the chosen candidate                          */
    int32_t pairs_exact;      /* 1: pairs is a count. 0: an estimate, without the masks that read data;
                                 or from samples, where counting would take long                */
    const char *device;       /* that was asked for: "cpu", or the backend's name               */
} tp_decision;

/* Candidates best first; reasons in the order in which they were found. NULL for an index that is not there. */
TP_API const tp_candidate *tp_decision_candidate(const tp_decision *decision, int index);
TP_API const tp_reason *tp_candidate_reason(const tp_candidate *candidate, int index);

/* On TP_OK, TP_FALLBACK_REFUSED, TP_UNSUPPORTED and TP_NOT_LOCKED *decision is set and to be destroyed. */
TP_API tp_status tp_explain(tp_context *context, const tp_problem *problem,
                            const tp_choice *choice, tp_decision **decision, tp_error *error);
TP_API void tp_decision_destroy(tp_decision *decision);
TP_API const tp_decision *tp_plan_decision(const tp_plan *plan);

typedef enum tp_format { TP_TEXT = 0, TP_JSON = 1 } tp_format;
TP_API tp_status tp_decision_write(const tp_decision *decision, tp_format format, tp_write write,
                                   void *cookie);

/*
 * The text form: prints, parses, and stands in errors, receipts and repro lines.
 *
 *     prefill b2 h32/8 q512 k4096 d128 bf16 causal window=4095,0
 *
 * words, in the order printed:
 *     prefill | decode | mixed   derived from the lengths; may be left out, must be right if given
 *     backward                   in place of these: op TP_BACKWARD
 *     b2                         sequences
 *     h32/8                      query heads / KV heads; h8 means h8/8
 *     q512 k4096                 rows and keys of each sequence
 *     seqs=2x512/4096,32x1/1024  instead: lengths that differ (count x q/k); b is then their number.
 *                                More than 16 entries print as seqs=#57:9f3a... (count and hash),
 *                                which cannot be replayed
 *     d128 | d192/128            head dim of q and k / of v
 *     bf16 | bf16->f32           one dtype for q, k and v, and o's if different; or each by itself:
 *     f32:bf16:bf16->f32         q:k:v->o (without the arrow o is as q); k and v may be i8, i4 and e4m3
 *     scales=q8_0 | scales=token:group   of a quantised k and v, or of each: tensor, token, group, q8_0. Default token for
 *                                i8, tensor for e4m3, group for i4
 *     packed | packed-q | packed-kv   cu_seqlens for both, or for one side only
 *     paged=16                   k and v in pages of so many tokens
 *     sparse=64 | sparse-sorted=64   sparse indices, at most so many for every token of q
 *     latent                     v is part of k
 *     invariant                  the same bits for decode, prefill in chunks and prefill at once
 *     cascade=4096               keys that sequences share, at most so many, are computed once for all of them
 *     padded                     used lengths in a batch; default: a plain batch
 *     top-left                   alignment; default bottom-right
 *     causal window=L,R chunk=N prefix=N first=N documents spans spans-and tree bits callback
 *                                masks; prefix without =N: a length for each sequence. They compose so,
 *                                as models use them:
 *                                    ((causal AND (window OR first) AND chunk) OR prefix OR spans)
 *                                    AND documents AND spans-and AND tree AND bits AND callback
 *     mask=causal,first:4,or     any other tree, in postfix order
 *     positions                  explicit mask positions
 *     scale=0.0884               default 1/sqrt(d)
 *     qscale=BETA,LENGTH,OFFSET softcap=50 alibi bias=bf16 sinks     scores: see tp_problem
 *     dropout=0.1                on probabilities; the seed is not part of the text
 *     p=bf16                     probabilities may be rounded to bf16 where they meet v
 */
typedef struct tp_lengths {
    uint32_t struct_size;
    int32_t padded;       /* used lengths in a batch tensor */
    int64_t count;        /* entries; 0: all sequences have the problem's lengths */
    struct {
        int64_t repeat, q_len, kv_len;
    } seq[16];
} tp_lengths;

/* Sets every field of both structs. Lengths may be NULL: a text with seqs= is then refused, and whether the lengths
   are `padded` is not told. */
TP_API tp_status tp_problem_parse_sized(const char *text, tp_problem *problem, size_t problem_size,
                                        tp_lengths *lengths, size_t lengths_size, tp_error *error);
static inline tp_status tp_problem_parse(const char *text, tp_problem *problem, tp_lengths *lengths,
                                         tp_error *error) {
    return tp_problem_parse_sized(text, problem, sizeof *problem, lengths, sizeof *lengths, error);
}
/* Prints the problem or, when tensors are given, the call, checked or not. TP_INVALID when size is too small,
   mask_nodes is not in 0..TP_MAX_MASK_NODES, or the lengths cannot be read: no array, or not aligned. */
TP_API tp_status tp_problem_print(const tp_problem *problem, const tp_tensors *tensors, char *text,
                                  size_t size);

/* The class of a problem: all problems whose selection is the same. It is the text form without batch and
   lengths, with the phase word of the bounds and a bucket in front:
       decode few-rows h32/8 d128 bf16 causal
   The phase word of a backward problem is "backward". There are two buckets, because selection changes between them: few-rows is
   served by the decode loop (rows times query heads of a KV head are at most tp_decode_rows, or there are sparse indices),
   many-rows by the prefill loop. An invariant problem is always many-rows. A call with sequences of both kinds is counted
   as "mixed". The text does not change between versions, because locks keep it. TP_INVALID when size is too small; 512 is
   enough for all but mask=. */
TP_API tp_status tp_problem_class(const tp_problem *problem, char *text, size_t size);

/* ------------------------------------------------------------------------------------------
 * 4  Receipt: caller-owned, filled by a run. Kernel functions count themselves as they run.
 * ------------------------------------------------------------------------------------------ */

struct tp_receipt {
    uint32_t struct_size;
    int32_t status;
    int32_t fallback;
    int32_t tasks;                /* that the work was cut into */
    uint32_t rewrites;
    int32_t function_count;       /* kernel functions that ran: tp_receipt_function */
    const char *kernel;           /* the candidate whose kernel function computed the scores */
    const tp_decision *decision;  /* the plan's; lives as long as the plan. NULL from tp_attention,
                                     whose plans belong to its cache: use tp_explain there         */
    char problem[512];            /* the call's text form */
    char numerics_id[128];
    int64_t pairs_visible;        /* row-key pairs over all query heads                        */
    int64_t pairs_computed;       /* visible pairs, plus hidden pairs in panels that were computed */
    int64_t padded_rows;          /* rows of row tiles that held no query; 0 with today's kernel functions,
                                     which have variants for fewer rows                        */
    int64_t panels_full, panels_partial, panels_skipped; /* a strip of rows against a panel of keys */
    int64_t bytes_compulsory;     /* each element of q, k, v, o and lse that is used, once      */
    int64_t bytes_model;          /* q, o and lse once, k and v every time a block is packed, and
                                     scratch that grows with the length (math alone has it)
                                     written and read once: what a cache as large as prefill's
                                     workspace, and no larger, would move                      */
    int64_t scores_written;       /* elements of the score matrix written to memory: math only */
    int64_t workspace_bytes;      /* of the workspace given, what this run used                */
    int64_t time_ns;              /* wall time of the run                                      */
    int32_t planned;              /* tp_attention: 1 when the decision was made anew, 0 cached */
    int32_t lossy;                /* 0: k and v are floats. They are as they were given, unless a cache rounded them to its
                                     dtype: tp_cache_append takes f32 to a layer of f16 or bf16, too. Otherwise 1 << tp_dtype
                                     of k, v or both: what is lost lies in the codes; what is computed is exact for them */
    int64_t bytes_model_written;  /* of bytes_model, what is written: o, lse and such scratch   */
    int64_t panels_conservative;  /* of panels_full and panels_partial, those that a bias may hide altogether: its
                                     -inf is only seen while a panel is computed               */
    int32_t arithmetic;           /* tp_arithmetic of the decision: what tp_reference's bounds go by */
    int32_t reserved;
    const char *device;           /* where it ran: "cpu", or the backend's name                */
    int64_t launches;             /* on a device: kernel launches, counted on the host          */
    int64_t tiles;                /* on a device: tiles, counted by the kernels themselves      */
    int64_t device_ns;            /* on a device: time by its own clock; 0: not known           */
    const char *launch_name[8];   /* private, as what follows: tp_receipt_function reads them   */
    uint16_t function_id[40];
    int64_t function_calls[40];
    int64_t pairs_shared;         /* cascade: of pairs_visible, those of keys that were read once for several sequences; such
                                     keys count once in bytes_compulsory, too                  */
    double kv_loss;               /* tp_tensors.kv_loss at the time of the call; 0: it was not said, or nothing was lost */
};
TP_API void tp_receipt_init_sized(tp_receipt *receipt, size_t size);
static inline void tp_receipt_init(tp_receipt *receipt) { tp_receipt_init_sized(receipt, sizeof *receipt); }
/* Kernel function `index` of those that ran, in 0..function_count-1: its symbol, as a profiler shows it, and how
   often it was called; name and calls may be NULL. 1, or 0 where there is none. */
TP_API int tp_receipt_function(const tp_receipt *receipt, int index, const char **name, int64_t *calls);
TP_API tp_status tp_receipt_write(const tp_receipt *receipt, tp_format format, tp_write write,
                                  void *cookie);

/* What a context has done: runs that were completed, plans made, plans found in the cache, completed
   runs that were a fallback, decisions that refused. */
typedef struct tp_counters {
    uint32_t struct_size;
    int32_t reserved;
    int64_t calls, plans, cache_hits, fallbacks, refusals;
    int64_t pairs_shared; /* of completed calls: tp_receipt.pairs_shared */
} tp_counters;
TP_API tp_status tp_context_counters_sized(const tp_context *context, tp_counters *counters, size_t size);
static inline tp_status tp_context_counters(const tp_context *context, tp_counters *counters) {
    return tp_context_counters_sized(context, counters, sizeof *counters);
}

/*
 * Watching. docs/operations.md shows each of them at work.
 *
 * Event, trace and dump functions are called on the caller's thread, when the library holds no lock. They may use the
 * context (tp_explain, tp_plan_create, counts, metrics, recorder), but running attention gives TP_BUSY. What they do there
 * is not reported in turn. Threads that run plans at the same time call them at the same time. tp_explain is never reported.
 */
typedef enum tp_event_kind {
    TP_EVENT_FALLBACK = 1,  /* served from a lower tier, under serve or locked                     */
    TP_EVENT_REFUSED = 2,   /* TP_FALLBACK_REFUSED or TP_UNSUPPORTED                               */
    TP_EVENT_NOT_LOCKED = 3 /* TP_NOT_LOCKED                                                       */
} tp_event_kind;

/* There is one for each call, whether its decision was cached or not. Everything that it points to lives until the
   event function returns. */
struct tp_event {
    uint32_t struct_size;
    int32_t kind;                /* tp_event_kind */
    int32_t status;              /* what the call returns */
    int32_t reserved;
    const tp_decision *decision; /* candidates and reasons */
    const tp_receipt *receipt;   /* of a fallback: what ran; otherwise NULL */
    const tp_tags *tags;         /* the tensors'; NULL: none */
};

/* Counts of calls since the context was made, by their labels. A context counts 1,024 different sets of labels;
   calls with further ones are counted together, with "other" as each label. */
typedef enum tp_count_kind {
    TP_COUNT_CALLS = 1,     /* runs that were completed */
    TP_COUNT_FALLBACKS = 2, /* of these, fallbacks: once more, with the reason */
    TP_COUNT_REFUSALS = 3   /* tp_attention and tp_plan_create */
} tp_count_kind;

typedef struct tp_count {
    uint32_t struct_size;
    int32_t kind;       /* tp_count_kind */
    const char *kernel; /* that computed the scores; "none" for refusals and for calls without pairs */
    const char *phase;  /* "prefill", "decode", "mixed", "backward" */
    const char *dtype;  /* of k */
    const char *bucket; /* "few-rows", "many-rows", "mixed": tp_problem_class */
    const char *reason; /* why the first tier did not serve (tp_reason_name); "" for calls */
    const char *model;  /* of the tags; "" when not said. Lives as long as the context */
    int64_t count;
    int64_t time_ns, bytes_model; /* sums over calls; 0 for the other kinds */
    int64_t workspace_max;        /* the most that one call used */
    const char *device; /* "cpu", or the backend's name */
} tp_count;
/* Start with *at = 0. Returns 1 and fills in *count as long as there are more, in no order; 0 at the end and for bad
   arguments. Calls on other threads go on meanwhile. */
TP_API int tp_context_count_next_sized(const tp_context *context, int64_t *at, tp_count *count, size_t size);
static inline int tp_context_count_next(const tp_context *context, int64_t *at, tp_count *count) {
    return tp_context_count_next_sized(context, at, count, sizeof *count);
}

/* What is known of the lock and the canary. Metrics and trace show it; it changes no decision. */
typedef enum tp_lock_status {
    TP_LOCK_ABSENT = 0,        /* nothing is known                                                */
    TP_LOCK_MATCHES = 1,       /* it vouches for this host, library and model                     */
    TP_LOCK_STALE = 2,         /* another host, library or declared version                       */
    TP_LOCK_OTHER_CONFIG = 3,  /* the lock has the model with another config or cache             */
    TP_LOCK_UNKNOWN_MODEL = 4, /* the lock does not have the model                                */
    TP_LOCK_REFUSED = 5,       /* a cell of the model did not pass, or is not there               */
    TP_LOCK_UNREADABLE = 6,    /* lock or config could not be read                                */
    TP_LOCK_FAILED = 7         /* it could not be compared: memory ran out, or bad declared versions */
} tp_lock_status;
TP_API const char *tp_lock_status_name(tp_lock_status status); /* "absent", "matches", "stale", "other-config" and so on */
typedef struct tp_lock_state {
    uint32_t struct_size;
    int32_t status;         /* tp_lock_status */
    int64_t scratch_bytes;  /* the most workspace that any cell of the lock used; 0: not known */
    int64_t canary_success; /* Unix seconds of the last canary that passed; 0: not known */
    const char *model;      /* whose state it is: 1..63 printable ASCII characters, copied. NULL: of all models */
} tp_lock_state;
/* A model's state stands beside those of other models; scratch and canary are the context's, and 0 there leaves them as
   they are. Setting the state of all models drops those of single models, and setting a single model's drops the state of
   all models. Up to 32 models are told apart, those of tags among them; further ones are "other". */
TP_API tp_status tp_context_lock_state(tp_context *context, const tp_lock_state *state, tp_error *error);

/* Everything above as Prometheus text (version 0.0.4). */
TP_API tp_status tp_metrics_write(const tp_context *context, tp_write write, void *cookie);

/* The flight recorder: the last decisions of the context's calls, oldest first, one line of JSON each. */
TP_API tp_status tp_recorder_write(const tp_context *context, tp_write write, void *cookie);

/* ------------------------------------------------------------------------------------------
 * 5  Machine: a value, so that a decision can be made for another host, or with bits taken away.
 * ------------------------------------------------------------------------------------------ */

#define TP_ISA_AVX2 1u   /* AVX2 and FMA and F16C     */
#define TP_ISA_AVX512 2u /* AVX-512 F, BW, VL and DQ  */
#define TP_ISA_AVX512_BF16 4u /* AVX512-BF16: products of bf16 pairs */
#define TP_ISA_AMX_BF16 8u /* AMX-TILE and AMX-BF16, where the system permits them and they work: products of bf16 tiles */

struct tp_machine {
    uint32_t struct_size;
    uint32_t isa;                    /* TP_ISA_* */
    int32_t threads;                 /* min(affinity, cgroup quota) */
    int32_t reserved;
    int64_t l1d_bytes, l2_bytes, l3_bytes; /* 0: unknown */
    char arch[16];                   /* "x86-64" */
    char name[64];                   /* CPU model */
};
TP_API tp_status tp_machine_detect_sized(tp_machine *machine, size_t size, tp_error *error);
static inline tp_status tp_machine_detect(tp_machine *machine, tp_error *error) {
    return tp_machine_detect_sized(machine, sizeof *machine, error);
}
/* Text form, for records that are replayed:
   "x86-64 isa=avx2,avx512 threads=2 l1d=49152 l2=2097152 l3=0 name=...", isa=none for no bit */
TP_API tp_status tp_machine_print(const tp_machine *machine, char *text, size_t size);
TP_API tp_status tp_machine_parse_sized(const char *text, tp_machine *machine, size_t size, tp_error *error);
static inline tp_status tp_machine_parse(const char *text, tp_machine *machine, tp_error *error) {
    return tp_machine_parse_sized(text, machine, sizeof *machine, error);
}
/* The names of ISA bits in the order of their numbers, as that text has them: "avx2,avx512", "none". TP_INVALID when
   size is too small or a bit has no name. 64 bytes hold all there are. */
TP_API tp_status tp_isa_print(uint32_t isa, char *text, size_t size);

/* ------------------------------------------------------------------------------------------
 * 6  Oracle and merge
 * ------------------------------------------------------------------------------------------ */

typedef enum tp_precision {
    TP_DOUBLE = 0, /* the definition: naive loops in double                                       */
    TP_NAIVE = 1   /* the yardstick: the same loops in float, with scores, probabilities and outputs
                      rounded to the tensors' dtype, as a plain kernel would                       */
} tp_precision;

typedef struct tp_row {
    int64_t seq, head, row; /* head: query head */
} tp_row;

/* Computes the chosen rows only, so that a check can use real lengths:
       o[i*head_dim_v + x], lse[i]        for i in 0..count-1
   bound[i] receives the derived absolute error bound of row i's output for a kernel of this arithmetic
   (tp_receipt.arithmetic) that follows docs/maths.md, and lse_bound[i] that of its lse. A bound is infinity where a float of the
   kernel or the output dtype may overflow. It is 0 for rows that are empty, NaN or have only a sink: such rows must be equal.
   Columns that are not finite have no part in a bound. Each of the four outputs may be NULL. Reads q, k, v of the tensors; o and
   lse of the tensors are not touched. No SIMD, one thread, always in the library. */
TP_API tp_status tp_reference(const tp_problem *problem, const tp_tensors *tensors,
                              tp_precision precision, tp_arithmetic arithmetic, int64_t count,
                              const tp_row *rows, double *o, double *lse, double *bound,
                              double *lse_bound, tp_error *error);

/* The gradients of one KV head of one sequence by the definition, from q, k, v and d_o alone: o and lse are
   computed anew (TP_NAIVE: in float, rounded to the dtypes as a plain backward would). Each output, and the
   bounds, may be NULL; bounds need TP_DOUBLE. problem.op may be either. Pages, sparse indices, a latent cache and a quantised
   k or v give TP_UNSUPPORTED. */
typedef struct tp_reference_gradients {
    uint32_t struct_size;
    int32_t reserved;
    double *d_q;      /* [q_len][group][head_dim_qk] */
    double *d_k;      /* [kv_len][head_dim_qk] */
    double *d_v;      /* [kv_len][head_dim_v] */
    double *d_bias;   /* [q_len][group][kv_len]: before anything is summed */
    double *d_alibi_slopes, *d_sinks; /* [group] */
    /* derived absolute error bounds for a kernel that follows docs/maths.md, of a row or key */
    double *d_q_bound; /* [q_len][group] */
    double *d_k_bound, *d_v_bound; /* [kv_len] */
    double *d_bias_bound, *d_alibi_slopes_bound, *d_sinks_bound; /* of each element, as d_bias, d_alibi_slopes and d_sinks */
} tp_reference_gradients;
TP_API tp_status tp_reference_backward(const tp_problem *problem, const tp_tensors *tensors,
                                       tp_precision precision, int64_t seq, int64_t kv_head,
                                       const tp_reference_gradients *out, tp_error *error);

/* Is this key visible to this row? By the definition of the problem's mask, for a sequence of these actual lengths:
   1, 0, or -1 for an index out of range and for a mask that reads data of the tensors. */
TP_API int tp_mask_allowed(const tp_problem *problem, int64_t q_len, int64_t kv_len, int64_t row,
                           int64_t key);
/* The same for a call, whose tensors hold what the mask reads. A bias does not count. The tensors must be such as a run
   accepts: they are not checked here. */
TP_API int tp_mask_visible(const tp_problem *problem, const tp_tensors *tensors, int64_t seq,
                           int64_t head, int64_t row, int64_t key);

/* Merges n states (o, lse) of disjoint key sets, row by row:
       lse = log(sum_i exp(lse_i));  o = sum_i exp(lse_i - lse) * o_i
   o_parts[i] is float32 [rows][dim] and lse_parts[i] [rows]. A state with lse -inf is empty and its o
   is never read; all empty: o 0, lse -inf. One state that is not empty comes back bit for bit.
   Summed left to right in double, rounded once. Error, with u = 2^-24: u*|o| of the rounding, plus
   2*u*max|lse_i|*max|o_i| because each lse came in as a float. With scores of 1e5 that is about 1e-2; where this is too
   much, keep such keys inside one call. No parts: o 0, lse -inf. Outputs may be parts[0] itself. */
TP_API tp_status tp_merge(int64_t parts, int64_t rows, int64_t dim, const float *const *o_parts,
                          const float *const *lse_parts, float *o, float *lse, tp_error *error);

/* ------------------------------------------------------------------------------------------
 * 7  What exists. Indices run from 0; NULL ends the list.
 * ------------------------------------------------------------------------------------------ */

typedef struct tp_kernel_info {
    uint32_t struct_size;
    uint32_t needs;       /* TP_ISA_* bits */
    const char *name;     /* the candidate */
    const char *strategy;
    int32_t mr, nr;       /* register tile: rows x keys */
    int32_t max_head_dim; /* 0: no limit */
    uint32_t dtypes;      /* of q, k and v that it serves: bits 1u << tp_dtype; codes of k and v alone; o may have any */
    int32_t arithmetic;   /* tp_arithmetic. What one call computes may keep more: tp_candidate has that */
    uint32_t ops;         /* that it serves: bits 1u << tp_op */
} tp_kernel_info;
TP_API const tp_kernel_info *tp_kernel_at(int index);
/* Keys of a block of the online softmax at this head dim, and of a chunk: where tests find borders. */
TP_API int tp_block_keys(int64_t head_dim);
#define TP_CHUNK_KEYS 4096
/* The same for sequences of few rows (head_dim is the larger one), and how many rows are few: rows times query heads
   of a KV head. Both depend on k's dtype, because such rows cost the reading of keys. */
TP_API int tp_decode_block_keys(int64_t head_dim, tp_dtype k_dtype);
TP_API int tp_decode_rows(tp_dtype k_dtype);
#define TP_DECODE_CHUNK_KEYS 1024
#define TP_DECODE_ROWS 32 /* of any dtype, at most */

typedef enum tp_mask_reads {
    TP_MASK_READS_NO_DATA = 0,
    TP_MASK_READS_DATA = 1,    /* arrays of tp_tensors, or its callback */
    TP_MASK_READS_LEFT_OUT = 2 /* where its value is left out, -1: the value for each sequence */
} tp_mask_reads;

typedef enum tp_mask_trait {
    TP_MASK_MONOTONE = 1,         /* a row sees one interval of positions, whose ends never fall as q_pos grows */
    TP_MASK_HOLES = 2,            /* what a row sees need not be one interval                                   */
    TP_MASK_BY_HEAD = 4,          /* query heads may see different keys                                         */
    TP_MASK_KEY_FOR_EACH_ROW = 8  /* every sequence needs at least as many keys as rows                         */
} tp_mask_trait;

/* A mask kind. docs/masks.md has the formulas. */
typedef struct tp_mask_info {
    uint32_t struct_size;
    int32_t kind;         /* tp_mask_kind */
    const char *name;     /* "window" */
    const char *words;    /* of the text form, separated by blanks: "window=L,R", "prefix=N prefix" */
    const char *examples; /* the same with numbers: "window=19,5", "prefix=33 prefix" */
    const char *value[2]; /* what its values are called: "left", "right" */
    int64_t min[2];       /* the least that each may be; the greatest is 2^40 */
    int32_t values;       /* whole numbers that it takes: none, a, or a and b */
    int32_t reads;        /* tp_mask_reads */
    uint32_t traits;      /* tp_mask_trait, as bits */
    int32_t reserved;     /* 0 */
} tp_mask_info;
TP_API const tp_mask_info *tp_mask_at(int index);
TP_API const char *tp_kernel_function(int index); /* symbols of all kernel functions of this library */

/* One short measurement of what this host can do at best, on `threads` tasks of the context's pool with
   the vectors of the named kernel: f32 multiply-adds from registers (about 2 ms), or plain reads of a
   buffer in 1..64 streams. Take the best of many. */
TP_API tp_status tp_measure_fma(tp_context *context, const char *kernel, int threads, double *gflops,
                                tp_error *error);
TP_API tp_status tp_measure_read(tp_context *context, const char *kernel, int threads,
                                 const void *buffer, size_t bytes, int streams,
                                 double *gigabytes_per_second, tp_error *error);

/* Conversions of single values, round to nearest even; NaN stays NaN, overflow gives infinity. Of f32, f16
   and bf16 alone; of another dtype, codes among them (tp_dequantise), NaN comes back and nothing is read, or nothing is
   written. */
TP_API float tp_to_float(tp_dtype dtype, const void *element);
TP_API void tp_from_float(tp_dtype dtype, float value, void *element);

/* ------------------------------------------------------------------------------------------
 * 8  Quantised caches. docs/quantised.md has the formats, and the error of each element.
 * ------------------------------------------------------------------------------------------ */

/* Rows of floats and the same rows as codes and scales. */
typedef struct tp_quantised {
    uint32_t struct_size;
    int32_t dtype;          /* of codes: TP_I8, TP_I4 (two in a byte, the first in the low half), TP_E4M3 */
    int32_t kind;           /* tp_scales */
    int32_t values_dtype;   /* TP_F32, TP_F16, TP_BF16 */
    int64_t rows, dim;      /* dim: even for i4, a multiple of 32 for q8_0 */
    void *values;           /* row r at r*values_stride, in elements */
    int64_t values_stride;
    void *codes;            /* strides as in tp_tensor: elements, of q8_0 bytes */
    int64_t codes_stride;
    void *scales;           /* of TP_SCALES_TOKEN float32, of TP_SCALES_GROUP f16, a row's groups one after another; of
                               TP_SCALES_TENSOR the one scale, which is read; of TP_SCALES_Q8_0 not looked at */
    int64_t scales_stride;  /* in scales */
} tp_quantised;
#define TP_QUANTISED_INIT { sizeof(tp_quantised), 0, 0, TP_F32, 0, 0, NULL, 0, NULL, 0, NULL, 0 }

/* Bytes of a row's codes, and of the scales that it has beside them; 0 for what does not go together. */
TP_API int64_t tp_codes_bytes(tp_dtype dtype, tp_scales kind, int64_t dim);
TP_API int64_t tp_scales_bytes(tp_scales kind, int64_t dim);

/* Values to codes and scales. This is where a quantised cache loses something: *loss, unless loss is NULL, becomes the
   greatest |value - stored| of any row, relative to the greatest |value| of that row; infinity where a value is not
   finite. Such a value makes its element NaN (e4m3), or every element that shares its scale (i8, i4). */
TP_API tp_status tp_quantise(const tp_quantised *rows, double *loss, tp_error *error);
/* Codes and scales to values, each rounded once. */
TP_API tp_status tp_dequantise(const tp_quantised *rows, tp_error *error);

#ifdef __cplusplus
}
#endif
#endif
