/* SPDX-License-Identifier: Apache-2.0 */
/* tp_cache as a capsule: capacity, sequences, copies, counts. Tables and lengths are 64-bit, as all arrays of a call are here. */
#include <stdlib.h>
#include <string.h>

#include "cache.h"
#include "proof.h"

#define CAPSULE "tileproof.cache"

tp_cache *cache_of(PyObject *capsule) {
    return PyCapsule_GetPointer(capsule, CAPSULE);
}

static void gone(PyObject *capsule) {
    tp_cache_destroy(cache_of(capsule));
}

/* ---- options ---- */

/* Where one of k and v goes in a layer. */
typedef struct side {
    const char *dtype_name, *scale_name;
    int of_v;
    int32_t *dtype, *scales;
    float *scale;
} side;

static side side_of(tp_cache_layer *layer, int of_v) {
    if (of_v) return (side){"v_dtype", "v_scale", 1, &layer->v_dtype, &layer->v_scales, &layer->v_scale};
    return (side){"k_dtype", "k_scale", 0, &layer->k_dtype, &layer->k_scales, &layer->k_scale};
}

/* The scale of a whole layer, which is nobody's but the caller's to choose; to plan one, any will do. */
static int put_scale(const side *s, PyObject *scale, int plans) {
    if (Py_IsNone(scale) && (*s->scales != TP_SCALES_TENSOR || plans))
        return *s->scale = (float)(*s->scales == TP_SCALES_TENSOR), 0;
    if (*s->scales != TP_SCALES_TENSOR)
        PyErr_Format(PyExc_ValueError, "%s is %R: only e4m3/tensor has one scale for a whole layer, so it must be None",
                     s->scale_name, scale);
    else if (Py_IsNone(scale))
        PyErr_Format(
            PyExc_ValueError,
            "%s is None: e4m3/tensor has one scale for a whole layer, such as the greatest absolute value / 448, so it must be "
            "a number; \"e4m3/token\" has one for each token and head",
            s->scale_name);
    else
        *s->scale = (float)PyFloat_AsDouble(scale);
    return PyErr_Occurred() ? -1 : 0;
}

/* float32, float16, bfloat16, or a format of codes. */
static int stored(const side *s, PyObject *word, PyObject *scale, int plans) {
    const char *text = PyUnicode_Check(word) ? PyUnicode_AsUTF8AndSize(word, NULL) : NULL;
    const dtype_row *row = text != NULL ? dtype_of_name(text) : NULL;
    const code_format *format = NULL;
    PyErr_Clear();
    if (row == NULL || row->code > TP_BF16) {
        if (format_of_word(s->dtype_name, word, "\"float32\", \"float16\", \"bfloat16\", or as the format of a cache ", s->of_v,
                           &format) != 0)
            return -1;
        if (format == NULL) {
            PyErr_Format(PyExc_ValueError,
                         "%s is %R: a layer that is plain names its dtype, \"float32\", \"float16\" or \"bfloat16\"",
                         s->dtype_name, word);
            return -1;
        }
    }
    *s->dtype = format != NULL ? format->dtype : row->code;
    *s->scales = format != NULL ? format->kind : TP_SCALES_NONE;
    return put_scale(s, scale, plans);
}

/* (kv_heads, head_dim, head_dim_v, k_dtype, v_dtype, k_scale, v_scale, latent) */
static int read_layer(PyObject *row, tp_cache_layer *layer, int plans) {
    PyObject *of[8];
    int64_t latent;
    if (!PyTuple_Check(row) || PyTuple_Size(row) != 8) return PyErr_SetString(PyExc_TypeError, "a layer is a tuple of 8"), -1;
    for (int i = 0; i < 8; i++) of[i] = PyTuple_GetItem(row, i);
    *layer = (tp_cache_layer)TP_CACHE_LAYER_INIT;
    if (integer_of("kv_heads", of[0], &layer->kv_heads) != 0 || integer_of("head_dim", of[1], &layer->head_dim_qk) != 0 ||
        integer_of("head_dim_v", of[2], &layer->head_dim_v) != 0 || integer_of("latent", of[7], &latent) != 0)
        return -1;
    layer->latent = latent != 0;
    const side k = side_of(layer, 0), v = side_of(layer, 1);
    plans |= layer->kv_heads == 0; /* it keeps nothing */
    return stored(&k, of[3], of[5], plans) != 0 ? -1 : stored(&v, of[4], of[6], plans);
}

