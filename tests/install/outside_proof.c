/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>
#include <tileproof_proof.h>

int main(void) {
    static const char config[] = "{\"model_type\":\"mistral\",\"num_hidden_layers\":32}";
    tp_error error = TP_ERROR_INIT;
    tp_model *model;
    tp_problem problem;
    char text[256];
    if (tp_model_parse(config, strlen(config), "config.json", &model, &error) != TP_OK)
        return puts(error.text), 1;
    tp_layer_group_problem(model->groups[0], 1, 512, 512, text, sizeof text);
    if (tp_problem_parse(text, &problem, NULL, &error) != TP_OK) return puts(error.text), 1;
    printf("%d layers of %s\n", (int)model->groups[0]->layer_count, text);
    tp_model_destroy(model);
    return problem.head_dim_qk != 128;
}
