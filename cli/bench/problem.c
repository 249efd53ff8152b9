/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of a problem text, of a shape, or of generated lengths; tokens before heads, or heads before tokens. */
#include "bench/bench.h"
#include "harness/fail.h"
#include "tool/shape.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char generator[] = "@lognormal", heads_word[] = "@heads", alone_word[] = "@alone";
static const double generator_median = 400, generator_sigma = 1;
enum {
    GENERATOR_TOKENS = 32768,
    GENERATOR_LOW = 64,
    GENERATOR_HIGH = 4096,
    GENERATOR_SEED = 1,
    GENERATOR_MAX = 1 << 24
};

/* The i-th length: two uniform numbers make one normal one. */
static int64_t generated_length(uint64_t i) {
    double u = ((double)(random_bits(GENERATOR_SEED, 201, i) >> 11) + 0.5) * 0x1p-53;
    double v = (double)(random_bits(GENERATOR_SEED, 202, i) >> 11) * 0x1p-53;
    double normal = sqrt(-2 * log(u)) * cos(2 * 3.14159265358979323846 * v);
    double length = generator_median * exp(generator_sigma * normal);
    return (int64_t)(length < GENERATOR_LOW    ? GENERATOR_LOW
                     : length > GENERATOR_HIGH ? GENERATOR_HIGH
                                               : length);
}

/* How the generated tokens are cut: starts[0..count], when starts is not NULL; the longest. */
static int64_t generate(int64_t tokens, int64_t *starts, int64_t *longest) {
    int64_t count = 0, start = 0;
    for (*longest = 0; start < tokens; count++) {
        int64_t length = generated_length((uint64_t)count);
        if (length > tokens - start) length = tokens - start;
        if (length > *longest) *longest = length;
        if (starts) starts[count] = start;
        start += length;
    }
    if (starts) starts[count] = start;
    return count;
}

/* Copies the words but for one with an @; whether it was among them. */
static int take_word(const char *words, const char *word, char *rest, size_t size) {
    int found = 0;
    size_t used = 0;
    rest[0] = 0;
    for (const char *at = words; *(at += strspn(at, " ")); at += strcspn(at, " ")) {
        size_t length = strcspn(at, " ");
        if (length == strlen(word) && !strncmp(at, word, length))
            found = 1;
        else
            used += (size_t)snprintf(rest + used, used < size ? size - used : 0, "%s%.*s", used ? " " : "", (int)length, at);
    }
    return found;
}

/* Rewrites a generator as one packed sequence of all tokens, which tensors_cut cuts afterwards;
 *tokens is 0 when the words name none. */
static tp_status plain_words(const char *words, char *text, size_t size, int64_t *tokens,
                             tp_error *error) {
    *tokens = 0;
    if (words[0] != '@') {
        snprintf(text, size, "%s", words);
        return TP_OK;
    }
    size_t length = strcspn(words, " "), name = sizeof generator - 1;
    const char *rest = words + length;
    char *end = (char *)words + name;
    *tokens = GENERATOR_TOKENS;
    if (!strncmp(words, generator, name) && words[name] == '=')
        *tokens = strtoll(words + name + 1, &end, 10);
    if (strncmp(words, generator, name) || end != rest || *tokens < 1 || *tokens > GENERATOR_MAX)
        return harness_fail(error, TP_INVALID, "word '%.*s': it must be %s or %s=TOKENS, 1..%d",
                    (int)length, words, generator, generator, GENERATOR_MAX);
    snprintf(text, size, "q%lld%s%s", (long long)*tokens, rest,
             strstr(rest, "packed") ? "" : " packed");
    return TP_OK;
}

/* What the words with an @ say. */
struct said {
    int64_t tokens; /* of the generator; 0: none */
    enum tensors_form form;
    int alone; /* sequences lie as cascade= says, but each reads all its keys by itself */
};

