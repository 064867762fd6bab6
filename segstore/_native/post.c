/* The fast path of a producer's sender: it sleeps here, and appends a record that is alone in its queue, many such
 * records in one call. After its sleep Python's code is in no cache, and each function costs some us.
 *
 * The sender's Python code appends in these cases, and nothing is done here: more than one record, headers, callbacks,
 * retries, byte rates, transactions, and records that the log's tail refuses.
 *
 * Thread contract: the sender calls, with the interpreter's lock, which is released only for its sleep. A record leaves
 * its queue, is in the log, counted and done in one step, as other threads see it. The producer's lock is held for that
 * step, and must be free.
 */
#include "producer.h"

#include <time.h>

#include "contract/answers.h"
#include "contract/batch.h"
#include "contract/log.h"
#include "keep_lock.h"

enum { MOST = 32 }; /* the most records of one call */

typedef int64_t (*append_function)(seg_tail *, const seg_record *, int64_t, int64_t, seg_batch *);

/* seg_tail_append of cffi's module; set once, when the package is imported. */
static append_function seg_append;

PyTypeObject *seg_written_type;

/* --- the outcome of a record ---------------------------------------------------------------------- */

/* The holder of a record that was appended here (batch.py). The garbage collector does not know it, either: it is in no
 * reference cycle. Sizes are -1 for None. */
typedef struct {
    PyObject_HEAD
    PyObject *lock, *topic_partition;
    long long offset, timestamp;
    int key_size, value_size;
} Written;

