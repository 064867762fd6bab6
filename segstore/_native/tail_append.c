/* seg_tail_append (append.c) as a Python function that mostly keeps the interpreter's lock, and seg_tail_flush
 * (commit.c) as one that releases it, and costs less than by cffi: threads that a sync has served need that lock one
 * after another.
 *
 * cffi releases that lock for every call. If several threads append, each of them would wait for the lock after each
 * record, which costs more than the write itself: 1 to 2 us into the page cache. So the lock is kept if the call only
 * makes such a write. It is released if the call may sync, writes to several files, or writes by a function of the
 * tail's own; and for the next SLOW_APPENDS appends after an append that took TOO_LONG: then the disk is throttled, or the
 * file system is remote.
 *
 * Headers are copied into bytes first, with the interpreter's lock held: once it is released, their list may change.
 *
 * Thread contract: that of seg_tail_append. The holder of the tail's lock does not need the interpreter's lock to
 * release it, as long as it writes by seg_pwrite.
 */
#include "tail_append.h"

#include <errno.h>

#include "bytes.h"
#include "contract/answers.h"
#include "keep_lock.h"

enum { TAIL, VALUE, KEY, HEADERS, TIMESTAMP, EXPECTED, NOW, BATCH, ARGUMENTS };
enum { UPTO = 1, FLUSH_ARGUMENTS };
enum { LENGTHS = 10 };      /* bytes of two lengths as varints, at most */

typedef int64_t (*append_function)(seg_tail *, const seg_record *, int64_t, int64_t, seg_batch *);
typedef int64_t (*flush_function)(seg_tail *, int64_t);

/* seg_tail_append and seg_tail_flush of cffi's module; set once, when the package is imported. */
static append_function seg_append;
static flush_function seg_flush;

/* The arguments of seg_tail_append. */
typedef struct {
    seg_tail *tail;
    seg_record record;
    int64_t expected, now;
    seg_batch *batch;
} append_call;

static int64_t make(const append_call *c)
{
    return seg_append(c->tail, &c->record, c->expected, c->now, c->batch);
}

static int64_t make_holding_the_lock(const append_call *c)
{
    int64_t began = clock_ns(), offset = make(c);
    note_time(c->tail, clock_ns() - began);
    return offset;
}

static int64_t make_without_gil(const append_call *c)
{
    int64_t offset;
    Py_BEGIN_ALLOW_THREADS
    offset = make(c);
    Py_END_ALLOW_THREADS
    return offset;
}

/* Write a header at w, which has room up to `end`; returns the position after it. NULL if it is no header (objects.h),
 * or has no room. */
static uint8_t *put_header(PyObject *header, uint8_t *w, const uint8_t *end)
{
    const uint8_t *name, *value;
    int64_t name_len, value_len;
    if (!header_of(header, &name, &name_len, &value, &value_len) || name_len > end - w - LENGTHS ||
        value_len > end - w - LENGTHS - name_len)
        return NULL;
    return put_nullable(put_nullable(w, name, name_len), value, value_len);
}

/* Write the headers of a record into `room`, which has SEG_ONE_ROOM bytes: a list or a tuple of headers, or None.
 * Returns whether the object is one of these. */
static int headers_of(PyObject *object, uint8_t *room, seg_record *r)
{
    items all;
    if (!items_of(object, &all))
        return 0;
    uint8_t *w = put_varint(room, all.n);
    for (Py_ssize_t i = 0; i < all.n && w != NULL; i++)
        w = put_header(item(&all, i), w, room + SEG_ONE_ROOM);
    r->headers = room;
    r->headers_len = w == NULL ? 0 : w - room;
    return w != NULL;
}

/* Append to a shared log with the interpreter's lock, if the log's lock is free; SEG_BUSY if an append would sleep, or
 * is not plain. */
static int64_t make_briefly(append_call *c)
{
    seg_tail *t = c->tail;
    if (!t->share || t->write || t->flush_messages || is_slow(t))
        return SEG_BUSY;
    c->record.brief = 1;
    int64_t offset = make_holding_the_lock(c);
    c->record.brief = 0;
    return offset;
}

