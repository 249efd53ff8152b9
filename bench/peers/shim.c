/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flat functions around the public API, for `make peers`, which calls from Python by ctypes. Only
 * pointers, numbers and texts cross the border, so that no struct of tileproof.h is written down a
 * second time.
 */
#include <stdio.h>
#include <stdlib.h>
#include <tileproof.h>
#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

#define PEERS_API __attribute__((visibility("default")))

enum { MAX_SEQUENCES = 4096 };

typedef struct peers_call {
    tp_context *context;
    tp_problem problem;
    tp_lengths lengths;
    tp_tensors tensors;
    tp_gradients gradients;
    tp_receipt receipt;
    tp_error error;
    char text[512];
    int64_t cu_q[MAX_SEQUENCES + 1], cu_kv[MAX_SEQUENCES + 1];
} peers_call;

PEERS_API void *peers_open(int threads, char *why, size_t size);
PEERS_API void peers_close(void *context);
PEERS_API peers_call *peers_prepare(void *context, const char *text, char *why, size_t size);
PEERS_API void peers_bind(peers_call *call, const void *q, const void *k, const void *v, void *o);
PEERS_API void peers_bind_scales(peers_call *call, const void *scale);
PEERS_API int peers_bind_gradients(peers_call *call, void *lse, const void *d_o, void *d_q, void *d_k, void *d_v);
PEERS_API int peers_run(peers_call *call);
PEERS_API const char *peers_text(const peers_call *call);
PEERS_API const char *peers_kernel(const peers_call *call);
PEERS_API const char *peers_error(const peers_call *call);
PEERS_API void peers_release(peers_call *call);
PEERS_API int peers_amx(void);
PEERS_API int peers_machine(void *context, char *text, size_t size);

/* A context of so many threads, or NULL and the reason. */
void *peers_open(int threads, char *why, size_t size) {
    tp_context_options options = TP_CONTEXT_OPTIONS_INIT;
    tp_error error = TP_ERROR_INIT;
    tp_context *context = NULL;
    options.threads = threads;
    if (tp_context_create(&options, &context, &error) == TP_OK) return context;
    snprintf(why, size, "%s", error.text);
    return NULL;
}

void peers_close(void *context) {
    tp_context_destroy(context);
}

int peers_machine(void *context, char *text, size_t size) {
    return tp_machine_print(tp_context_machine(context), text, size);
}

/* seqs= of the text as cu_seqlens; 0 when there are more sequences than a call holds. */
static int lay_sequences(peers_call *call) {
    int64_t at = 0;
    for (int64_t i = 0; i < call->lengths.count; i++)
        for (int64_t n = 0; n < call->lengths.seq[i].repeat; n++, at++) {
            if (at == MAX_SEQUENCES) return 0;
            call->cu_q[at + 1] = call->cu_q[at] + call->lengths.seq[i].q_len;
            call->cu_kv[at + 1] = call->cu_kv[at] + call->lengths.seq[i].kv_len;
        }
    return 1;
}

/* Contiguous tensors: bshd, or thd when packed. */
static void lay_tensors(peers_call *call) {
    tp_tensors_init(&call->tensors, &call->problem, NULL, NULL, NULL, NULL);
    if (call->lengths.count == 0) return;
    call->tensors.batch = call->problem.batch;
    call->tensors.index_type = TP_I64;
    call->tensors.cu_seqlens_q = call->cu_q;
    call->tensors.cu_seqlens_kv = call->cu_kv;
    call->tensors.q_tokens = call->cu_q[call->problem.batch];
    call->tensors.kv_tokens = call->cu_kv[call->problem.batch];
}

static const char *refusal(peers_call *call, const char *text) {
    if (tp_problem_parse(text, &call->problem, &call->lengths, &call->error) != TP_OK)
        return call->error.text;
    if (call->lengths.padded) return "padded: give the row as packed, peers pad by themselves";
    if (call->lengths.count > 0 &&
        (call->problem.q_layout != TP_PACKED || call->problem.kv_layout != TP_PACKED))
        return "seqs= needs packed";
    if (call->lengths.count == 0 &&
        (call->problem.q_layout != TP_BATCH || call->problem.kv_layout != TP_BATCH))
        return "packed needs seqs=";
    if (!lay_sequences(call)) return "more than 4096 sequences";
    lay_tensors(call);
    if (tp_problem_print(&call->problem, &call->tensors, call->text, sizeof call->text) != TP_OK)
        return "the text form does not fit 512 bytes";
    return NULL;
}

