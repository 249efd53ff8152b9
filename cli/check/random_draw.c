/* SPDX-License-Identifier: Apache-2.0 */
/* A problem text from dice. Words come by chance, each by itself; the parser says whether they go together. */
#include "check/random.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "harness/mask_words.h"

int64_t dice_roll(struct dice *dice, int64_t below) {
    return (int64_t)(random_bits(dice->seed, 0xD1CE, dice->at++) % (uint64_t)below);
}

int dice_chance(struct dice *dice, int of_thousand) { return dice_roll(dice, 1000) < of_thousand; }

void draft_say(struct draft *draft, const char *format, ...) {
    size_t used = strlen(draft->text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(draft->text + used, sizeof draft->text - used, format, arguments);
    va_end(arguments);
}

/* Of a mask: often at a border of the keys, and from the least that it may be. All rows of a chunk see the same keys, which
   kernels take apart from others where a group of 16 ends with them. */
static int64_t mask_value(struct draft *d, const tp_mask_info *info, int which) {
    int64_t min = info->reads == TP_MASK_READS_LEFT_OUT ? 0 : info->min[which];
    int64_t value = draw_number(d, d->keys + (min < 0)) + min;
    return strcmp(info->name, "chunk") || value < 16 || value % 2 ? value : value - value % 16;
}

/* A word of the table of kinds, with the numbers that it takes. */
static void say_mask(struct draft *d, const struct mask_word *word) {
    const tp_mask_info *info = word->info;
    if (info->traits & TP_MASK_KEY_FOR_EACH_ROW) d->keys_for_rows = 1;
    int numbers = info->values > 0 && !(info->reads == TP_MASK_READS_LEFT_OUT && dice_chance(&d->dice, 500));
    draft_say(d, " %s", word->name);
    if (numbers) draft_say(d, "=%lld", (long long)mask_value(d, info, 0));
    if (numbers && info->values == 2)
        draft_say(d, ",%lld", (long long)(dice_chance(&d->dice, 500) ? 0 : mask_value(d, info, 1)));
}

/* Words that a postfix tree can have, one for each kind: those that take numbers; or those that take none, and behind them
   those whose numbers may be left out. A tree of drafts is left to its own word. */
static int tree_word(int index, int numbers, struct mask_word *word) {
    for (int left_out = 0; left_out <= !numbers; left_out++)
        for (int i = 0; mask_word_at(i, word); i++) {
            const tp_mask_info *info = word->info;
            int fits = numbers ? info->values > 0 : left_out ? info->reads == TP_MASK_READS_LEFT_OUT : info->values == 0;
            if (!fits || word->again || strcmp(word->name, info->name) || info->traits & TP_MASK_KEY_FOR_EACH_ROW) continue;
            if (index-- == 0) return 1;
        }
    return 0;
}

static int tree_words(int numbers) {
    struct mask_word word;
    int count = 0;
    while (tree_word(count, numbers, &word)) count++;
    return count;
}

/* A leaf of a postfix tree. */
static void leaf(struct draft *d) {
    struct mask_word word;
    int numbered = tree_words(1);
    int64_t a = draw_number(d, d->keys), b = draw_number(d, d->keys), drawn = dice_roll(&d->dice, numbered + 5);
    if (drawn == numbered) {
        draft_say(d, "window:0:0");
    } else if (tree_word((int)drawn, 1, &word)) {
        const int64_t *min = word.info->min;
        draft_say(d, "%s:%lld", word.name, (long long)(a + (word.info->reads == TP_MASK_READS_LEFT_OUT ? 0 : min[0])));
        if (word.info->values == 2) draft_say(d, ":%lld", (long long)(b + min[1]));
    } else {
        tree_word((int)dice_roll(&d->dice, tree_words(0)), 0, &word);
        draft_say(d, "%s", word.name);
    }
}

static void postfix(struct draft *d) {
    int waiting = 1, leaves = 2 + (int)dice_roll(&d->dice, 4);
    draft_say(d, " mask=");
    leaf(d);
    for (int i = 1; i < leaves; i++) {
        draft_say(d, ",");
        leaf(d);
        for (waiting++; waiting > 1 && (i == leaves - 1 || dice_chance(&d->dice, 500)); waiting--)
            draft_say(d, dice_chance(&d->dice, 500) ? ",and" : ",or");
    }
}

static void scale(struct draft *d) {
    static const char *const values[] = {"0", "-0.3", "1", "1e-30", "2.5", "-2", "1e-44", "2.3e38", "30", "-1e-3"};
    draft_say(d, " scale=%s", values[dice_roll(&d->dice, 10)]);
}

static void softcap(struct draft *d) {
    static const char *const values[] = {"50", "5", "0.5", "1e-3", "1e4", "1e-15", "1e15"};
    draft_say(d, " softcap=%s", values[dice_roll(&d->dice, 7)]);
}

static void qscale(struct draft *d) {
    static const char *const betas[] = {"0.1", "0.4", "-0.5", "0", "3e38", "1e-30"};
    draft_say(d, " qscale=%s,%lld,%lld", betas[dice_chance(&d->dice, 900) ? dice_roll(&d->dice, 4) : dice_roll(&d->dice, 6)],
              (long long)draw_number(d, d->keys) + 1, (long long)draw_number(d, 9));
}

static void bias(struct draft *d) {
    static const char *const dtypes[] = {"f32", "bf16", "f16"};
    draft_say(d, " bias=%s", dtypes[dice_roll(&d->dice, 3)]);
}

static void weights(struct draft *d) { draft_say(d, " p=%s", dice_chance(&d->dice, 900) ? "bf16" : "f32"); }

static void dropout(struct draft *d) {
    static const char *const rates[] = {"0.1", "0.5", "0.9", "0.001", "0.9999"};
    draft_say(d, " dropout=%s", rates[dice_roll(&d->dice, 5)]);
}

/* Kinds of scales that go with a dtype and a head dim; NULL: it has none. */
static const char *scales_kind(struct draft *d, const char *dtype, int64_t dim) {
    int first = dice_chance(&d->dice, 500);
    if (!strcmp(dtype, "i8")) return first && dim % 32 == 0 ? "q8_0" : "token";
    if (!strcmp(dtype, "e4m3")) return first ? "tensor" : "token";
    return strcmp(dtype, "i4") ? NULL : "group";
}

static void scales(struct draft *d) {
    const char *k = scales_kind(d, d->k_dtype, d->dim), *v = d->latent ? k : scales_kind(d, d->v_dtype, d->dim_v);
    if (!k && !v) return;
    draft_say(d, " scales=%s", k ? k : v);
    if (k && v && (strcmp(k, v) || dice_chance(&d->dice, 200))) draft_say(d, ":%s", v);
}

static void paged(struct draft *d) { draft_say(d, " paged=%lld", (long long)draw_number(d, d->keys + 60) + 1); }

static void cascade(struct draft *d) { draft_say(d, " cascade=%lld", (long long)draw_number(d, d->keys + 9) + 1); }

static void sparse_length(struct draft *d) {
    static const int more[] = {1, 1, 2, 4};
    int longer = dice_chance(&d->dice, 150); /* than a chunk, of however few keys */
    int64_t length = longer ? 1000 + dice_roll(&d->dice, 150) : draw_number(d, d->keys * more[dice_roll(&d->dice, 4)]);
    int64_t max = (longer ? 16 : 4) * d->cost / (d->heads * (d->dim + d->dim_v) * (d->rows + 1)) + 8;
    draft_say(d, "%lld", (long long)(length < max ? length : max) + 1);
}

static void sparse(struct draft *d) {
    draft_say(d, " sparse=");
    sparse_length(d);
}

static void sparse_sorted(struct draft *d) {
    draft_say(d, " sparse-sorted=");
    sparse_length(d);
}

static void latent(struct draft *d) {
    draft_say(d, " latent");
    d->latent = 1;
}

static void drawn_already(struct draft *d) { (void)d; }

/* Words of which one excludes the others. */
enum { MAX_DRAWN = 96 };
enum { LENGTHS = 1, PACKS = DRAFT_PACKS, SPARSE = 4, MASKS = 8, TREES = 16, KEPT = DRAFT_KEPT };

struct row {
    const char *name;
    int chance[DRAW_KINDS + 1]; /* the last: of hostile drafts, where it is another */
    unsigned group, against; /* takes the first; not after any of the second */
    void (*put)(struct draft *draft);
};

/* Rows of the words of the library's mask kinds: those that need a key for each row, and the others. */
static void draw_masks_of_rows(struct draft *d) { (void)d; }
static void draw_masks(struct draft *d) { (void)d; }

/* In the order drawn: what others depend on comes first. Chances of a thousand for forward problems, for those with
   sparse indices, for gradients. A word that takes no number needs no function. */
static const struct row table[] = {
    {"latent", {60, 100, 0}, 0, 0, latent},
    {"h", {1000, 1000, 1000}, 0, 0, draw_heads},
    {"d", {1000, 1000, 1000}, 0, 0, draw_dims},
    {"f32", {1000, 1000, 1000}, 0, 0, draw_dtypes}, /* and these */
    {"bf16", {1000, 1000, 1000}, 0, 0, drawn_already},
    {"f16", {1000, 1000, 1000}, 0, 0, drawn_already},
    {"i8", {1000, 1000, 0}, 0, 0, drawn_already},
    {"e4m3", {1000, 1000, 0}, 0, 0, drawn_already},
    {"i4", {1000, 1000, 0}, 0, 0, drawn_already},
    {"", {0}, MASKS, TREES, draw_masks_of_rows},
    {"seqs=", {350, 250, 350}, LENGTHS, 0, draw_sequences},
    {"q", {1000, 1000, 1000}, LENGTHS, LENGTHS, draw_lengths},
    {"k", {1000, 1000, 1000}, 0, 0, drawn_already}, /* these two by draw_lengths, too */
    {"b", {1000, 1000, 1000}, 0, 0, drawn_already},
    {"mask=", {120, 0, 120}, TREES, MASKS, postfix},
    {"", {0}, MASKS, TREES, draw_masks},
    {"sparse=", {0, 600, 0}, SPARSE, TREES | MASKS, sparse},
    {"sparse-sorted=", {0, 1000, 0}, SPARSE, SPARSE, sparse_sorted},
    {"paged=", {250, 300, 0}, KEPT, KEPT, paged},
    {"cascade=", {500, 0, 0}, 0, 0, cascade},
    {"packed-q", {120, 120, 60}, PACKS, PACKS, NULL},
    {"packed-kv", {60, 60, 60}, PACKS, PACKS | KEPT, NULL},
    {"packed", {250, 200, 250}, PACKS, PACKS | KEPT, NULL},
    {"padded", {450, 450, 450}, 0, 0, NULL},
    {"top-left", {200, 150, 200}, 0, 0, NULL},
    {"positions", {130, 0, 130}, 0, 0, NULL},
    {"scale=", {180, 180, 180, 40}, 0, 0, scale},
    {"scales=", {600, 600, 0}, 0, 0, scales},
    {"qscale=", {70, 120, 70}, 0, 0, qscale},
    {"softcap=", {110, 150, 110}, 0, 0, softcap},
    {"alibi", {140, 0, 140, 950}, 0, 0, NULL},
    {"bias=", {150, 0, 150, 800}, 0, 0, bias},
    {"sinks", {170, 200, 170}, 0, 0, NULL},
    {"dropout=", {90, 0, 130}, 0, 0, dropout},
    {"p=", {400, 400, 400}, 0, 0, weights},
    {"invariant", {150, 150, 0}, 0, 0, NULL},
    {"backward", {0, 0, 1000}, 0, 0, NULL},
    {"prefill", {50, 50, 0}, 0, 0, NULL}, /* these stand only where they are right */
    {"decode", {50, 50, 0}, 0, 0, NULL},
    {"mixed", {100, 50, 0}, 0, 0, NULL},
};
/* A mask's word has this chance where it is not one of these; with sparse indices, where it goes with them. */
enum { MASK_CHANCE = 70, MASK_CHANCE_WITH_SPARSE = 300 };
static const struct {
    const char *name;
    int chance;
} mask_chances[] = {{"causal", 400}, {"window", 180}, {"documents", 90}, {"spans", 60},
                    {"spans-and", 40}, {"tree", 50}, {"bits", 80}, {"callback", 50}};

/* The table with the masks' words in their places. */
static struct {
    int count;
    struct word {
        struct row row;
        struct mask_word mask; /* info NULL: none */
        char name[32];         /* as the parser has it: "window=" */
    } word[MAX_DRAWN];
} all;

static struct word *add_word(const struct row *row) {
    if (all.count == MAX_DRAWN) abort();
    struct word *word = &all.word[all.count++];
    word->row = *row;
    snprintf(word->name, sizeof word->name, "%s", row->name);
    return word;
}

static void add_masks(const struct row *row) {
    struct mask_word mask;
    for (int i = 0; mask_word_at(i, &mask); i++) {
        const tp_mask_info *info = mask.info;
        int needs = (info->traits & TP_MASK_KEY_FOR_EACH_ROW) != 0, chance = MASK_CHANCE;
        if (mask.again || needs != (row->put == draw_masks_of_rows)) continue;
        for (size_t k = 0; k < sizeof mask_chances / sizeof *mask_chances; k++)
            if (!strcmp(mask_chances[k].name, mask.name)) chance = mask_chances[k].chance;
        struct word *word = add_word(row);
        word->mask = mask;
        word->row.chance[DRAW_FORWARD] = word->row.chance[DRAW_BACKWARD] = chance;
        word->row.chance[DRAW_SPARSE] = info->traits & TP_MASK_MONOTONE ? MASK_CHANCE_WITH_SPARSE : 0;
        snprintf(word->name, sizeof word->name, "%s%s", mask.name,
                 info->values > 0 && info->reads != TP_MASK_READS_LEFT_OUT ? "=" : "");
    }
}

static const struct word *word_at(int index) {
    int built = all.count > 0;
    for (size_t i = 0; !built && i < sizeof table / sizeof *table; i++)
        if (table[i].put == draw_masks_of_rows || table[i].put == draw_masks)
            add_masks(&table[i]);
        else
            add_word(&table[i]);
    return index < all.count ? &all.word[index] : NULL;
}

const char *draw_word(int index) {
    const struct word *word = word_at(index);
    return word ? word->name : NULL;
}

static int parses(const char *text, tp_problem *problem, tp_lengths *lengths) {
    tp_error error = TP_ERROR_INIT;
    lengths->struct_size = sizeof *lengths;
    return tp_problem_parse(text, problem, lengths, &error) == TP_OK;
}

/* A word that the parser refuses beside the others is taken back; those that nothing goes without are all there by then. */
static int draw_text(struct draft *d, struct trial *trial) {
    int whole = 0;
    const struct word *word;
    for (int i = 0; (word = word_at(i)); i++) {
        const struct row *row = &word->row;
        int chance = row->chance[d->hostile && row->chance[DRAW_KINDS] ? DRAW_KINDS : d->kind];
        if (!dice_chance(&d->dice, chance) || d->taken & row->against) continue;
        size_t before = strlen(d->text);
        if (word->mask.info)
            say_mask(d, &word->mask);
        else if (row->put)
            row->put(d);
        else
            draft_say(d, " %s", row->name);
        int fits = parses(d->text, &trial->problem, &trial->lengths);
        if (whole && !fits)
            d->text[before] = 0;
        else
            d->taken |= row->group;
        whole |= fits;
    }
    return parses(d->text, &trial->problem, &trial->lengths);
}

void trial_draw(struct trial *trial, uint64_t seed, int64_t number) {
    static const int hostile_chance[DRAW_KINDS] = {60, 0, 400};
    char words[240], whole[2 * TRIAL_TEXT], reason[256];
    for (uint64_t again = 0;; again++) {
        struct draft d = {.dice = {random_bits(seed, 0x7217A1 + again, (uint64_t)number), 0}};
        int64_t kind = dice_roll(&d.dice, 100);
        d.kind = kind < 58 ? DRAW_FORWARD : kind < 72 ? DRAW_SPARSE : DRAW_BACKWARD;
        d.cost = dice_chance(&d.dice, 60) ? 6000000 : dice_chance(&d.dice, 300) ? 800000 : 120000;
        d.hostile = dice_chance(&d.dice, hostile_chance[d.kind]);
        d.keys = 60;
        *trial = (struct trial){.seed = d.dice.seed};
        if (!draw_text(&d, trial)) continue;
        traits_draw(trial, &d, words, sizeof words);
        snprintf(whole, sizeof whole, "%s%s", d.text + 1, words);
        if (!trial_read(trial, whole, d.dice.seed >> 32, reason, sizeof reason)) return;
    }
}

int trial_read(struct trial *trial, const char *text, uint64_t seed, char *reason, size_t size) {
    char problem[TRIAL_TEXT] = "", word[TRIAL_TEXT];
    size_t used = 0, length;
    tp_error error = TP_ERROR_INIT;
    *trial = (struct trial){.seed = seed, .style = {.lse = 1, .guarded = GUARDED_END}};
    if (strlen(text) >= sizeof trial->text) {
        snprintf(reason, size, "the text has %zu characters: at most %zu", strlen(text), sizeof trial->text - 1);
        return 1;
    }
    snprintf(trial->text, sizeof trial->text, "%s", text);
    for (; text += strspn(text, " "), (length = strcspn(text, " ")); text += length) {
        snprintf(word, sizeof word, "%.*s", (int)length, text);
        if (word[0] != '@') {
            used += (size_t)snprintf(problem + used, sizeof problem - used, "%s%s", used ? " " : "", word);
        } else if (traits_read(trial, word)) {
            snprintf(reason, size, "word '%s' is unknown; words with an @ are", word);
            for (int i = 0; trait_word(i); i++)
                snprintf(reason + strlen(reason), size - strlen(reason), " %s", trait_word(i));
            return 1;
        }
    }
    trial->lengths.struct_size = sizeof trial->lengths;
    if (tp_problem_parse(problem, &trial->problem, &trial->lengths, &error) == TP_OK) return 0;
    snprintf(reason, size, "%s", error.text);
    return 1;
}
