/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/slots.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "harness/fail.h"

/* Above these a row is flagged; no row is dropped for it. */
static const double max_switches = 50; /* a second */
static const double max_steal = 0.01, min_cpu = 0.95;

void series_free(struct series *series) {
    samples_free(&series->calls);
    samples_free(&series->wall);
    samples_free(&series->cpu);
}

static double cpu_ns(void) { /* of all threads of this process */
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int64_t switches_now(void) {
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) ? 0 : usage.ru_nivcsw;
}

static tp_status run_slot(const struct timed_case *one, struct series *series, double slot_ns,
                          tp_error *error) {
    size_t first = series->calls.count;
    int64_t switches = switches_now();
    double cpu = cpu_ns(), wall = now_ns();
    tp_status status = timed_case_burst(one, slot_ns, 1, &series->calls, error);
    if (status != TP_OK) return status;
    wall = now_ns() - wall;
    cpu = cpu_ns() - cpu;
    series->switches += switches_now() - switches;
    series->wall_sum += wall;
    series->cpu_sum += cpu;
    double *calls = series->calls.values + first;
    size_t count = series->calls.count - first;
    sort_values(calls, count);
    if (samples_add(&series->wall, sorted_quantile(calls, count, 0.5)) ||
        samples_add(&series->cpu, cpu / (double)count))
        return harness_fail(error, TP_NO_MEMORY, "no memory for the times");
    return TP_OK;
}

tp_status slots_pass(const struct timed_case *cases, struct series *series, int count, int backward,
                     double slot_ns, tp_error *error) {
    for (int i = 0; i < count; i++) {
        int at = backward ? count - 1 - i : i;
        tp_status status = run_slot(&cases[at], &series[at], slot_ns, error);
        if (status != TP_OK) return status;
    }
    return TP_OK;
}

int slots_ratios(const struct samples *first, const struct samples *second,
                 struct samples *ratios) {
    size_t slots = first->count < second->count ? first->count : second->count;
    double *pairs = malloc((slots / 2 + 1) * sizeof *pairs);
    int failed = !pairs;
    size_t count = pairs ? paired_ratios(first->values, second->values, slots, pairs) : 0;
    for (size_t i = 0; i < count && !failed; i++) failed = samples_add(ratios, pairs[i]);
    free(pairs);
    return failed;
}

struct interval slots_compare(const struct samples *first, const struct samples *second,
                              double miss, uint64_t seed) {
    struct samples ratios = {0};
    struct interval interval = {-INFINITY, NAN, INFINITY};
    if (!slots_ratios(first, second, &ratios))
        interval = interval_median(ratios.values, ratios.count, miss, seed);
    samples_free(&ratios);
    return interval;
}

struct ticks ticks_now(void) {
    struct ticks ticks = {NAN, NAN};
    double part[8];
    FILE *file = fopen("/proc/stat", "r");
    if (!file) return ticks;
    if (fscanf(file, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", &part[0], &part[1], &part[2], &part[3],
               &part[4], &part[5], &part[6], &part[7]) == 8) {
        ticks = (struct ticks){0, part[7]};
        for (int i = 0; i < 8; i++) ticks.all += part[i];
    }
    fclose(file);
    return ticks;
}

double ticks_steal(struct ticks from, struct ticks to) {
    double all = to.all - from.all; /* 0 when less than a tick went by */
    return all > 0 ? (to.steal - from.steal) / all : NAN;
}

const char *series_flags(const struct series *series, double steal, char text[32]) {
    double seconds = series->wall_sum * 1e-9;
    snprintf(text, 32, "%s%s%s",
             (double)series->switches > max_switches * seconds + 1 ? "switches " : "",
             steal > max_steal ? "steal " : "",
             series->cpu_sum < min_cpu * series->wall_sum ? "cpu " : "");
    size_t length = strlen(text);
    if (length) text[length - 1] = 0;
    return text;
}
