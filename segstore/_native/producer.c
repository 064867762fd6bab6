/* The fast path of a producer's `send`, in one call; and the module `_producer`, with the types of futures (future.c),
 * queues, memory and the sender's gate (queue.c), and the fast path of the sender (post.c).
 *
 * Thread contract: the interpreter's lock is held in every call, and no other Python code runs within one, except in
 * the calls at the end of `send`, and before it reads a queue. So a record is queued as a whole or not at all, even if
 * an interrupt comes. The producer's lock is not taken.
 */
#include "producer.h"

#include <time.h>

enum { OVERHEAD = 12 };  /* RECORD_OVERHEAD of record.py */
enum { ARGUMENTS = 6 };  /* topic, value, key, headers, partition, timestamp_ms */

static PyTypeObject *future_type;

static int64_t wall_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* The state of `send`. `sticky`, `by_key`: as in Routing. `now`: returns ms, None for the machine's clock; `time` has
 * the monotonic one. `room`: bytes of records in a batch of the usual size. `full`: queues are added at their first
 * cut. `open`: as in Schedule. `refused` is empty as long as records are accepted. `at_once`: the sender is woken for
 * each opened batch, else for the first. `take` is called with the arguments of each record that is not for the fast
 * path, and `take_next` with topic, value and ms if the queue has no room for a record without key and headers. */
typedef struct {
    PyObject_HEAD
    PyObject *sticky, *by_key, *now, *pool, *full, *open, *refused, *gate, *time, *take, *take_next;
    long long room;
    char at_once;
} Sending;

