/* Appends a list of records by one call: they are encoded from the memory of Python's objects, and written by
 * seg_tail_write (append.c), with the interpreter's lock as in tail_append.c.
 *
 * For the small list of an application numpy and cffi take some us, more than the write. A list or tuple that is not
 * small, or not of exact types, is left to the slow path, which raises the errors: SEG_SLOW, and nothing is done then.
 *
 * Thread contract: that of seg_tail_write. The interpreter's lock is held until all records are encoded, so that no
 * list changes and no object is freed.
 */
#include "tail_append.h"

#include "clock.h"
#include "column.h"
#include "contract/answers.h"
#include "keep_lock.h"

enum { TAIL, COUNT, VALUES, KEYS, TIMESTAMPS, HEADERS, BATCH_BYTES, EXPECTED, NOW, ARGUMENTS };
enum {
    ROOM = 1 << 20,         /* bytes of all batches */
    KEPT = 1 << 16,         /* bytes that are written while the interpreter's lock is held */
    NUMBERS = 36,           /* the most bytes of a record's varints and attributes */
    LENGTHS = 10            /* the most bytes of a header's two varints */
};

write_function seg_write;
encode_function seg_encode_list;

/* Records, and their common fields. */
typedef struct {
    seg_tail *tail;
    int64_t n, batch_bytes, expected, now;
    int64_t bytes;          /* the most bytes of the encoded records, without headers of batches */
    seg_column values, keys;
    seg_header_columns headers;
    seg_span *spans;        /* allocated here, as the next three: values and keys; names and values of headers; */
    seg_span *named;
    int64_t *times;         /* NULL: `time` for all */
    int64_t *offsets;       /* of `headers`; NULL: none */
    int64_t time, least, most;
} records;

/* Fill the spans of n values or keys; returns whether each is bytes or None, and all are small. */
static int spans_of(records *r, PyObject *object, seg_span *spans, seg_column *column)
{
    items all;
    *column = (seg_column){.n = r->n, .kind = NULLS};
    if (object == Py_None)
        return 1;
    if (!items_of(object, &all) || all.n != r->n)
        return 0;
    for (int64_t i = 0; i < r->n; i++) {
        if (!bytes_of(item(&all, i), &spans[i].data, &spans[i].len) || spans[i].len > ROOM)
            return 0;
        column->nulls |= spans[i].len < 0;
        r->bytes += spans[i].len < 0 ? 0 : spans[i].len;
        if (r->bytes > ROOM)
            return 0;
    }
    column->kind = SPANS;
    column->offsets = spans;
    return 1;
}

/* Read one time for each record, or one for all, by default the clock's; returns whether the topic allows them. */
static int times_of(records *r, PyObject *object)
{
    items all;
    int64_t now = r->now == SEG_NOW ? clock_ms() : r->now;
    if (whole_of(object, now, &r->time))
        return is_near(r->tail, r->time, now);
    if (!items_of(object, &all) || all.n != r->n || (r->times = PyMem_Malloc((size_t)r->n * sizeof(int64_t))) == NULL)
        return 0;
    r->least = INT64_MAX;
    r->most = 0;
    for (int64_t i = 0; i < r->n; i++) {
        if (item(&all, i) == Py_None || !whole_of(item(&all, i), 0, &r->times[i]))
            return 0;
        r->least = r->times[i] < r->least ? r->times[i] : r->least;
        r->most = r->times[i] > r->most ? r->times[i] : r->most;
    }
    return is_near(r->tail, r->least, now) && is_near(r->tail, r->most, now);
}

/* The number of headers of all records; -1 if a record's headers are no list, tuple or None, or they are too many. */
static int64_t count_headers(const records *r, const items *all)
{
    int64_t count = 0;
    items one;
    for (int64_t i = 0; i < r->n; i++) {
        if (!items_of(item(all, i), &one) || (count += one.n) > ROOM / LENGTHS)
            return -1;
        r->offsets[i + 1] = count;
    }
    return count;
}

/* Read the headers of all records; returns whether they are of exact types, and small. */
static int headers_of(records *r, PyObject *object)
{
    items all, one;
    if (object == Py_None)
        return 1;
    if (!items_of(object, &all) || all.n != r->n ||
        (r->offsets = PyMem_Calloc((size_t)r->n + 1, sizeof(int64_t))) == NULL)
        return 0;
    int64_t count = count_headers(r, &all);
    seg_span *names = r->named = count < 0 ? NULL : PyMem_Malloc((size_t)(2 * count) * sizeof(seg_span));
    if (names == NULL)
        return 0;
    seg_span *values = names + count;
    for (int64_t i = 0, k = 0; i < r->n; i++) {
        items_of(item(&all, i), &one);
        for (Py_ssize_t at = 0; at < one.n; at++, k++) {
            if (!header_of(item(&one, at), &names[k].data, &names[k].len, &values[k].data, &values[k].len) ||
                names[k].len > ROOM || values[k].len > ROOM)
                return 0;
            r->bytes += LENGTHS + names[k].len + (values[k].len < 0 ? 0 : values[k].len);
            if (r->bytes > ROOM)
                return 0;
        }
    }
    r->headers = (seg_header_columns){
        .offsets = r->offsets,
        .n = r->n,
        .names = {.offsets = names, .n = count, .kind = SPANS},
        .values = {.offsets = values, .n = count, .kind = SPANS},
    };
    return 1;
}

