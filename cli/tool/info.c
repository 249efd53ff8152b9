/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/device.h"

#include <string.h>

static int function_count(void) {
    int count = 0;
    while (tp_kernel_function(count)) count++;
    return count;
}

static void head_dim_words(int32_t max_head_dim, char text[32]) {
    snprintf(text, 32, max_head_dim ? "%d" : "any", max_head_dim);
}

/* A table of key blocks, prefill's or decode's, as ranges of head dims with one block each. */
static int decode_f32(int64_t head_dim) { return tp_decode_block_keys(head_dim, TP_F32); }
static int decode_16(int64_t head_dim) { return tp_decode_block_keys(head_dim, TP_BF16); }

static void each_block(int (*keys)(int64_t head_dim),
                       void (*visit)(int64_t low, int64_t high, int keys, int first)) {
    int64_t low = 1;
    for (int64_t dim = 1; dim <= TP_MAX_HEAD_DIM; dim++) {
        if (dim < TP_MAX_HEAD_DIM && keys(dim + 1) == keys(low)) continue;
        visit(low, dim, keys(low), low == 1);
        low = dim + 1;
    }
}

static void print_block(int64_t low, int64_t high, int keys, int first) {
    printf("%s d%lld..%lld: %d", first ? "" : ",", (long long)low, (long long)high, keys);
}

static void print_block_json(int64_t low, int64_t high, int keys, int first) {
    printf("%s\n    {\"head_dim_from\": %lld, \"head_dim_to\": %lld, \"keys\": %d}",
           first ? "" : ",", (long long)low, (long long)high, keys);
}

/* "f32,bf16" */
static const char *dtype_words(uint32_t dtypes, char text[64]) {
    size_t used = 0;
    text[0] = 0;
    for (int dtype = TP_F32; dtype <= TP_I4; dtype++)
        if (dtypes >> dtype & 1)
            used += (size_t)snprintf(text + used, 64 - used, "%s%s", used ? "," : "", tp_dtype_name((tp_dtype)dtype));
    return text;
}

static int wider(int width, const char *text) { return (int)strlen(text) > width ? (int)strlen(text) : width; }

/* The last of a kernel's machine bits; it takes those before it for granted. */
static const char *last_need(const tp_kernel_info *kernel, char *words, size_t size) {
    uint32_t last = kernel->needs;
    while (last & (last - 1)) last &= last - 1;
    tp_isa_print(last, words, size);
    return words;
}

static void print_text(const tp_machine *machine) {
    char words[64], dims[32];
    printf("tileproof    %s\n", tp_version());
    printf("machine      %s, %s\n", machine->arch, machine->name);
    tp_isa_print(machine->isa, words, sizeof words);
    printf("isa          %s\n", words);
    printf("threads      %d\n", machine->threads);
    const struct {
        const char *name;
        int64_t bytes;
    } caches[] = {
        {"l1d", machine->l1d_bytes}, {"l2", machine->l2_bytes}, {"l3", machine->l3_bytes}};
    printf("caches      ");
    for (int i = 0; i < 3; i++) {
        char size[32];
        printf("%s %s %s", i ? "," : "", caches[i].name,
               caches[i].bytes ? readable_bytes((double)caches[i].bytes, size) : "unknown");
    }
    const tp_kernel_info *kernel;
    char dtypes[64];
    int name_width = 12, needs_width = 5, dtypes_width = 6;
    for (int i = 0; (kernel = tp_kernel_at(i)); i++) {
        name_width = wider(name_width, kernel->name);
        needs_width = wider(needs_width, last_need(kernel, words, sizeof words));
        dtypes_width = wider(dtypes_width, dtype_words(kernel->dtypes, dtypes));
    }
    printf("\n\n%-*s %-*s %-5s %-8s %-*s %s\n", name_width, "kernel", needs_width, "needs", "tile", "head dim", dtypes_width,
           "dtypes", "here");
    for (int i = 0; (kernel = tp_kernel_at(i)); i++) {
        char tile[32];
        snprintf(tile, sizeof tile, kernel->mr > 0 ? "%dx%d" : "-", kernel->mr, kernel->nr);
        head_dim_words(kernel->max_head_dim, dims);
        printf("%-*s %-*s %-5s %-8s %-*s %s\n", name_width, kernel->name, needs_width, last_need(kernel, words, sizeof words),
               tile, dims, dtypes_width, dtype_words(kernel->dtypes, dtypes),
               (machine->isa & kernel->needs) == kernel->needs ? "runs" : "no");
    }
    char masks[256] = "";
    for (int i = 0; tp_mask_at(i); i++)
        snprintf(masks + strlen(masks), sizeof masks - strlen(masks), "%s%s", i ? ", " : "", tp_mask_at(i)->name);
    printf("\nmasks        ");
    print_wrapped(stdout, 13, 13, masks);
    printf("functions    %d\n", function_count());
    printf("key blocks  ");
    each_block(tp_block_keys, print_block);
    printf("\nkey chunk    %d\n", TP_CHUNK_KEYS);
    printf("decode loop  up to %d rows of a KV head in f32, %d in 16 bits\nkey blocks, f32 ",
           tp_decode_rows(TP_F32), tp_decode_rows(TP_BF16));
    each_block(decode_f32, print_block);
    printf("\nkey blocks, 16 bits ");
    each_block(decode_16, print_block);
    printf("\nkey chunk    %d\n\n", TP_DECODE_CHUNK_KEYS);
}