static int read_layers(PyObject *given, tp_cache_options *options, tp_cache_layer *layers, int plans) {
    Py_ssize_t count = PyTuple_Size(given);
    if (count < 0) return -1;
    for (Py_ssize_t i = 0; i < count; i++)
        if (read_layer(PyTuple_GetItem(given, i), &layers[i], plans) != 0) return -1;
    options->layers = layers;
    options->layer_count = count;
    return 0;
}

/* By position: what a cache is made of. */
enum {
    MADE_LAYERS, /* a tuple, or a model */
    MADE_BYTES,
    MADE_SEQUENCES,
    MADE_TOKENS, /* of a sequence; 0: the model's */
    MADE_PAGE_SIZE,
    MADE_HEADS_FIRST,
    MADE_NAME,
    MADE_DTYPE, /* this and what follows: of a model, or None */
    MADE_FORMAT,
    MADE_PART,
    MADE_K_SCALE, /* a number, or a tuple of one for each layer */
    MADE_V_SCALE,
    MADE_TO_USE, /* and not to plan */
    MADE_COUNT
};

static int part_of(PyObject *name, tp_part *part) {
    static const tp_part parts[] = {TP_PART_TEXT, TP_PART_CROSS}; /* others keep nothing */
    const char *text = PyUnicode_Check(name) ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
    for (int i = 0; i < 2; i++)
        if (text != NULL && strcmp(text, tp_part_name(parts[i])) == 0) return *part = parts[i], 0;
    PyErr_Clear();
    PyErr_Format(PyExc_ValueError, "part is %R: it must be \"%s\" or \"%s\", whose layers keep keys and values", name,
                 tp_part_name(parts[0]), tp_part_name(parts[1]));
    return -1;
}

static int put_scales(const tp_cache_options *options, tp_cache_layer *layers, int of_v, PyObject *given, int plans) {
    int many = PyTuple_Check(given);
    if (many && PyTuple_Size(given) != (Py_ssize_t)options->layer_count) {
        PyErr_Format(PyExc_ValueError,
                     "%s_scale has %zd numbers and the model %lld layers: it must be one number, or one for each layer",
                     of_v ? "v" : "k", PyTuple_Size(given), (long long)options->layer_count);
        return -1;
    }
    for (int64_t i = 0; i < options->layer_count; i++) {
        const side s = side_of(&layers[i], of_v);
        PyObject *scale = many ? PyTuple_GetItem(given, (Py_ssize_t)i) : given;
        if (layers[i].kv_heads == 0) continue;
        if (of_v && layers[i].latent)
            layers[i].v_scale = layers[i].k_scale; /* v's rows are parts of k's */
        else if (put_scale(&s, scale, plans) != 0)
            return -1;
    }
    return 0;
}

static int read_model(PyObject *const *args, tp_cache_options *options, tp_cache_layer *layers) {
    tp_error error = TP_ERROR_INIT;
    tp_part part = TP_PART_TEXT;
    int plans = !PyObject_IsTrue(args[MADE_TO_USE]);
    const tp_model *model = model_of(args[MADE_LAYERS]);
    const char *format = format_words("cache", args[MADE_FORMAT]);
    int dtype = model != NULL ? dtype_or_none("dtype", args[MADE_DTYPE]) : 0;
    if (PyErr_Occurred() || part_of(args[MADE_PART], &part) != 0) return -1;
    if (format == NULL && model->cache[0] != 0) {
        PyErr_Format(
            PyExc_ValueError,
            "cache is not said, and the file of %s wants keys and values kept as %s, which loses something: it must be that, "
            "or plain",
            model->label, model->cache);
        return -1;
    }
    for (int i = 0; dtype == 0 && model->cache[0] != 0 && i < model->group_count; i++) /* the format is said: its own, or codes */
        if (model->groups[i]->part == (int32_t)part) dtype = model->groups[i]->dtype != 0 ? model->groups[i]->dtype : TP_BF16;
    tp_status status = tp_cache_from_model(model, part, (tp_dtype)dtype, layers, TP_MODEL_MAX_LAYERS, options, &error);
    if (status == TP_OK) status = tp_cache_format_layers(format, layers, options->layer_count, &error);
    if (status != TP_OK) return raise_status(status, &error);
    for (int of_v = 0; of_v < 2; of_v++)
        if (put_scales(options, layers, of_v, args[MADE_K_SCALE + of_v], plans) != 0) return -1;
    return 0;
}

