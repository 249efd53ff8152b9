/* SPDX-License-Identifier: Apache-2.0 */
/* What this process is and runs on: all that a lock is compared with. */
#define _GNU_SOURCE
#include <gnu/libc-version.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "identity.h"
#include "control.h"
#include "sized.h"

enum { MAX_DECLARED = 255 };

void tp__lock_key(uint32_t isa, char key[64]) {
    uint32_t used = 0;
    const tp_kernel_info *kernel;
    for (int i = 0; (kernel = tp_kernel_at(i)) != NULL; i++) used |= kernel->needs;
    tp_isa_print(isa & used, key, 64);
}

static int by_text(const void *left, const void *right) {
    return strcmp(*(char *const *)left, *(char *const *)right);
}

static int is_declaration(const char *word) {
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._+-";
    size_t name = strspn(word, letters);
    if (!name || word[name] != '=') return 0;
    size_t value = strspn(word + name + 1, letters);
    return value > 0 && !word[name + 1 + value];
}

/* The order in which versions are declared says nothing, so it is made one. */
static tp_status sort_declared(const char *declared, char text[MAX_DECLARED + 1], tp_error *error) {
    char copy[MAX_DECLARED + 1], *words[64], *state;
    int count = 0;
    text[0] = 0;
    if (!declared || !*declared) return TP_OK;
    if (strlen(declared) > MAX_DECLARED)
        return tp__proof_fail(error, TP_INVALID, "declared versions have %zu bytes: at most %d", strlen(declared),
                              MAX_DECLARED);
    strcpy(copy, declared);
    for (char *word = strtok_r(copy, ",", &state); word; word = strtok_r(NULL, ",", &state)) {
        if (!is_declaration(word) || count == 64)
            return tp__proof_fail(error, TP_INVALID,
                                  "declared version is '%s': it must be name=value, of letters, digits "
                                  "and . _ + -, at most 64 of them",
                                  word);
        words[count++] = word;
    }
    qsort(words, (size_t)count, sizeof *words, by_text);
    for (int i = 0; i < count; i++) {
        if (i) strcat(text, ",");
        strcat(text, words[i]);
    }
    return TP_OK;
}

tp_status tp_identity_detect(const char *declared, tp_identity **identity, tp_error *error) {
    TP__IN_DEFAULT_FENV;
    tp_machine machine = {.struct_size = sizeof machine};
    struct utsname system;
    char isa[64], os[160], libc[64], sorted[MAX_DECLARED + 1];
    if (!identity) return tp__proof_fail(error, TP_INVALID, "identity is NULL");
    *identity = NULL;
    TP_TRY(sort_declared(declared, sorted, error));
    TP_TRY(tp_machine_detect(&machine, error));
    if (uname(&system))
        return tp__proof_fail(error, TP_MACHINE, "the system does not say what it is (uname)");
    tp__lock_key(machine.isa, isa);
    snprintf(os, sizeof os, "%.70s %.80s", system.sysname, system.release);
    snprintf(libc, sizeof libc, "glibc %.50s", gnu_get_libc_version());
    tp_identity here = {.struct_size = sizeof here,
                        .parser = TP_MODEL_PARSER_VERSION,
                        .version = tp_version(),
                        .build = tp_build_hash(),
                        .compiler = tp_build_compiler(),
                        .isa = isa,
                        .cpu = machine.name,
                        .os = os,
                        .libc = libc,
                        .declared = sorted,
                        .engine = "tileproof",
                        .mode = "",
                        .device = "cpu",
                        .cache = "plain",
                        .versions = "",
                        .host = ""};
    *identity = tp__pack(&tp__identity_shape, &here);
    return *identity ? TP_OK : tp__proof_fail(error, TP_NO_MEMORY, "out of memory for an identity");
}

void tp_identity_destroy(tp_identity *identity) { free(identity); }