static PyMemberDef written_members[] = {
    {"lock", T_OBJECT_EX, offsetof(Written, lock), READONLY, NULL},
    {"topic_partition", T_OBJECT_EX, offsetof(Written, topic_partition), READONLY, NULL},
    {"offset", T_LONGLONG, offsetof(Written, offset), READONLY, NULL},
    {"timestamp", T_LONGLONG, offsetof(Written, timestamp), READONLY, NULL},
    {"key_size", T_INT, offsetof(Written, key_size), READONLY, NULL},
    {"value_size", T_INT, offsetof(Written, value_size), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static void free_written(PyObject *object)
{
    Py_XDECREF(((Written *)object)->lock);
    Py_XDECREF(((Written *)object)->topic_partition);
    free_object(object);
}

static PyType_Slot written_slots[] = {
    {Py_tp_members, written_members},
    {Py_tp_dealloc, (void *)free_written},
    {0, NULL},
};

PyType_Spec seg_written_spec = {
    .name = "segstore.client.producer.batch.Written",
    .basicsize = sizeof(Written),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = written_slots,
};

/* --- a queue's way to the log --------------------------------------------------------------------- */

/* The way of a queue's records to the log (delivery.py). `tail` is the log's native tail, `partition` has its acks,
 * `context` is closed with the store; `sequences` are None without idempotence. */
typedef struct {
    PyObject_HEAD
    PyObject *topic_partition, *tail, *partition, *context, *sequences;
} Lane;

static PyMemberDef lane_members[] = {
    {"topic_partition", T_OBJECT_EX, offsetof(Lane, topic_partition), 0, NULL},
    {"tail", T_OBJECT_EX, offsetof(Lane, tail), 0, NULL},
    {"partition", T_OBJECT_EX, offsetof(Lane, partition), 0, NULL},
    {"context", T_OBJECT_EX, offsetof(Lane, context), 0, NULL},
    {"sequences", T_OBJECT_EX, offsetof(Lane, sequences), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static void free_lane(PyObject *object)
{
    Lane *l = (Lane *)object;
    PyObject *fields[] = {l->topic_partition, l->tail, l->partition, l->context, l->sequences};
    for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++)
        Py_XDECREF(fields[i]);
    free_object(object);
}

static PyType_Slot lane_slots[] = {
    {Py_tp_members, lane_members},
    {Py_tp_dealloc, (void *)free_lane},
    {0, NULL},
};

PyType_Spec seg_lane_spec = {
    .name = "segstore.client.producer.delivery.Lane",
    .basicsize = sizeof(Lane),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = lane_slots,
};

/* --- the sender's state ----------------------------------------------------------------------------- */

/* The sender's state. `pool`, `full`, `open`, `refused`, `gate`, `time`: as in Sending. `sealed`, `backing_off`: as in
 * Schedule. `reported`: the failures that were reported; `throttle`: the client's byte rate; `noted`: entries for
 * ProducerMetrics, None without metrics. `linger` and `timeout` are in seconds. */
typedef struct {
    PyObject_HEAD
    PyObject *lock, *pool, *full, *open, *refused, *gate, *time, *sealed, *backing_off, *reported, *throttle, *noted;
    double linger, timeout;
    Py_ssize_t most_noted;
} Post;

static PyMemberDef post_members[] = {
    {"lock", T_OBJECT_EX, offsetof(Post, lock), 0, NULL},
    {"pool", T_OBJECT_EX, offsetof(Post, pool), 0, NULL},
    {"full", T_OBJECT_EX, offsetof(Post, full), 0, NULL},
    {"open", T_OBJECT_EX, offsetof(Post, open), 0, NULL},
    {"refused", T_OBJECT_EX, offsetof(Post, refused), 0, NULL},
    {"gate", T_OBJECT_EX, offsetof(Post, gate), 0, NULL},
    {"time", T_OBJECT_EX, offsetof(Post, time), 0, NULL},
    {"sealed", T_OBJECT_EX, offsetof(Post, sealed), 0, NULL},
    {"backing_off", T_OBJECT_EX, offsetof(Post, backing_off), 0, NULL},
    {"reported", T_OBJECT_EX, offsetof(Post, reported), 0, NULL},
    {"throttle", T_OBJECT_EX, offsetof(Post, throttle), 0, NULL},
    {"noted", T_OBJECT_EX, offsetof(Post, noted), 0, NULL},
    {"linger", T_DOUBLE, offsetof(Post, linger), 0, NULL},
    {"timeout", T_DOUBLE, offsetof(Post, timeout), 0, NULL},
    {"most_noted", T_PYSSIZET, offsetof(Post, most_noted), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static void free_post(PyObject *object)
{
    Post *p = (Post *)object;
    PyObject *fields[] = {p->lock, p->pool,   p->full,        p->open, p->refused,  p->gate,
                          p->time, p->sealed, p->backing_off, p->reported, p->throttle, p->noted};
    for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++)
        Py_XDECREF(fields[i]);
    free_object(object);
}

/* Whether this attribute is None. */
static int is_none(PyObject *object, const char *name)
{
    PyObject *found = PyObject_GetAttrString(object, name);
    Py_XDECREF(found);
    return found == Py_None;
}

/* An attribute as a number; -1 with an exception. */
static long long number_of(PyObject *object, const char *name)
{
    PyObject *found = PyObject_GetAttrString(object, name);
    long long number = found ? PyLong_AsLongLong(found) : -1;
    Py_XDECREF(found);
    return number;
}

static double monotonic(Post *p)
{
    PyObject *made = PyObject_CallMethod(p->time, "monotonic", NULL);
    double now = made ? PyFloat_AsDouble(made) : -1;
    Py_XDECREF(made);
    return now;
}

/* The tail of the log, a new reference; NULL if C may not append now, or an append may be too long to keep the
 * interpreter's lock. */
static PyObject *tail_of(Lane *l, seg_tail **t)
{
    PyObject *closed = PyObject_GetAttrString(l->context, "closed");
    int usable = closed == Py_False && is_none(l->partition, "acks");
    Py_XDECREF(closed);
    PyObject *tail = l->tail;
    if (usable && is_none(tail, "on_append") && is_none(tail, "flush_left") && is_none(tail, "clock")) {
        *t = (seg_tail *)(uintptr_t)number_of(tail, "address");
        if (!PyErr_Occurred() && is_plain_write(*t) && __atomic_load_n(&(*t)->release_gil_for, __ATOMIC_RELAXED) <= 0)
            return Py_NewRef(tail);
    }
    return NULL;
}

/* Whether the queue has one record, in an open batch that is due, without a callback. */
static int is_single(Post *p, Queue *q, double now)
{
    return !q->held && !q->n_cuts && q->left >= 0 && q->block == ((Pool *)p->pool)->block_size &&
        PyList_Size(q->records) == 1 && (!q->callbacks || q->callbacks == Py_None) && PyObject_Size(q->batches) == 0 &&
        q->created + p->linger <= now && q->created + p->timeout > now;
}

/* The objects for one record. They are made before it is appended: no later step fails. */
typedef struct {
    Queue *q;
    Lane *l;
    Future *record;
    PyObject *tail, *entry;
    seg_tail *t;
    Written *written;
    seg_record r;
    seg_batch b;
    double began;
} Letter;

static Written *written_of(Post *p, Lane *l)
{
    Written *made = PyObject_New(Written, seg_written_type);
    if (made != NULL) {
        made->lock = Py_NewRef(p->lock);
        made->topic_partition = Py_NewRef(l->topic_partition);
    }
    return made;
}

/* An entry of ProducerMetrics: (topic, [(bytes, records, time of creation)], bytes on disk, begin, end); the last three
 * items are set later. */
static PyObject *entry_of(Post *p, Letter *m)
{
    if (p->noted == Py_None)
        return Py_NewRef(Py_None);
    return Py_BuildValue("(O[(Lid)]OOO)", PyTuple_GetItem(m->l->topic_partition, 0), m->q->room - m->q->left, 1,
                         m->q->created, Py_None, Py_None, Py_None);
}

/* Whether C appends this record; if so, all objects for it are made. */
static int prepare(Post *p, Letter *m)
{
    Lane *l = m->l;
    m->began = monotonic(p);
    if (PyErr_Occurred() || !is_single(p, m->q, m->began) || !is_none(p->throttle, "bound") ||
        (m->tail = tail_of(l, &m->t)) == NULL)
        return 0;
    m->record = (Future *)PyList_GetItem(m->q->records, 0);
    m->r = (seg_record){.headers = (const uint8_t *)"", .headers_len = 1, .timestamp = m->record->number};
    m->b = (seg_batch){.producer_id = -1, .producer_epoch = -1, .base_sequence = -1};
    if (m->record->number < 0 || !bytes_of(m->record->value, &m->r.value, &m->r.value_len) ||
        !bytes_of(m->record->key, &m->r.key, &m->r.key_len))
        return 0;
    if (l->sequences != Py_None) {
        m->b.producer_id = number_of(l->sequences, "producer_id");
        m->b.producer_epoch = (int16_t)number_of(l->sequences, "epoch");
        m->b.base_sequence = (int32_t)number_of(l->sequences, "next");
    }
    m->written = PyErr_Occurred() ? NULL : written_of(p, l);
    m->entry = m->written ? entry_of(p, m) : NULL;
    return m->entry != NULL;
}

static void set_item(PyObject *tuple, Py_ssize_t at, PyObject *item)
{
    if (item != NULL)
        PyTuple_SetItem(tuple, at, item); /* the tuple has no other reference */
}

static void count(Post *p, Letter *m, double ended)
{
    if (m->entry == Py_None)
        return;
    set_item(m->entry, 2, PyLong_FromLongLong(m->b.size));
    set_item(m->entry, 3, PyFloat_FromDouble(m->began));
    set_item(m->entry, 4, PyFloat_FromDouble(ended));
    PyObject *added = PyErr_Occurred() ? NULL : PyObject_CallMethod(p->noted, "append", "(O)", m->entry);
    Py_XDECREF(added);
    PyErr_Clear(); /* no memory: nothing is counted */
}

static void next_sequence(Lane *l, int32_t sequence)
{
    PyObject *next = PyLong_FromLong((long)(((int64_t)sequence + 1) & INT32_MAX));
    if (next == NULL || PyObject_SetAttrString(l->sequences, "next", next) < 0)
        PyErr_WriteUnraisable(l->topic_partition); /* no memory: the log will refuse the wrong sequence */
    Py_XDECREF(next);
}

/* Count a record that is in the log, set its outcome, and empty the queue. Returns the latch of its waiters. */
static PyObject *settle(Post *p, Letter *m, int64_t offset, double ended)
{
    Queue *q = m->q;
    Future *record = m->record;
    Pool *pool = (Pool *)p->pool;
    Written *w = m->written;
    if (m->l->sequences != Py_None)
        next_sequence(m->l, m->b.base_sequence);
    count(p, m, ended);
    w->offset = offset;
    w->timestamp = m->b.attributes & APPEND_TIME ? m->b.max_timestamp : record->number;
    w->key_size = (int)m->r.key_len;
    w->value_size = (int)m->r.value_len;
    q->produced += q->room - q->left;
    q->block = q->room = q->closed = 0;
    q->left = -1;
    pool->free++;
    PyDict_DelItem(p->open, (PyObject *)q);
    put(&record->holder, (PyObject *)w);
    put(&record->value, NULL);
    put(&record->key, NULL);
    record->number = 0;
    PyObject *latch = q->latch;
    q->latch = NULL;
    PyList_SetSlice(q->records, 0, 1, NULL);
    return latch;
}

/* Append the record, with the producer's lock; returns whether it is in the log. */
static int append(Post *p, Letter *m)
{
    PyObject *free = PyObject_CallMethod(p->lock, "acquire", "O", Py_False), *latch = NULL;
    int64_t offset = SEG_SLOW;
    Py_XDECREF(free);
    if (free != Py_True)
        return 0;
    /* Other Python code may have run before, in the garbage collector; from here on none runs. */
    if (is_single(p, m->q, m->began) && is_none(m->l->partition, "acks") && PyList_GetItem(m->q->records, 0) == (PyObject *)m->record)
        offset = seg_append(m->t, &m->r, -1, SEG_NOW, &m->b);
    if (offset >= 0) {
        double ended = monotonic(p);
        note_time(m->t, (int64_t)((ended - m->began) * 1e9));
        latch = settle(p, m, offset, ended);
    }
    PyObject *released = PyObject_CallMethod(p->lock, "release", NULL);
    PyObject *opened = latch && latch != Py_None ? PyObject_CallMethod(latch, "open", NULL) : NULL;
    Py_XDECREF(released);
    Py_XDECREF(opened);
    Py_XDECREF(latch);
    return offset >= 0;
}

/* Append the only record of a queue; returns whether that was done. */
static int post_one(Post *p, Queue *q)
{
    if (q->lane == NULL || q->lane == Py_None)
        return 0;
    Letter m = {.q = (Queue *)Py_NewRef((PyObject *)q), .l = (Lane *)Py_NewRef(q->lane)};
    int done = prepare(p, &m) && append(p, &m);
    Py_XDECREF(m.tail);
    Py_XDECREF(m.entry);
    Py_XDECREF((PyObject *)m.written);
    Py_DECREF((PyObject *)m.l);
    Py_DECREF((PyObject *)m.q);
    return done;
}

/* Whether there are only open batches to append. */
static int is_quiet(Post *p)
{
    return PyList_Size(p->refused) == 0 && PyList_Size(p->full) == 0 && PyDict_Size(p->sealed) == 0 &&
        PyDict_Size(p->backing_off) == 0 && PyObject_Size(((Pool *)p->pool)->waiters) == 0 &&
        PyDict_Size(p->reported) == 0 && (p->noted == Py_None || PyObject_Size(p->noted) < p->most_noted);
}

/* Sleep until a thread wakes the sender; returns whether that was so. No batch is due; a thread with the producer's
 * lock may be about to change that, and then wakes the sender. */
static int sleep_on(Post *p)
{
    Gate *gate = (Gate *)p->gate;
    gate->asleep = 1;
    PyObject *woken = PyObject_CallMethod(gate->gate, "acquire", NULL);
    Py_XDECREF(woken);
    return woken != NULL;
}

static PyObject *run(PyObject *object, PyObject *nothing)
{
    Post *p = (Post *)object;
    int left = MOST;
    while (is_quiet(p)) {
        PyObject *queue;
        Py_ssize_t at = 0;
        if (!PyDict_Next(p->open, &at, &queue, NULL)) {
            left = MOST;
            if (!sleep_on(p))
                break;
        } else if (left-- <= 0 || !post_one(p, (Queue *)queue))
            break;
        if (PyErr_Occurred())
            break;
    }
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef post_methods[] = {
    {"run", run, METH_NOARGS,
     "Append single records, and sleep, until Python must append or report."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot post_slots[] = {
    {Py_tp_members, post_members},
    {Py_tp_methods, post_methods},
    {Py_tp_dealloc, (void *)free_post},
    {0, NULL},
};

PyType_Spec seg_post_spec = {
    .name = "segstore.client.producer.sender.Post",
    .basicsize = sizeof(Post),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = post_slots,
};

PyObject *seg_bind_append(PyObject *module, PyObject *address)
{
    void *function = PyLong_AsVoidPtr(address);
    if (PyErr_Occurred())
        return NULL;
    seg_append = (append_function)function;
    Py_RETURN_NONE;
}