/* Whether so many records may be small, judged by the first one: a list of large records is not walked in vain. */
static int may_fit(const records *r, PyObject *values)
{
    items all;
    const uint8_t *first;
    int64_t len;
    return items_of(values, &all) && all.n == r->n && r->n > 0 && bytes_of(item(&all, 0), &first, &len) &&
        r->n <= ROOM / (NUMBERS + (len < 0 ? 0 : len));
}

/* Read the arguments; returns whether one call can append these records. */
static int take(records *r, PyObject *const *arguments)
{
    const seg_tail *t = r->tail;
    if (!t->owner[0] || !__atomic_load_n(&t->open, __ATOMIC_RELAXED) || !t->plain || !may_fit(r, arguments[VALUES]))
        return 0;
    r->bytes = r->n * NUMBERS;
    r->spans = PyMem_Malloc((size_t)(2 * r->n) * sizeof(seg_span));
    return r->spans != NULL && spans_of(r, arguments[VALUES], r->spans, &r->values) &&
        spans_of(r, arguments[KEYS], r->spans + r->n, &r->keys) &&
        !(t->needs_key && (r->keys.kind == NULLS || r->keys.nulls)) && times_of(r, arguments[TIMESTAMPS]) &&
        headers_of(r, arguments[HEADERS]);
}

static int64_t write_out(const records *r, uint8_t *out, int64_t size, seg_batch *batches, int64_t n)
{
    seg_tail *t = r->tail;
    int64_t first;
    if (size <= KEPT && !releases_gil(t)) {
        int64_t began = clock_ns();
        first = seg_write(t, out, size, batches, n, r->expected, r->now, 0);
        note_time(t, clock_ns() - began);
        return first;
    }
    Py_BEGIN_ALLOW_THREADS
    first = seg_write(t, out, size, batches, n, r->expected, r->now, 0);
    Py_END_ALLOW_THREADS
    return first;
}

/* Encode the records into batches of up to batch_bytes, as encode.py does, and append these. */
static int64_t encode_and_write(const records *r)
{
    static const seg_template plain = {
        .producer_id = -1, .base_sequence = -1, .producer_epoch = -1, .delete_horizon = -1};
    int64_t largest = r->tail->largest_batch, made, taken, first = SEG_SLOW;
    int64_t cap = r->batch_bytes < largest ? r->batch_bytes : largest;
    if (cap <= 0)
        return SEG_SLOW;
    /* Two neighbours are together larger than the cap, except the last pair. */
    int64_t most = 4 * r->bytes / cap + 2, room;
    most = most < r->n ? most : r->n;
    room = r->bytes + most * HEADER;
    seg_batch *batches = room > ROOM ? NULL : PyMem_Malloc((size_t)most * sizeof(seg_batch) + (size_t)room);
    if (batches == NULL)
        return SEG_SLOW;
    uint8_t *out = (uint8_t *)(batches + most);
    int64_t size = seg_encode_list(&r->keys, &r->values, r->offsets ? &r->headers : NULL, r->times, r->time, NULL, 0, r->n,
                                   cap, &plain, out, room, batches, most, &made, &taken);
    for (int64_t i = 0; size > 0 && i < made; i++)
        if (batches[i].size > largest) /* a batch of one record, which is too large */
            size = 0;
    if (size > 0 && taken == r->n)
        first = write_out(r, out, size, batches, made);
    PyMem_Free(batches);
    return first;
}

PyObject *seg_list_append(PyObject *module, PyObject *const *arguments, Py_ssize_t n)
{
    records r = {0};
    int64_t first = SEG_SLOW;
    if (n != ARGUMENTS)
        return PyErr_Format(PyExc_TypeError, "seg_list_append takes %d arguments, not %zd", (int)ARGUMENTS, n);
    r.tail = PyLong_AsVoidPtr(arguments[TAIL]);
    r.n = PyLong_AsLongLong(arguments[COUNT]);
    r.now = PyLong_AsLongLong(arguments[NOW]);
    if (PyErr_Occurred())
        return NULL;
    if (whole_of(arguments[BATCH_BYTES], 0, &r.batch_bytes) && r.batch_bytes > 0 &&
        whole_of(arguments[EXPECTED], -1, &r.expected) && take(&r, arguments))
        first = encode_and_write(&r);
    PyMem_Free(r.spans);
    PyMem_Free(r.named);
    PyMem_Free(r.times);
    PyMem_Free(r.offsets);
    return PyLong_FromLongLong(first);
}
