/* SPDX-License-Identifier: Apache-2.0 */
/* tileproof model: every file is read before a line is written, so that a bad one leaves no half
 * output. */
#include "cli.h"
#include "harness/places.h"

#include <stdlib.h>
#include <string.h>

/* "28 text layers" is easier to read in a table than their numbers, which JSON has. */
static void print_row(const tp_model *model, const tp_layer_group *group) {
    char formula[96], layers[8 * TP_MODEL_MAX_LAYERS];
    tp_layer_group_layers(group, layers, sizeof layers);
    tp_layer_group_formula(group, formula, sizeof formula);
    for (char *c = formula; *c; c++)
        if (*c == '|') *c = '/'; /* a bar ends a cell */
    printf("| %s | %s %s | ", model->label, tp_part_name((tp_part)group->part), layers);
    if (group->out_of_scope) {
        printf("out of scope: %s | | | | |\n", group->out_of_scope);
        return;
    }
    printf("%lld/%lld | %lld/%lld | %s", (long long)group->q_heads, (long long)group->kv_heads,
           (long long)group->head_dim_qk, (long long)group->head_dim_v, formula);
    if (group->all_of & TP_TERM_WINDOW)
        printf(" %lld,%lld", (long long)group->window_left, (long long)group->window_right);
    if (group->chunk) printf(" %lld", (long long)group->chunk);
    printf(" | %.5g", group->scale);
    if (group->softcap > 0) printf(" softcap=%g", group->softcap);
    if (group->sinks) printf(" sinks");
    if (group->sparse) printf(" sparse=%lld", (long long)group->sparse);
    if (group->alibi) printf(" alibi");
    if (group->query_scale_beta > 0) printf(" q-scale");
    printf(" | %s", tp_rope_name((tp_rope)group->rope));
    if (group->rope_dims && group->rope_dims != group->head_dim_qk)
        printf(" %lld", (long long)group->rope_dims);
    if (group->mrope_section[0])
        printf(" mrope %d,%d,%d", (int)group->mrope_section[0], (int)group->mrope_section[1],
               (int)group->mrope_section[2]);
    printf(" |\n");
}

static void print_table(tp_model **models, int count) {
    printf(
        "| file | layers | heads | qk/v | mask | scale | rope |\n|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < count; i++)
        for (int j = 0; j < models[i]->group_count; j++) print_row(models[i], models[i]->groups[j]);
}

static int print_models(tp_model **models, int count, const char *format) {
    if (!strcmp(format, "md")) {
        print_table(models, count);
        return EXIT_FINE;
    }
    int json = !strcmp(format, "json");
    if (json) printf("[");
    for (int i = 0; i < count; i++) {
        if (i) printf(json ? ",\n" : "\n");
        tp_status status =
            tp_model_write(models[i], json ? TP_JSON : TP_TEXT, write_to_file, stdout);
        if (status != TP_OK) {
            complain("%s: it could not be written (%s)", models[i]->name, tp_status_name(status));
            return EXIT_FAILED;
        }
    }
    if (json) printf("]\n");
    return EXIT_FINE;
}

int command_model(const struct options *options) {
    const char *format = options->format ? options->format : "text";
    int count = options->file_count, code = EXIT_FINE;
    if (strcmp(format, "text") && strcmp(format, "json") && strcmp(format, "md")) {
        complain("--output is '%s': it must be text, json or md", format);
        return EXIT_USAGE;
    }
    if (!count) {
        complain("no file given: for example tileproof model config.json, or tileproof model llama-3.2-1b");
        return EXIT_USAGE;
    }
    tp_model **models = calloc((size_t)count, sizeof *models);
    if (!models) {
        complain("out of memory");
        return EXIT_FAILED;
    }
    /* all complaints are printed; the first decides the exit code */
    for (int i = 0; i < count; i++) {
        int one = model_read(options, options->files[i], &models[i]);
        if (!code) code = one;
    }
    if (!code) code = print_models(models, count, format);
    for (int i = 0; i < count; i++) tp_model_destroy(models[i]);
    free(models);
    return code;
}