static void print_json(const tp_machine *machine) {
    char words[64], dtypes[64];
    printf("{\n  \"version\": \"%s\",\n  \"machine\": {\"arch\": ", tp_version());
    print_json_text(stdout, machine->arch);
    printf(", \"name\": ");
    print_json_text(stdout, machine->name);
    tp_isa_print(machine->isa, words, sizeof words);
    printf(", \"isa\": \"%s\", \"threads\": %d, \"l1d_bytes\": %lld, \"l2_bytes\": %lld, "
           "\"l3_bytes\": %lld},\n  \"kernels\": [",
           words, machine->threads, (long long)machine->l1d_bytes, (long long)machine->l2_bytes,
           (long long)machine->l3_bytes);
    const tp_kernel_info *kernel;
    for (int i = 0; (kernel = tp_kernel_at(i)); i++) {
        tp_isa_print(kernel->needs, words, sizeof words);
        printf("%s\n    {\"name\": \"%s\", \"strategy\": \"%s\", \"needs\": \"%s\", \"mr\": %d, "
               "\"nr\": %d, \"max_head_dim\": %d, \"dtypes\": \"%s\", \"arithmetic\": \"%s\", \"runs_here\": %s}",
               i ? "," : "", kernel->name, kernel->strategy, words, kernel->mr, kernel->nr,
               kernel->max_head_dim, dtype_words(kernel->dtypes, dtypes),
               tp_arithmetic_name((tp_arithmetic)kernel->arithmetic),
               (machine->isa & kernel->needs) == kernel->needs ? "true" : "false");
    }
    printf("\n  ],\n  \"masks\": [");
    for (int i = 0; tp_mask_at(i); i++) printf("%s\"%s\"", i ? ", " : "", tp_mask_at(i)->name);
    printf("],\n  \"functions\": [");
    for (int i = 0; tp_kernel_function(i); i++) printf("%s\"%s\"", i ? ", " : "", tp_kernel_function(i));
    printf("],\n  \"key_blocks\": [");
    each_block(tp_block_keys, print_block_json);
    printf("\n  ],\n  \"key_chunk\": %d,\n  \"decode_rows\": {\"f32\": %d, \"16-bit\": %d},\n"
           "  \"decode_key_blocks_f32\": [",
           TP_CHUNK_KEYS, tp_decode_rows(TP_F32), tp_decode_rows(TP_BF16));
    each_block(decode_f32, print_block_json);
    printf("\n  ],\n  \"decode_key_blocks_16_bit\": [");
    each_block(decode_16, print_block_json);
    printf("\n  ],\n  \"decode_key_chunk\": %d", TP_DECODE_CHUNK_KEYS);
}

int command_info(const struct options *options) {
    tp_machine machine = {.struct_size = sizeof machine};
    tp_error error = TP_ERROR_INIT;
    if (tp_machine_detect(&machine, &error) != TP_OK) return complain_status(&error);
    if (options->json)
        print_json(&machine);
    else
        print_text(&machine);
    int code = device_list(options->json, options->record);
    if (options->json) printf("\n}\n");
    return code;
}