static PyMemberDef sending_members[] = {
    {"sticky", T_OBJECT_EX, offsetof(Sending, sticky), 0, NULL},
    {"by_key", T_OBJECT_EX, offsetof(Sending, by_key), 0, NULL},
    {"now", T_OBJECT_EX, offsetof(Sending, now), 0, NULL},
    {"pool", T_OBJECT_EX, offsetof(Sending, pool), 0, NULL},
    {"full", T_OBJECT_EX, offsetof(Sending, full), 0, NULL},
    {"open", T_OBJECT_EX, offsetof(Sending, open), 0, NULL},
    {"refused", T_OBJECT_EX, offsetof(Sending, refused), 0, NULL},
    {"gate", T_OBJECT_EX, offsetof(Sending, gate), 0, NULL},
    {"time", T_OBJECT_EX, offsetof(Sending, time), 0, NULL},
    {"at_once", T_BOOL, offsetof(Sending, at_once), 0, NULL},
    {"take", T_OBJECT_EX, offsetof(Sending, take), 0, NULL},
    {"take_next", T_OBJECT_EX, offsetof(Sending, take_next), 0, NULL},
    {"room", T_LONGLONG, offsetof(Sending, room), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static void free_sending(PyObject *object)
{
    Sending *s = (Sending *)object;
    PyObject *fields[] = {s->sticky, s->by_key,  s->now,  s->pool, s->full,
                          s->open,   s->refused, s->gate, s->time, s->take, s->take_next};
    for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++)
        Py_XDECREF(fields[i]);
    free_object(object);
}

/* The queue of a record, borrowed; NULL if it was never looked up. */
static Queue *queue_of(Sending *s, PyObject *topic, PyObject *key)
{
    PyObject *found;
    if (!PyUnicode_CheckExact(topic))
        return NULL;
    if (key == Py_None)
        found = PyDict_GetItemWithError(s->sticky, topic);
    else {
        PyObject *keys = PyDict_GetItemWithError(s->by_key, topic);
        found = keys ? PyDict_GetItemWithError(keys, key) : NULL;
    }
    return (Queue *)found;
}

static int now_ms(Sending *s, long long *ms)
{
    if (s->now == Py_None) {
        *ms = wall_ms();
        return 0;
    }
    PyObject *now = PyObject_CallNoArgs(s->now);
    *ms = now ? PyLong_AsLongLong(now) : -1;
    Py_XDECREF(now);
    return PyErr_Occurred() ? -1 : 0;
}

/* The arguments of `send` that the fast path takes: bytes or None, a key likewise, headers, the time in ms. With
 * headers `value` is a new tuple of value and headers. */
typedef struct {
    PyObject *topic, *value, *key;
    long long ms, size;
} Given;

/* The bytes of a header; -1 if it is not a tuple of a str that UTF-8 can encode and of bytes or None. */
static Py_ssize_t header_size(PyObject *pair)
{
    Py_ssize_t size;
    if (!PyTuple_CheckExact(pair) || PyTuple_Size(pair) != 2 || !PyUnicode_CheckExact(PyTuple_GetItem(pair, 0)))
        return -1;
    PyObject *value = PyTuple_GetItem(pair, 1);
    if (value != Py_None && !PyBytes_CheckExact(value))
        return -1;
    if (PyUnicode_AsUTF8AndSize(PyTuple_GetItem(pair, 0), &size) == NULL) {
        PyErr_Clear();
        return -1;
    }
    return size + 2 + (value == Py_None ? 0 : PyBytes_Size(value));
}

/* Join value and headers; returns whether the fast path takes the headers. */
static int take_headers(Given *g, PyObject *headers)
{
    int is_list = PyList_CheckExact(headers);
    if (!is_list && !PyTuple_CheckExact(headers))
        return headers == Py_None;
    PyObject *pairs = is_list ? PyList_AsTuple(headers) : Py_NewRef(headers);
    Py_ssize_t n = pairs ? PyTuple_Size(pairs) : 0, size = pairs ? 0 : -1;
    for (Py_ssize_t i = 0; size >= 0 && i < n; i++) {
        size = header_size(PyTuple_GetItem(pairs, i));
        g->size += size;
    }
    PyObject *made = size >= 0 && n ? PyTuple_Pack(2, g->value, pairs) : NULL;
    Py_XDECREF(pairs);
    if (made == NULL)
        return size >= 0 && !n;
    Py_DECREF(g->value);
    g->value = made;
    return 1;
}

/* The time of a record: the clock's, or the given one; returns whether the fast path takes it. */
static int take_time(Sending *s, Given *g, PyObject *given)
{
    int overflow = 0;
    if (given == Py_None)
        return now_ms(s, &g->ms) == 0;
    g->ms = PyLong_CheckExact(given) ? PyLong_AsLongLongAndOverflow(given, &overflow) : -1;
    return !overflow && g->ms >= 0;
}

static int is_bytes(PyObject *object)
{
    return object == Py_None || PyBytes_CheckExact(object);
}

/* Whether the fast path takes these arguments; if so, `value` is a new reference. */
static int take_given(Sending *s, PyObject *const *a, Given *g)
{
    *g = (Given){a[0], a[1], a[2], 0, OVERHEAD};
    if (!is_bytes(a[1]) || !is_bytes(a[2]) || a[4] != Py_None || !take_time(s, g, a[5]))
        return 0;
    g->size += a[1] == Py_None ? 0 : PyBytes_Size(a[1]);
    g->size += a[2] == Py_None ? 0 : PyBytes_Size(a[2]);
    Py_INCREF(g->value);
    if (take_headers(g, a[3]))
        return 1;
    Py_DECREF(g->value);
    return 0;
}

/* Whether the record has room in the open batch, or in a new one, which C begins if it may. `news` is then the list or
 * dict to which the queue is added, if the sender must look at it. */
static int has_room(Sending *s, Queue *q, const Given *g, PyObject **news)
{
    if (q->left >= g->size)
        return 1;
    if ((g->key == Py_None && !q->alone) || g->size > s->room)
        return 0;
    PyObject *monotonic = PyObject_CallMethod(s->time, "monotonic", NULL);
    double now = monotonic ? PyFloat_AsDouble(monotonic) : -1;
    Py_XDECREF(monotonic);
    if (PyErr_Occurred())
        return 0;
    if (q->left >= 0) {
        *news = q->n_cuts ? NULL : s->full;
        return seg_cut(q, (Pool *)s->pool, s->room, now);
    }
    *news = s->open;
    return !PyList_Size(s->refused) && seg_open_batch(q, (Pool *)s->pool, s->room, now);
}

static PyObject *append(Queue *q, const Given *g)
{
    Future *made = PyObject_New(Future, future_type);
    if (made == NULL)
        return NULL;
    made->holder = Py_NewRef((PyObject *)q);
    made->value = Py_NewRef(g->value);
    made->key = g->key == Py_None ? NULL : Py_NewRef(g->key);
    made->number = g->ms;
    if (PyList_Append(q->records, (PyObject *)made) < 0) {
        Py_DECREF(made);
        return NULL;
    }
    q->left -= g->size;
    if (g->key != Py_None || PyTuple_CheckExact(g->value))
        q->rich = 1;
    return (PyObject *)made;
}

/* Have the sender look at the queue. The record stays queued even if this fails. */
static int tell(Sending *s, PyObject *queue, PyObject *news)
{
    int failed = news == s->full ? PyList_Append(news, queue) : PyDict_SetItem(news, queue, Py_None);
    if (failed || (news == s->open && !s->at_once && PyDict_Size(news) != 1))
        return failed;
    PyObject *woken = seg_wake_sender(s->gate, NULL);
    Py_XDECREF(woken);
    return woken ? 0 : -1;
}

/* Queue a record; returns its future. */
static PyObject *send_to(Sending *s, Queue *q, const Given *g, PyObject *const *a)
{
    PyObject *news = NULL;
    if (has_room(s, q, g, &news)) {
        PyObject *future = append(q, g);
        if (future && news && tell(s, (PyObject *)q, news) < 0)
            Py_CLEAR(future);
        return future;
    }
    if (PyErr_Occurred())
        return NULL;
    if (g->key == Py_None && PyBytes_CheckExact(g->value) && g->size <= s->room) {
        PyObject *ms = PyLong_FromLongLong(g->ms);
        PyObject *future = ms ? PyObject_CallFunctionObjArgs(s->take_next, g->topic, g->value, ms, NULL) : NULL;
        Py_XDECREF(ms);
        return future;
    }
    return PyObject_CallFunctionObjArgs(s->take, a[0], a[1], a[2], a[3], a[4], a[5], NULL);
}

static PyObject *send(PyObject *object, PyObject *const *a, Py_ssize_t n)
{
    Sending *s = (Sending *)object;
    Given g;
    if (n != ARGUMENTS)
        return PyErr_Format(PyExc_TypeError, "send takes %d arguments, not %zd", (int)ARGUMENTS, n);
    if (take_given(s, a, &g)) {
        Queue *q = (Queue *)Py_XNewRef((PyObject *)queue_of(s, a[0], a[2]));
        PyObject *future = q ? send_to(s, q, &g, a) : NULL;
        Py_XDECREF((PyObject *)q);
        Py_DECREF(g.value);
        if (future || PyErr_Occurred())
            return future;
    }
    if (PyErr_Occurred())
        return NULL;
    return PyObject_CallFunctionObjArgs(s->take, a[0], a[1], a[2], a[3], a[4], a[5], NULL);
}

static PyMethodDef sending_methods[] = {
    {"send", (PyCFunction)(void (*)(void))send, METH_FASTCALL,
     "Queue a record, and return its future: (topic, value, key, headers, partition, timestamp_ms)."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot sending_slots[] = {
    {Py_tp_members, sending_members},
    {Py_tp_methods, sending_methods},
    {Py_tp_dealloc, (void *)free_sending},
    {0, NULL},
};

static PyType_Spec sending_spec = {
    .name = "segstore.client.producer.producer.Sending",
    .basicsize = sizeof(Sending),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = sending_slots,
};

/* --- the module ---------------------------------------------------------------------------- */

static PyMethodDef functions[] = {
    {"bind", seg_bind_append, METH_O, "Take the address of seg_tail_append of cffi's module."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "segstore._native._producer",
    .m_doc = "What a record meets in a producer's send: its future, memory, its queue, and the short way of send.",
    .m_size = -1,
    .m_methods = functions,
};

static PyObject *added(PyObject *to, PyType_Spec *spec, const char *name)
{
    PyObject *type = to ? PyType_FromSpec(spec) : NULL;
    if (type != NULL && PyModule_AddObjectRef(to, name, type) < 0)
        Py_CLEAR(type);
    return type;
}

PyMODINIT_FUNC PyInit__producer(void)
{
    static const char *const names[] = {"FutureRecordMetadata", "Memory", "Sleep", "Records", "Sending", "Written",
                                        "Lane", "Post"};
    PyType_Spec *specs[] = {&seg_future_spec, &seg_pool_spec,    &seg_gate_spec, &seg_queue_spec,
                            &sending_spec,    &seg_written_spec, &seg_lane_spec, &seg_post_spec};
    PyObject *made = PyModule_Create(&module);
    for (int i = 0; made && i < 8; i++) {
        PyObject *type = added(made, specs[i], names[i]);
        if (type == NULL)
            Py_CLEAR(made);
        if (i == 0)
            future_type = (PyTypeObject *)Py_XNewRef(type);
        if (specs[i] == &seg_written_spec)
            seg_written_type = (PyTypeObject *)Py_XNewRef(type);
        Py_XDECREF(type);
    }
    return made;
}
