/* SPDX-License-Identifier: Apache-2.0 */
/* What this process is and runs on: all that a lock is compared with. */
#define _GNU_SOURCE
#include <gnu/libc-version.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "fail.h"
#include "identity.h"

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
static tp_status sort_declared(const char *declared, char *text, size_t size, tp_error *error) {
    char copy[256], *words[64], *state;
    int count = 0;
    text[0] = 0;
    if (!declared || !*declared) return TP_OK;
    if (strlen(declared) >= size || strlen(declared) >= sizeof copy)
        return tp__proof_fail(error, TP_INVALID, "declared versions have %zu bytes: at most %zu",
                              strlen(declared), size - 1);
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

tp_status tp_identity_detect(const char *declared, tp_identity *identity, tp_error *error) {
    tp_machine machine = {.struct_size = sizeof machine};
    struct utsname system;
    if (!identity) return tp__proof_fail(error, TP_INVALID, "identity is NULL");
    memset(identity, 0, sizeof *identity);
    identity->struct_size = sizeof *identity;
    TP_TRY(sort_declared(declared, identity->declared, sizeof identity->declared, error));
    TP_TRY(tp_machine_detect(&machine, error));
    if (uname(&system))
        return tp__proof_fail(error, TP_MACHINE, "the system does not say what it is (uname)");
    identity->parser = TP_MODEL_PARSER_VERSION;
    snprintf(identity->version, sizeof identity->version, "%s", tp_version());
    snprintf(identity->build, sizeof identity->build, "%s", tp_build_hash());
    snprintf(identity->compiler, sizeof identity->compiler, "%s", tp_build_compiler());
    tp__lock_key(machine.isa, identity->isa);
    snprintf(identity->cpu, sizeof identity->cpu, "%s", machine.name);
    snprintf(identity->os, sizeof identity->os, "%.70s %.80s", system.sysname, system.release);
    snprintf(identity->libc, sizeof identity->libc, "glibc %.50s", gnu_get_libc_version());
    return TP_OK;
}
