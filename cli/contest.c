/* SPDX-License-Identifier: Apache-2.0 */
#include "contest.h"

static const double slot_ns = 0.1e6;

static void look(struct contest *contest, int64_t seed) {
    const struct series *series = contest->series;
    const struct series *first = &series[CONTEST_FIRST], *row = &series[CONTEST_ROW];
    uint64_t from = (uint64_t)seed;
    contest->wall = slots_compare(&first->wall, &row->wall, look_miss, from);
    contest->cpu = slots_compare(&first->cpu, &row->cpu, look_miss, from);
    contest->control = slots_compare(&first->wall, &series[CONTEST_CONTROL].wall, look_miss, from);
}

tp_status contest_run(struct contest *contest, double budget_ns, int64_t seed, tp_error *error) {
    double begin = now_ns();
    struct ticks before = ticks_now();
    int over = 0, final = 0;
    for (int at = 0; at < LOOK_COUNT && !over && !final; at++) {
        for (; contest->rounds < look_rounds[at] && !over; contest->rounds++) {
            for (int backward = 0; backward < 2; backward++) {
                tp_status status = slots_pass(contest->cases, contest->series, CONTEST_ARMS, backward,
                                              slot_ns, error);
                if (status != TP_OK) return status;
            }
            over = now_ns() - begin > budget_ns;
        }
        look(contest, seed);
        final = speed_is_final(contest->wall, contest->control);
    }
    contest->steal = ticks_steal(before, ticks_now());
    return TP_OK;
}

void contest_free(struct contest *contest) {
    for (int i = 0; i < CONTEST_ARMS; i++) series_free(&contest->series[i]);
}
