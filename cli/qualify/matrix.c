/* SPDX-License-Identifier: Apache-2.0 */
/* The first screen: models, worst first, a letter and a colour for each layer group by phase; two models a line where they
   fit. */
#include "qualify/qualify.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PHASES = 5, MAX_LETTERS = 12, MIN_NAME = 12, KERNELS = 48 };

static const struct {
    char letter;
    enum colour colour;
    const char *meaning;
} letters[] = {[TP_CELL_NOT_RUN] = {'.', COLOUR_NONE, "not run"},
               [TP_CELL_QUALIFIED] = {'Q', COLOUR_GREEN, "qualified"},
               [TP_CELL_QUALIFIED_FALLBACK] = {'F', COLOUR_YELLOW, "right, by a fallback"},
               [TP_CELL_NUMERIC_FAIL] = {'W', COLOUR_RED, "WRONG"},
               [TP_CELL_UNSUPPORTED] = {'R', COLOUR_MAGENTA, "refused"},
               [TP_CELL_MISTRUSTED] = {'P', COLOUR_BLUE, "proves nothing"},
               [TP_CELL_STALE] = {'S', COLOUR_YELLOW, "stale"},
               [TP_CELL_NUMERICS_CHANGED] = {'N', COLOUR_YELLOW, "other bits than the lock's"}};
enum { STATUSES = sizeof letters / sizeof *letters };

/* A model: the worst status of each of its groups in a phase; of its cells. */
struct row {
    int model, worst, cells;
    int count[PHASES], group[PHASES][MAX_LETTERS], status[PHASES][MAX_LETTERS];
};

struct matrix {
    struct row *rows;
    int width[PHASES]; /* letters of a phase; 0: nobody has it */
    int seen[STATUSES], empty; /* cells by status; models without one */
    double error, logs, timed; /* the largest over what is allowed; gains over math */
    char kernels[KERNELS];
};

static int worse_of(int a, int b) { return cell_rank(b) > cell_rank(a) ? b : a; }

/* Groups beyond the last letter share it. */
static void add_status(struct row *row, int phase, int group, int status) {
    int at = 0;
    while (at < row->count[phase] && row->group[phase][at] != group) at++;
    if (at == MAX_LETTERS) at--;
    if (at == row->count[phase]) {
        row->group[phase][at] = group;
        row->status[phase][at] = status;
        row->count[phase]++;
    }
    row->status[phase][at] = worse_of(row->status[phase][at], status);
    row->worst = worse_of(row->worst, status);
    row->cells++;
}

static void add_use(struct matrix *m, const struct qualification *all, tp_qualify_use use) {
    const tp_cell *cell = tp_qualification_cell(all->q, use.cell);
    int phase = 0;
    while (phase < PHASES - 1 && !(use.phase >> phase & 1)) phase++;
    add_status(&m->rows[use.model], phase, use.group, cell->status);
    m->seen[cell->status]++;
    if (cell->allowed > 0) m->error = fmax(m->error, cell->error / cell->allowed);
    if (cell->gain_over_math > 0) m->logs += log(cell->gain_over_math), m->timed++;
    add_name(m->kernels, sizeof m->kernels, cell->kernel);
}

static int worse_first(const void *left, const void *right) {
    const struct row *a = left, *b = right;
    int order = cell_rank(b->worst) - cell_rank(a->worst);
    return order ? order : a->model - b->model;
}

static int letters_width(const struct matrix *m) {
    int width = 0;
    for (int p = 0; p < PHASES; p++) width += m->width[p] + (m->width[p] > 0);
    return width;
}

static int name_length(const tp_model *model) {
    size_t length = strlen(model->label);
    if (length > 5 && !strcmp(model->label + length - 5, ".json")) length -= 5;
    return (int)length;
}

/* No layer of it is served, or none has the phases that were asked for. */
static const char *without_cells(const tp_model *model) {
    for (int i = 0; i < model->group_count; i++)
        if (!model->groups[i]->out_of_scope) return "no such cells";
    return "out of scope";
}

