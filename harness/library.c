/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "harness/library.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "harness/fail.h"

const struct library *library_linked(void) {
    static const struct library linked = {tp_version,     tp_build_hash,   tp_context_create,
                                          tp_context_destroy, tp_plan_create, tp_plan_destroy,
                                          tp_plan_workspace,  tp_plan_run,    NULL};
    return &linked;
}

#define ROW(name) {"tp_" #name, offsetof(struct library, name)}
static const struct {
    const char *name;
    size_t offset;
} rows[] = {ROW(version),     ROW(context_create), ROW(context_destroy), ROW(plan_create),
            ROW(plan_destroy), ROW(plan_workspace), ROW(plan_run),        ROW(build_hash)};

tp_status library_open(struct library *library, const char *path, tp_error *error) {
    memset(library, 0, sizeof *library);
    /* a bare name would be looked for in the system's folders */
    char place[4096];
    snprintf(place, sizeof place, "%s%s", strchr(path, '/') ? "" : "./", path);
    library->handle = dlopen(place, RTLD_NOW | RTLD_LOCAL);
    if (!library->handle) return harness_fail(error, TP_INVALID, "%s", dlerror());
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        void *symbol = dlsym(library->handle, rows[i].name);
        memcpy((char *)library + rows[i].offset, &symbol, sizeof symbol);
        if (symbol || !strcmp(rows[i].name, "tp_build_hash")) continue;
        library_close(library);
        return harness_fail(error, TP_INVALID, "%s: it has no %s: it must be a shared library of tileproof", path,
                            rows[i].name);
    }
    return TP_OK;
}

void library_close(struct library *library) {
    if (library->handle) dlclose(library->handle);
    memset(library, 0, sizeof *library);
}