static int read_options(PyObject *const *args, tp_cache_options *options, tp_cache_layer *layers) {
    static const tp_cache_options defaults = TP_CACHE_OPTIONS_INIT;
    int64_t tokens = 0;
    *options = defaults;
    options->index_type = TP_I64;
    if (integer_of("tokens", args[MADE_TOKENS], &tokens) != 0) return -1;
    if ((PyTuple_Check(args[MADE_LAYERS]) ? read_layers(args[MADE_LAYERS], options, layers, !PyObject_IsTrue(args[MADE_TO_USE]))
                                          : read_model(args, options, layers)) != 0)
        return -1;
    if (tokens != 0) options->sequence_tokens = tokens;
    options->layout = PyObject_IsTrue(args[MADE_HEADS_FIRST]) ? TP_CACHE_HND : TP_CACHE_NHD;
    if (integer_of("bytes", args[MADE_BYTES], &options->bytes) != 0 ||
        integer_of("sequences", args[MADE_SEQUENCES], &options->sequences) != 0 ||
        integer_of("page_size", args[MADE_PAGE_SIZE], &options->page_size) != 0)
        return -1;
    options->name = text_of(args[MADE_NAME]);
    return PyErr_Occurred() ? -1 : 0;
}

static size_t room_for(PyObject *layers) {
    Py_ssize_t given = PyTuple_Check(layers) ? PyTuple_Size(layers) : 0;
    return given > TP_MODEL_MAX_LAYERS ? (size_t)given : TP_MODEL_MAX_LAYERS;
}

/* (capsule or None, what it holds, the layers it has) */
PyObject *core_cache_create(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    tp_error error = TP_ERROR_INIT;
    tp_cache_options options;
    tp_cache_capacity holds;
    tp_cache *cache = NULL;
    tp_cache_layer *layers = wrong_count("cache_create", count, MADE_COUNT) ? NULL : calloc(room_for(args[0]), sizeof *layers);
    if (layers == NULL) return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    int failed = read_options(args, &options, layers) != 0;
    if (!failed) {
        tp_status status = tp_cache_plan(&options, &holds, &error);
        if (status == TP_OK && PyObject_IsTrue(args[MADE_TO_USE])) status = tp_cache_create(&options, &cache, &error);
        if (status != TP_OK) failed = raise_status(status, &error);
    }
    free(layers);
    PyObject *capsule = failed ? NULL : cache != NULL ? PyCapsule_New(cache, CAPSULE, gone) : Py_NewRef(Py_None);
    if (capsule == NULL) return tp_cache_destroy(cache), NULL;
    return Py_BuildValue("(N{sL,sL,sL,sL,sL}L)", capsule, "pages", (long long)holds.pages, "tokens", (long long)holds.tokens,
                         "page_bytes", (long long)holds.page_bytes, "token_bytes", (long long)holds.token_bytes, "bytes",
                         (long long)holds.bytes, (long long)options.layer_count);
}

/* ---- sequences ---- */

int sequences_of(const char *name, PyObject *tuple, int64_t want, int64_t **made, int64_t *count) {
    Py_ssize_t size = PyTuple_Size(tuple);
    if (size < 0) return -1;
    if (want >= 0 && size != want) {
        PyErr_Format(PyExc_ValueError, "%s has %zd numbers and there are %lld sequences: they must be as many", name, size,
                     (long long)want);
        return -1;
    }
    *made = malloc(((size_t)size + 1) * sizeof **made);
    *count = size;
    if (*made == NULL) return PyErr_NoMemory(), -1;
    for (Py_ssize_t i = 0; i < size; i++)
        if (integer_of(name, PyTuple_GetItem(tuple, i), *made + i) != 0) return -1;
    return 0;
}

