/* SPDX-License-Identifier: Apache-2.0 */
#include "check/check.h"

#include <inttypes.h>
#include <string.h>

#include "tool/device.h"

void check_print_failure(const struct check_case *test, const tp_kernel_info *kernel,
                         const char *reason, uint64_t seed) {
    printf("FAILED  %s  kernel %s\n  problem  %s\n  %s\n", test->name, kernel->name, test->text,
           reason ? reason : "no reason");
    int cpu = !strcmp(device_name(), "cpu");
    printf("  repro    tileproof check%s --kernel '^%s$' --case '^%s$' --seed %" PRIu64 "\n", cpu ? "" : " --device opencl",
           kernel->name, test->name, seed);
}

struct tally {
    long passed, failed, beyond;
};

static void count(const struct check_list *list, int kernels, const struct outcome_of *outcomes,
                  struct tally tally[MAX_GROUPS][MAX_KERNELS]) {
    memset(tally, 0, sizeof(struct tally) * MAX_GROUPS * MAX_KERNELS);
    for (size_t c = 0; c < list->count; c++)
        for (int k = 0; k < kernels; k++) {
            struct tally *cell = &tally[list->cases[c].group][k];
            enum outcome outcome = outcomes[c * (size_t)kernels + (size_t)k].outcome;
            cell->passed += outcome == PASSED;
            cell->failed += outcome == FAILED;
            cell->beyond += outcome == BEYOND_LIMIT;
        }
}

static void print_cell(const struct tally *cell) {
    char text[64];
    int used = snprintf(text, sizeof text, "%ld", cell->passed);
    if (cell->failed)
        used += snprintf(text + used, sizeof text - (size_t)used, ", %ld FAILED", cell->failed);
    if (cell->beyond)
        snprintf(text + used, sizeof text - (size_t)used, ", %ld beyond", cell->beyond);
    printf(" %-20s", text);
}

/* A kernel that stands in for another ISA says so in its name, and never counts as passed there. */
static const char *state(const tp_kernel_info *kernel, const struct tally *sum) {
    if (sum->failed) return "failed";
    if (!sum->passed) return "not run here";
    return strstr(kernel->name, "emulated") ? "emulated" : "passed";
}

long check_print_table(const struct check_list *list, const struct check_kernels *kernels,
                       const struct outcome_of *outcomes, uint64_t seed, double seconds) {
    static struct tally tally[MAX_GROUPS][MAX_KERNELS];
    struct tally sums[MAX_KERNELS] = {{0, 0, 0}}, all = {0, 0, 0};
    count(list, kernels->count, outcomes, tally);
    printf("%-10s", "cases");
    for (int k = 0; k < kernels->count; k++) printf(" %-20s", kernels->selected[k]->name);
    printf("\n");
    for (int g = 0; g < list->group_count; g++) {
        long ran = 0;
        for (int k = 0; k < kernels->count; k++) {
            ran += tally[g][k].passed + tally[g][k].failed + tally[g][k].beyond;
            sums[k].passed += tally[g][k].passed;
            sums[k].failed += tally[g][k].failed;
            sums[k].beyond += tally[g][k].beyond;
        }
        if (!ran) continue;
        printf("%-10s", list->groups[g]);
        for (int k = 0; k < kernels->count; k++) print_cell(&tally[g][k]);
        printf("\n");
    }
    printf("%-10s", "state");
    for (int k = 0; k < kernels->count; k++) {
        printf(" %-20s", state(kernels->selected[k], &sums[k]));
        all.passed += sums[k].passed;
        all.failed += sums[k].failed;
        all.beyond += sums[k].beyond;
    }
    printf("\n");
    for (int k = 0; k < kernels->absent_count; k++) {
        char needs[64];
        tp_isa_print(kernels->absent[k]->needs, needs, sizeof needs);
        printf("not run here: %s (%s%s)\n", kernels->absent[k]->name, *device_absent() ? "" : "needs ",
               *device_absent() ? device_absent() : needs);
    }
    printf("%ld passed, %ld failed", all.passed, all.failed);
    if (all.beyond) printf(", %ld beyond a kernel's head dim, op or dtypes", all.beyond);
    printf(" (seed %" PRIu64 ", %.1f s)\n", seed, seconds);
    return all.failed;
}