/* One problem by its text form, ready for tensors; NULL and the reason when it is none. */
peers_call *peers_prepare(void *context, const char *text, char *why, size_t size) {
    peers_call *call = calloc(1, sizeof *call);
    if (call == NULL) {
        snprintf(why, size, "out of memory");
        return NULL;
    }
    call->context = context;
    call->error.struct_size = sizeof call->error;
    const char *reason = refusal(call, text);
    if (reason == NULL) return call;
    snprintf(why, size, "%s", reason);
    free(call);
    return NULL;
}

void peers_bind(peers_call *call, const void *q, const void *k, const void *v, void *o) {
    call->tensors.q.data = (void *)q;
    call->tensors.k.data = (void *)k;
    call->tensors.v.data = (void *)v;
    call->tensors.o.data = o;
}

/* One scale, of k and of v. */
void peers_bind_scales(peers_call *call, const void *scale) {
    call->tensors.k_scales.data = (void *)scale;
    call->tensors.v_scales.data = (void *)scale;
}

/* What a backward call reads and writes, laid out as q, k, v and o; then the forward call, which fills in o and lse. */
int peers_bind_gradients(peers_call *call, void *lse, const void *d_o, void *d_q, void *d_k, void *d_v) {
    tp_problem forward = call->problem;
    call->gradients = (tp_gradients)TP_GRADIENTS_INIT;
    call->gradients.d_o = call->tensors.o;
    call->gradients.d_o.data = (void *)d_o;
    call->gradients.d_q = call->tensors.q;
    call->gradients.d_q.data = d_q;
    call->gradients.d_k = call->tensors.k;
    call->gradients.d_k.data = d_k;
    call->gradients.d_v = call->tensors.v;
    call->gradients.d_v.data = d_v;
    call->tensors.lse.data = lse;
    forward.op = TP_FORWARD;
    tp_status status = tp_attention(call->context, &forward, NULL, &call->tensors, NULL, &call->error);
    call->tensors.gradients = &call->gradients;
    return status;
}

/* tp_attention with a receipt; 0 or a tp_status. This is what is timed. */
int peers_run(peers_call *call) {
    tp_receipt_init(&call->receipt);
    return tp_attention(call->context, &call->problem, NULL, &call->tensors, &call->receipt,
                        &call->error);
}

const char *peers_text(const peers_call *call) {
    return call->text;
}

/* By the receipt of the last run. */
const char *peers_kernel(const peers_call *call) {
    return call->receipt.kernel != NULL ? call->receipt.kernel : "";
}

const char *peers_error(const peers_call *call) {
    return call->error.text;
}

void peers_release(peers_call *call) {
    free(call);
}

#if defined(__x86_64__) && defined(__linux__)
/* One tile, configured, cleared and given back. */
__attribute__((target("amx-tile"))) static void use_a_tile(void) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1, .row_bytes = {64}, .rows = {16}};
    _tile_loadconfig(&config);
    _tile_zero(0);
    _tile_release();
}

/* Whether the kernel permits tiles and the instructions do not trap: asked and tried in a child. */
static int tiles_work(void) {
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    int status = -1;
    pid_t child = fork();
    if (child == 0) {
        if (syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)) _exit(1);
        use_a_tile();
        _exit(0);
    }
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}
#endif

/* 1: the host has AMX, permits it, and it works; 0: the host does not say that it has it; -1: it says so, but its tiles
   cannot be used, as in virtual machines that hide the list of palettes. */
int peers_amx(void) {
#if defined(__x86_64__) && defined(__linux__)
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 24 & 1)) return 0;
    return __get_cpuid_count(0x1d, 0, &a, &b, &c, &d) && a > 0 && tiles_work() ? 1 : -1;
#else
    return 0;
#endif
}