static PyObject *none_or(tp_status status, const tp_error *error) {
    return status == TP_OK ? Py_NewRef(Py_None) : (raise_status(status, error), NULL);
}

/* Cache, the sequence that it begins as or None, and how many of its tokens or None for all. */
PyObject *core_cache_open(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    tp_error error = TP_ERROR_INIT;
    int64_t from = 0, tokens = 0, sequence = 0;
    tp_cache *cache = wrong_count("cache_open", count, 3) ? NULL : cache_of(args[0]);
    if (cache == NULL || (!Py_IsNone(args[1]) && integer_of("sequence", args[1], &from) != 0) ||
        (!Py_IsNone(args[2]) && integer_of("tokens", args[2], &tokens) != 0))
        return NULL;
    tp_status status = Py_IsNone(args[1])   ? tp_cache_open(cache, &sequence, &error)
                       : Py_IsNone(args[2]) ? tp_cache_fork(cache, from, &sequence, &error)
                                            : tp_cache_share(cache, from, tokens, &sequence, &error);
    return status == TP_OK ? PyLong_FromLongLong(sequence) : none_or(status, &error);
}

/* Cache, sequences, tokens of each. */
PyObject *core_cache_extend(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    tp_error error = TP_ERROR_INIT;
    int64_t *sequences = NULL, *tokens = NULL, n = 0, m = 0;
    PyObject *result = NULL;
    tp_cache *cache = wrong_count("cache_extend", count, 3) ? NULL : cache_of(args[0]);
    if (cache != NULL && sequences_of("a sequence", args[1], -1, &sequences, &n) == 0 &&
        sequences_of("tokens", args[2], n, &tokens, &m) == 0) {
        tp_status status;
        Py_BEGIN_ALLOW_THREADS status = tp_cache_extend(cache, n, sequences, tokens, &error);
        Py_END_ALLOW_THREADS result = none_or(status, &error);
    }
    free(sequences);
    free(tokens);
    return result;
}

/* Cache, sequence, tokens that stay; None: it is closed. */
PyObject *core_cache_truncate(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    tp_error error = TP_ERROR_INIT;
    int64_t sequence, tokens = 0;
    tp_cache *cache = wrong_count("cache_truncate", count, 3) ? NULL : cache_of(args[0]);
    if (cache == NULL || integer_of("sequence", args[1], &sequence) != 0 ||
        (!Py_IsNone(args[2]) && integer_of("tokens", args[2], &tokens) != 0))
        return NULL;
    return none_or(Py_IsNone(args[2]) ? tp_cache_close(cache, sequence, &error)
                                      : tp_cache_truncate(cache, sequence, tokens, &error),
                   &error);
}

/* (tokens, slot) of a sequence, both -1 where there is none. */
PyObject *core_cache_sequence(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    int64_t sequence;
    tp_cache *cache = wrong_count("cache_sequence", count, 2) ? NULL : cache_of(args[0]);
    if (cache == NULL || integer_of("sequence", args[1], &sequence) != 0) return NULL;
    return Py_BuildValue("(LL)", (long long)tp_cache_length(cache, sequence), (long long)tp_cache_slot(cache, sequence));
}

/* Cache and sequences: bytes of int64, shared_with and shared_lens. */
PyObject *core_cache_prefixes(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    tp_error error = TP_ERROR_INIT;
    int64_t *sequences = NULL, n = 0;
    PyObject *made[2] = {NULL, NULL}, *result = NULL;
    tp_cache *cache = wrong_count("cache_prefixes", count, 2) ? NULL : cache_of(args[0]);
    if (cache != NULL && sequences_of("a sequence", args[1], -1, &sequences, &n) == 0)
        for (int i = 0; i < 2; i++) made[i] = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(n * (int64_t)sizeof(int64_t)));
    if (made[0] != NULL && made[1] != NULL) {
        tp_status status =
            tp_cache_prefixes(cache, 0, n, sequences, PyBytes_AsString(made[0]), PyBytes_AsString(made[1]), &error);
        result = status == TP_OK ? PyTuple_Pack(2, made[0], made[1]) : none_or(status, &error);
    }
    Py_XDECREF(made[0]);
    Py_XDECREF(made[1]);
    free(sequences);
    return result;
}