static PyObject *tail_append(PyObject *module, PyObject *const *arguments, Py_ssize_t n)
{
    append_call c;
    seg_record *r = &c.record;
    uint8_t headers[SEG_ONE_ROOM];
    if (n != ARGUMENTS) {
        PyErr_Format(PyExc_TypeError, "seg_tail_append takes %d arguments, not %zd", (int)ARGUMENTS, n);
        return NULL;
    }
    if (!bytes_of(arguments[VALUE], &r->value, &r->value_len) ||
        !bytes_of(arguments[KEY], &r->key, &r->key_len) ||
        !headers_of(arguments[HEADERS], headers, r) ||
        !whole_of(arguments[TIMESTAMP], SEG_NOW, &r->timestamp) ||
        !whole_of(arguments[EXPECTED], -1, &c.expected))
        return PyLong_FromLongLong(SEG_SLOW);
    c.tail = PyLong_AsVoidPtr(arguments[TAIL]);
    c.now = PyLong_AsLongLong(arguments[NOW]);
    c.batch = PyLong_AsVoidPtr(arguments[BATCH]);
    if (PyErr_Occurred())
        return NULL;
    c.record.brief = 0;
    if (!releases_gil(c.tail))
        return PyLong_FromLongLong(make_holding_the_lock(&c));
    int64_t offset = make_briefly(&c);
    return PyLong_FromLongLong(offset == SEG_BUSY ? make_without_gil(&c) : offset);
}

/* seg_tail_flush, repeated after a signal whose handler has raised nothing. */
static PyObject *tail_flush(PyObject *module, PyObject *const *arguments, Py_ssize_t n)
{
    int64_t code;
    if (n != FLUSH_ARGUMENTS) {
        PyErr_Format(PyExc_TypeError, "seg_tail_flush takes %d arguments, not %zd", (int)FLUSH_ARGUMENTS, n);
        return NULL;
    }
    seg_tail *t = PyLong_AsVoidPtr(arguments[TAIL]);
    int64_t upto = PyLong_AsLongLong(arguments[UPTO]);
    if (PyErr_Occurred())
        return NULL;
    if (upto < 0)
        upto = __atomic_load_n(&t->shown_offset, __ATOMIC_ACQUIRE);
    if (upto < 0) /* Python is changing the end */
        return PyLong_FromLongLong(SEG_SLOW);
    do {
        Py_BEGIN_ALLOW_THREADS
        code = seg_flush(t, upto);
        Py_END_ALLOW_THREADS
        if (code == -EINTR && PyErr_CheckSignals())
            return NULL;
    } while (code == -EINTR);
    return PyLong_FromLongLong(code);
}

static PyObject *bind(PyObject *module, PyObject *const *addresses, Py_ssize_t n)
{
    void *functions_of[4];
    if (n != 4)
        return PyErr_Format(PyExc_TypeError, "bind takes 4 arguments, not %zd", n);
    for (int i = 0; i < 4; i++)
        functions_of[i] = PyLong_AsVoidPtr(addresses[i]);
    if (PyErr_Occurred())
        return NULL;
    seg_append = (append_function)functions_of[0];
    seg_flush = (flush_function)functions_of[1];
    seg_write = (write_function)functions_of[2];
    seg_encode_list = (encode_function)functions_of[3];
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"seg_tail_append", (PyCFunction)(void (*)(void))tail_append, METH_FASTCALL,
     "Append a record, and return the answer of seg_tail_append (log.h); SEG_SLOW if value or key are neither "
     "bytes nor None, the headers no list or tuple of (str, bytes or None), or timestamp or expected offset "
     "neither None nor an int from 0 to the largest int64. The tail and the seg_batch (0: none) are addresses."},
    {"seg_tail_flush", (PyCFunction)(void (*)(void))tail_flush, METH_FASTCALL,
     "Flush up to an offset, or to the tail's end (-1), and return the answer of seg_tail_flush (log.h); never "
     "-EINTR. The tail is an address."},
    {"seg_list_append", (PyCFunction)(void (*)(void))seg_list_append, METH_FASTCALL,
     "Append n records, and return the answer of seg_tail_write (log.h); SEG_SLOW if they are not small, if values, "
     "keys, timestamps or headers are no list or tuple of n items of exact types, or if the topic's settings refuse "
     "them. Keys and headers may be None, timestamps None or one int."},
    {"bind", (PyCFunction)(void (*)(void))bind, METH_FASTCALL,
     "Take the addresses of seg_tail_append, seg_tail_flush, seg_tail_write and seg_encode of cffi's module."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "segstore._native._tail_append",
    .m_doc = "Appends that mostly keep the interpreter's lock; seg_tail_flush.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__tail_append(void)
{
    return PyModule_Create(&module_definition);
}
