/* SPDX-License-Identifier: Apache-2.0 */
/* What can be chosen, best first, and the names by which people speak of it. */
#include "plan/plan.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"

static const tp__executor fused = {"fused", 1, {&tp__strategy_fused, &tp__strategy_backward}, tp__cpu_serves};
static const tp__executor math = {"math", 0, {&tp__strategy_math, NULL}, tp__cpu_serves};

const tp__option tp__options[TP__OPTIONS] = {
#define TP_ISA_ROW(isa, needs, mr, nr, dtypes, ops, arithmetic) {#isa, &fused, &tp__kernel_set_##isa, arithmetic, NULL, 0},
#include "kernels/isas.inc"
#undef TP_ISA_ROW
    {"math", &math, NULL, TP_ARITHMETIC_F32, NULL, 0},
};

static const char dim_entry[] = "head_dim=";

int tp__names_have(const char *names, const char *name) {
    size_t length = strlen(name);
    while (names != NULL && *names != '\0') {
        size_t n = strcspn(names, ",");
        if (n == length && memcmp(names, name, n) == 0) return 1;
        names += n + (names[n] == ',');
    }
    return 0;
}

int tp__names_head_dim(const char *names, int64_t head_dim) {
    char entry[40];
    snprintf(entry, sizeof entry, "%s%lld", dim_entry, (long long)head_dim);
    return tp__names_have(names, entry);
}

/* head_dim=N, where a list may have it: N must be what tp__names_head_dim prints. */
static int is_head_dim(const char *what, const char *entry, size_t length) {
    size_t n = strlen(dim_entry);
    if (strcmp(what, "disable") || length <= n || length > n + 7 || memcmp(entry, dim_entry, n)) return 0;
    if (entry[n] == '0') return 0;
    for (; n < length; n++)
        if (entry[n] < '0' || entry[n] > '9') return 0;
    return 1;
}

static const tp__executor device_fused = {"fused", 1, {NULL, NULL}, tp__device_serves};
static const tp__executor device_math = {"math", 0, {NULL, NULL}, tp__device_serves};

void tp__catalog_fill(tp__catalog *catalog, tp__device *device) {
    catalog->count = TP__OPTIONS;
    memcpy(catalog->option, tp__options, sizeof tp__options);
    for (int i = 0; device != NULL && i < device->kernels; i++) {
        const tp_kernel_info *info = &device->kernel[i];
        int writes = strcmp(info->strategy, "math") == 0;
        catalog->option[catalog->count++] = (tp__option){.name = info->name,
                                                         .executor = writes ? &device_math : &device_fused,
                                                         .arithmetic = info->arithmetic,
                                                         .device = device,
                                                         .device_kernel = i};
    }
    catalog->names = (tp__kernel_names){.device = device != NULL ? device->backend.name : NULL, .count = catalog->count};
    for (int i = 0; i < catalog->count; i++) catalog->names.name[i] = catalog->option[i].name;
}

int tp__is_cpu_kernel(const char *name) {
    for (int i = 0; i < TP__OPTIONS; i++)
        if (strcmp(tp__options[i].name, name) == 0) return 1;
    return 0;
}

tp_status tp__names_check(const char *what, const char *names, const tp__catalog *catalog, tp_error *error) {
    char known[256] = "";
    size_t used = 0;
    for (int i = 0; i < catalog->count && used < sizeof known; i++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i > 0 ? ", " : "", catalog->names.name[i]);
    while (names != NULL && *names != '\0') {
        size_t n = strcspn(names, ",");
        int found = is_head_dim(what, names, n);
        for (int i = 0; i < catalog->count; i++)
            found |= n == strlen(catalog->names.name[i]) && memcmp(names, catalog->names.name[i], n) == 0;
        TP_REQUIRE(found, error, TP_INVALID, "%s names '%.*s': it must be one of %s", what,
                   (int)(n < 64 ? n : 64), names, known);
        names += n + (names[n] == ',');
    }
    return TP_OK;
}

tp_status tp__policy_check(int32_t policy, tp_error *error) {
    TP_REQUIRE(policy >= TP_REFUSE && policy <= TP_LOCKED, error, TP_INVALID,
               "policy is %d: it must be refuse (0), permit (1), serve (2) or locked (3)", policy);
    return TP_OK;
}

const tp_kernel_info *tp_kernel_at(int index) {
    static const tp_kernel_info infos[TP__OPTIONS] = {
#define TP_ISA_ROW(isa, needs, mr, nr, dtypes, ops, arithmetic) \
    {sizeof(tp_kernel_info), needs, #isa, "fused", mr, nr, TP_MAX_HEAD_DIM, dtypes, arithmetic, ops},
#include "kernels/isas.inc"
#undef TP_ISA_ROW
        {sizeof(tp_kernel_info), 0, "math", "math", 0, 0, 0, TP__ANY, TP_ARITHMETIC_F32, 1u << TP_FORWARD},
    };
    return index >= 0 && index < TP__OPTIONS ? &infos[index] : NULL;
}