static tp_status parse(const char *words, tp_problem *problem, tp_lengths *lengths, struct said *said, tp_error *error) {
    char rest[WORKLOAD_WORDS], others[WORKLOAD_WORDS], plain[WORKLOAD_WORDS + 64], text[1024], reason[256];
    said->form = take_word(words, heads_word, others, sizeof others) ? FORM_HEADS : FORM_TOKENS;
    said->alone = take_word(others, alone_word, rest, sizeof rest);
    tp_status status = plain_words(rest, plain, sizeof plain, &said->tokens, error);
    if (status != TP_OK) return status;
    if (shape_expand(plain, text, sizeof text, reason, sizeof reason))
        return harness_fail(error, TP_INVALID, "%s", reason);
    memset(lengths, 0, sizeof *lengths);
    lengths->struct_size = sizeof *lengths;
    status = tp_problem_parse(text, problem, lengths, error);
    if (status == TP_OK && said->alone && !problem->cascade)
        return harness_fail(error, TP_INVALID, "%s needs cascade=N: the keys that sequences share, and read by themselves",
                            alone_word);
    if (status == TP_OK && said->tokens) {
        if (problem->q_layout != TP_PACKED || problem->kv_layout != TP_PACKED)
            return harness_fail(error, TP_INVALID, "%s is packed on both sides", generator);
        lengths->count = 0;
    }
    return status;
}

tp_status bench_words_check(const char *words, tp_problem *problem, tp_error *error) {
    tp_lengths lengths;
    struct said said;
    tp_status status = parse(words, problem, &lengths, &said, error);
    if (status == TP_OK && said.tokens) {
        problem->batch = generate(said.tokens, NULL, &problem->q_len);
        problem->kv_len = problem->q_len;
    }
    if (status == TP_OK && said.alone) problem->cascade = 0;
    return status;
}

/* Turns one packed sequence into many. */
static int tensors_cut(struct tensors *tensors, int64_t tokens) {
    int64_t longest, count = generate(tokens, NULL, &longest);
    int64_t **arrays[] = {&tensors->q_start, &tensors->kv_start, &tensors->q_lens,
                          &tensors->kv_lens};
    for (int i = 0; i < 4; i++) {
        free(*arrays[i]);
        *arrays[i] = calloc((size_t)count + 1, sizeof(int64_t));
    }
    for (int i = 0; i < 2; i++) {
        free(tensors->indices[i]);
        tensors->indices[i] = calloc((size_t)count + 1, sizeof(int32_t));
    }
    tensors->call.cu_seqlens_q = tensors->indices[0];
    tensors->call.cu_seqlens_kv = tensors->indices[1];
    for (int i = 0; i < 4; i++)
        if (!*arrays[i] || !tensors->indices[i / 2]) return 1;
    generate(tokens, tensors->q_start, &longest);
    for (int64_t i = 0; i <= count; i++) {
        tensors->kv_start[i] = tensors->q_start[i];
        for (int side = 0; side < 2; side++)
            ((int32_t *)tensors->indices[side])[i] = (int32_t)tensors->q_start[i];
    }
    for (int64_t i = 0; i < count; i++)
        tensors->q_lens[i] = tensors->kv_lens[i] = tensors->q_start[i + 1] - tensors->q_start[i];
    tensors->sequences = tensors->call.batch = tensors->problem.batch = count;
    tensors->problem.q_len = tensors->problem.kv_len = longest;
    return 0;
}

tp_status bench_problem_open(struct workload *workload, const char *words, uint64_t seed, tp_error *error) {
    tp_problem parsed;
    tp_lengths lengths;
    struct said said;
    memset(workload, 0, sizeof *workload);
    tp_status status = parse(words, &parsed, &lengths, &said, error);
    if (status == TP_OK && said.tokens && parsed.op == TP_BACKWARD)
        return harness_fail(error, TP_UNSUPPORTED, "%s has no backward: give seqs=", generator);
    if (status == TP_OK) status = workload_open(workload, words, &parsed, &lengths, said.form, seed, error);
    if (status == TP_OK && said.alone) workload->tensors.problem.cascade = 0;
    if (status != TP_OK || !said.tokens) return status;
    if (tensors_cut(&workload->tensors, said.tokens) || tensors_fill(&workload->tensors, seed)) { /* values go by sequence */
        workload_close(workload);
        return harness_fail(error, TP_NO_MEMORY, "the tensors could not be allocated");
    }
    return TP_OK;
}
