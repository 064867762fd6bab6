/* Queues of records that wait in a producer, the memory of their batches, and the sender's sleep.
 *
 * The records of a queue are its futures, in a list. The records of full batches lie before those of the open batch: a
 * *cut* is the number of records of a full batch. A full batch becomes a ProducerBatch later, by `parts` and `settle`,
 * so that this takes no time of the thread that sends.
 *
 * Thread contract: the interpreter's lock is held in every call. No other Python code runs within one, except while
 * `parts` makes objects: so batches are begun, or settled, as a whole or not at all, even if an interrupt comes.
 * `parts` and `settle` also need the producer's lock.
 */
#include "producer.h"

enum { NO_BLOCK = -1 }; /* no batch is open */
enum { AHEAD = 8 };     /* records */

/* --- the memory of batches ----------------------------------------------------------------- */

static PyMemberDef pool_members[] = {
    {"waiters", T_OBJECT_EX, offsetof(Pool, waiters), 0, NULL},
    {"block_size", T_LONGLONG, offsetof(Pool, block_size), 0, NULL},
    {"_unpooled", T_LONGLONG, offsetof(Pool, unpooled), 0, NULL},
    {"_free", T_LONGLONG, offsetof(Pool, free), 0, NULL},
    {"made", T_LONGLONG, offsetof(Pool, made), 0, NULL},
    {"reused", T_LONGLONG, offsetof(Pool, reused), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static void free_pool(PyObject *object)
{
    Py_XDECREF(((Pool *)object)->waiters);
    free_object(object);
}

static PyType_Slot pool_slots[] = {
    {Py_tp_members, pool_members},
    {Py_tp_dealloc, (void *)free_pool},
    {0, NULL},
};

PyType_Spec seg_pool_spec = {
    .name = "segstore.client.producer.buffer_pool.Memory",
    .basicsize = sizeof(Pool),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = pool_slots,
};

/* Take a block, if one is free and no thread waits for memory. */
static int take_block(Pool *pool)
{
    if (PyObject_Size(pool->waiters) != 0)
        return 0;
    if (pool->free > 0) {
        pool->free--;
        pool->reused++;
        return 1;
    }
    if (pool->unpooled < pool->block_size)
        return 0;
    pool->unpooled -= pool->block_size;
    pool->made++;
    return 1;
}

/* --- the sender's sleep ---------------------------------------------------------------------- */

static PyMemberDef gate_members[] = {
    {"gate", T_OBJECT_EX, offsetof(Gate, gate), 0, NULL},
    {"asleep", T_BOOL, offsetof(Gate, asleep), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static void free_gate(PyObject *object)
{
    Py_XDECREF(((Gate *)object)->gate);
    free_object(object);
}

PyObject *seg_wake_sender(PyObject *object, PyObject *nothing)
{
    Gate *g = (Gate *)object;
    if (!g->asleep)
        Py_RETURN_NONE;
    g->asleep = 0;
    return PyObject_CallMethod(g->gate, "release", NULL);
}

static PyMethodDef gate_methods[] = {
    {"wake", seg_wake_sender, METH_NOARGS,
     "Wake the sender, if it sleeps. Any thread may call this, also without the producer's lock."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot gate_slots[] = {
    {Py_tp_members, gate_members},
    {Py_tp_methods, gate_methods},
    {Py_tp_dealloc, (void *)free_gate},
    {0, NULL},
};

PyType_Spec seg_gate_spec = {
    .name = "segstore.client.producer.accumulator.Sleep",
    .basicsize = sizeof(Gate),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = gate_slots,
};

/* --- queues ---------------------------------------------------------------------------------- */

static PyMemberDef queue_members[] = {
    {"records", T_OBJECT_EX, offsetof(Queue, records), 0, NULL},
    {"batches", T_OBJECT_EX, offsetof(Queue, batches), 0, NULL},
    {"latch", T_OBJECT, offsetof(Queue, latch), 0, NULL},
    {"callbacks", T_OBJECT, offsetof(Queue, callbacks), 0, NULL},
    {"lane", T_OBJECT, offsetof(Queue, lane), 0, NULL},
    {"left", T_LONGLONG, offsetof(Queue, left), 0, NULL},
    {"room", T_LONGLONG, offsetof(Queue, room), 0, NULL},
    {"block", T_LONGLONG, offsetof(Queue, block), 0, NULL},
    {"produced", T_LONGLONG, offsetof(Queue, produced), 0, NULL},
    {"created", T_DOUBLE, offsetof(Queue, created), 0, NULL},
    {"cut_until", T_DOUBLE, offsetof(Queue, cut_until), 0, NULL},
    {"rich", T_BOOL, offsetof(Queue, rich), 0, NULL},
    {"alone", T_BOOL, offsetof(Queue, alone), 0, NULL},
    {"held", T_BOOL, offsetof(Queue, held), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static void free_queue(PyObject *object)
{
    Queue *self = (Queue *)object;
    Py_XDECREF(self->records);
    Py_XDECREF(self->batches);
    Py_XDECREF(self->latch);
    Py_XDECREF(self->callbacks);
    Py_XDECREF(self->lane);
    PyMem_Free(self->cuts);
    free_object(object);
}

static int has_room_for_a_cut(Queue *q)
{
    if (q->n_cuts < q->room_cuts)
        return 1;
    Py_ssize_t room = q->room_cuts ? 2 * q->room_cuts : 8;
    Cut *cuts = PyMem_Realloc(q->cuts, room * sizeof(Cut));
    if (cuts == NULL)
        return 0;
    q->cuts = cuts;
    q->room_cuts = room;
    return 1;
}

int seg_cut(Queue *q, Pool *pool, long long room, double now)
{
    if (q->left < 0 || now >= q->cut_until || !has_room_for_a_cut(q) || !take_block(pool))
        return 0;
    Py_ssize_t n = PyList_Size(q->records) - q->in_cuts;
    long long size = q->room - q->left;
    q->cuts[q->n_cuts++] = (Cut){n, size, q->block, q->created};
    q->in_cuts += n;
    q->produced += size;
    q->block = pool->block_size;
    q->room = q->left = room;
    q->created = now;
    return 1;
}

int seg_open_batch(Queue *q, Pool *pool, long long room, double now)
{
    if (q->block || q->held || PyList_Size(q->records) || now >= q->cut_until || !take_block(pool))
        return 0;
    q->block = pool->block_size;
    q->room = q->left = room;
    q->created = now;
    return 1;
}

/* Prefetch the next records and values, which are scattered in memory. */
static void look_ahead(PyObject *records, Py_ssize_t at, Py_ssize_t end)
{
    if (at + 2 * AHEAD < end)
        __builtin_prefetch(PyList_GetItem(records, at + 2 * AHEAD));
    if (at + AHEAD < end)
        __builtin_prefetch(((Future *)PyList_GetItem(records, at + AHEAD))->value);
}

/* The part of a batch with the records from `first` on: values, keys or None, times (int64, ms) and sizes of values
 * (int32, -1 for None), both as bytes; bytes in all, and the time when the batch was opened. With keys, sizes are None.
 *
 * The collector would visit each value of each batch again and again, although bytes and None are part of no cycle: so
 * a tuple of only bytes and None is untracked here, as the collector itself does later.
 *
 * The garbage collector may run when objects are made here, and other threads with it: they append records, and cut. */
static PyObject *part_of(Queue *q, Py_ssize_t first, Cut c)
{
    Py_ssize_t n = c.n, end = PyList_Size(q->records);
    int rich = q->rich, hidden = n > 0; /* for all these records; a record that is queued now may change it */
    PyObject *values = PyTuple_New(n), *keys = rich ? PyList_New(n) : Py_NewRef(Py_None);
    PyObject *times = PyBytes_FromStringAndSize(NULL, n * (Py_ssize_t)sizeof(int64_t));
    PyObject *sizes = rich ? Py_NewRef(Py_None) : PyBytes_FromStringAndSize(NULL, n * (Py_ssize_t)sizeof(int32_t));
    if (values == NULL || keys == NULL || times == NULL || sizes == NULL) {
        Py_XDECREF(values);
        Py_XDECREF(keys);
        Py_XDECREF(times);
        Py_XDECREF(sizes);
        return NULL;
    }
    int64_t *time = (int64_t *)PyBytes_AsString(times);
    int32_t *size = rich ? NULL : (int32_t *)PyBytes_AsString(sizes);
    for (Py_ssize_t i = 0; i < n; i++) {
        look_ahead(q->records, first + i, end);
        Future *record = (Future *)PyList_GetItem(q->records, first + i);
        PyObject *value = record->value ? record->value : Py_None;
        PyTuple_SetItem(values, i, Py_NewRef(value));
        hidden = hidden && (value == Py_None || PyBytes_CheckExact(value));
        if (rich)
            PyList_SetItem(keys, i, Py_NewRef(record->key ? record->key : Py_None));
        else
            size[i] = value == Py_None ? -1 : (int32_t)PyBytes_Size(value);
        time[i] = record->number;
    }
    if (hidden)
        PyObject_GC_UnTrack(values);
    PyObject *part = Py_BuildValue("(NNNNLd)", values, keys, times, sizes, c.size, c.created);
    if (part != NULL && hidden && !rich)
        PyObject_GC_UnTrack(part);
    return part;
}

/* `c` is a copy: the array of cuts may move during this call. */
static int add_part(PyObject *parts, Queue *q, Py_ssize_t first, Cut c)
{
    PyObject *part = part_of(q, first, c);
    int failed = part == NULL || PyList_Append(parts, part) < 0;
    Py_XDECREF(part);
    return failed ? -1 : 0;
}

static PyObject *parts(PyObject *object, PyObject *whole)
{
    Queue *q = (Queue *)object;
    Py_ssize_t first = 0;
    PyObject *made = PyList_New(0);
    int failed = made == NULL;
    for (Py_ssize_t i = 0; !failed && i < q->n_cuts; first += q->cuts[i++].n)
        failed = add_part(made, q, first, q->cuts[i]) < 0;
    if (!failed && whole == Py_True) {
        if (q->left >= 0)
            q->closed = q->room - q->left;
        q->left = NO_BLOCK;
        Cut open = {PyList_Size(q->records) - first, q->closed, q->block, q->created};
        failed = open.n > 0 && add_part(made, q, first, open) < 0;
    }
    if (failed)
        Py_CLEAR(made);
    return made;
}

/* Move the next records of the queue into a batch. */
static int place(Queue *q, PyObject *batch, Py_ssize_t first, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++) {
        Future *record = (Future *)PyList_GetItem(q->records, first + i);
        put(&record->holder, batch);
        put(&record->value, NULL);
        put(&record->key, NULL);
        record->number = i;
    }
    return 0;
}

static int set_number(PyObject *batch, const char *name, long long number)
{
    PyObject *made = PyLong_FromLongLong(number);
    int failed = made == NULL || PyObject_SetAttrString(batch, name, made) < 0;
    Py_XDECREF(made);
    return failed ? -1 : 0;
}

/* Give the queue's latch to the batch: waiters of a record look again when the first batch is done. */
static int hand_on(Queue *q, PyObject *batch)
{
    if (q->latch && q->latch != Py_None && PyObject_SetAttrString(batch, "latch", q->latch) < 0)
        return -1;
    if (q->callbacks && q->callbacks != Py_None && PyObject_SetAttrString(batch, "callbacks", q->callbacks) < 0)
        return -1;
    put(&q->latch, NULL);
    put(&q->callbacks, NULL);
    return 0;
}

static PyObject *settle(PyObject *object, PyObject *arguments)
{
    Queue *q = (Queue *)object;
    PyObject *made, *incomplete, *sealed;
    if (!PyArg_ParseTuple(arguments, "O!O!O!", &PyList_Type, &made, &PyDict_Type, &incomplete, &PyDict_Type, &sealed))
        return NULL;
    Py_ssize_t n_made = PyList_Size(made), first = 0, cuts = n_made < q->n_cuts ? n_made : q->n_cuts;
    for (Py_ssize_t i = 0; i < n_made; i++) {
        PyObject *batch = PyList_GetItem(made, i);
        if (PyDict_SetItem(incomplete, batch, Py_None) < 0 ||
            set_number(batch, "block", i < cuts ? q->cuts[i].block : q->block) < 0)
            return NULL;
    }
    PyObject *extended = PySequence_InPlaceConcat(q->batches, made);
    if (extended == NULL || PyDict_SetItem(sealed, object, Py_None) < 0 ||
        hand_on(q, PyList_GetItem(made, 0)) < 0) {
        Py_XDECREF(extended);
        return NULL;
    }
    Py_DECREF(extended);
    for (Py_ssize_t i = 0; i < n_made; i++) {
        Py_ssize_t n = i < cuts ? q->cuts[i].n : PyList_Size(q->records) - first;
        place(q, PyList_GetItem(made, i), first, n);
        first += n;
    }
    if (n_made > cuts) {
        q->produced += q->closed;
        q->block = q->room = q->closed = 0;
    }
    for (Py_ssize_t i = 0; i < cuts; i++)
        q->in_cuts -= q->cuts[i].n;
    for (Py_ssize_t i = cuts; i < q->n_cuts; i++)
        q->cuts[i - cuts] = q->cuts[i];
    q->n_cuts -= cuts;
    if (PyList_SetSlice(q->records, 0, first, NULL) < 0)
        return NULL;
    return PyBool_FromLong(q->n_cuts);
}

static PyMethodDef queue_methods[] = {
    {"parts", parts, METH_O,
     "Return the full batches, and with True also the open one, which is closed: a list of (values, keys, times, sizes, "
     "bytes, time of opening)."},
    {"settle", settle, METH_VARARGS,
     "Move the records of the first parts, one for each batch, into the batches: (batches, all incomplete batches, queues "
     "with sealed batches). Return whether the queue still has full batches."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot queue_slots[] = {
    {Py_tp_members, queue_members},
    {Py_tp_methods, queue_methods},
    {Py_tp_dealloc, (void *)free_queue},
    {0, NULL},
};

PyType_Spec seg_queue_spec = {
    .name = "segstore.client.producer.batch.Records",
    .basicsize = sizeof(Queue),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = queue_slots,
};