static void print_row(const struct matrix *m, const struct row *row, const tp_model *model, int name, int padded) {
    int length = name_length(model), column = 0;
    printf("%-*.*s", name, length < name ? length : name, model->label);
    if (!row->cells) { /* in words where there is room for them */
        const char *why = without_cells(model);
        column = printf(" %s", padded && (int)strlen(why) >= letters_width(m) ? "-" : why);
    }
    for (int p = 0; p < PHASES && row->cells; p++) {
        if (!m->width[p]) continue;
        putchar(' ');
        for (int g = 0; g < m->width[p]; g++) {
            char letter[2] = {g < row->count[p] ? letters[row->status[p][g]].letter : ' ', 0};
            print_coloured(stdout, g < row->count[p] ? letters[row->status[p][g]].colour : COLOUR_NONE, letter);
        }
        column += 1 + m->width[p];
    }
    if (padded) printf("%*s", letters_width(m) - column + 2, "");
}

static void print_head(const struct matrix *m, int name, int padded) {
    printf("%-*s", name, "model");
    for (int p = 0; p < PHASES; p++)
        if (m->width[p]) printf(" %-*.1s", m->width[p], tp_qualify_phase_name(1u << p));
    if (padded) printf("  ");
}

static void print_legend(const struct matrix *m) {
    const char *before = "";
    size_t column = 0; /* 17: what may follow */
    for (int i = 0; i < STATUSES; i++) {
        char letter[2] = {letters[i].letter, 0};
        size_t length = strlen(letters[i].meaning) + 4; /* with a comma and a blank */
        if (!m->seen[i]) continue;
        if (column + length + 17 > TERMINAL_COLUMNS) before = ",\n", column = 0;
        fputs(before, stdout);
        print_coloured(stdout, letters[i].colour, letter);
        printf(" %s", letters[i].meaning);
        before = ", ";
        column += length;
    }
    if (m->empty) printf("%s- no such cells", before);
    printf("%sone for each layer group; columns:", column ? "\n" : "");
    before = " ";
    for (int p = 0; p < PHASES; p++) {
        if (!m->width[p]) continue;
        printf("%s%s", before, tp_qualify_phase_name(1u << p));
        before = ", ";
    }
    printf("\nkernels %s; every group: -v or -o md\n", m->kernels[0] ? m->kernels : "none");
    if (m->error > 0) printf("largest error %.0f %% of what is allowed", 100 * m->error);
    if (m->timed > 0) printf("%smean gain over math %.1f", m->error > 0 ? "; " : "", exp(m->logs / m->timed));
    if (m->error > 0 || m->timed > 0) printf("\n");
}

void qualify_letters(const struct qualification *all) {
    struct matrix m = {.rows = calloc((size_t)all->model_count + 1, sizeof *m.rows)};
    int name = MIN_NAME;
    if (!m.rows) return;
    for (int i = 0; i < all->model_count; i++) {
        m.rows[i].model = i;
        m.rows[i].worst = TP_CELL_QUALIFIED;
        if (name_length(all->models[i]) > name) name = name_length(all->models[i]);
    }
    for (int64_t i = 0; i < all->use_count; i++) add_use(&m, all, qualification_use(all, i));
    for (int i = 0; i < all->model_count; i++) m.empty += !m.rows[i].cells;
    for (int i = 0; i < all->model_count; i++)
        for (int p = 0; p < PHASES; p++)
            if (m.rows[i].count[p] > m.width[p]) m.width[p] = m.rows[i].count[p];
    qsort(m.rows, (size_t)all->model_count, sizeof *m.rows, worse_first);
    int pair = TERMINAL_COLUMNS / 2 - 1 - letters_width(&m), across = all->model_count > 1 && pair >= MIN_NAME ? 2 : 1;
    int max = across == 2 ? pair : TERMINAL_COLUMNS - 1 - letters_width(&m);
    if (name > max) name = max < MIN_NAME ? MIN_NAME : max;
    int lines = (all->model_count + across - 1) / across;
    for (int i = 0; i < across; i++) print_head(&m, name, i + 1 < across);
    printf("\n");
    for (int i = 0; i < lines; i++) { /* worst first, down the left half, then the right one */
        int other = i + lines, two = across == 2 && other < all->model_count;
        print_row(&m, &m.rows[i], all->models[m.rows[i].model], name, two);
        if (two) print_row(&m, &m.rows[other], all->models[m.rows[other].model], name, 0);
        printf("\n");
    }
    if (all->use_count) print_legend(&m);
    free(m.rows);
}
