/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/made.h"

#include <tileproof_proof.h>

#include "bench/bench.h"

json_t *made_here(void) {
    char date[32];
    tp_error error = TP_ERROR_INIT;
    tp_identity *here = NULL;
    json_t *made = NULL;
    bench_date(date);
    if (tp_identity_detect(NULL, &here, &error) == TP_OK)
        made = json_pack("{s:s,s:s,s:s,s:s,s:s,s:s}", "version", here->version, "build", here->build, "isa", here->isa, "host",
                         here->cpu, "os", here->os, "date", date);
    tp_identity_destroy(here);
    return made;
}

json_t *made_of_others(void) {
    char date[32];
    bench_date(date);
    return json_pack("{s:s,s:s,s:s}", "summarised_by", tp_version(), "summarised_build", tp_build_hash(), "summarised", date);
}