/* ---- copies ---- */

/* Cache, sequence, the first token. */
PyObject *core_cache_copy_out(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    tp_error error = TP_ERROR_INIT;
    int64_t sequence, first;
    tp_cache *cache = wrong_count("cache_copy_out", count, 3) ? NULL : cache_of(args[0]);
    if (cache == NULL || integer_of("sequence", args[1], &sequence) != 0 || integer_of("first", args[2], &first) != 0)
        return NULL;
    int64_t bytes = tp_cache_copy_bytes(cache, sequence, first);
    PyObject *made = PyBytes_FromStringAndSize(NULL, bytes > 0 ? (Py_ssize_t)bytes : 0);
    if (made == NULL) return NULL;
    tp_status status;
    char *to = PyBytes_AsString(made);
    Py_BEGIN_ALLOW_THREADS status = tp_cache_copy_out(cache, sequence, first, to, bytes > 0 ? bytes : 0, &error);
    Py_END_ALLOW_THREADS if (status == TP_OK) return made;
    Py_DECREF(made);
    return none_or(status, &error);
}

/* Cache, sequence, what was copied out. */
PyObject *core_cache_copy_in(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    tp_error error = TP_ERROR_INIT;
    int64_t sequence;
    Py_buffer from;
    tp_cache *cache = wrong_count("cache_copy_in", count, 3) ? NULL : cache_of(args[0]);
    if (cache == NULL || integer_of("sequence", args[1], &sequence) != 0 || PyObject_GetBuffer(args[2], &from, PyBUF_SIMPLE) != 0)
        return NULL;
    tp_status status;
    Py_BEGIN_ALLOW_THREADS status = tp_cache_copy_in(cache, sequence, from.buf, from.len, &error);
    Py_END_ALLOW_THREADS PyBuffer_Release(&from);
    return none_or(status, &error);
}

/* ---- counts ---- */

/* (caches): one text of them all. */
PyObject *core_cache_metrics(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    tp_error error = TP_ERROR_INIT;
    const tp_cache *caches[64]; /* more are refused, and so is none */
    buffer b = {0};
    if (wrong_count("cache_metrics", count, 1)) return NULL;
    Py_ssize_t all = PyTuple_Size(args[0]);
    if (all < 0) return NULL;
    for (Py_ssize_t i = 0; i < all && i < 64; i++) {
        caches[i] = cache_of(PyTuple_GetItem(args[0], i));
        if (caches[i] == NULL) return NULL;
    }
    tp_status status = tp_cache_metrics_write_all(caches, all, buffer_append, &b, &error);
    PyObject *text = buffer_text(&b, TP_OK);
    if (status == TP_OK || text == NULL) return text;
    Py_DECREF(text);
    return none_or(status, &error);
}

#define COUNT(field) #field, (long long)stats.field
/* (counts, Prometheus text) */
PyObject *core_cache_stats(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    tp_error error = TP_ERROR_INIT;
    tp_cache_stats stats;
    buffer b = {0};
    tp_cache *cache = wrong_count("cache_stats", count, 1) ? NULL : cache_of(args[0]);
    if (cache == NULL) return NULL;
    tp_status status = tp_cache_stats_read(cache, &stats, &error);
    if (status != TP_OK) return none_or(status, &error);
    PyObject *text = buffer_text(&b, tp_cache_metrics_write(cache, buffer_append, &b));
    if (text == NULL) return NULL;
    return Py_BuildValue("({sL,sL,sL,sL,sL,sL,sL,sL,sL,sL,sL,sL,sL,sd,sd}N)", COUNT(pages), COUNT(pages_used),
                         COUNT(pages_shared), COUNT(tail_tokens), COUNT(sequences), COUNT(tokens), COUNT(neighbours),
                         COUNT(breaks), COUNT(page_bytes), COUNT(token_bytes), COUNT(pages_copied), COUNT(refusals),
                         COUNT(rows_not_finite), "loss", stats.loss, "finite_loss", stats.finite_loss, text);
}
